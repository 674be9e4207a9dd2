"""Synchronous training in one process.

    EnvPool --- observations ---> act -> unroll store --- unrolls ---.
       '------- actions ---------'  ^                                v
                                    '-- parameters <- update <- (replay)

All environments step together, then the agent acts for all of them. When an
unroll is finished, it is learned from before the next action. So the newest
parameters always act, and the same seed gives bitwise the same parameters on
the same machine. This is the loop of A2C (the synchronous form of Mnih et al.
2016, https://arxiv.org/abs/1602.01783), of PPO (Schulman et al. 2017,
https://arxiv.org/abs/1707.06347, algorithm 1), and of DQN (Mnih et al. 2015,
https://doi.org/10.1038/nature14236, algorithm 1).
"""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from seedx import envs, metrics, sharding, types
from seedx.acting import local_actor, sessions, unroll_store
from seedx.agents import base
from seedx.learning import experience
from seedx.learning import learner as learner_lib
from seedx.runtime import counters, process

# Acting waits while the agent learns; learning waits the rest of the time.
_WAITS = (
  *(metrics.WAIT_ENVIRONMENTS, metrics.WAIT_LEARNER),
  metrics.WAIT_EXPERIENCE,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.Config):
  """The config of a synchronous run.

  Attributes:
    env: the environment.
    agent: the agent that acts and learns.
    num_envs: number of parallel environments, of all learner hosts together.
    env_threads: threads of EnvPool; processes of your own environments.
    env_restarts: how often in a row a process of your own environments starts
      again where one raises an error or dies; then the run ends.
    learner: the learner devices; the first also acts.
    replay: the replay; None for an agent that learns without one.
  """

  env: envs.Config = envs.Config()
  agent: base.Config
  num_envs: int = 16
  env_threads: int = 1
  env_restarts: int = 5
  learner: learner_lib.Config = learner_lib.Config()
  replay: experience.ReplayConfig | None = None

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range.

    The same where learner devices and micro-batches do not divide `num_envs`.
    """
    super().__post_init__()
    types.check_ranges(
      self,
      num_envs=(1, 2**20),
      env_threads=(1, 2**10),
      env_restarts=(0, 2**20),
    )
    parts = self.learner.parts_of_unrolls(self.replay)
    self.learner.check_divides("num_envs", self.num_envs, parts)

  @property
  def plan(self) -> experience.Plan:
    """The run's amounts of experience."""
    batch_steps = self.num_envs * self.learner.unroll_length
    return experience.Plan(
      self.total_steps,
      batch_steps,
      self.replay,
      self.learner.parts,
      self.learner.hosts,
      self.learner.unroll_length,
    )

  def learn(self, context: process.Context) -> process.Process:
    """The only process: environments, acting, unrolls, updates.

    Raises:
      types.ConfigError: no such environment or device, or an unfit agent.
    """
    spec = envs.spec(self.env)
    agent = self.plan.agent(self.agent, spec, sharding.CORES)
    hosts, period = context.hosts, self.learner.unroll_length
    num_envs = self.num_envs // hosts.count
    rng_key = jax.random.key(self.seed)
    learner_key, replay_key, acting_key = jax.random.split(rng_key, 3)
    acted = hosts.acted(spec.frames_per_step, self.total_steps)
    source = self.plan.source(
      agent, period, self.learner.cores(), hosts.own_key(replay_key), acted
    )
    learning = learner_lib.Learner(
      agent, self.learner, source, learner_key, stop=context.stop, hosts=hosts
    )
    seeds = hosts.counted(sessions.Seeds(self.seed, hosts.index))
    restarts = envs.Restarts(self.env_restarts, seeds.take)
    layout = unroll_store.Layout.of(agent, period, num_envs)
    programs = local_actor.Programs(agent, spec, layout)
    waits = metrics.Waits(dict.fromkeys(_WAITS, 1))

    def steps() -> Iterator[None]:
      """Trains, and yields after each step of all environments."""
      reported = counters.explores_least(agent.exploration(num_envs))
      played = counters.Played(acted, reported)
      first_seed = seeds.take(num_envs)
      actor = local_actor.LocalActor(
        programs,
        self.env,
        seed=first_seed,
        rng_key=jax.random.fold_in(acting_key, first_seed),
        device=learning.cores[0],
        waits=waits,
        num_threads=self.env_threads,
        restarts=restarts,
      )
      try:
        acting, version = learning.newest()
        while acted.env_steps < self.total_steps:
          with waits.timed(metrics.WAIT_EXPERIENCE):
            rows, unroll = actor.observe(acting, np.int32(version))
            played.add(rows)
          if unroll is not None:
            with waits.timed(metrics.WAIT_LEARNER):
              first = programs.priorities(acting, unroll)
              learning.learn_from(learning.shares(unroll, first))
              learning.publish()
              acting, version = learning.newest()
          with waits.timed(metrics.WAIT_EXPERIENCE):
            actor.act(acting, np.int32(version))
          yield
      finally:
        actor.close()

    return process.Process(
      acted=acted,
      parts={"learner": learning, "acted": acted, "seeds": seeds},
      replay=learning.replay,
      policy=learning.policy,
      measures=[
        acted.measure,
        learning.measure,
        waits.shares,
        restarts.measure,
      ],
      steps=steps,
      close=learning.finish,
    )
