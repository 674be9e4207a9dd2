"""A3C: asynchronous actor-learners, as threads of one process.

    thread: EnvPool <-> act -> unroll -> gradients --.
    thread: EnvPool <-> act -> unroll -> gradients ----> shared parameters
    thread: EnvPool <-> act -> unroll -> gradients --'   and optimizer
               ^                                               |
               '------------- a copy of the parameters <-------'

Each worker has its own environments and its own copy of the parameters, with
which it acts and computes gradients. The worker refreshes the copy after each
unroll. Each gradient is applied to the shared parameters as soon as it is
computed, one at a time; workers are never synchronized. `gradient_staleness` is
the number of updates by other workers since the copy was made. The paper
updates the parameters in place without locks (Hogwild, section 4). JAX arrays
are immutable, so here an update replaces the parameters, under a lock.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning",
https://arxiv.org/abs/1602.01783, algorithms S2 (n-step Q-learning, here a DQN
that is not `replayed`) and S3 (A3C).
"""

import dataclasses
import functools
import threading

import jax

from seedx import envs, metrics, sharding, types
from seedx.acting import local_actor
from seedx.agents import base
from seedx.envs.processes import restarting
from seedx.learning import plans, shared_state
from seedx.runtime import counters, process, seeding

# Acting waits while the worker learns, and learning waits while it acts.
_WAITS = (
  metrics.WAIT_ENVIRONMENTS,
  metrics.WAIT_LEARNER,
  metrics.WAIT_EXPERIENCE,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.Config):
  """The options of an A3C run.

  Attributes:
    workers: threads that act and learn.
    device: index of the local device that acts and learns.
    env_restarts: number of consecutive times that a worker's process of your
      own environments is restarted after an error or its death; one more
      failure ends the run.
  """

  workers: local_actor.WorkersConfig = local_actor.WorkersConfig()
  device: int = types.setting(0, changes="process")
  env_restarts: int = types.setting(5, changes="resume", low=0, high=2**20)

  @property
  def plan(self) -> plans.Plan:
    """The run's amounts of experience."""
    return plans.Plan(
      self.total_steps,
      self.workers.batch_steps,
      workers=self.workers.num_workers,
    )

  def learn(self, context: process.Context) -> process.Process:
    """Returns the only process: the workers and their shared parameters."""
    (device,) = sharding.devices([self.device], "learner")
    spec = envs.spec(self.env)
    agent = self.plan.agent(self.agent, spec)
    base.check_gradients_can_be_shared(agent)
    team = _Team(self, context, agent, spec, device)
    return process.Process(
      acted=team.acted,
      parts={
        "agent": team.shared,
        "learned": team.learned,
        "acted": team.acted,
        "seeds": team.seeds,
      },
      begin=team.shared.begin,
      policy=lambda saved: team.acting(saved["agent"]),
      measures=[team.acted, team.learned, team.waits, team.restarts],
      threads={
        f"worker-{i}": functools.partial(team.work, i)
        for i in range(self.workers.num_workers)
      },
      stopping=team.compiled.set,
    )


class _Team:
  """The workers, and what they share."""

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
    self.shared = shared_state.Shared(agent, state, device)
    self.learned = self.shared.learned
    self.acted = context.acted(spec, config.total_steps)
    self.seeds = seeding.Seeds(config.seed)
    self.restarts = restarting.Restarts(config.env_restarts, self.seeds.take)
    self.acting = jax.jit(agent.acting)
    self.waits = metrics.Waits(dict.fromkeys(_WAITS, workers.num_workers))
    self._config = config
    self._stop = context.stop
    self._device = device
    self._programs = workers.programs(agent, spec)
    exploration = agent.exploration(workers.num_envs)
    shape = (workers.num_workers, workers.envs_per_worker)
    self._exploration = exploration.reshape(shape)
    self._reported = counters.explores_least(exploration).reshape(shape)
    # Set when worker 0 has compiled for all workers, or the run ends.
    self.compiled = threading.Event()

  def work(self, worker: int) -> None:
    """Runs one worker until the run ends."""
    if worker:
      self.compiled.wait()
    if self._stop.is_set():
      return
    act_key, learn_key = jax.random.split(self._keys[worker])
    actor = self._make_actor(worker, act_key)
    played = counters.LocalEnvironments(self.acted, self._reported[worker])
    try:
      state, version = self.shared.newest()
      acting = self.acting(state)
      while not self._stop.is_set() and not self.acted.is_done:
        with self.waits.timed(metrics.WAIT_EXPERIENCE):
          rows, unroll = actor.observe(acting, version)
          played.add(rows)
        if unroll is not None:
          with self.waits.timed(metrics.WAIT_LEARNER):
            self.shared.learn(state, version, learn_key, unroll)
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
    return local_actor.LocalActor(
      self._programs,
      envs.at(self._config.env, self.acted.env_steps),
      seed=self.seeds.take(self._config.workers.envs_per_worker),
      rng_key=rng_key,
      device=self._device,
      waits=self.waits,
      exploration=self._exploration[worker],
      restarts=self.restarts,
    )
