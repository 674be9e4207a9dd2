"""Ape-X: actors with a copy of the parameters, and one prioritized replay.

    actor: EnvPool <-> act --.    unrolls and    .-> prioritized replay <-.
    actor: EnvPool <-> act ----- priorities ----<        | batches        |
    actor: EnvPool <-> act --'  <- parameters    '--- update ---> new priorities

It is IMPALA's wiring around a replay. Actors act by themselves, each
environment with an epsilon of its own, and say of each window of their unrolls,
an n-step transition, how much there is to learn from it: the size of its TD
error as their parameters see it. The learner draws windows in proportion to
that, and writes back what it finds. It takes experience in and learns in turn,
at a fixed ratio, and a full queue holds the actors back: neither side runs
away. Horgan et al. 2018, "Distributed Prioritized Experience Replay",
https://arxiv.org/abs/1803.00933, figure 1 and algorithms 1 and 2.
"""

import dataclasses

from seedx import launch, types
from seedx.learning import experience
from seedx.pipelines import impala
from seedx.runtime import process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(impala.Config):
  """What an Ape-X run is made of, beside what an IMPALA run is.

  Attributes:
    replay: what is kept, and how it is drawn.
  """

  replay: experience.PrioritizedConfig = experience.PrioritizedConfig()

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    if self.learner.micro_batches > 1:
      raise types.ConfigError(
        "expected 1 micro-batch: new priorities are those of a whole batch,"
        f" found micro_batches {self.learner.micro_batches}"
      )

  @property
  def plan(self) -> experience.Plan:
    """How much is learned from, and how much of it at a time."""
    return dataclasses.replace(super().plan, replay=self.replay)


def nodes(config: Config) -> list[launch.Node]:
  """The actors, to be launched anywhere that reaches the learner."""
  return impala.nodes(config)


def learn(config: Config, context: process.Context) -> process.Process:
  """The learner process: replay, updates, parameters.

  Raises:
    types.ConfigError: the environment or a device does not exist, or the agent
      has no priorities.
  """
  return impala.learn(config, context)
