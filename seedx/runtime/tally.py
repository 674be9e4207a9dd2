"""What is counted of learning that many workers do at a time."""

import collections
import threading
from collections.abc import Mapping

import numpy as np

from seedx import types


class Tally:
  """Counts of gradients; any thread may add to them.

  Attributes:
    steps: gradients applied so far.
    learned_steps: env steps learned from; resets are none.
  """

  def __init__(self, window: int = 100) -> None:
    """`window`: how many of the latest additions the means are over."""
    self.steps = 0
    self.learned_steps = 0.0
    self._lock = threading.Lock()
    self._newest: Mapping[str, float] = {}
    self._latest: collections.deque[tuple[int, float]] = collections.deque(
      maxlen=window
    )

  def add(
    self,
    learned_steps: float,
    staleness: float,
    metrics: Mapping[str, float],
    gradients: int = 1,
  ) -> None:
    """Counts gradients that have been applied.

    Args:
      learned_steps: env steps that they are of.
      staleness: how many updates the parameters had seen, on average, since
        those that a gradient was computed with.
      metrics: what else is said of the newest of them.
      gradients: how many.
    """
    with self._lock:
      self.steps += gradients
      self.learned_steps += learned_steps
      self._latest.append((gradients, staleness))
      self._newest = dict(metrics)

  def saved(self) -> types.Tree:
    """What a checkpoint keeps of it."""
    with self._lock:
      return {
        "steps": np.int64(self.steps),
        "learned_steps": np.float64(self.learned_steps),
      }

  def restore(self, saved: types.Tree) -> None:
    """Goes on from what was saved."""
    with self._lock:
      self.steps = int(saved["steps"])
      self.learned_steps = float(saved["learned_steps"])

  @property
  def metrics(self) -> dict[str, float]:
    """The newest gradient's scalars, and the mean staleness of the latest."""
    with self._lock:
      if not self._latest:
        return {}
      gradients, staleness = np.transpose(self._latest)
      mean = float(np.average(staleness, weights=gradients))
      return {**self._newest, "gradient_staleness": mean}
