"""The configs of replays."""

import dataclasses
from typing import ClassVar, Self

from seedx import types
from seedx.replay import prioritized, ratios, uniform


@dataclasses.dataclass(frozen=True)
class Batches:
  """The config of the batches from a replay.

  Attributes:
    replay_batch_size: batch size in windows (n-step transitions, or R2D2's
      sequences).
  """

  replay_batch_size: int = types.setting(128, low=1, high=2**31 - 1)

  def __post_init__(self) -> None:
    types.check_settings(self)


@dataclasses.dataclass(frozen=True)
class Config(Batches):
  """The config of a uniform replay.

  Attributes:
    replay_capacity: capacity in env steps.
    replay_min_steps: number of env steps in the replay before learning starts.
    replay_ratio: average number of times that each env step is learned from. A
      transition counts as one, R2D2's sequence as several, a reset as none.
    demonstrations: directory of a recording to learn from, too, see `seedx
      record`; none if empty.
    demonstration_ratio: probability that a window is from the demonstrations.
    demonstration_ratio_rise: linear change of this probability over the run,
      such as -0.0625, down to 0.
  """

  # Whether unrolls have priorities, which updates replace.
  has_priorities: ClassVar[bool] = False

  replay_capacity: int = types.setting(200_000, low=1, high=2**31 - 1)
  replay_min_steps: int = 2_000
  replay_ratio: float = types.setting(4.0, low=1e-6, high=1e6)
  demonstrations: str = ""
  demonstration_ratio: float = types.setting(0.0, low=0.0, high=1.0)
  demonstration_ratio_rise: float = types.setting(0.0, low=-1.0, high=1.0)

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range(
      "replay_min_steps", self.replay_min_steps, 1, self.replay_capacity
    )

  def make(
    self,
    window: int,
    capacity: int,
    period: int | None,
    streams: int,
  ) -> uniform.Replay:
    """Makes the replay of a core.

    Args:
      window: W, time steps of a window.
      capacity: capacity in unrolls.
      period: T, new time steps of an unroll; None if an environment's
        next unroll may be in another replay.
      streams: number of environments whose unrolls arrive in any order; 0 if
        each share has one unroll of each environment, in the same order.
    """
    return uniform.Uniform(capacity, window, period, streams)

  def ratio(self, learned_steps: int) -> ratios.Ratio:
    """Makes the count of due batches.

    `learned_steps` is the number of steps of a window that are learned from.
    """
    batch_steps = self.replay_batch_size * learned_steps
    return ratios.Ratio(self.replay_ratio, self.replay_min_steps, batch_steps)

  def steps_per_update(self, learned_steps: int) -> float:
    """Returns the number of new env steps for each update, see `ratio`."""
    return self.replay_batch_size * learned_steps / self.replay_ratio

  def divided(self, parts: int) -> Self:
    """Returns the config of one of `parts` equal parts of this replay.

    Raises:
      types.ConfigError: a batch has fewer windows than there are parts.
    """
    return dataclasses.replace(
      self,
      replay_capacity=max(1, self.replay_capacity // parts),
      replay_min_steps=max(1, self.replay_min_steps // parts),
      replay_batch_size=self.replay_batch_size // parts,
    )


@dataclasses.dataclass(frozen=True)
class PrioritizedConfig(Config):
  """The config of a prioritized replay.

  Attributes:
    priority_exponent: alpha, the exponent of priorities; 0 samples uniformly.
    importance_exponent: initial beta, the exponent of importance weights; 1
      corrects the sampling bias fully.
    importance_exponent_rise: linear increase of beta over the run, up to a beta
      of 1.
  """

  has_priorities: ClassVar[bool] = True

  priority_exponent: float = types.setting(0.6, low=0.0, high=1.0)
  importance_exponent: float = types.setting(0.4, low=0.0, high=1.0)
  importance_exponent_rise: float = types.setting(0.0, low=0.0, high=1.0)

  def make(
    self,
    window: int,
    capacity: int,
    period: int | None,
    streams: int,
  ) -> uniform.Replay:
    """Makes the replay of a core, see `Config.make`."""
    return prioritized.Prioritized(
      capacity,
      window,
      period,
      streams,
      self.priority_exponent,
      self.importance_exponent,
      self.importance_exponent_rise,
    )
