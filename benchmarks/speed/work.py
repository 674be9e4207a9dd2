"""The work of a run, in three parts: environments, acting and learning.

The rest of a run is messages and queues. Each part is measured alone, in
processes of its own, with the sizes of the experiment's config. Costs are in
CPU seconds per env step. Their sum sets an upper bound on the env steps per
second that a run can reach on a given number of CPU cores.
"""

import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing import synchronize
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import envs, sharding, types
from seedx.acting import local_actor, unroll_store
from seedx.agents import acting_step, base, models
from seedx.app import devices
from seedx.app.settings import opponents
from seedx.app.studies import trials
from seedx.envs import config as env_config
from seedx.envs import envpool_spec
from seedx.launch import topology
from seedx.learning import learner as learner_lib
from seedx.learning import shared_state
from seedx.on_cpu import allocator
from seedx.pipelines import a3c, gorila, impala, seed, sync
from seedx.runtime import process

_Workers = a3c.Config | gorila.Config
Config = seed.Config | impala.Config | sync.Config | _Workers

# More env steps than a run makes until the benchmark ends it.
_TOTAL_STEPS = 10**10
_ENVIRONMENTS, _ACTING, _LEARNING = "environments", "acting", "learning"
# The first calls, which may compile, are not measured.
_WARM_SECONDS = 0.2
_WARM_CALLS = 3


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a pipeline's work.

  Attributes:
    pools: number of processes, or threads, that step environments.
    envs: number of environments of each pool.
    period: T, the number of new env steps of each environment in an unroll.
    unrolls: number of unrolls in an update.
    slots: number of slots of one unroll store.
    rows: number of rows in a batch of inference.
    threads: number of threads of EnvPool in each pool.
    message_steps: env steps in a message to the learner; 0 without messages.
    elsewhere: names of the parts that run outside the learner's process.
  """

  pools: int
  envs: int
  period: int
  unrolls: int
  slots: int
  rows: int
  threads: int = 1
  message_steps: int = 0
  elsewhere: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class OwnWork:
  """The cost of each part of a run, measured alone.

  Attributes:
    sizes: the sizes with which the parts were measured.
    alone_per_second: env steps per second of the environments alone, with
      random actions.
    environments: CPU seconds per env step to step the environments.
    acting: CPU seconds per env step to act.
    learning: CPU seconds per env step to learn, as often as the experiment
      learns from a step.
  """

  sizes: Sizes
  alone_per_second: float
  environments: float
  acting: float
  learning: float

  @property
  def total(self) -> float:
    """The sum of all parts' CPU seconds per env step."""
    return self.environments + self.acting + self.learning

  @property
  def elsewhere(self) -> float:
    """CPU seconds per env step of the parts outside the learner's process."""
    return sum(getattr(self, name) for name in self.sizes.elsewhere)


class Learning(NamedTuple):
  """Functions that learn from the same share repeatedly.

  Attributes:
    learn: learns from the share; may return before the update is done.
    updates: returns the number of updates so far.
    finish: waits until all updates are done.
  """

  learn: Callable[[], object]
  updates: Callable[[], float]
  finish: Callable[[], object]


def words_of(words: str, env: str) -> list[str]:
  """Returns the command-line words of a trial that does not end by itself."""
  return trials.words_of(words, env, _TOTAL_STEPS)


def config_of(words: str, env: str) -> Any:
  """Returns the config of an experiment's pipeline.

  Args:
    words: the experiment and its own options.
    env: name of the environment, unless the experiment's options have one.
  """
  asked = trials.read(words_of(words, env))
  config = opponents.resolved(asked.run.env, asked.files.trust)
  return dataclasses.replace(asked.run, env=config)


