"""Measures an update of SAC and of TD3, beside a plain jitted function.

  python -m benchmarks.critics

The plain function (`benchmarks/plain_updates.py`) has the same losses, sizes
and optimizers, but no replay, no sharding and no metrics. In each round, the
program calls, one after another: the plain update; the agent's update, jitted
alone; the learner's step, that is the agent's update with all checks and
metrics, the drawing of its batch, and its share of adding to the replay and of
publishing; and a whole run, which also acts and steps the environment, with one
update for each env step. Then it measures parts of the learner's step, each
jitted alone.

All of this is on one core. The numbers are CPU milliseconds: other programs
change them less than seconds. Ratios are those of the same round: their median,
and the lowest and the highest.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import plain_updates, self_play, watched
from benchmarks.speed import work
from seedx import envs, files, sharding, types
from seedx.acting import local_actor, unroll_store
from seedx.agents import base
from seedx.app import compiled
from seedx.learning import learner as learner_lib
from seedx.metrics import cpu_time
from seedx.on_cpu import allocator
from seedx.pipelines import sync
from seedx.runtime import process

_RESULTS = pathlib.Path(__file__).parent / "critics.json"
_PLAIN, _UPDATE, _STEP, _RUN = "plain", "update", "learner's step", "whole run"
_METHODS = (_PLAIN, _UPDATE, _STEP, _RUN)
_GRADIENTS, _APPLY, _DRAW = "gradients", "apply", "draw from the replay"
_ADAM, _LEARN = "Adam", "learn"
_WARM_CALLS = 20


class Method(NamedTuple):
  """A way to update.

  Attributes:
    call: makes one update on average; the update may still be running.
    finish: waits for all updates.
  """

  call: Callable[[], object]
  finish: Callable[[], object]


def main(argv: Sequence[str] | None = None) -> int:
  """Measures all agents and environments, and prints tables."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--agents", default="sac,td3")
  parser.add_argument("--envs", default="Pendulum-v1,HalfCheetah-v4")
  parser.add_argument("--rounds", type=int, default=7)
  parser.add_argument("--calls", type=int, default=80, help="in a round")
  parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
  parser.add_argument("--results", type=pathlib.Path, default=_RESULTS)
  options = parser.parse_args(argv)
  # Before JAX starts its threads.
  os.sched_setaffinity(0, {options.core})
  allocator.keep_freed_memory()
  compiled.keep()
  results: dict[str, Any] = {"machine": self_play.machine()}
  names = itertools.product(options.agents.split(","), options.envs.split(","))
  for agent, env in names:
    print(f"{agent}, {env}", file=sys.stderr, flush=True)
    config = work.config_of(agent, env)
    results[f"{agent}, {env}"] = measure(agent, config, options)
    files.write_file(options.results, json.dumps(results, indent=1) + "\n")
  print(
    f"{results.pop('machine')}\n\n{table(results)}\n\n{parts_table(results)}"
  )
  return 0


