"""What a run counts."""

import threading
import time

import dm_env
import numpy as np

from seedx import metrics, types


class Progress:
  """Counts of experience; any thread may add to them.

  Attributes:
    returns: raw returns of whole games.
    first_env_steps: what `env_steps` was at the start: 0, or that of the
      checkpoint that the run goes on from.
  """

  def __init__(self) -> None:
    """Everything is 0 and the clock has not started."""
    self.returns = metrics.EpisodeReturns()
    self.first_env_steps = 0
    self._lock = threading.Lock()
    self._env_steps = 0
    self._unrolls_discarded = 0
    self._started_seconds: float | None = None
    self._past_seconds = 0.0

  def add_rows(
    self, rows: types.Rows, reported: np.ndarray | None = None
  ) -> None:
    """Counts observations received; the first one starts the clock.

    Args:
      rows: `[B, ...]`.
      reported: `[B]`, whether the row's environment counts in `returns`; None
        for all. See `reports`.
    """
    steps = np.count_nonzero(rows.timestep.step_type != dm_env.StepType.FIRST)
    ended = ~np.isnan(rows.episode_return)
    if reported is not None:
      ended &= reported
    self.add(int(steps), rows.episode_return[ended])

  def add(self, env_steps: int, episode_returns: np.ndarray) -> None:
    """Counts env steps, and raw returns `[episodes]` of games that ended."""
    self.start()
    if len(episode_returns):
      self.returns.add(episode_returns)
    with self._lock:
      self._env_steps += env_steps

  def start(self) -> None:
    """Starts the clock, unless it runs."""
    with self._lock:
      if self._started_seconds is None:
        self._started_seconds = time.monotonic()

  def add_discarded(self, unrolls: int) -> None:
    """Counts unrolls that their lease's end left unfinished."""
    with self._lock:
      self._unrolls_discarded += unrolls

  @property
  def env_steps(self) -> int:
    """Agent decisions carried out; resets are none."""
    return self._env_steps

  @property
  def unrolls_discarded(self) -> int:
    """Unrolls begun that will never be finished."""
    return self._unrolls_discarded

  @property
  def wall_seconds(self) -> float:
    """Seconds since the first observation, of earlier starts as well."""
    if self._started_seconds is None:
      return self._past_seconds
    return self._past_seconds + time.monotonic() - self._started_seconds

  def saved(self) -> types.Tree:
    """What a checkpoint keeps of it."""
    return {
      "returns": self.returns.saved(),
      "env_steps": np.int64(self._env_steps),
      "unrolls_discarded": np.int64(self._unrolls_discarded),
      "wall_seconds": np.float64(self.wall_seconds),
    }

  def restore(self, saved: types.Tree) -> None:
    """Goes on from what was saved; before the clock starts."""
    self.returns.restore(saved["returns"])
    self.first_env_steps = self._env_steps = int(saved["env_steps"])
    self._unrolls_discarded = int(saved["unrolls_discarded"])
    self._past_seconds = float(saved["wall_seconds"])


def reports(exploration: np.ndarray) -> np.ndarray:
  """Which environments' returns are reported: those that explore least.

  Args:
    exploration: `[N]`, see `base.Agent.exploration`.

  Returns:
    `[N]`, True for the quarter that explores least; all of them where they
    explore alike.
  """
  return exploration <= np.quantile(exploration, 0.25)
