"""What every replay does, and the settings that make one."""

import dataclasses
from typing import Any, ClassVar, Protocol, Self

import jax

from seedx import types
from seedx.replay import prioritized, uniform
from seedx.replay import ratio as ratio_lib


class Replay(Protocol):
  """A replay of one learner core: pure functions over its state.

  A `types.Share` has unrolls in `data`, here of S unrolls with W windows each.
  """

  def init(self, example: types.Share) -> types.Tree:
    """Returns the state of an empty replay, for shares like the example."""

  def add(self, state: Any, share: types.Share) -> types.Tree:
    """Adds a share's unrolls; they overwrite the oldest."""

  def sample(
    self, state: Any, rng_key: jax.Array, size: int, done: jax.Array
  ) -> tuple[types.Sample, types.Tree]:
    """Samples windows, with replacement.

    Args:
      state: of a replay with at least one unroll.
      rng_key: for the draws.
      size: B, number of windows.
      done: `[]` float32, the share of the run's updates that are done, for
        schedules; from 0 to 1.

    Returns:
      A `types.Sample` of `[W, B, ...]`; and what `update` needs to find its
      windows again, or ().
    """

  def update(self, state: Any, windows: Any, priorities: Any) -> types.Tree:
    """Takes new priorities `[B]` of a sample's windows, where it has any."""

  def measure(self, state: Any) -> dict[str, jax.Array]:
    """Returns its own counts by their names, `[]`: cores' are added up."""


@dataclasses.dataclass(frozen=True)
class Config:
  """The config of a replay from which windows are sampled uniformly.

  Attributes:
    replay_capacity: capacity in env steps.
    replay_min_steps: env steps in the replay before learning starts.
    replay_batch_size: batch size, in windows (n-step transitions, or R2D2's
      sequences).
    replay_ratio: env steps learned from per env step, on average. A transition
      is one step, a sequence of R2D2's is many; resets are none.
  """

  # Whether unrolls come with priorities, and updates return new ones.
  has_priorities: ClassVar[bool] = False

  replay_capacity: int = types.setting(200_000, low=1, high=2**31 - 1)
  replay_min_steps: int = 2_000
  replay_batch_size: int = types.setting(128, low=1, high=2**31 - 1)
  replay_ratio: float = types.setting(4.0, low=1e-6, high=1e6)

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_settings(self)
    types.check_range(
      "replay_min_steps", self.replay_min_steps, 1, self.replay_capacity
    )

  def make(self, window: int, capacity: int) -> Replay:
    """Makes the replay of a core.

    Args:
      window: W, time steps of a window.
      capacity: in unrolls.
    """
    return uniform.Uniform(capacity, window)

  def ratio(self, learned_steps: int) -> ratio_lib.Ratio:
    """Makes the count of batches that are due.

    Args:
      learned_steps: steps of a window that are learned from.
    """
    batch_steps = self.replay_batch_size * learned_steps
    return ratio_lib.Ratio(
      self.replay_ratio, self.replay_min_steps, batch_steps
    )

  def steps_per_update(self, learned_steps: int) -> float:
    """Env steps for each update.

    Args:
      learned_steps: steps of a window that are learned from.
    """
    return self.replay_batch_size * learned_steps / self.replay_ratio

  def divided(self, parts: int) -> Self:
    """The config of each of `parts` replays that share this one evenly."""
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
    importance_exponent_rise: how much beta rises over the run, linearly; it
      ends at 1 where that would be more.
  """

  has_priorities: ClassVar[bool] = True

  priority_exponent: float = types.setting(0.6, low=0.0, high=1.0)
  importance_exponent: float = types.setting(0.4, low=0.0, high=1.0)
  importance_exponent_rise: float = types.setting(0.0, low=0.0, high=1.0)

  def make(self, window: int, capacity: int) -> Replay:
    """See `Config`."""
    return prioritized.Prioritized(
      capacity,
      window,
      self.priority_exponent,
      self.importance_exponent,
      self.importance_exponent_rise,
    )