def measure(
  name: str, config: sync.Config, options: argparse.Namespace
) -> dict[str, Any]:
  """Returns the milliseconds of each method and part, in each round.

  `cpu` has CPU milliseconds by method, `wall` those of the clock, `parts` the
  CPU milliseconds of each part; `load` has the mean number of runnable
  processes of the last minute, `others` the mean number of cores that other
  programs used.
  """
  # A share has this many env steps, after which as many updates are due.
  period = config.learner.unroll_length
  calls = -(-options.calls // period) * period
  one = _Learning.of(config)
  methods = {
    _PLAIN: _plain(name, one.batch),
    _UPDATE: one.update(),
    _STEP: one.step(period),
    _RUN: _run(config),
  }
  parts = one.parts()
  for method in (*methods.values(), *parts.values()):
    _milliseconds(method, _WARM_CALLS)
  others = cpu_time.Others()
  cpu: dict[str, list[float]] = collections.defaultdict(list)
  wall: dict[str, list[float]] = collections.defaultdict(list)
  for _ in range(options.rounds):
    for key, method in (methods | parts).items():
      for kind, value in zip(
        (cpu, wall), _milliseconds(method, calls), strict=True
      ):
        kind[key].append(value)
  return {
    "cpu": {key: cpu[key] for key in methods},
    "wall": {key: wall[key] for key in methods},
    "parts": {key: cpu[key] for key in parts},
    "load": os.getloadavg()[0],
    "others": others.cores,
  }


def table(results: Mapping[str, Any]) -> str:
  """Returns a table of all methods: milliseconds, and ratios to the plain."""
  header = ["CPU ms an update", _PLAIN]
  for method in _METHODS[1:]:
    header += [method, "ratio"]
  header += ["updates/s of the run", "load"]
  rows = []
  for name, result in results.items():
    cpu = result["cpu"]
    row = [name, f"{statistics.median(cpu[_PLAIN]):.2f}"]
    for method in _METHODS[1:]:
      ratios = [x / y for x, y in zip(cpu[method], cpu[_PLAIN], strict=True)]
      row.append(f"{statistics.median(cpu[method]):.2f}")
      row.append(
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
      )
    row.append(f"{1e3 / statistics.median(result['wall'][_RUN]):.0f}")
    rows.append([*row, f"{result['load']:.1f}"])
  return watched.table(header, rows)


def parts_table(results: Mapping[str, Any]) -> str:
  """Returns a table of where the CPU time of a run's update goes."""
  columns = [shares(result) for result in results.values()]
  rows = (
    [part, *(f"{column.get(part, 0.0):.2f}" for column in columns)]
    for part in columns[0]
  )
  return watched.table(("CPU ms an update", *results), rows)


def shares(result: Mapping[str, Any]) -> dict[str, float]:
  """Returns the CPU milliseconds of each part of a run's update."""
  cpu = {key: statistics.median(x) for key, x in result["cpu"].items()}
  parts = {key: statistics.median(x) for key, x in result["parts"].items()}
  groups = [key for key in parts if key.startswith("gradient of")]
  costs = {"draw from the replay": parts[_DRAW]}
  costs |= {key: parts[key] for key in groups}
  costs["metrics, temperature"] = parts[_GRADIENTS] - sum(
    parts[key] for key in groups
  )
  costs["Adam"] = parts[_ADAM]
  costs["Polyak averages"] = parts[_APPLY] - parts[_ADAM]
  costs["check of the state, and host"] = parts[_LEARN] - (
    parts[_GRADIENTS] + parts[_APPLY]
  )
  costs["adding to the replay, publishing"] = cpu[_STEP] - (
    parts[_LEARN] + parts[_DRAW]
  )
  costs["acting and environment"] = cpu[_RUN] - cpu[_STEP]
  return costs


def transitions(sample: types.Sample) -> plain_updates.Batch:
  """Returns the transitions of windows of two time steps."""
  unroll = sample.unroll
  timestep = unroll.inputs.timestep
  return plain_updates.Batch(
    observation=timestep.observation[0],
    action=unroll.action[0],
    reward=timestep.reward[1],
    discount=timestep.discount[1],
    next_observation=timestep.observation[1],
  )


class _Learning(NamedTuple):
  """An agent, its learner and a batch from its replay."""

  agent: base.Agent
  learner: learner_lib.Learner
  source: Any
  shares: Sequence[types.Share]
  batch: types.Sample

  @classmethod
  def of(cls, config: sync.Config) -> "_Learning":
    """Makes a learner as a run does, whose replay has some steps."""
    spec, key = envs.spec(config.env), jax.random.key(0)
    agent = config.plan.agent(config.agent, spec, sharding.CORES)
    period = config.learner.unroll_length
    layout = unroll_store.Layout.of(agent, period, config.num_envs)
    share = work.made_up(local_actor.Programs(agent, spec, layout).share())
    source = config.plan.source(agent, config.learner.cores(), key)
    learner = learner_lib.Learner(agent, config.learner, source, key)
    shares = learner.shares(*share)
    steps = config.num_envs * period
    assert config.replay is not None
    for i in range(config.replay.replay_min_steps // steps + 1):
      learner.learn_from([work.continued(x, i) for x in shares])
    learner.finish()
    (batch,) = source.example(shares).parts
    # Without a mesh, for the updates that are jitted alone.
    alone = config.plan.agent(config.agent, spec)
    return cls(alone, learner, source, shares, batch)

  def update(self) -> Method:
    """Returns the agent's update, jitted alone, with a donated state."""
    program = jax.jit(self.agent.update, donate_argnums=0)
    state = jax.tree.map(jnp.copy, self.learner.state)
    keys = itertools.cycle([*jax.random.split(jax.random.key(0), 16)])

    def call() -> None:
      nonlocal state
      state, _ = program(state, next(keys), self.batch)

    return Method(call, lambda: jax.block_until_ready(state))

  def step(self, period: int) -> Method:
    """Returns the learner's step; each `period` calls add one share."""
    number = itertools.count()

    def call() -> None:
      index = next(number)
      if index % period == 0:
        share = [work.continued(x, index // period) for x in self.shares]
        self.learner.learn_from(share)
        self.learner.publish()

    return Method(call, self.learner.finish)

  def parts(self) -> dict[str, Method]:
    """Returns the parts of the learner's step, each jitted alone.

    XLA computes only what a program returns, so a program that returns the
    gradient of one group computes only that.
    """
    agent, state = self.agent, self.learner.state
    # An actor may have a gradient in every second update only.
    states = [
      dataclasses.replace(state, updates=jnp.int32(n)) for n in (1000, 1001)
    ]
    key = jax.random.key(0)
    whole = jax.jit(agent.gradients)
    gradients = [whole(x, key, self.batch)[0] for x in states]

    def group(name: str) -> Method:
      program = jax.jit(
        lambda *arguments: agent.gradients(*arguments)[0].params[name]
      )
      return _alternating([(program, (x, key, self.batch)) for x in states])

    def adam(state: base.AgentState, gradients: base.Gradients) -> types.Tree:
      after = agent.apply(state, gradients)
      return after.params, after.optimizer_state

    def both(function: Callable[..., Any]) -> Method:
      program = jax.jit(function)
      pairs = zip(states, gradients, strict=True)
      return _alternating([(program, pair) for pair in pairs])

    batch = self.source.example(self.shares)._replace(updates=None)
    return {
      **{f"gradient of the {x}": group(x) for x in ("actor", "critic")},
      _GRADIENTS: _alternating([(whole, (x, key, self.batch)) for x in states]),
      _ADAM: both(adam),
      _APPLY: both(agent.apply),
      _DRAW: _alternating([(self.source.example, (self.shares,))]),
      _LEARN: Method(lambda: self.learner.learn(batch), self.learner.finish),
    }


def _alternating(
  calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
) -> Method:
  """Returns a method that makes these calls in turn."""
  turns, last = itertools.cycle(calls), None

  def call() -> None:
    nonlocal last
    function, arguments = next(turns)
    last = function(*arguments)

  return Method(call, lambda: jax.block_until_ready(last))


def _plain(name: str, sample: types.Sample) -> Method:
  """Returns the plain update of a batch from the replay."""
  batch = transitions(sample)
  state, program = plain_updates.make(name, batch)

  def call() -> None:
    nonlocal state
    state = program(state, batch)

  return Method(call, lambda: jax.block_until_ready(state))


def _run(config: sync.Config) -> Method:
  """Returns the env steps of a run that has begun to learn."""
  made = config.learn(process.Context())
  assert made.steps is not None
  steps = made.steps()
  while not made.measure()["learner_steps"]:
    next(steps)
  return Method(lambda: next(steps), made.close)


def _milliseconds(method: Method, calls: int) -> tuple[float, float]:
  """Returns CPU and wall milliseconds of a call."""
  method.finish()
  start = time.process_time(), time.monotonic()
  for _ in range(calls):
    method.call()
  method.finish()
  end = time.process_time(), time.monotonic()
  cpu, wall = (1e3 * (y - x) / calls for x, y in zip(start, end, strict=True))
  return cpu, wall


if __name__ == "__main__":
  sys.exit(main())
