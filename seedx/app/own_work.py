"""What a run cannot do without: environments, acting, learning, each alone.

Each is measured in a process of its own, with the sizes that the experiment's
config gives it, and without messages, queues, or anything beside it. What all
three cost together, in CPU seconds per env step, bounds the env steps per
second that a run can reach on so many cores.
"""

import concurrent.futures
import dataclasses
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
from seedx.app import experiments, programs
from seedx.envs import envpool_spec
from seedx.learning import learner
from seedx.pipelines import a3c, gorila, impala, seed, sync

# Enough that no run ends by itself.
TOTAL_STEPS = 10**10
# So long is each part warmed up, once it has been compiled.
_WARM_SECONDS = 0.2
_WARM_CALLS = 3
_ENVIRONMENTS, _ACTING, _LEARNING = "environments", "acting", "learning"


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How a pipeline divides its work.

  Attributes:
    pools: processes, or threads, that step environments.
    pool_envs: environments of each.
    pool_threads: threads of EnvPool in each.
    slots: environments of one unroll store.
    rows: environments that are acted for at a time.
    period: T, new env steps of an unroll.
    unrolls: that are learned from at a time.
    message_steps: env steps in a message to the learner; 0 without messages.
    elsewhere: the parts of the work that other processes than the learner's do.
  """

  pools: int
  pool_envs: int
  pool_threads: int
  slots: int
  rows: int
  period: int
  unrolls: int
  message_steps: int
  elsewhere: tuple[str, ...]

  @classmethod
  def of(cls, config: Any) -> "Sizes":
    """Those of a pipeline's config.

    Raises:
      types.ConfigError: it is not of a pipeline that comes with seedx.
    """
    if isinstance(config, seed.Config):
      return _sizes_of_seed(config)
    if isinstance(config, impala.Config):
      period, own = config.learner.unroll_length, config.actors.envs_per_actor
      return cls(
        *(config.actors.num_actors, own, 1, own, own, period),
        unrolls=config.learner.batch_size,
        message_steps=own * period,
        elsewhere=(_ENVIRONMENTS, _ACTING),
      )
    if isinstance(config, sync.Config):
      period, own = config.learner.unroll_length, config.num_envs
      return cls(
        *(1, own, config.env_threads, own, own, period),
        unrolls=own,
        message_steps=0,
        elsewhere=(),
      )
    if not isinstance(config, a3c.Config | gorila.Config):
      raise types.ConfigError(
        "expected an experiment with a pipeline of seedx's, found one with"
        f" {type(config).__module__}"
      )
    own, apart = config.workers.envs_per_worker, config.workers.batch_steps
    alone = isinstance(config, a3c.Config)
    return cls(
      *(config.workers.num_workers, own, 1, own, own),
      period=config.workers.unroll_length,
      unrolls=own,
      message_steps=0 if alone else apart,
      elsewhere=() if alone else (_ENVIRONMENTS, _ACTING, _LEARNING),
    )


@dataclasses.dataclass(frozen=True)
class OwnWork:
  """What the work of a run costs by itself.

  Attributes:
    sizes: with which it was measured.
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

  def bound(self, cores: int) -> float:
    """The most env steps per second that so many cores can do."""
    return cores / self.total


def measure(
  words: str, env: str, seconds: float, say: Callable[[str], None]
) -> OwnWork:
  """Measures the own work of an experiment.

  Args:
    words: the experiment and its own options.
    env: name of the environment.
    seconds: to measure each part for.
    say: is told what is measured next.

  Raises:
    types.ConfigError: the experiment cannot be run so.
  """

  def alone(part: str, function: Callable[[Any, float], Any]) -> Any:
    say(f"{part} alone, {words}")
    return in_process(_measure, function, words, env, seconds)

  sizes, per_second, environments = alone(_ENVIRONMENTS, _environments)
  return OwnWork(
    sizes,
    per_second,
    environments,
    acting=alone(_ACTING, _acting),
    learning=alone(_LEARNING, _learning),
  )


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
  """Calls a function in a process of its own.

  Args:
    function: of a module.
    *arguments: that can be pickled, as the result can.

  Returns:
    What the function returns.

  Raises:
    BaseException: what the function raises.
  """
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, context) as process:
    return process.submit(function, *arguments).result()


def config_of(words: str, env: str) -> Any:
  """The pipeline's config of an experiment.

  Args:
    words: the experiment and its own options.
    env: name of the environment.

  Raises:
    types.ConfigError: there is no such experiment.
  """
  name, *options = words.split()
  options += ["--env", env, "--total-steps", str(TOTAL_STEPS)]
  module = experiments.load_module(name)
  asked, _ = programs.read(module.EXPERIMENT, options, module.__name__)
  return asked.run


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
  inputs = found.unroll.inputs
  steps = _mid(inputs.timestep)
  inputs = inputs._replace(timestep=steps)
  return found._replace(unroll=found.unroll._replace(inputs=inputs))


