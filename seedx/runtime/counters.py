"""What a run counts: of acting, and of learning by many workers."""

import collections
import threading
import time
from collections.abc import Mapping

import dm_env
import numpy as np

from seedx import metrics, types


class Acted:
  """Counts of experience; any thread may add to them.

  Attributes:
    returns: raw returns of whole games.
    lengths: env steps of whole games.
  """

  def __init__(self, frames_per_step: int = 1) -> None:
    """Everything is 0 and the clock has not started.

    Args:
      frames_per_step: emulator frames in an env step.
    """
    self.returns: metrics.Latest | metrics.MeanOfSeeds = metrics.Latest()
    self.lengths = metrics.Latest()
    self._frames_per_step = frames_per_step
    self._lock = threading.Lock()
    self._env_steps = 0
    self._unrolls_discarded = 0
    self._started_seconds: float | None = None
    self._past_seconds = 0.0
    # When the last line was measured, and the env steps of then.
    self._last = (time.monotonic(), 0)

  def add(
    self, env_steps: int, returns: np.ndarray, lengths: np.ndarray
  ) -> None:
    """Counts experience; the first starts the clock.

    Args:
      env_steps: how many.
      returns: `[...]`, raw, of games that ended; NaN is none.
      lengths: `[...]`, their env steps.
    """
    self.start()
    ended = ~np.isnan(returns)
    if ended.any():
      self.returns.add(returns[ended])
      self.lengths.add(lengths[ended])
    with self._lock:
      self._env_steps += env_steps

  def start(self) -> None:
    """Starts the clock, unless it runs."""
    with self._lock:
      if self._started_seconds is None:
        self._started_seconds = time.monotonic()

  def add_discarded(self, unrolls: int) -> None:
    """Counts unrolls that were lost because their actor disconnected."""
    with self._lock:
      self._unrolls_discarded += unrolls

  @property
  def env_steps(self) -> int:
    """Agent decisions carried out; resets are none."""
    return self._env_steps

  @property
  def wall_seconds(self) -> float:
    """Seconds since the first observation, of earlier starts as well."""
    if self._started_seconds is None:
      return self._past_seconds
    return self._past_seconds + time.monotonic() - self._started_seconds

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics; the rate is since the last call."""
    now, env_steps = time.monotonic(), self._env_steps
    (then, env_steps_then), self._last = self._last, (now, env_steps)
    return {
      "wall_seconds": self.wall_seconds,
      "env_steps": env_steps,
      "env_frames": env_steps * self._frames_per_step,
      "steps_per_second": (env_steps - env_steps_then) / (now - then),
      "episodes": self.returns.count,
      "episode_return": self.returns.mean(),
      "episode_length": self.lengths.mean(),
      "unrolls_discarded": self._unrolls_discarded,
    }

  def saved(self) -> types.Tree:
    """What a checkpoint keeps of it."""
    return {
      "returns": self.returns.saved(),
      "lengths": self.lengths.saved(),
      "env_steps": np.int64(self._env_steps),
      "unrolls_discarded": np.int64(self._unrolls_discarded),
      "wall_seconds": np.float64(self.wall_seconds),
    }

  def restore(self, saved: types.Tree) -> None:
    """Goes on from what was saved; before the clock starts."""
    self.returns.restore(saved["returns"])
    self.lengths.restore(saved["lengths"])
    self._env_steps = int(saved["env_steps"])
    self._last = (self._last[0], self._env_steps)
    self._unrolls_discarded = int(saved["unrolls_discarded"])
    self._past_seconds = float(saved["wall_seconds"])


class Played:
  """Counts what the environments of this process do."""

  def __init__(self, acted: Acted, reported: np.ndarray) -> None:
    """Counts nothing yet.

    Args:
      acted: counts it, with that of others.
      reported: `[N]`, whether an environment's games count, see
        `explores_least`.
    """
    self._acted = acted
    self._reported = reported
    self._lengths = np.zeros(len(reported), np.int64)

  def add(self, rows: types.Rows) -> None:
    """Counts observations `[B, ...]`."""
    index = rows.index
    steps = rows.timestep.step_type != dm_env.StepType.FIRST
    self._lengths[index] += steps
    lengths = self._lengths[index]
    returns = np.where(self._reported[index], rows.episode_return, np.nan)
    self._acted.add(int(np.count_nonzero(steps)), returns, lengths)
    self._lengths[index[~np.isnan(rows.episode_return)]] = 0


# So many skipped updates in a row end a run.
_MOST_SKIPPED = 100


class Skipped:
  """Counts updates that were skipped because they were not finite.

  Attributes:
    updates: so far.
  """

  def __init__(self) -> None:
    """Counts none yet."""
    self.updates = 0
    self._in_a_row = 0

  def add(self, skipped: int, applied: int) -> None:
    """Counts the newest updates: those that were skipped, and the others."""
    self.updates += skipped
    self._in_a_row = 0 if applied else self._in_a_row + skipped

  def check(self) -> None:
    """Ends a run that does not learn any more.

    Raises:
      RuntimeError: many updates in a row were skipped.
    """
    if self._in_a_row >= _MOST_SKIPPED:
      raise RuntimeError(
        "expected updates with finite results, found a NaN or an infinity in"
        f" {self._in_a_row} in a row; all of them were skipped, and the"
        " checkpoints are good. Look for observations or rewards that are not"
        " finite or very large, then --resume with a smaller --learning-rate or"
        f" --reward-scale{types.see('numbers-that-are-not-finite')}"
      )


class Learned:
  """Counts of gradients; any thread may add to them.

  Attributes:
    steps: gradients applied so far.
    learned_steps: env steps learned from; resets are none.
  """

  def __init__(self, window: int = 100) -> None:
    """`window`: how many of the latest additions the means are over."""
    self.steps = 0
    self.learned_steps = 0.0
    self._skipped = Skipped()
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
      self._skipped.add(0, gradients)
      self.steps += gradients
      self.learned_steps += learned_steps
      self._latest.append((gradients, staleness))
      self._newest = dict(metrics)

  def skip(self, gradients: int) -> None:
    """Counts gradients that were not applied, because they were not finite."""
    with self._lock:
      self._skipped.add(gradients, 0)

  def check(self) -> None:
    """Ends a run that does not learn any more; see `Skipped.check`."""
    with self._lock:
      self._skipped.check()

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics."""
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
    """What a checkpoint keeps of it."""
    with self._lock:
      return {
        "steps": np.int64(self.steps),
        "learned_steps": np.float64(self.learned_steps),
        "updates_skipped": np.int64(self._skipped.updates),
      }

  def restore(self, saved: types.Tree) -> None:
    """Goes on from what was saved."""
    with self._lock:
      self.steps = int(saved["steps"])
      self.learned_steps = float(saved["learned_steps"])
      self._skipped.updates = int(saved["updates_skipped"])


def explores_least(exploration: np.ndarray) -> np.ndarray:
  """Which environments' returns are reported: those that explore least.

  Args:
    exploration: `[N]`, see `base.Agent.exploration`.

  Returns:
    `[N]`, True for the quarter that explores least; all of them where they
    explore alike.
  """
  return exploration <= np.quantile(exploration, 0.25)
