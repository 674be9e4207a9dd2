"""Measures the pipeline `evolution`: many workers, and a device's population.

  python -m benchmarks.evolution

The first table has canned workers, which compute nothing and sleep 100 ms for
each episode, and the rate of one of them beside that with 4 workers. The second
one has the env steps of a population of 512 on functional CartPole: in the
pipeline, for a policy that has learned (episodes of 500 steps) and for a new
one, beside its steps and forward passes alone; and with evosax's `Open_ES`
(Lange 2022, https://arxiv.org/abs/2212.04180) in the same environments, if
evosax can be imported: `pip install evosax`.
"""

import functools
import multiprocessing
import os
import tempfile
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedx import envs, sharding, wire
from seedx.acting import perturbed, unroll_messages
from seedx.agents import acting_step, base, evolution, models
from seedx.envs import functional
from seedx.pipelines import evolution as pipeline
from seedx.pipelines.evolution import on_device
from seedx.runtime import process, running

_WORKERS = (4, 16, 64)
_EPISODE_SECONDS = 0.1
_SECONDS = 15.0
_PAIRS_PER_WORKER = 8
_LEASE = 2
_AGENT = evolution.Config(hidden_sizes=(64, 64))
_STEPS = 500
_REPEATS = 5


def main() -> None:
  """Prints both tables."""
  print("| workers | episodes/s | per worker, of 4 workers | learner's CPU |")
  print("|---|---|---|---|")
  first = 0.0
  for workers in _WORKERS:
    rate, cpu = _streams(workers)
    first = first or rate / workers
    share = rate / workers / first
    print(f"| {workers} | {rate:.1f} | {share:.2f} | {cpu:.2f} cores |")
  alone, evosax, trained, fresh, useful = _device()
  print("\n| population of 512, functional CartPole | env steps/s | share |")
  print("|---|---|---|")
  print(f"| steps and forward passes alone | {alone:,.0f} | 1 |")
  if evosax:
    print(f"| evosax's Open_ES | {evosax:,.0f} | {evosax / alone:.2f} |")
  print(
    f"| pipeline, learned policy | {trained:,.0f} | {trained / alone:.2f} |"
  )
  print(f"| pipeline, new policy | {fresh:,.0f} | {fresh / alone:.2f} |")
  print(f"\nenvironments with a member, new policy: {useful:.0%} of the steps")


def _streams(workers: int) -> tuple[float, float]:
  """Returns episodes per second, and CPU seconds per second of the learner."""
  population = perturbed.Config(
    pairs=_PAIRS_PER_WORKER * workers,
    num_workers=workers,
    pairs_per_worker=_LEASE,
  )
  with tempfile.TemporaryDirectory() as folder:
    config = pipeline.Config(
      env=envs.Config("CartPole-v1"),
      agent=_AGENT,
      total_steps=10**12,
      population=population,
    ).with_sockets(folder)
    context = process.Context()
    made = config.learn(context)
    thread = threading.Thread(
      target=running.run, args=(made, context, (), 0.5), daemon=True
    )
    thread.start()
    child = multiprocessing.get_context("spawn").Process(
      target=_canned, args=(config,), daemon=True
    )
    child.start()
    while made.acted.returns.count < 8 * workers:  # Compiles, and connects.
      time.sleep(0.1)
    began, cpu = time.monotonic(), time.process_time()
    before = made.acted.returns.count
    time.sleep(_SECONDS)
    seconds = time.monotonic() - began
    rate = (made.acted.returns.count - before) / seconds
    used = (time.process_time() - cpu) / seconds
    context.stop.set()
    thread.join()
    child.join()
  return rate, used


