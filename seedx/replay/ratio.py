"""The replay ratio: how many batches to learn from, for so many env steps."""

from collections.abc import Mapping

import numpy as np

from seedx import types


class Ratio:
  """Keeps the env steps learned from in proportion to those acted.

  A batch is charged as if it had no resets, and corrected by `learned`, once it
  is known how many env steps were in it.

  Attributes:
    env_steps: number of env steps added so far.
    missed: batches' worth of resets in the batches so far.
  """

  def __init__(
    self, replay_ratio: float, min_steps: int, batch_steps: int
  ) -> None:
    """Nothing is due yet.

    Args:
      replay_ratio: env steps to learn from per env step.
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
    """Adds env steps; negative ones correct the number added before."""
    self.env_steps += env_steps
    if self.env_steps >= self._min_steps:
      self._due += env_steps * self._replay_ratio

  def take(self) -> bool:
    """Whether a batch is due; it is charged."""
    if self._due < self._batch_steps:
      return False
    self._due -= self._batch_steps
    return True

  def learned(self, env_steps: float, batches: int = 1) -> None:
    """Corrects the charge of batches by the env steps that were in them."""
    missed = batches * self._batch_steps - env_steps
    self._due += missed
    self.missed += missed / self._batch_steps

  def saved(self) -> dict[str, np.float64]:
    """Returns what a checkpoint keeps of it."""
    return {
      "env_steps": np.float64(self.env_steps),
      "missed": np.float64(self.missed),
      "due": np.float64(self._due),
    }

  def restore(self, saved: Mapping[str, types.Array]) -> None:
    """Restores what `saved` returned."""
    self.env_steps = float(saved["env_steps"])
    self.missed = float(saved["missed"])
    self._due = float(saved["due"])
