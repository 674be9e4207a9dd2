"""A3C: asynchronous actor-learners, as threads of one process.

    thread: EnvPool <-> act -> unroll -> gradients --.
    thread: EnvPool <-> act -> unroll -> gradients ----> shared parameters
    thread: EnvPool <-> act -> unroll -> gradients --'   and optimizer
               ^                                               |
               '------------- a copy of the parameters <-------'

Each worker has its own environments and its own copy of the parameters, with
which it acts and computes gradients; it refreshes the copy after each unroll.
The shared parameters take one gradient at a time, and no worker waits for
another's gradient. `gradient_staleness` counts the updates by other workers
since the copy was made. Mnih et al. 2016, "Asynchronous Methods for Deep
Reinforcement Learning", https://arxiv.org/abs/1602.01783, algorithms S2 (n-step
Q-learning, here a DQN that is not `replayed`) and S3 (A3C). The paper updates
the parameters in place without locks (Hogwild). JAX arrays are immutable, so
here an update replaces the parameters, under a lock.
"""

import dataclasses
import functools
import threading

import jax
import numpy as np

from seedx import envs, launch, metrics, sharding, types
from seedx.acting import local_actor, sessions, unroll_store
from seedx.agents import base
from seedx.learning import experience, updates
from seedx.runtime import counters, process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.Config):
  """The config of an A3C run.

  Attributes:
    env: the environment.
    agent: the agent that acts and learns.
    workers: the threads that act and learn.
    device: index of the local device that acts and learns.
    env_restarts: how often in a row a worker's process of your own environments
      starts again where one raises an error or dies; then the run ends.
  """

  env: envs.Config = envs.Config()
  agent: base.Config
  workers: local_actor.WorkersConfig = local_actor.WorkersConfig()
  device: int = 0
  env_restarts: int = 5

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    types.check_ranges(self, env_restarts=(0, 2**20))

  @property
  def plan(self) -> experience.Plan:
    """The run's amounts of experience."""
    return experience.Plan(self.total_steps, self.workers.batch_steps)


def nodes(config: Config) -> list[launch.Node]:
  """No nodes: the workers are threads."""
  del config
  return []


def learn(config: Config, context: process.Context) -> process.Process:
  """The only process: the workers and their shared parameters.

  Raises:
    types.ConfigError: the environment or the device does not exist, or the
      agent needs a replay or whole batches.
  """
  (device,) = sharding.devices([config.device], "learner")
  spec = envs.spec(config.env)
  agent = config.plan.agent(config.agent, spec)
  base.check_gradients_can_be_shared(agent)
  team = _Team(config, context, agent, spec, device)
  return process.Process(
    acted=team.acted,
    parts={
      "shared": team.shared,
      "learned": team.learned,
      "acted": team.acted,
      "seeds": team.seeds,
    },
    policy=lambda saved: team.acting(saved["shared"]),
    measures=[
      *(team.acted.measure, team.learned.measure, team.waits.shares),
      team.restarts.measure,
    ],
    done=lambda: team.acted.env_steps >= config.total_steps,
    threads={
      f"worker-{i}": functools.partial(team.work, i)
      for i in range(config.workers.num_workers)
    },
    stopping=team.compiled.set,
  )


class Shared:
  """The agent state that all workers update."""

  def __init__(
    self, agent: base.Agent, state: base.AgentState, device: jax.Device
  ) -> None:
    """Starts from `state`."""

    def apply(
      state: base.AgentState, gradients: base.Gradients, share: jax.Array
    ) -> tuple[base.AgentState, jax.Array]:
      after = agent.apply(state, gradients).counted(share)
      return updates.keep_finite(state, after)

    self._apply = jax.jit(apply)
    self._device = device
    self._lock = threading.Lock()
    self._state = jax.device_put(state, device)
    self._version = 0

  def newest(self) -> tuple[base.AgentState, np.int32]:
    """The newest state, which is immutable, and its version."""
    with self._lock:
      return self._state, np.int32(self._version)

  def apply(
    self, gradients: base.Gradients, share: jax.Array | float = 1.0
  ) -> tuple[int, jax.Array]:
    """Applies gradients, unless the result is not finite.

    Args:
      gradients: of a batch.
      share: see `base.AgentState.counted`.

    Returns:
      The version that they were applied to; and `[]` bool, whether they were
      skipped.
    """
    with self._lock:
      self._state, skipped = self._apply(self._state, gradients, share)
      self._version += 1
      return self._version - 1, skipped

  def saved(self) -> base.AgentState:
    """What a checkpoint keeps."""
    return self.newest()[0]

  def restore(self, saved: base.AgentState) -> None:
    """Restores what `saved` returned."""
    with self._lock:
      self._state = jax.device_put(saved, self._device)
      self._version = int(saved.updates)