def _canned(config: pipeline.Config) -> None:
  """Runs all workers as threads."""
  threads = [
    threading.Thread(target=_worker, args=(config, k))
    for k in range(config.population.num_workers)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  os._exit(0)


def _worker(config: pipeline.Config, seed: int) -> None:
  rng = np.random.default_rng(seed)
  results, lease = perturbed.layouts((), config.population)
  fitness = unroll_messages.parameters_layout(
    perturbed.no_results((), config.population.pairs)
  )
  with wire.Client(config.address) as client:
    returns = client.exchange(perturbed.RESULTS, results, lease)
    updates = client.exchange(perturbed.FITNESS, wire.NOTHING, fitness)
    played, version = perturbed.no_results(()), -1
    while (held := returns(played)) is not None:
      if 0 <= version < held.version and updates(()) is None:
        return
      version = int(held.version)
      shape = len(held.pair), 2
      time.sleep(_EPISODE_SECONDS * 2 * len(held.pair))
      played = played._replace(
        version=held.version,
        pair=held.pair,
        returns=np.float32(rng.normal(size=shape)),
        lengths=np.full(shape, 100, np.int32),
      )


def _device() -> tuple[float, float | None, float, float, float]:
  """Returns the rates of the second table, and the share of used steps."""
  config = on_device.Config(
    agent=evolution.Config().for_small(), total_steps=3_000_000
  )
  spec = envs.spec(config.env)
  agent = config.agent.make(spec)
  new = jax.jit(agent.init)(jax.random.key(0))
  context = process.Context()
  made = config.learn(context)
  running.run(made, context, (), 1.0)
  trained = made.parts["agent"].saved().agent
  play = sharding.per_core(
    on_device.episodes(agent, config),
    sharding.mesh(config.learner.cores()),
    sharding.REPLICATED,
    sharding.REPLICATED,
  )
  update = jax.jit(agent.update)
  pair = np.arange(config.population.pairs, dtype=np.int32)

  def iterate(state: base.AgentState) -> np.ndarray:
    played = jax.device_get(play(state, pair))
    batch = evolution.Fitness(np.int32(0), pair, *played)
    jax.block_until_ready(update(state, jax.random.key(0), batch))
    return np.asarray(batch.lengths)

  rates, used = [], []
  for state in (trained, new):
    seconds = _fastest(functools.partial(iterate, state))
    lengths = iterate(state)
    rates.append(lengths.sum() / seconds)
    used.append(lengths.mean() / lengths.max())
  return *_beside(config, agent, trained), rates[0], rates[1], used[1]


def _beside(
  config: on_device.Config, agent: base.Agent, state: base.AgentState
) -> tuple[float, float | None]:
  """Returns the env steps per second of members that never change.

  And those of evosax's ES; None if it cannot be imported.
  """
  environment = functional.make(config.env)
  spec, number = envs.spec(config.env), 2 * config.population.pairs
  keys = functional.keys(0, number)
  env = jax.jit(functools.partial(functional.init, environment))(keys)
  agent, zeros = acting_step.per_row(agent), jnp.zeros(number)

  @jax.jit
  def steps(params: Any) -> jax.Array:
    acting, key = models.Variables(params, ()), jax.random.key(0)
    member = acting_step.initial_state(agent, spec, number)

    def step(carry: Any, time: jax.Array) -> Any:
      env, member, returns = carry
      times = jnp.full(number, time)
      env, timestep = functional.step(
        environment, env, member.action, keys, times
      )
      taken = acting_step.take(agent, acting, key, timestep, member, zeros)
      return (env, taken.acting_state, returns + timestep.reward), None

    carry = env, member, zeros
    return jax.lax.scan(step, carry, jnp.arange(_STEPS))[0][2]

  params = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (number, *x.shape)), state.params
  )
  alone = number * _STEPS / _fastest(lambda: np.asarray(steps(params)))
  try:
    from evosax.algorithms import Open_ES
  except ImportError:
    return alone, None
  strategy = Open_ES(number, state.params)
  options, key = strategy.default_params, jax.random.key(0)
  search = strategy.init(key, state.params, options)

  @jax.jit
  def iterate(search: Any) -> Any:
    population, search = strategy.ask(key, search, options)
    returns = steps(population)
    # It minimizes.
    return strategy.tell(key, population, -returns, search, options)[0]

  seconds = _fastest(lambda: jax.block_until_ready(iterate(search)))
  return alone, number * _STEPS / seconds


def _fastest(function: Any) -> float:
  """Returns the seconds of the fastest of several calls, after a first one."""
  function()
  seconds = []
  for _ in range(_REPEATS):
    began = time.monotonic()
    function()
    seconds.append(time.monotonic() - began)
  return min(seconds)


if __name__ == "__main__":
  main()