def sizes_of(config: process.Config) -> Sizes:
  """Returns the sizes of a pipeline's work.

  Raises:
    types.ConfigError: the pipeline does not come with seedx.
  """
  if isinstance(config, seed.Config):
    actors, learner = config.actors, config.learner
    agent = config.plan.agent(config.agent, envs.spec(config.env))
    first, *_ = config.inference.sizes(
      agent, actors, learner.unroll_length, learner.share_size
    )
    return _sizes(
      actors.num_actors,
      actors.envs_per_actor,
      learner.unroll_length,
      unrolls=learner.batch_size,
      slots=first.layout.num_slots,
      rows=min(first.target_rows, first.layout.num_slots),
      message_steps=actors.rows,
      elsewhere=(_ENVIRONMENTS,),
    )
  if isinstance(config, impala.Config):
    num_envs, period = (
      config.actors.envs_per_actor,
      config.learner.unroll_length,
    )
    return _sizes(
      config.actors.num_actors,
      num_envs,
      period,
      unrolls=config.learner.batch_size,
      message_steps=num_envs * period,
      elsewhere=(_ENVIRONMENTS, _ACTING),
    )
  if isinstance(config, sync.Config):
    period, threads = config.learner.unroll_length, config.env_threads
    return _sizes(1, config.num_envs, period, threads=threads)
  if not isinstance(config, _Workers):
    raise types.ConfigError(
      "expected an experiment with one of seedx's pipelines, found one with"
      f" {type(config).__module__}"
    )
  workers = config.workers
  others: dict[str, Any] = {}
  if isinstance(config, gorila.Config):
    others["message_steps"] = workers.batch_steps
    others["elsewhere"] = (_ENVIRONMENTS, _ACTING, _LEARNING)
  return _sizes(
    workers.num_workers,
    workers.envs_per_worker,
    workers.unroll_length,
    **others,
  )


def _sizes(pools: int, num_envs: int, period: int, **others: Any) -> Sizes:
  """Makes sizes; `num_envs` is the default for unrolls, slots and rows."""
  by_pool = dict.fromkeys(("unrolls", "slots", "rows"), num_envs)
  return Sizes(pools=pools, envs=num_envs, period=period, **by_pool | others)


def measure(words: str, env: str, seconds: float) -> OwnWork:
  """Measures each part of an experiment for `seconds`; see `config_of`.

  Raises:
    types.ConfigError: the experiment cannot be measured.
  """
  costs = []
  for part in (environments, acting, learning):
    print(f"{part.__name__} alone", file=sys.stderr, flush=True)
    sizes, cost = in_process(_measure, part, words, env, seconds)
    costs.append(cost)
  (rate, stepping_cost), acting_cost, learning_cost = costs
  return OwnWork(sizes, rate, stepping_cost, acting_cost, learning_cost)


def environments(
  config: Config, sizes: Sizes, seconds: float
) -> tuple[float, float]:
  """Measures all pools at the same time, with random actions.

  Returns:
    Env steps per second, and CPU seconds per env step.

  Raises:
    types.ConfigError: the environment is the user's own; other processes step
      it.
  """
  if env_config.is_own(config.env):
    raise types.ConfigError(
      "expected an environment of EnvPool or seedx, whose CPU time can be"
      f" measured, found {config.env.env}"
    )
  context = multiprocessing.get_context("spawn")
  begin = context.Barrier(sizes.pools)
  with concurrent.futures.ProcessPoolExecutor(
    sizes.pools, context, _keep_barrier, (begin,)
  ) as processes:
    futures = [
      processes.submit(_pool, config.env, sizes, seconds, index)
      for index in range(sizes.pools)
    ]
    results = [x.result() for x in futures]
  steps = sum(x for x, _, _ in results)
  per_second = sum(steps / elapsed for steps, elapsed, _ in results)
  return per_second, sum(cpu for _, _, cpu in results) / steps


def acting(config: Config, sizes: Sizes, seconds: float) -> float:
  """Returns the CPU seconds per env step of acting and of first priorities."""
  act, prioritize = actor(config, sizes)
  cost = cpu_seconds_per_call(act, seconds) / sizes.rows
  if prioritize is None:
    return cost
  unrolls_cost = cpu_seconds_per_call(prioritize, seconds)
  return cost + unrolls_cost / (sizes.slots * sizes.period)