def cpu_seconds_per_call(
  call: Callable[[], Any], seconds: float, finish: Callable[[], Any]
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


def _sizes_of_seed(config: seed.Config) -> Sizes:
  actors, period = config.actors, config.learner.unroll_length
  agent = config.plan.agent(config.agent, envs.spec(config.env))
  first, *_ = config.inference.sizes(
    agent,
    actors,
    rows_per_actor=actors.rows,
    period=period,
    share_size=config.learner.share_size,
  )
  return Sizes(
    *(actors.num_actors, actors.envs_per_actor, 1),
    slots=first.layout.num_slots,
    rows=min(first.target_rows, first.layout.num_slots),
    period=period,
    unrolls=config.learner.batch_size,
    message_steps=actors.rows,
    elsewhere=(_ENVIRONMENTS,),
  )


def _measure(
  function: Callable[[Any, float], Any], words: str, env: str, seconds: float
) -> Any:
  return function(config_of(words, env), seconds)


def _environments(config: Any, seconds: float) -> tuple[Sizes, float, float]:
  """The sizes, env steps per second and CPU seconds per env step."""
  sizes = Sizes.of(config)
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
  return sizes, per_second, sum(cpu for _, _, cpu in found) / steps


# Where the processes of `_environments` wait for each other.
_begin: list[Any] = []


def _keep_barrier(barrier: Any) -> None:
  _begin.append(barrier)


def _pool(
  config: envs.Config, sizes: Sizes, seconds: float, index: int
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


def _stepper(config: envs.Config, sizes: Sizes, seed: int) -> Callable[[], Any]:
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


def _acting(config: Any, seconds: float) -> float:
  """CPU seconds per env step of acting, and of first priorities."""
  sizes, spec = Sizes.of(config), envs.spec(config.env)
  agent = config.plan.agent(config.agent, spec)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.slots)
  made = local_actor.Programs(agent, spec, layout)
  key, version = jax.random.key(0), np.int32(0)
  acting = jax.jit(lambda x: agent.acting(agent.init(x)))(key)
  store = jax.device_put(made.empty(), jax.local_devices()[0])
  inputs = acting_step.zero_inputs(spec, sizes.rows)
  timestep, step = _mid(inputs.timestep), 0

  def act() -> None:
    nonlocal store, step
    first = step * sizes.rows
    slot = np.arange(first, first + sizes.rows, dtype=np.int64) % sizes.slots
    count = np.full(sizes.rows, first // sizes.slots, np.int32)
    batch = unroll_store.Batch(slot.astype(np.int32), count, timestep)
    store, actions = made.act(store, acting, version, key, batch)
    np.asarray(actions)  # As whoever steps environments does.
    step += 1

  cost = cpu_seconds_per_call(act, seconds, lambda: None) / sizes.rows
  if agent.priorities is None:
    return cost
  unroll = unroll_store.empty_unrolls(store, sizes.slots)

  def prioritize() -> None:
    jax.block_until_ready(made.priorities(acting, unroll))

  more = cpu_seconds_per_call(prioritize, seconds, lambda: None)
  return cost + more / (sizes.slots * sizes.period)


def _learning(config: Any, seconds: float) -> float:
  """CPU seconds per env step of learning, with the replay if there is one."""
  sizes, spec = Sizes.of(config), envs.spec(config.env)
  by_workers = isinstance(config, a3c.Config | gorila.Config)
  make = _worker if by_workers else _learner
  axis_name = None if by_workers else sharding.CORES
  agent = config.plan.agent(config.agent, spec, axis_name)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.unrolls)
  share = made_up(local_actor.Programs(agent, spec, layout).share())
  learn, updates, finish = make(config, agent, sizes, share)
  while not updates():  # A replay has to be filled.
    learn()
  cost = cpu_seconds_per_call(learn, seconds, finish)
  return cost / (sizes.unrolls * sizes.period)


_Learning = tuple[Callable[[], None], Callable[[], float], Callable[[], object]]


def _learner(
  config: Any, agent: base.Agent, sizes: Sizes, share: types.Share
) -> _Learning:
  """What learns from a share, counts updates, and waits for the last."""
  cores, key = config.learner.cores(), jax.random.key(0)
  source = config.plan.source(agent, sizes.period, cores, key)
  learning = learner.Learner(agent, config.learner, source, key)
  shares = learning.shares(*share)

  def learn() -> None:
    learning.learn_from(shares)

  return learn, lambda: learning.steps, learning.finish


def _worker(
  config: Any, agent: base.Agent, sizes: Sizes, share: types.Share
) -> _Learning:
  """The same, of workers that apply gradients to what they share."""
  device = jax.local_devices()[getattr(config, "device", 0)]
  key = jax.random.key(0)
  source = config.plan.source(agent, sizes.period, [device], key)
  shared = a3c.Shared(agent, jax.jit(agent.init)(key), device)
  gradients = jax.jit(agent.gradients)
  on_device = jax.device_put(share, device)

  def learn() -> None:
    for batch in source([on_device]):
      state, version = shared.newest()
      own_key = jax.random.fold_in(key, version)
      found, _ = gradients(state, own_key, batch.parts[0])
      jax.block_until_ready(found)
      shared.apply(found)

  return (
    learn,
    lambda: float(shared.newest()[1]),
    lambda: jax.block_until_ready(shared.newest()[0]),
  )
