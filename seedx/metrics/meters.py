"""What a run measures: waits, the bottleneck they point to, and returns."""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from seedx import types

# The timed waits that tell the bottleneck.
WAIT_ENVIRONMENTS = "acting_wait_environments"
WAIT_LEARNER = "acting_wait_learner"
WAIT_EXPERIENCE = "learning_wait_experience"


class Waits:
  """How much of their time threads spend waiting, by the name of the wait.

  Every thread adds to a timer of its own, so threads do not disturb each other.
  """

  def __init__(
    self,
    threads: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
  ) -> None:
    """Starts the first interval.

    Args:
      threads: how many threads wait under each name. Declared names are in
        every result, 0.0 if nobody waited, and a thread that never waits then
        counts in the mean. A name left out counts the threads seen so far.
      clock: seconds from any fixed point in time.
    """
    self._threads = dict(threads or {})
    self._clock = clock
    self._lock = threading.Lock()
    self._timers: dict[str, list[_Timer]] = {name: [] for name in self._threads}
    self._own = _OwnTimers()
    self._since = clock()

  def timed(self, name: str) -> contextlib.AbstractContextManager[None]:
    """A context whose time counts as waiting under `name` in this thread.

    Raises:
      RuntimeError: on entry, if this thread already waits under this name.
    """
    timer = self._own.by_name.get(name)
    if timer is None:
      timer = self._own.by_name[name] = _Timer(name, self._clock)
      with self._lock:
        self._timers.setdefault(name, []).append(timer)
    return timer

  def shares(self) -> dict[str, float]:
    """Each name's share of the time since the last call, 0 to 1.

    Waits in progress count up to now: a thread that is stuck shows 1.0. A name
    that several threads use has their mean, over as many as were declared or
    as have used it, whichever is more.
    """
    with self._lock:
      now = self._clock()
      elapsed_seconds, self._since = now - self._since, now
      shares = {}
      for name, timers in self._timers.items():
        seconds = sum(timer.take(now) for timer in timers)
        threads = max(self._threads.get(name, 1), len(timers))
        # A wait that ends between `now` and its turn overshoots a little.
        seconds = min(seconds, elapsed_seconds * threads)
        shares[name] = seconds and seconds / (elapsed_seconds * threads)
      return shares


class _Timer(contextlib.AbstractContextManager[None]):
  """Seconds that one thread has waited under one name since `take`."""

  def __init__(self, name: str, clock: Callable[[], float]) -> None:
    self._name = name
    self._clock = clock
    self._lock = threading.Lock()
    self._seconds = 0.0
    self._started: float | None = None

  def __enter__(self) -> None:
    with self._lock:
      if self._started is not None:
        raise RuntimeError(
          f"this thread already waits under {self._name!r}; give a wait inside"
          " a wait another name"
        )
      self._started = self._clock()

  def __exit__(self, *exception: object) -> None:
    with self._lock:
      assert self._started is not None
      self._seconds += self._clock() - self._started
      self._started = None

  def take(self, now: float) -> float:
    """The seconds up to `now`; counting goes on from there."""
    with self._lock:
      seconds, self._seconds = self._seconds, 0.0
      if self._started is not None and self._started < now:
        seconds += now - self._started
        self._started = now
      return seconds


class _OwnTimers(threading.local):
  """The calling thread's timers."""

  def __init__(self) -> None:
    self.by_name: dict[str, _Timer] = {}


def bottleneck(waits: Mapping[str, float]) -> str:
  """Which side to speed up for more env steps a second.

  Steps flow from the environments through inference to the learner, and
  whoever waits, waits for somebody slower. Two comparisons find out for whom.

  1. At the unroll queue: if inference is blocked by a full queue for longer
     than the learner waits at an empty one, unrolls are made faster than they
     are learned: "learner".
  2. Otherwise something before the queue is too slow. If inference threads wait
     for requests for longer than they work, it is the "environments" (with
     their actors and the network); else requests are waiting for "inference".

  Waiting for the device to act is work of inference. So where the learner uses
  the same device, its updates slow inference down, and the answer "inference"
  means that this device is the limit.

  Args:
    waits: shares of time, at least `acting_wait_environments`,
      `acting_wait_learner` and `learning_wait_experience`.

  Returns:
    "environments", "inference" or "learner".
  """
  requests, queue = waits[WAIT_ENVIRONMENTS], waits[WAIT_LEARNER]
  if queue > waits[WAIT_EXPERIENCE]:
    return "learner"
  work = 1.0 - requests - queue
  return "environments" if requests > work else "inference"


class EpisodeReturns:
  """Returns of finished episodes, from any thread."""

  def __init__(self, window: int = 100) -> None:
    """`window`: how many of the latest episodes the mean is over."""
    self._lock = threading.Lock()
    self._latest: collections.deque[float] = collections.deque(maxlen=window)
    self._count = 0

  def add(self, returns: np.ndarray) -> None:
    """Adds `[episodes]` returns, the oldest first; none is fine.

    Raises:
      ValueError: if one is NaN, the mark of a row where no episode ended.
    """
    if np.isnan(returns).any():
      raise ValueError(
        "expected returns of finished episodes, found NaN, which marks a row"
        " where none ended; pass returns[~np.isnan(returns)]"
      )
    with self._lock:
      self._latest.extend(np.ravel(returns).tolist())
      self._count += np.size(returns)

  def mean(self) -> float | None:
    """The mean of the latest episodes; None before the first has ended."""
    with self._lock:
      if not self._latest:
        return None
      return sum(self._latest) / len(self._latest)

  @property
  def count(self) -> int:
    """Episodes finished since the start."""
    return self._count

  def saved(self) -> types.Tree:
    """What a checkpoint keeps of it."""
    with self._lock:
      latest = np.full(self._latest.maxlen or 0, np.nan)
      latest[: len(self._latest)] = self._latest
      return {"count": np.int64(self._count), "latest": latest}

  def restore(self, saved: types.Tree) -> None:
    """Goes on from what was saved."""
    latest = saved["latest"]
    with self._lock:
      self._latest.clear()
      self._latest.extend(latest[~np.isnan(latest)].tolist())
      self._count = int(saved["count"])
