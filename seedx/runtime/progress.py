"""Progress of learning: gradients, and updates that were skipped."""

import collections
import threading
from collections.abc import Mapping

import numpy as np

from seedx import metrics, signals, types

# The number of consecutive skipped updates that ends a run.
_FATAL_SKIPPED = 100


class StuckError(RuntimeError):
  """A run has stopped learning; resumed, it would stop again."""


class SkippedUpdates:
  """Counter of updates that were skipped because they were not finite.

  Attributes:
    updates: number of skipped updates so far.
  """

  def __init__(self, where: str = "") -> None:
    """Starts at 0; `where` follows "update" in the message of the first one."""
    self.updates = 0
    self._in_a_row = 0
    self._where = where
    self._is_reported = False

  @property
  def is_stuck(self) -> bool:
    """Whether too many consecutive updates were skipped."""
    return self._in_a_row >= _FATAL_SKIPPED

  def add(self, skipped: int, applied: int) -> None:
    """Counts the newest updates: the skipped and the applied ones.

    Prints one line at the first skipped update.
    """
    self.updates += skipped
    self._in_a_row = 0 if applied else self._in_a_row + skipped
    if skipped and not self._is_reported:
      self._is_reported = True
      signals.print_at_once(
        f"an update{self._where} was skipped, since its result has a NaN or an"
        " infinity; updates_skipped counts such updates\n"
      )

  def check(self) -> None:
    """Ends a run that has stopped learning.

    Raises:
      StuckError: too many consecutive updates were skipped.
    """
    if self.is_stuck:
      raise StuckError(
        "expected updates with finite results, found a NaN or an infinity in"
        f" {self._in_a_row} in a row, which were skipped; look for very large"
        " observations or rewards, and begin a new run with a smaller"
        " --learning-rate or --reward-scale"
        f"{types.see('numbers-that-are-not-finite')}"
      )


class Progress:
  """Counts of gradients; any thread may add to them.

  Attributes:
    steps: number of gradients applied so far.
    learned_steps: number of env steps learned from; resets do not count.
  """

  def __init__(self, window: int = 100) -> None:
    """Starts at 0; means are over the latest `window` additions."""
    self.steps = 0
    self.learned_steps = 0.0
    self._skipped = SkippedUpdates()
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
    """Counts applied gradients.

    Args:
      learned_steps: number of env steps that the gradients were computed from.
      staleness: mean number of other updates since a gradient's parameters
        were read.
      metrics: the agent's metrics of the newest gradient.
      gradients: number of gradients.
    """
    with self._lock:
      self._skipped.add(0, gradients)
      self.steps += gradients
      self.learned_steps += learned_steps
      self._latest.append((gradients, staleness))
      self._newest = dict(metrics)

  def skip(self, gradients: int) -> None:
    """Counts gradients that were skipped because they were not finite."""
    with self._lock:
      self._skipped.add(gradients, 0)

  def check(self) -> None:
    """Ends a run that has stopped learning; see `SkippedUpdates.check`."""
    with self._lock:
      self._skipped.check()

  def measure(self) -> dict[str, metrics.Value]:
    """Returns its metrics."""
    with self._lock:
      line: dict[str, metrics.Value] = {
        "learner_steps": self.steps,
        "learned_steps": int(self.learned_steps),
        "updates_skipped": self._skipped.updates,
        "policy_lag": None,
        **self._newest,
      }
      if self._latest:
        gradients, staleness = np.transpose(self._latest)
        mean = float(np.average(staleness, weights=gradients))
        line["gradient_staleness"] = mean
      return line

  def saved(self) -> types.Tree:
    """Returns the state for a checkpoint."""
    with self._lock:
      return {
        "steps": np.int64(self.steps),
        "learned_steps": np.float64(self.learned_steps),
        "updates_skipped": np.int64(self._skipped.updates),
      }

  def restore(self, saved: types.Tree) -> None:
    """Continues from a saved state."""
    with self._lock:
      self.steps = int(saved["steps"])
      self.learned_steps = float(saved["learned_steps"])
      self._skipped.updates = int(saved["updates_skipped"])