def actor(
  config: Config, sizes: Sizes
) -> tuple[Callable[[], object], Callable[[], object] | None]:
  """Makes the functions of an actor with `sizes.rows` environments.

  Returns:
    A function that acts once; and a function that computes the first priorities
    of all unrolls, None if the agent has no priorities.
  """
  spec = envs.spec(config.env)
  on_cpu = isinstance(config, impala.Config)
  agent_config = models.on_cpu(config.agent) if on_cpu else config.agent
  agent = config.plan.agent(agent_config, spec)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.slots)
  programs = local_actor.Programs(agent, spec, layout)
  key, version = jax.random.key(0), np.int32(0)
  params = jax.jit(lambda x: agent.acting(agent.init(x)))(key)
  store, params, key = jax.device_put(
    (programs.empty(), params, key), _device(sizes, _ACTING)
  )
  inputs = acting_step.zero_inputs(spec, sizes.rows)
  timestep, step = _mid(inputs.timestep), 0

  def act() -> None:
    nonlocal store, step
    first = step * sizes.rows
    slot = np.arange(first, first + sizes.rows, dtype=np.int64) % sizes.slots
    count = np.full(sizes.rows, first // sizes.slots, np.int32)
    batch = unroll_store.Batch(slot.astype(np.int32), count, timestep)
    store, actions = programs.act(store, params, version, key, batch)
    np.asarray(actions)  # Copies the actions to the host, as an actor does.
    step += 1

  if agent.priorities is None:
    return act, None
  slot = jnp.zeros(sizes.slots, jnp.int32)
  unroll = unroll_store.unrolls(layout, store, slot, slot)
  return act, lambda: jax.block_until_ready(programs.priorities(params, unroll))


def learning(config: Config, sizes: Sizes, seconds: float) -> float:
  """Returns the CPU seconds per env step of learning and of the replay."""
  learner = learning_functions(config, sizes)
  while not learner.updates():  # Fills the replay.
    learner.learn()
  cost = cpu_seconds_per_call(learner.learn, seconds, learner.finish)
  return cost / (sizes.unrolls * sizes.period)


def learning_functions(config: Config, sizes: Sizes) -> Learning:
  """Makes functions that learn from one share, as the pipeline does."""
  spec, key = envs.spec(config.env), jax.random.key(0)
  by_workers = isinstance(config, _Workers)
  axis_name = None if by_workers else sharding.CORES
  agent = config.plan.agent(config.agent, spec, axis_name)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.unrolls)
  share = made_up(local_actor.Programs(agent, spec, layout).share())
  if isinstance(config, _Workers):
    return _worker(config, agent, sizes, share)
  source = config.plan.source(agent, config.learner.cores(), key)
  learner = learner_lib.Learner(agent, config.learner, source, key)
  shares, number = learner.shares(*share), itertools.count()

  def learn() -> None:
    index = next(number)
    learner.learn_from([continued(share, index) for share in shares])

  return Learning(learn, lambda: learner.version, learner.finish)


def made_up(share: types.Share) -> types.Share:
  """Returns random experience with a share's shapes and dtypes.

  No step is a reset. All rewards and discounts are 1; other floats are random,
  so that losses and gradients are not 0. Integers are 0.
  """
  random = np.random.default_rng(0)

  def leaf(x: types.Array) -> np.ndarray:
    if np.issubdtype(x.dtype, np.floating):
      return random.uniform(0.1, 1.0, x.shape).astype(x.dtype)
    return np.zeros(x.shape, x.dtype)

  filled = jax.tree.map(leaf, share)
  inputs = filled.data.inputs
  inputs = inputs._replace(timestep=_mid(inputs.timestep))
  return filled._replace(data=filled.data._replace(inputs=inputs))


def continued(share: types.Share, number: int) -> types.Share:
  """Returns a copy of a share, with `number` as the index of its unrolls."""
  if isinstance(share.origin, tuple):
    return share
  env = np.arange(len(share.origin), dtype=np.int32)
  origin = np.stack([env, np.full_like(env, number)], axis=1)
  return share._replace(origin=origin)


def cpu_seconds_per_call(
  call: Callable[[], object],
  seconds: float,
  finish: Callable[[], object] = lambda: None,
) -> float:
  """Returns a call's mean CPU seconds, summed over this process's threads.

  Args:
    call: function to measure; its work may continue after it has returned.
    seconds: seconds to measure.
    finish: function that waits until the work of all calls is done.
  """
  for _ in range(_WARM_CALLS):
    call()
  _called_for(call, _WARM_SECONDS)
  finish()
  start_seconds = time.process_time()
  calls = _called_for(call, seconds)
  finish()
  return (time.process_time() - start_seconds) / calls


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
  """Calls a module's function in a new process; returns the result."""
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, context) as process:
    return process.submit(function, *arguments).result()


def _measure(
  part: Callable[[Config, Sizes, float], Any],
  words: str,
  env: str,
  seconds: float,
) -> tuple[Sizes, Any]:
  config = config_of(words, env)
  sizes = sizes_of(config)
  # The same settings as in the programs of a run.
  allocator.keep_freed_memory()
  if isinstance(config, process.ServerConfig):
    devices.compute_on_own_threads()
  if part.__name__ in sizes.elsewhere:
    topology.share_cores(sizes.pools)
  return sizes, part(config, sizes, seconds)


