"""Measures the CPU time of a tiny update and of an actor's message.

  python -m benchmarks.overhead

The update's batch has one unroll of one step, so there is almost no arithmetic.
Almost all of the time is the call of a program with all arrays of the agent
state. The actor's message is measured part by part. The table has a low
quantile of the calling thread's CPU microseconds, which other programs hardly
change.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import watched
from benchmarks.speed import work
from seedx import envs, sharding, trees
from seedx.acting import local_actor, protocol, unroll_store
from seedx.agents import vtrace
from seedx.app import devices
from seedx.learning import experience, learner

_QUANTILE, _WARM_CALLS = 0.2, 20


def main(argv: Sequence[str] | None = None) -> int:
  """Measures updates and messages, and prints a table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--calls", type=int, default=400)
  parser.add_argument("--envs", default="CartPole-v1", help="names, A,B")
  parser.add_argument("--rows", type=int, default=128, help="of a message")
  options = parser.parse_args(argv)
  devices.compute_on_own_threads()
  costs = [("update", x, y) for x, y in of_update(options.calls)]
  for name in options.envs.split(","):
    message = f"message of {options.rows} rows of {name}"
    for part, micros in of_message(name, options.rows, options.calls):
      costs.append((message, part, micros))
  rows = ([what, part, f"{micros:.1f}"] for what, part, micros in costs)
  print(watched.table(("", "part", "CPU us"), rows))
  return 0


def of_update(calls: int) -> list[tuple[str, float]]:
  """Returns the microseconds of each part of an update of V-trace."""
  spec = envs.spec(envs.Config("CartPole-v1"))
  config = learner.Config(unroll_length=1)
  plan = config.plan(total_steps=10**9, batch_steps=1)
  agent = plan.agent(vtrace.Config(), spec, sharding.CORES)
  source = experience.Once()
  one = learner.Learner(agent, config, source, jax.random.key(0))
  layout = unroll_store.Layout.of(agent, 1, 1)
  programs = local_actor.Programs(agent, spec, layout)
  share = jax.device_put(work.made_up(programs.share()))
  batch = source.example([share])
  state = one.state
  copy = jax.jit(lambda state: jax.tree.map(lambda x: x + 0, state))
  leaves = len(jax.tree.leaves(state))
  return [
    ("learn", _micros(lambda: one.learn(batch), calls)),
    ("publish", _micros(lambda: one.publish(wait=False), calls)),
    ("newest", _micros(one.newest, calls)),
    (
      f"a program that copies the state's {leaves} arrays",
      _micros(lambda: jax.block_until_ready(copy(state)), calls),
    ),
  ]


def of_message(name: str, rows: int, calls: int) -> list[tuple[str, float]]:
  """Returns the microseconds of the parts of a thin actor's message."""
  config = envs.Config(name)
  spec = envs.spec(config)
  inputs, outputs = protocol.act_layouts(spec, rows)
  actions = trees.zeros(spec.action, (rows,))
  reply = outputs.encode(actions)
  environments = envs.make(config, rows, batch_size=rows, seed=0)
  times: dict[str, list[float]] = {"receive": [], "encode": [], "decode": []}
  times["send"] = []
  environments.reset()
  for _ in range(_WARM_CALLS + calls):
    marks = [time.thread_time()]
    received = environments.recv()
    marks.append(time.thread_time())
    inputs.encode(received)
    marks.append(time.thread_time())
    decoded = outputs.decode(reply)
    marks.append(time.thread_time())
    environments.send(received.index, decoded)
    marks.append(time.thread_time())
    for each, seconds in zip(times.values(), np.diff(marks), strict=True):
      each.append(seconds)
  environments.close()
  return [(part, _quantile(x[_WARM_CALLS:])) for part, x in times.items()]


def _micros(call: Callable[[], Any], calls: int) -> float:
  """Returns the CPU microseconds of a call on this thread."""
  times = []
  for _ in range(_WARM_CALLS + calls):
    start_seconds = time.thread_time()
    call()
    times.append(time.thread_time() - start_seconds)
  return _quantile(times[_WARM_CALLS:])


def _quantile(seconds: Sequence[float]) -> float:
  return 1e6 * float(np.quantile(seconds, _QUANTILE))


if __name__ == "__main__":
  sys.exit(main())
