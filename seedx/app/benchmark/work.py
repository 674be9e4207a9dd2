"""The parts of every run, each alone: environments, acting, learning.

Each is measured in a process of its own, with the sizes that the experiment's
config gives it, and without messages, queues, or anything beside it. What all
three cost together, in CPU seconds per env step, bounds the env steps per
second that a run can reach on a number of cores.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing import synchronize
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np

from seedx import envs, sharding, types
from seedx.acting import local_actor, unroll_store
from seedx.agents import acting_step, base
from seedx.app import devices
from seedx.app.studies import trials
from seedx.envs import config as env_config
from seedx.envs import envpool_spec
from seedx.launch import nodes
from seedx.learning import learner, shared
from seedx.on_cpu import allocator
from seedx.pipelines import a3c, gorila, impala, seed, sync
from seedx.runtime import process

_Workers = a3c.Config | gorila.Config
Config = seed.Config | impala.Config | sync.Config | _Workers

# Enough that no run ends by itself.
_TOTAL_STEPS = 10**10
_ENVIRONMENTS, _ACTING, _LEARNING = "environments", "acting", "learning"
# The first calls of each part, which may compile, are not measured.
_WARM_SECONDS = 0.2
_WARM_CALLS = 3


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How a pipeline divides its work.

  Attributes:
    pools: number of processes, or threads, that step environments.
    envs: environments of each.
    period: T, new env steps of an unroll.
    unrolls: number of unrolls that are learned from at a time.
    slots: environments of one unroll store.
    rows: environments that are acted for at a time.
    threads: threads of EnvPool in each pool.
    message_steps: env steps in a message to the learner; 0 without messages.
    elsewhere: the parts of the work that other processes than the learner's do.
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
    sizes: the sizes with which it was measured.
    alone_per_second: env steps per second of the environments alone, with
      random actions.
    environments: CPU seconds per env step to step them.
    acting: CPU seconds per env step to act.
    learning: CPU seconds per env step to learn from it, as often as the
      experiment does.
  """

  sizes: Sizes
  alone_per_second: float
  environments: float
  acting: float
  learning: float

  @property
  def total(self) -> float:
    """CPU seconds per env step of all of it."""
    return self.environments + self.acting + self.learning

  @property
  def elsewhere(self) -> float:
    """CPU seconds per env step of what other processes than the learner do."""
    return sum(getattr(self, name) for name in self.sizes.elsewhere)


class Learning(NamedTuple):
  """Learns from one share again and again.

  Attributes:
    learn: starts to learn from it.
    updates: returns the number of updates so far.
    finish: waits until all updates are done.
  """

  learn: Callable[[], object]
  updates: Callable[[], float]
  finish: Callable[[], object]


def words_of(words: str, env: str) -> list[str]:
  """The words of an experiment's trial, which does not end by itself."""
  return trials.words_of(words, env, _TOTAL_STEPS)


def config_of(words: str, env: str) -> Any:
  """The pipeline's config of an experiment.

  Args:
    words: the experiment and its own options.
    env: name of the environment, unless the experiment's options have one.
  """
  return trials.read(words_of(words, env)).run


def sizes_of(config: process.Config) -> Sizes:
  """How the pipeline of a config divides its work.

  Raises:
    types.ConfigError: it is not a pipeline that comes with seedx.
  """
  if isinstance(config, seed.Config):
    return _sizes_of_seed(config)
  if isinstance(config, impala.Config):
    own, period = config.actors.envs_per_actor, config.learner.unroll_length
    return Sizes(
      pools=config.actors.num_actors,
      envs=own,
      period=period,
      unrolls=config.learner.batch_size,
      slots=own,
      rows=own,
      message_steps=own * period,
      elsewhere=(_ENVIRONMENTS, _ACTING),
    )
  if isinstance(config, sync.Config):
    own, period = config.num_envs, config.learner.unroll_length
    return Sizes(
      pools=1,
      envs=own,
      period=period,
      unrolls=own,
      slots=own,
      rows=own,
      threads=config.env_threads,
    )
  if not isinstance(config, _Workers):
    raise types.ConfigError(
      "expected an experiment with a pipeline of seedx's, found one with"
      f" {type(config).__module__}"
    )
  own, alone = config.workers.envs_per_worker, isinstance(config, a3c.Config)
  return Sizes(
    pools=config.workers.num_workers,
    envs=own,
    period=config.workers.unroll_length,
    unrolls=own,
    slots=own,
    rows=own,
    message_steps=0 if alone else config.workers.batch_steps,
    elsewhere=() if alone else (_ENVIRONMENTS, _ACTING, _LEARNING),
  )


def measure(words: str, env: str, seconds: float) -> OwnWork:
  """Measures the own work of an experiment.

  Args:
    words: the experiment and its own options.
    env: name of the environment, unless the experiment's options have one.
    seconds: time for each part.

  Raises:
    types.ConfigError: the experiment cannot be run so.
  """
  costs = []
  for part in (environments, acting, learning):
    print(f"{part.__name__} alone", file=sys.stderr, flush=True)
    sizes, cost = in_process(_measure, part, words, env, seconds)
    costs.append(cost)
  (rate, stepping), act, learn = costs
  return OwnWork(sizes, rate, stepping, act, learn)


