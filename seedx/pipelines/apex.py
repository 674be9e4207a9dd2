"""Ape-X: actors with a copy of the parameters, and one prioritized replay.

    actor: EnvPool <-> act --.    unrolls and    .-> prioritized replay <-.
    actor: EnvPool <-> act ----- priorities ----<        | batches        |
    actor: EnvPool <-> act --'  <- parameters    '--- update ---> new priorities

Ape-X is IMPALA with a replay between actors and updates. Each environment has
an epsilon of its own. Actors compute the priorities of their n-step transitions
from TD errors under their own parameters. The learner samples transitions in
proportion to priority ** alpha, and writes new priorities back. The learner
alternates between adding experience and updating, at a fixed ratio, and actors
wait while its queue is full. So neither side runs ahead of the other.

Horgan et al. 2018, "Distributed Prioritized Experience Replay",
https://arxiv.org/abs/1803.00933, figure 1 and algorithms 1 and 2.
"""

import dataclasses

from seedx import replay as replay_lib
from seedx.learning import plans
from seedx.pipelines import impala


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(impala.Config):
  """The options of an Ape-X run: those of an IMPALA run, and a replay.

  Attributes:
    replay: the replay; a uniform one for an agent without priorities.
  """

  replay: replay_lib.Config = replay_lib.PrioritizedConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    self.learner.parts_of_unrolls(self.replay)

  @property
  def plan(self) -> plans.Plan:
    """The run's amounts of experience."""
    return dataclasses.replace(super().plan, replay=self.replay)
