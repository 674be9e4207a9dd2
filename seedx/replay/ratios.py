"""The replay ratio: the number of batches to learn from per env step."""

from collections.abc import Mapping

import numpy as np

from seedx import types


class Ratio:
  """A count of the batches that are due by the replay ratio.

  `take` charges a batch as if it had no resets. `learned` corrects the charge
  when the number of env steps in the batch is available.

  Attributes:
    env_steps: number of env steps added so far.
    missed: number of resets in the batches so far, in units of a batch.
  """

  def __init__(
    self, replay_ratio: float, min_steps: int, batch_steps: int
  ) -> None:
    """Makes a count of zero.

    Args:
      replay_ratio: number of env steps to learn from per env step.
      min_steps: number of env steps before any batch is due.
      batch_steps: number of env steps in a batch without resets.
    """
    self.env_steps = 0.0
    self.missed = 0.0
    self._replay_ratio = replay_ratio
    self._min_steps = min_steps
    self._batch_steps = batch_steps
    self._due = 0.0

  def add(self, env_steps: float) -> None:
    """Adds env steps; a negative number corrects an earlier call."""
    self.env_steps += env_steps
    if self.env_steps >= self._min_steps:
      self._due += env_steps * self._replay_ratio

  def take(self) -> bool:
    """Returns whether a batch is due, and charges it if so."""
    if self._due < self._batch_steps:
      return False
    self._due -= self._batch_steps
    return True

  def learned(self, env_steps: float, batches: int = 1) -> None:
    """Corrects the charge of batches by the number of env steps in them."""
    missed = batches * self._batch_steps - env_steps
    self._due += missed
    self.missed += missed / self._batch_steps

  def saved(self) -> dict[str, np.float64]:
    """Returns the counts to save in a checkpoint."""
    return {
      "env_steps": np.float64(self.env_steps),
      "missed": np.float64(self.missed),
      "due": np.float64(self._due),
    }

  def restore(self, saved: Mapping[str, types.Array]) -> None:
    """Restores the numbers that `saved` returned."""
    self.env_steps = float(saved["env_steps"])
    self.missed = float(saved["missed"])
    self._due = float(saved["due"])