def environments(
  config: Config, sizes: Sizes, seconds: float
) -> tuple[float, float]:
  """Steps environments in all pools at a time, with random actions.

  Args:
    config: config of the pipeline.
    sizes: sizes of its work.
    seconds: time to measure.

  Returns:
    Env steps per second, and CPU seconds per env step.

  Raises:
    types.ConfigError: it is an environment of the user's, in other processes.
  """
  if env_config.is_own(config.env):
    raise types.ConfigError(
      "expected an environment of EnvPool's or seedx's, whose CPU time can be"
      f" measured, found {config.env.env}"
    )
  context = multiprocessing.get_context("spawn")
  begin = context.Barrier(sizes.pools)
  with concurrent.futures.ProcessPoolExecutor(
    sizes.pools, context, _keep_barrier, (begin,)
  ) as processes:
    asked = [
      processes.submit(_pool, config.env, sizes, seconds, index)
      for index in range(sizes.pools)
    ]
    found = [x.result() for x in asked]
  steps = sum(x for x, _, _ in found)
  per_second = sum(steps / elapsed for steps, elapsed, _ in found)
  return per_second, sum(cpu for _, _, cpu in found) / steps


def acting(config: Config, sizes: Sizes, seconds: float) -> float:
  """Acts as the pipeline does, and computes first priorities if it does.

  Args:
    config: config of the pipeline.
    sizes: sizes of its work.
    seconds: time to measure.

  Returns:
    CPU seconds per env step.
  """
  act, prioritize = actor(config, sizes)
  cost = cpu_seconds_per_call(act, seconds) / sizes.rows
  if prioritize is None:
    return cost
  more = cpu_seconds_per_call(prioritize, seconds)
  return cost + more / (sizes.slots * sizes.period)


def actor(
  config: Config, sizes: Sizes
) -> tuple[Callable[[], object], Callable[[], object] | None]:
  """Makes what acts for `sizes.rows` environments at a time.

  Args:
    config: config of the pipeline.
    sizes: sizes of its work.

  Returns:
    A function that acts once; and one that computes the first priorities of all
    unrolls, if the agent has some.
  """
  spec = envs.spec(config.env)
  agent = config.plan.agent(config.agent, spec)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.slots)
  made = local_actor.Programs(agent, spec, layout)
  key, version = jax.random.key(0), np.int32(0)
  params = jax.jit(lambda x: agent.acting(agent.init(x)))(key)
  store, params, key = jax.device_put(
    (made.empty(), params, key), _device(sizes, _ACTING)
  )
  inputs = acting_step.zero_inputs(spec, sizes.rows)
  timestep, step = _mid(inputs.timestep), 0

  def act() -> None:
    nonlocal store, step
    first = step * sizes.rows
    slot = np.arange(first, first + sizes.rows, dtype=np.int64) % sizes.slots
    count = np.full(sizes.rows, first // sizes.slots, np.int32)
    batch = unroll_store.Batch(slot.astype(np.int32), count, timestep)
    store, actions = made.act(store, params, version, key, batch)
    np.asarray(actions)  # An actor, too, copies them to the host.
    step += 1

  if agent.priorities is None:
    return act, None
  unroll = unroll_store.empty_unrolls(store, sizes.slots)
  return act, lambda: jax.block_until_ready(made.priorities(params, unroll))


def learning(config: Config, sizes: Sizes, seconds: float) -> float:
  """Learns as the pipeline does, with the replay if there is one.

  Args:
    config: config of the pipeline.
    sizes: sizes of its work.
    seconds: time to measure.

  Returns:
    CPU seconds per env step.
  """
  found = learns(config, sizes)
  while not found.updates():  # A replay has to be filled.
    found.learn()
  cost = cpu_seconds_per_call(found.learn, seconds, found.finish)
  return cost / (sizes.unrolls * sizes.period)


def learns(config: Config, sizes: Sizes) -> Learning:
  """Makes what learns from one share, as the pipeline does.

  Args:
    config: config of the pipeline.
    sizes: sizes of its work.
  """
  spec, key = envs.spec(config.env), jax.random.key(0)
  by_workers = isinstance(config, _Workers)
  axis_name = None if by_workers else sharding.CORES
  agent = config.plan.agent(config.agent, spec, axis_name)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.unrolls)
  share = made_up(local_actor.Programs(agent, spec, layout).share())
  if isinstance(config, _Workers):
    return _worker(config, agent, sizes, share)
  source = config.plan.source(agent, config.learner.cores(), key)
  own = learner.Learner(agent, config.learner, source, key)
  shares = own.shares(*share)
  return Learning(lambda: own.learn_from(shares), lambda: own.steps, own.finish)