def _called_for(call: Callable[[], object], seconds: float) -> int:
  """Calls a function for some seconds; returns the number of calls."""
  end_seconds, calls = time.monotonic() + seconds, 0
  while not calls or time.monotonic() < end_seconds:
    call()
    calls += 1
  return calls


def _mid(timestep: dm_env.TimeStep) -> dm_env.TimeStep:
  """Returns time steps of type MID, with rewards and discounts of 1."""
  return timestep._replace(
    step_type=np.full_like(timestep.step_type, int(dm_env.StepType.MID)),
    reward=np.ones_like(timestep.reward),
    discount=np.ones_like(timestep.discount),
  )


def _device(sizes: Sizes, part: str, index: int = 0) -> jax.Device:
  # Actors and workers in other processes compute on the CPU.
  platform = "cpu" if part in sizes.elsewhere else None
  return jax.local_devices(backend=platform)[index]


def _worker(
  config: _Workers, agent: base.Agent, sizes: Sizes, share: types.Share
) -> Learning:
  """Makes functions that update a shared state, as a worker does."""
  device = _device(sizes, _LEARNING, getattr(config, "device", 0))
  key = jax.random.key(0)
  source = config.plan.source(agent, [device], key)
  shared = shared_state.Shared(agent, jax.jit(agent.init)(key), device)
  on_device, number = jax.device_put(share, device), itertools.count()

  def learn() -> None:
    for batch in source([continued(on_device, next(number))]):
      state, version = shared.newest()
      shared.learn(state, version, key, batch.parts[0])

  return Learning(
    learn,
    lambda: float(shared.newest()[1]),
    lambda: jax.block_until_ready(shared.newest()[0]),
  )


# The barrier at which the processes of `environments` wait for each other.
_begin: list[synchronize.Barrier] = []


def _keep_barrier(barrier: synchronize.Barrier) -> None:
  _begin.append(barrier)


def _pool(
  config: envs.Config, sizes: Sizes, seconds: float, index: int
) -> tuple[int, float, float]:
  """Steps one pool; returns env steps, seconds and CPU seconds."""
  try:
    step = _stepper(config, sizes, seed=index * sizes.envs)
  except BaseException:
    _begin[0].abort()
    raise
  _begin[0].wait()
  _called_for(step, _WARM_SECONDS)
  start_seconds, start_cpu = time.monotonic(), time.process_time()
  calls = _called_for(step, seconds)
  elapsed = time.monotonic() - start_seconds
  return calls * sizes.envs, elapsed, time.process_time() - start_cpu


def _stepper(
  config: envs.Config, sizes: Sizes, seed: int
) -> Callable[[], object]:
  """Makes a function that steps a pool once, with random actions."""
  num_envs, threads = sizes.envs, sizes.threads
  random = np.random.default_rng(seed)
  if ":" in config.env:
    environment = envs.make(config, num_envs, seed=seed, num_threads=threads)
    environment.reset()
    action = _random_actions(environment.spec.action, num_envs, random)
    return lambda: environment.send(environment.recv().index, action)
  pool_spec, options = envpool_spec.pool_spec_and_options(config)
  pool = envpool_spec.make_pool(
    config.env,
    num_envs=num_envs,
    batch_size=num_envs,
    num_threads=threads,
    seed=seed,
    **options,
  )
  _, spec = envpool_spec.action_specs(config.env, pool_spec)
  dtype = envpool_spec.action_array_spec(pool_spec).dtype
  action = _random_actions(spec, num_envs, random).astype(dtype)
  pool.reset()
  return lambda: pool.step(action)


def _random_actions(
  spec: dm_env.specs.BoundedArray, size: int, random: np.random.Generator
) -> np.ndarray:
  shape = (size, *spec.shape)
  if isinstance(spec, types.HybridArray):
    parts = spec.choices, spec.numbers
    drawn = [_random_actions(part, size, random) for part in parts]
    return np.concatenate(drawn, axis=1, dtype=np.float32)
  if np.issubdtype(spec.dtype, np.floating):
    # Where there are no bounds, any numbers do.
    low, high = (np.clip(x, -1e3, 1e3) for x in (spec.minimum, spec.maximum))
    return random.uniform(low, high, shape).astype(spec.dtype)
  high = np.asarray(spec.maximum) + 1
  return random.integers(spec.minimum, high, shape).astype(spec.dtype)
