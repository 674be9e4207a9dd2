"""Offline training: an agent learns from a recording, without an environment.

    recording --- windows ---> update ---> parameters
                                               '--- (evaluation in the
                                                     recorded environment)

The run has no env steps; its clock is the number of updates. The environment is
that of the recording, and is only played in evaluations. Lange et al. 2012,
"Batch Reinforcement Learning"; Levine et al. 2020,
https://arxiv.org/abs/2005.01643.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from seedx import envs, types
from seedx import replay as replay_lib
from seedx.agents import base
from seedx.learning import (
  demonstrations,
  experience,
  fixed,
  learners,
  plans,
  replay_source,
)
from seedx.learning import learner as learner_lib
from seedx.runtime import clocks, counters, process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.Config):
  """The options of an offline run.

  Attributes:
    dataset: recording to learn from: its directory, or minari:NAME.
    learner: the learner devices.
    replay: the batches; windows are drawn uniformly.
  """

  dataset: str = types.setting("", changes="resume")
  learner: learner_lib.DevicesConfig = learner_lib.DevicesConfig()
  replay: replay_lib.Batches = replay_lib.Batches()

  @property
  def plan(self) -> "Plan":
    """The run's number of updates, and its recording."""
    return plan_of(self.total_steps, self.dataset, self)

  def learn(self, context: process.Context) -> process.Process:
    """Returns the only process: it draws batches and makes updates."""
    spec = envs.spec(self.env)
    acted = context.acted(spec, self.total_steps)
    learning = learners.of(self, spec, context, acted)
    return process_of(
      learning, learning.source, acted, self.total_steps, context
    )


@dataclasses.dataclass(frozen=True)
class Plan(plans.Plan):
  """A number of updates, with batches from a recording.

  Attributes:
    dataset: see `Config`.
  """

  dataset: str = ""

  @property
  def horizon(self) -> base.Horizon:
    """Length of the run in updates."""
    return base.Horizon(self.total_steps, self.total_steps, counts_updates=True)

  def check_kind(self, agent: base.Agent) -> None:
    """Raises types.ConfigError if the agent cannot learn from a recording."""
    demonstrations.check_agent(agent)

  def source(
    self,
    agent: base.Agent,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    acted: counters.ActingCounts | None = None,
    spec: types.EnvironmentSpec | None = None,
  ) -> experience.Experience:
    """Reads the recording; see `plans.Plan.source`.

    Raises:
      types.ConfigError: see `demonstrations.unroll_of`.
    """
    if not self.dataset:
      raise types.ConfigError(
        "expected a dataset to learn from, found none; add --dataset with the"
        " directory of a recording, see `seedx record`"
      )
    assert spec is not None and agent.needs.window is not None
    assert self.replay is not None
    share = demonstrations.unroll_of(self.dataset, agent, spec)
    batch_size = self.replay.divided(self.processes).replay_batch_size
    core_replay = replay_source.CoreReplay(
      replay_lib.Uniform(1, agent.needs.window, None, 0),
      agent.needs,
      batch_size // len(cores),
      self.horizon.updates,
    )
    return fixed.FixedSource(core_replay, share, cores, rng_key)


def plan_of(total_steps: int, dataset: str, config: Any) -> Plan:
  """Returns the plan for a `config` with a `learner` and a `replay`."""
  batch_size = config.replay.replay_batch_size
  return Plan(
    total_steps,
    batch_steps=1,
    replay=replay_lib.Config(replay_min_steps=1, replay_batch_size=batch_size),
    parts=config.learner.parts,
    processes=config.learner.hosts,
    dataset=dataset,
  )


def process_of(
  learning: learner_lib.Learner,
  data: Any,
  acted: counters.ActingCounts,
  total_steps: int,
  context: process.Context,
) -> process.Process:
  """Returns a process whose clock is the number of updates.

  Args:
    learning: the learner.
    data: source of the batches, a `fixed.FixedSource`.
    acted: counts of a run without env steps.
    total_steps: number of updates of the run.
    context: context of the process.
  """
  clock = clocks.Clock(
    "learner_steps",
    now=lambda: learning.version,
    total=total_steps,
    of=lambda saved: int(saved["learner"]["steps"]),
  )
  return process.Process(
    acted=acted,
    parts={"agent": learning, "acted": acted, "data": data},
    begin=learning.begin,
    policy=learning.policy,
    measures=[acted, learning],
    own_clock=clock,
    steps=functools.partial(_steps, learning, clock, context),
    close=learning.finish,
  )


def _steps(
  learning: learner_lib.Learner, clock: clocks.Clock, context: process.Context
) -> Iterator[None]:
  """Trains; yields after each update."""
  learning.source.example(())  # It may allocate.
  while not (clock.is_over or context.stop.is_set()):
    learning.learn_from(())
    yield