def made_up(share: types.Share) -> types.Share:
  """Experience to learn from, of a share's shapes and dtypes.

  No step is a reset, each has the reward 1, and other floats are random, so
  that losses and gradients are not 0.

  Args:
    share: arrays, or their shapes and dtypes.
  """
  random = np.random.default_rng(0)

  def leaf(x: types.Array) -> np.ndarray:
    if np.issubdtype(x.dtype, np.floating):
      return random.uniform(0.1, 1.0, x.shape).astype(x.dtype)
    return np.zeros(x.shape, x.dtype)

  found = jax.tree.map(leaf, share)
  inputs = found.data.inputs
  inputs = inputs._replace(timestep=_mid(inputs.timestep))
  return found._replace(data=found.data._replace(inputs=inputs))


def cpu_seconds_per_call(
  call: Callable[[], object],
  seconds: float,
  finish: Callable[[], object] = lambda: None,
) -> float:
  """CPU seconds of all threads of this process for each call.

  Args:
    call: function to measure; it may return before it is done.
    seconds: time to call it.
    finish: waits until all calls are done.
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
  """Calls a function in a process of its own.

  Args:
    function: a function of a module.
    *arguments: its arguments, which can be pickled, as the result can.

  Returns:
    What the function returns.

  Raises:
    BaseException: what the function raises.
  """
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, context) as process:
    return process.submit(function, *arguments).result()


def _measure(
  part: Callable[[Config, Sizes, float], Any],
  words: str,
  env: str,
  seconds: float,
) -> tuple[Sizes, Any]:
  """Measures one part, in its process."""
  config = config_of(words, env)
  sizes = sizes_of(config)
  # What the programs of a run set before they do this part.
  allocator.keep_freed_memory()
  if isinstance(config, process.ServerConfig):
    devices.compute_on_own_threads()
  if part.__name__ in sizes.elsewhere:
    nodes.share_cores(sizes.pools)
  return sizes, part(config, sizes, seconds)


def _called_for(call: Callable[[], object], seconds: float) -> int:
  """Calls it for some seconds; returns the number of calls."""
  end_seconds, calls = time.monotonic() + seconds, 0
  while not calls or time.monotonic() < end_seconds:
    call()
    calls += 1
  return calls


def _sizes_of_seed(config: seed.Config) -> Sizes:
  actors, period = config.actors, config.learner.unroll_length
  agent = config.plan.agent(config.agent, envs.spec(config.env))
  first, *_ = config.inference.sizes(
    agent, actors, period, config.learner.share_size
  )
  return Sizes(
    pools=actors.num_actors,
    envs=actors.envs_per_actor,
    period=period,
    unrolls=config.learner.batch_size,
    slots=first.layout.num_slots,
    rows=min(first.target_rows, first.layout.num_slots),
    message_steps=actors.rows,
    elsewhere=(_ENVIRONMENTS,),
  )


def _mid(timestep: dm_env.TimeStep) -> dm_env.TimeStep:
  """The same in the middle of an episode, with the reward 1."""
  return timestep._replace(
    step_type=np.full_like(timestep.step_type, int(dm_env.StepType.MID)),
    reward=np.ones_like(timestep.reward),
    discount=np.ones_like(timestep.discount),
  )


def _device(sizes: Sizes, part: str, index: int = 0) -> jax.Device:
  """Where a part is done: actors and workers have no accelerator."""
  platform = "cpu" if part in sizes.elsewhere else None
  return jax.local_devices(backend=platform)[index]


def _worker(
  config: _Workers, agent: base.Agent, sizes: Sizes, share: types.Share
) -> Learning:
  """A worker that applies gradients to what all workers share."""
  device = _device(sizes, _LEARNING, getattr(config, "device", 0))
  key = jax.random.key(0)
  source = config.plan.source(agent, [device], key)
  own = shared.Shared(agent, jax.jit(agent.init)(key), device)
  on_device = jax.device_put(share, device)

  def learn() -> None:
    for batch in source([on_device]):
      state, version = own.newest()
      own.learn(state, version, key, batch.parts[0])

  return Learning(
    learn,
    lambda: float(own.newest()[1]),
    lambda: jax.block_until_ready(own.newest()[0]),
  )


# Where the processes of `environments` wait for each other.
_begin: list[synchronize.Barrier] = []


def _keep_barrier(barrier: synchronize.Barrier) -> None:
  _begin.append(barrier)


def _pool(
  config: envs.Config, sizes: Sizes, seconds: float, index: int
) -> tuple[int, float, float]:
  """Env steps of one pool, the seconds and the CPU seconds for them."""
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
  """What steps all environments of a pool once, with random actions."""
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
  spec = envpool_spec.action_spec(config.env, pool_spec)
  dtype = envpool_spec.action_array_spec(pool_spec).dtype
  action = _random_actions(spec, num_envs, random).astype(dtype)
  pool.reset()
  return lambda: pool.step(action)


def _random_actions(
  spec: dm_env.specs.BoundedArray, size: int, random: np.random.Generator
) -> np.ndarray:
  shape = (size, *spec.shape)
  if np.issubdtype(spec.dtype, np.floating):
    return random.uniform(spec.minimum, spec.maximum, shape).astype(spec.dtype)
  high = np.asarray(spec.maximum) + 1
  return random.integers(spec.minimum, high, shape).astype(spec.dtype)
