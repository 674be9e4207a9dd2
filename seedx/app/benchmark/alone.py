"""The parts of a run's work, each alone in its process; see `own_work`."""

import concurrent.futures
import multiprocessing
import time
import warnings
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import numpy as np

from seedx import envs, sharding, types
from seedx.acting import local_actor, unroll_store
from seedx.agents import acting_step, base
from seedx.app.benchmark import work_sizes
from seedx.envs import config as env_config
from seedx.envs import envpool_spec
from seedx.learning import learner, shared
from seedx.pipelines import a3c, gorila

# So long, and so often at least, is each part warmed up: the first calls may
# compile.
_WARM_SECONDS = 0.2
_WARM_CALLS = 3


def environments(
  config: Any, sizes: work_sizes.Sizes, seconds: float
) -> tuple[float, float]:
  """Steps environments in all pools at a time, with random actions.

  Args:
    config: of the pipeline.
    sizes: of its work.
    seconds: to measure for.

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


def acting(config: Any, sizes: work_sizes.Sizes, seconds: float) -> float:
  """Acts as the pipeline does, and computes first priorities if it does.

  Args:
    config: of the pipeline.
    sizes: of its work.
    seconds: to measure for.

  Returns:
    CPU seconds per env step.
  """
  spec = envs.spec(config.env)
  agent = config.plan.agent(config.agent, spec)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.slots)
  made = local_actor.Programs(agent, spec, layout)
  key, version = jax.random.key(0), np.int32(0)
  params = jax.jit(lambda x: agent.acting(agent.init(x)))(key)
  store, params, key = jax.device_put(
    (made.empty(), params, key), _device(sizes, "acting")
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
    np.asarray(actions)  # As whoever steps environments does.
    step += 1

  cost = cpu_seconds_per_call(act, seconds) / sizes.rows
  if agent.priorities is None:
    return cost
  unroll = unroll_store.empty_unrolls(store, sizes.slots)

  def prioritize() -> None:
    jax.block_until_ready(made.priorities(params, unroll))

  more = cpu_seconds_per_call(prioritize, seconds)
  return cost + more / (sizes.slots * sizes.period)


def learning(
  config: Any, sizes: work_sizes.Sizes, seconds: float
) -> tuple[float, float]:
  """Learns as the pipeline does, with the replay if there is one.

  Args:
    config: of the pipeline.
    sizes: of its work.
    seconds: to measure for.

  Returns:
    CPU seconds per env step, and updates per env step.
  """
  spec = envs.spec(config.env)
  by_workers = isinstance(config, a3c.Config | gorila.Config)
  make = _worker if by_workers else _learner
  axis_name = None if by_workers else sharding.CORES
  agent = config.plan.agent(config.agent, spec, axis_name)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.unrolls)
  share = made_up(local_actor.Programs(agent, spec, layout).share())
  learn, updates, finish = make(config, agent, sizes, share)
  while not updates():  # A replay has to be filled.
    learn()
  calls, first = 0, updates()

  def counted() -> None:
    nonlocal calls
    learn()
    calls += 1

  cost = cpu_seconds_per_call(counted, seconds, finish)
  steps = sizes.unrolls * sizes.period
  return cost / steps, (updates() - first) / (calls * steps)


def made_up(share: types.Share) -> types.Share:
  """Experience to learn from, of a share's shapes and dtypes.

  No step is a reset, each has the reward 1, and other floats are random, so
  that losses and gradients are not 0.

  Args:
    share: of arrays, or of their shapes and dtypes.
  """
  random = np.random.default_rng(0)

  def leaf(x: types.Array) -> np.ndarray:
    if np.issubdtype(x.dtype, np.floating):
      return random.uniform(0.1, 1.0, x.shape).astype(x.dtype)
    return np.zeros(x.shape, x.dtype)

  found = jax.tree.map(leaf, share)
  inputs = found.data.inputs
  steps = _mid(inputs.timestep)
  inputs = inputs._replace(timestep=steps)
  return found._replace(data=found.data._replace(inputs=inputs))


def cpu_seconds_per_call(
  call: Callable[[], Any],
  seconds: float,
  finish: Callable[[], Any] = lambda: None,
) -> float:
  """CPU seconds of all threads of this process for each call.

  Args:
    call: what is measured; it may return before it is done.
    seconds: to call it for.
    finish: waits until all calls are done.
  """
  for _ in range(_WARM_CALLS):  # The first two may compile.
    call()
  _called_for(call, _WARM_SECONDS)
  finish()
  start_seconds = time.process_time()
  calls = _called_for(call, seconds)
  finish()
  return (time.process_time() - start_seconds) / calls


def _called_for(call: Callable[[], Any], seconds: float) -> int:
  """Calls it for some seconds; returns how often."""
  end_seconds, calls = time.monotonic() + seconds, 0
  while not calls or time.monotonic() < end_seconds:
    call()
    calls += 1
  return calls


def _mid(timestep: dm_env.TimeStep) -> dm_env.TimeStep:
  """The same in the middle of an episode, with the reward 1."""
  return timestep._replace(
    step_type=np.full_like(timestep.step_type, int(dm_env.StepType.MID)),
    reward=np.ones_like(timestep.reward),
    discount=np.ones_like(timestep.discount),
  )


# Where the processes of `environments` wait for each other.
_begin: list[Any] = []


def _keep_barrier(barrier: Any) -> None:
  _begin.append(barrier)


def _pool(
  config: envs.Config, sizes: work_sizes.Sizes, seconds: float, index: int
) -> tuple[int, float, float]:
  """Env steps of one pool, the seconds and the CPU seconds for them."""
  try:
    step = _stepper(config, sizes, seed=index * sizes.pool_envs)
  except BaseException:
    _begin[0].abort()
    raise
  _begin[0].wait()
  _called_for(step, _WARM_SECONDS)
  start_seconds, start_cpu = time.monotonic(), time.process_time()
  calls = _called_for(step, seconds)
  elapsed = time.monotonic() - start_seconds
  return calls * sizes.pool_envs, elapsed, time.process_time() - start_cpu


def _stepper(
  config: envs.Config, sizes: work_sizes.Sizes, seed: int
) -> Callable[[], Any]:
  """What steps all environments of a pool once, with random actions."""
  num_envs, threads = sizes.pool_envs, sizes.pool_threads
  random = np.random.default_rng(seed)
  if ":" in config.env:
    environment = envs.make(config, num_envs, seed=seed, num_threads=threads)
    environment.reset()
    action = _random_actions(environment.spec.action, num_envs, random)
    return lambda: environment.send(environment.recv().index, action)
  pool_spec, options = envpool_spec.pool_spec_and_options(config)
  pool = envpool_spec.call(
    config.env,
    envpool_spec.envpool().make,
    config.env,
    env_type="gymnasium",
    num_envs=num_envs,
    batch_size=num_envs,
    num_threads=threads,
    seed=seed,
    **options,
  )
  with warnings.catch_warnings():
    # Made on first use, when Gymnasium warns of EnvPool's float64 bounds.
    warnings.filterwarnings("ignore", message=".*precision lowered.*")
    _ = pool.observation_space
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


def _device(sizes: work_sizes.Sizes, part: str, index: int = 0) -> jax.Device:
  """Where a part is done: actors and workers have no accelerator."""
  platform = "cpu" if part in sizes.elsewhere else None
  return jax.local_devices(backend=platform)[index]


_Learning = tuple[Callable[[], None], Callable[[], float], Callable[[], object]]


def _learner(
  config: Any, agent: base.Agent, sizes: work_sizes.Sizes, share: types.Share
) -> _Learning:
  """What learns from a share, counts updates, and waits for the last."""
  cores, key = config.learner.cores(), jax.random.key(0)
  source = config.plan.source(agent, cores, key)
  own = learner.Learner(agent, config.learner, source, key)
  shares = own.shares(*share)

  def learn() -> None:
    own.learn_from(shares)

  return learn, lambda: own.steps, own.finish


def _worker(
  config: Any, agent: base.Agent, sizes: work_sizes.Sizes, share: types.Share
) -> _Learning:
  """The same, of workers that apply gradients to what they share."""
  device = _device(sizes, "learning", getattr(config, "device", 0))
  key = jax.random.key(0)
  source = config.plan.source(agent, [device], key)
  state = jax.jit(agent.init)(key)
  own = shared.Shared(agent, state, device)
  on_device = jax.device_put(share, device)

  def learn() -> None:
    for batch in source([on_device]):
      state, version = own.newest()
      own.learn(state, version, key, batch.parts[0])

  return (
    learn,
    lambda: float(own.newest()[1]),
    lambda: jax.block_until_ready(own.newest()[0]),
  )
