"""Synchronous training in one process.

    EnvPool --- observations ---> act -> unroll store --- unrolls ---.
       '------- actions ---------'  ^                                v
                                    '-- parameters <- update <- (replay)

All environments step together, then the agent acts for all of them. When an
unroll is complete, the agent learns from it before the next action. So the
newest parameters always act, and the same seed gives bitwise the same
parameters on the same machine.

`sync` is the loop of A2C, the agent of A3C in one batch (Clemente et al. 2017,
https://arxiv.org/abs/1705.04862), of PPO (Schulman et al. 2017,
https://arxiv.org/abs/1707.06347, algorithm 1), and of DQN (Mnih et al. 2015,
https://doi.org/10.1038/nature14236, algorithm 1).
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from seedx import envs, metrics, types
from seedx import replay as replay_lib
from seedx.acting import local_actor
from seedx.envs.processes import restarting
from seedx.learning import learner as learner_lib
from seedx.learning import learners, plans
from seedx.runtime import counters, process

# Acting waits while the agent learns, and learning waits while it acts.
_WAITS = (
  metrics.WAIT_ENVIRONMENTS,
  metrics.WAIT_LEARNER,
  metrics.WAIT_EXPERIENCE,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.Config):
  """The options of a synchronous run.

  Attributes:
    num_envs: number of parallel environments, of all learner hosts together.
    env_threads: number of threads of EnvPool, or of processes for your own
      environments.
    env_restarts: number of consecutive times that a process of your own
      environments is restarted after an error or its death; one more failure
      ends the run.
    learner: the learner devices; the first one also acts.
    replay: the replay; None for an agent that learns without one.
  """

  num_envs: int = types.setting(16, low=1, high=2**20)
  env_threads: int = types.setting(1, changes="resume", low=1, high=2**10)
  env_restarts: int = types.setting(5, changes="resume", low=0, high=2**20)
  learner: learner_lib.Config = learner_lib.Config()
  replay: replay_lib.Config | None = None

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an invalid setting.

    `num_envs` must be a multiple of the number of learner devices, times
    micro-batches if there is no replay.
    """
    super().__post_init__()
    parts = self.learner.parts_of_unrolls(self.replay)
    self.learner.check_divides("num_envs", self.num_envs, parts)

  @property
  def plan(self) -> plans.Plan:
    """The run's amounts of experience."""
    batch_steps = self.num_envs * self.learner.unroll_length
    return self.learner.plan(self.total_steps, batch_steps, self.replay)

  def learn(self, context: process.Context) -> process.Process:
    """Returns the only process: environments, acting, unrolls, updates."""
    spec = envs.spec(self.env)
    acted = context.acted(spec, self.total_steps)
    seeds = context.seeds(self.seed)
    learning = learners.of(self, spec, context, acted)
    restarts = restarting.Restarts(self.env_restarts, seeds.take)
    waits = metrics.Waits(dict.fromkeys(_WAITS, 1))
    num_envs = self.num_envs // self.learner.hosts
    programs = local_actor.Programs.of(
      learning.agent, spec, self.learner.unroll_length, num_envs
    )
    acting_key = context.keys(self.seed).acting

    def start() -> local_actor.LocalActor:
      return local_actor.LocalActor(
        programs,
        envs.at(self.env, acted.env_steps),
        seed=seeds.take(num_envs),
        rng_key=acting_key,
        device=learning.cores[0],
        waits=waits,
        num_threads=self.env_threads,
        restarts=restarts,
      )

    steps = functools.partial(_steps, start, programs, learning, acted, waits)
    return process.Process(
      acted=acted,
      parts={"agent": learning, "acted": acted, "seeds": seeds},
      begin=learning.begin,
      replay=learning.replay,
      refill=functools.partial(
        self.plan.refill, learning.agent.needs, learning.leave_out
      ),
      policy=learning.policy,
      measures=[acted, learning, waits, restarts],
      steps=steps,
      close=learning.finish,
    )


def _steps(
  start: Callable[[], local_actor.LocalActor],
  programs: local_actor.Programs,
  learning: learner_lib.Learner,
  acted: counters.ActingCounts,
  waits: metrics.Waits,
) -> Iterator[None]:
  """Trains; yields after each step of all environments."""
  exploration = learning.agent.exploration(programs.layout.num_slots)
  played = counters.LocalEnvironments(
    acted, counters.explores_least(exploration)
  )
  with contextlib.closing(start()) as actor:
    acting, version = learning.newest()
    while not acted.is_done:
      with waits.timed(metrics.WAIT_EXPERIENCE):
        rows, unroll = actor.observe(acting, np.int32(version))
        played.add(rows)
      if unroll is not None:
        with waits.timed(metrics.WAIT_LEARNER):
          priorities = programs.priorities(acting, unroll)
          shares = learning.shares(unroll, priorities, actor.origin)
          learning.learn_from(shares)
          learning.publish()
          acting, version = learning.newest()
      with waits.timed(metrics.WAIT_EXPERIENCE):
        actor.act(acting, np.int32(version))
      yield