class _Team:
  """The workers and all that they share."""

  def __init__(
    self,
    config: Config,
    context: process.Context,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    device: jax.Device,
  ) -> None:
    workers = config.workers
    init_key, *self._keys = jax.random.split(
      jax.random.key(config.seed), 1 + workers.num_workers
    )
    state = jax.jit(agent.init)(init_key)
    self.shared = Shared(agent, state, device)
    self.acted = counters.Acted(spec.frames_per_step)
    self.learned = counters.Learned()
    self.seeds = sessions.Seeds(config.seed)
    self.restarts = envs.Restarts(config.env_restarts, self.seeds.take)
    self.acting = jax.jit(agent.acting)
    names = (
      metrics.WAIT_ENVIRONMENTS,
      metrics.WAIT_LEARNER,  # While a worker learns.
      metrics.WAIT_EXPERIENCE,  # While a worker acts.
    )
    self.waits = metrics.Waits(dict.fromkeys(names, workers.num_workers))
    self._config = config
    self._stop = context.stop
    self._device = device

    def gradients(
      state: base.AgentState, rng_key: jax.Array, unroll: types.Unroll
    ) -> tuple[base.Gradients, jax.Array, types.LossOutput]:
      found, output = agent.gradients(state, rng_key, unroll)
      share = output.weight / updates.steps_of(agent, unroll)
      return found, share, output

    self._gradients = jax.jit(gradients)
    layout = unroll_store.Layout.of(
      agent, workers.unroll_length, workers.envs_per_worker
    )
    self._programs = local_actor.Programs(agent, spec, layout)
    exploration = agent.exploration(workers.num_envs)
    shape = (workers.num_workers, workers.envs_per_worker)
    self._exploration = exploration.reshape(shape)
    self._reported = counters.explores_least(exploration).reshape(shape)
    # Set when worker 0 has compiled, so that the others need not, and at the
    # end.
    self.compiled = threading.Event()

  def work(self, worker: int) -> None:
    """Runs one worker until the run ends."""
    if worker:
      self.compiled.wait()
    if self._stop.is_set():
      return
    act_key, learn_key = jax.random.split(self._keys[worker])
    actor = self._make_actor(worker, act_key)
    played = counters.Played(self.acted, self._reported[worker])
    try:
      state, version = self.shared.newest()
      acting = self.acting(state)
      while (
        not self._stop.is_set()
        and self.acted.env_steps < self._config.total_steps
      ):
        with self.waits.timed(metrics.WAIT_EXPERIENCE):
          rows, unroll = actor.observe(acting, version)
          played.add(rows)
        if unroll is not None:
          with self.waits.timed(metrics.WAIT_LEARNER):
            self._learn(state, version, learn_key, unroll)
            state, version = self.shared.newest()
            acting = self.acting(state)
          self.compiled.set()
        with self.waits.timed(metrics.WAIT_EXPERIENCE):
          actor.act(acting, version)
    finally:
      actor.close()

  def _make_actor(
    self, worker: int, rng_key: jax.Array
  ) -> local_actor.LocalActor:
    self.acted.start()
    first_seed = self.seeds.take(self._config.workers.envs_per_worker)
    return local_actor.LocalActor(
      self._programs,
      self._config.env,
      seed=first_seed,
      rng_key=jax.random.fold_in(rng_key, first_seed),
      device=self._device,
      waits=self.waits,
      exploration=self._exploration[worker],
      restarts=self.restarts,
    )

  def _learn(
    self,
    state: base.AgentState,
    version: np.int32,
    rng_key: jax.Array,
    unroll: types.Unroll,
  ) -> None:
    """Computes gradients with the worker's copy, and applies them to `shared`.

    The copy is `state`, of `version`.

    Raises:
      RuntimeError: many updates in a row were skipped.
    """
    key = jax.random.fold_in(rng_key, version)
    gradients, share, output = self._gradients(state, key, unroll)
    # Else the next worker to apply its own would wait for this gradient.
    jax.block_until_ready(gradients)
    applied_to, skipped = self.shared.apply(gradients, share)
    staleness = applied_to - int(version)
    weight, values = jax.device_get((output.weight, output.metrics))
    if skipped:
      self.learned.skip(1)
      self.learned.check()
      return
    self.learned.add(
      float(weight),
      staleness,
      {name: float(value) for name, value in values.items()}
      | {"policy_lag": staleness},
    )
