"""Measurements of a run: waiting times, the bottleneck and episode returns."""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from seedx import types

# The waits from which `bottleneck` is found.
WAIT_ENVIRONMENTS = "acting_wait_environments"
WAIT_LEARNER = "acting_wait_learner"
WAIT_EXPERIENCE = "learning_wait_experience"
# With a seed behind it: the mean return of one of several trainings.
OF_SEED = "episode_return_seed_"


class Waits:
  """Measures the share of time that threads spend waiting, by name of the wait.

  Any thread may use it.
  """

  def __init__(
    self,
    threads: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
  ) -> None:
    """Starts the first interval.

    Args:
      threads: number of threads that may be in a wait, by its name. `measure`
        always has these names. The number is 1 for any other name.
      clock: current time in seconds, from any fixed starting point.
    """
    self._threads = dict(threads or {})
    self._clock = clock
    self._lock = threading.Lock()
    self._seconds = dict.fromkeys(self._threads, 0.0)
    # When the waits in progress began, by name and thread.
    self._began: dict[tuple[str, int], float] = {}
    self._since = clock()

  @contextlib.contextmanager
  def timed(self, name: str) -> Iterator[None]:
    """Counts the time in this context as a wait of this thread.

    Raises:
      RuntimeError: this thread is already in the wait `name`.
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

    Waits in progress count up to now, so a stuck thread shows 1.0. The share is
    a mean over the threads that may be in the wait.
    """
    with self._lock:
      now = self._clock()
      elapsed_seconds, self._since = now - self._since, now
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
  """Finds the side to speed up for more env steps per second.

  Steps flow from the environments through inference to the learner. A fast side
  waits for a slow one, so the waits show which side is the slowest.

  1. Inference waits for the learner when the unroll queue is full; the learner
     waits for experience when it is empty. If inference waits longer, then
     unrolls arrive faster than the learner uses them: "learner".
  2. Otherwise a side before the queue is too slow. If inference threads wait
     for requests longer than they work, it is "environments" (which includes
     the actors and the network); otherwise it is "inference".

  Time on the device counts as work of inference. If the learner shares that
  device, its updates slow inference down, and "inference" means that the device
  is the limit.

  Args:
    waits: shares of time, 0 to 1, which include `acting_wait_environments`,
      `acting_wait_learner` and `learning_wait_experience`.

  Returns:
    "environments", "inference" or "learner".
  """
  requests, queue = waits[WAIT_ENVIRONMENTS], waits[WAIT_LEARNER]
  if queue > waits[WAIT_EXPERIENCE]:
    return "learner"
  work = 1.0 - requests - queue
  return "environments" if requests > work else "inference"


class Latest:
  """One number per finished episode, such as its return; thread-safe."""

  def __init__(self, window: int = 100) -> None:
    """Starts empty.

    Args:
      window: how many of the latest episodes `mean` covers.
    """
    self._lock = threading.Lock()
    self._latest: collections.deque[float] = collections.deque(maxlen=window)
    self._count = 0

  def add(self, values: np.ndarray) -> None:
    """Adds the numbers of finished episodes.

    Args:
      values: `[episodes]`, oldest first; may be empty.

    Raises:
      ValueError: one is NaN, which marks a row where no episode ended.
    """
    if np.isnan(values).any():
      raise ValueError(
        "expected numbers of finished episodes, found NaN, which marks a row"
        " where no episode ended; pass values[~np.isnan(values)]"
      )
    with self._lock:
      self._latest.extend(np.ravel(values).tolist())
      self._count += np.size(values)

  def mean(self) -> float | None:
    """The mean of the latest episodes; None before the first one ends."""
    with self._lock:
      if not self._latest:
        return None
      return sum(self._latest) / len(self._latest)

  @property
  def is_full(self) -> bool:
    """Whether `mean` covers as many as it may."""
    with self._lock:
      return len(self._latest) == self._latest.maxlen

  @property
  def count(self) -> int:
    """Number of episodes finished since the start."""
    return self._count

  def saved(self) -> types.Tree:
    """Returns the state for a checkpoint."""
    with self._lock:
      latest = np.full(self._latest.maxlen or 0, np.nan)
      latest[: len(self._latest)] = self._latest
      return {"count": np.int64(self._count), "latest": latest}

  def restore(self, saved: types.Tree) -> None:
    """Replaces the state by one that `saved` returned."""
    latest = saved["latest"]
    with self._lock:
      self._latest.clear()
      self._latest.extend(latest[~np.isnan(latest)].tolist())
      self._count = int(saved["count"])


class MeanOfSeeds:
  """The mean over several trainings of each one's `Latest`.

  It has the interface of a `Latest`, and no numbers of its own: each training
  counts the same, however many episodes it has ended.
  """

  def __init__(self, seeds: Sequence[Latest]) -> None:
    """Reads the numbers of others.

    Args:
      seeds: the numbers of each training; their owner adds to them.
    """
    self._seeds = list(seeds)

  def add(self, values: np.ndarray) -> None:
    """Does nothing."""

  def mean(self) -> float | None:
    """The mean over the trainings; None before each has ended an episode."""
    means = [seed.mean() for seed in self._seeds]
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if len(known) == len(means) else None

  @property
  def is_full(self) -> bool:
    """Whether `mean` covers as many episodes of each as it may."""
    return all(seed.is_full for seed in self._seeds)

  @property
  def count(self) -> int:
    """Number of episodes finished since the start, of all."""
    return sum(seed.count for seed in self._seeds)

  def saved(self) -> types.Tree:
    """Returns nothing: the owner of the others saves them."""
    return ()

  def restore(self, saved: types.Tree) -> None:
    """Does nothing."""
