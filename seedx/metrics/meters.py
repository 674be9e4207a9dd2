"""Meters of a run: waiting times, the bottleneck and episode returns."""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from seedx import types

# The waits that determine the bottleneck.
WAIT_ENVIRONMENTS = "acting_wait_environments"
WAIT_LEARNER = "acting_wait_learner"
WAIT_EXPERIENCE = "learning_wait_experience"
# The wait of acting behind updates on its device, and a number of micro-batches
# that would shorten it.
WAIT_UPDATE = "acting_wait_update"
MICRO_BATCHES = "micro_batches_advised"
# The prefix of a metric of several simultaneous trainings; a seed follows. The
# metric is the mean return of the training with that seed.
OF_SEED = "episode_return_seed_"
# The prefix of a metric of a population's member; its index and a name follow.
OF_MEMBER = "member_"
# The prefix of a metric that is an entry of the last `info` of episodes.
OF_INFO = "info_"


class Waits:
  """A meter of the share of time that threads spend waiting; thread-safe."""

  def __init__(
    self,
    threads: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
  ) -> None:
    """Starts the first interval.

    Args:
      threads: number of threads that may be in a wait, by the wait's name; 1
        for missing names. `measure` always returns the names given here.
      clock: function that returns a time in seconds, from any fixed start.
    """
    self._threads = dict(threads or {})
    self._clock = clock
    self._lock = threading.Lock()
    self._seconds = dict.fromkeys(self._threads, 0.0)
    # Start times of the waits in progress, by name and thread.
    self._began: dict[tuple[str, int], float] = {}
    self._interval_start = clock()

  @contextlib.contextmanager
  def timed(self, name: str) -> Iterator[None]:
    """Counts the time in this context as a wait of this thread.

    Raises:
      RuntimeError: this thread is already in a wait of that name.
    """
    key = name, threading.get_ident()
    with self._lock:
      if key in self._began:
        raise RuntimeError(
          f"this thread is already in the wait {name!r}; give the inner wait"
          " another name"
        )
      self._began[key] = self._clock()
    try:
      yield
    finally:
      with self._lock:
        self._add(name, self._clock() - self._began.pop(key))

  def measure(self) -> dict[str, float]:
    """Returns each wait's share of the time since the last call, 0 to 1.

    A share is the mean over the threads that may be in the wait. Waits in
    progress count up to now, so that a wait without end is visible, too.
    """
    with self._lock:
      now = self._clock()
      elapsed_seconds = now - self._interval_start
      self._interval_start = now
      for key, began in self._began.items():
        self._add(key[0], now - began)
        self._began[key] = now
      shares = {}
      for name, seconds in self._seconds.items():
        total = elapsed_seconds * self._threads.get(name, 1)
        shares[name] = min(seconds / total, 1.0) if total else 0.0
        self._seconds[name] = 0.0
      return shares

  def _add(self, name: str, seconds: float) -> None:
    self._seconds[name] = self._seconds.get(name, 0.0) + seconds


def bottleneck(waits: Mapping[str, float]) -> str:
  """Finds the side to speed up: "environments", "acting" or "learner".

  Steps flow from the environments through acting, which computes the actions,
  to the learner. A fast side waits for a slow one, so the waits show the
  slowest.

  1. Acting waits for the learner when the unroll queue is full; the learner
     waits for experience when the queue is empty. If acting waits longer,
     unrolls arrive faster than the learner uses them: "learner".
  2. Otherwise a side before the queue is too slow. If acting threads wait for
     observations longer than they work, it is "environments", which include
     actors and their connections. Otherwise it is "acting".

  Time on the device counts as work of acting. If the learner shares the device,
  its updates slow acting down (`WAIT_UPDATE`), and "acting" means that the
  device is the limit.

  Args:
    waits: shares of time, 0 to 1, of `WAIT_ENVIRONMENTS`, `WAIT_LEARNER` and
      `WAIT_EXPERIENCE`.
  """
  requests, queue = waits[WAIT_ENVIRONMENTS], waits[WAIT_LEARNER]
  if queue > waits[WAIT_EXPERIENCE]:
    return "learner"
  work = 1.0 - requests - queue
  return "environments" if requests > work else "acting"


class Latest:
  """One number per finished episode, such as its return; thread-safe."""

  def __init__(self, window: int = 100) -> None:
    """Starts empty; `mean` covers the latest `window` episodes."""
    self._lock = threading.Lock()
    self._latest: collections.deque[float] = collections.deque(maxlen=window)
    self._count = 0

  def add(self, values: np.ndarray) -> None:
    """Adds the numbers of finished episodes, `[episodes]`, oldest first.

    Raises:
      ValueError: a number is NaN, which marks a row where no episode ended.
    """
    if np.isnan(values).any():
      raise ValueError(
        "expected numbers of finished episodes, found NaN; pass"
        " values[~np.isnan(values)]"
      )
    with self._lock:
      self._latest.extend(np.ravel(values).tolist())
      self._count += np.size(values)

  def mean(self) -> float | None:
    """Returns the mean of the latest episodes; None before the first one."""
    with self._lock:
      if not self._latest:
        return None
      return sum(self._latest) / len(self._latest)

  def largest(self) -> float:
    """Returns the largest absolute value of the latest episodes, or 0."""
    with self._lock:
      return max(map(abs, self._latest), default=0.0)

  @property
  def is_full(self) -> bool:
    """Whether `mean` covers its full window."""
    with self._lock:
      return len(self._latest) == self._latest.maxlen

  @property
  def count(self) -> int:
    """The number of finished episodes, including those before a resume."""
    return self._count

  def saved(self) -> types.Tree:
    """Returns the state for a checkpoint."""
    with self._lock:
      latest = np.full(self._latest.maxlen or 0, np.nan)
      latest[: len(self._latest)] = self._latest
      return {"count": np.int64(self._count), "latest": latest}

  def restore(self, saved: types.Tree) -> None:
    """Replaces the state with one that `saved` returned."""
    latest = saved["latest"]
    with self._lock:
      self._latest.clear()
      self._latest.extend(latest[~np.isnan(latest)].tolist())
      self._count = int(saved["count"])


class MeanOfSeeds:
  """The mean over several trainings, with the interface of a `Latest`.

  It only reads the `Latest` of each training. All trainings count equally,
  whatever their numbers of episodes.
  """

  def __init__(self, seeds: Sequence[Latest]) -> None:
    self._seeds = list(seeds)

  def add(self, values: np.ndarray) -> None:
    """Does nothing."""

  def mean(self) -> float | None:
    """Returns the mean; None until every training has ended an episode."""
    means = [seed.mean() for seed in self._seeds]
    present = [mean for mean in means if mean is not None]
    return sum(present) / len(present) if len(present) == len(means) else None

  def largest(self) -> float:
    """Returns the largest absolute value of all trainings, or 0."""
    return max((seed.largest() for seed in self._seeds), default=0.0)

  @property
  def is_full(self) -> bool:
    """Whether every training's window is full."""
    return all(seed.is_full for seed in self._seeds)

  @property
  def count(self) -> int:
    """The number of finished episodes of all trainings."""
    return sum(seed.count for seed in self._seeds)

  def saved(self) -> types.Tree:
    """Returns an empty state: each `Latest` is saved by its owner."""
    return ()

  def restore(self, saved: types.Tree) -> None:
    """Does nothing."""
