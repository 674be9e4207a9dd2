"""Batches of requests, which many threads send and one thread answers."""

import collections
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from seedx import metrics


class Request(Protocol):
  """Rows that wait for an answer."""

  @property
  def rows(self) -> int:
    """Number of rows."""

  @property
  def arrived_seconds(self) -> float:
    """Time at which the request arrived, by `time.monotonic`."""

  def end(self) -> None:
    """Ends the request without an answer, unless it has been answered."""


R = TypeVar("R", bound=Request)


class Replies:
  """A meter of the time that requests wait for replies; thread-safe."""

  def __init__(self, window: int = 4096) -> None:
    """Starts without measurements; quantiles cover up to `window` waits."""
    self._lock = threading.Lock()
    self._seconds: collections.deque[float] = collections.deque(maxlen=window)
    self._batches = 0
    self._rows = 0

  def add(self, requests: Sequence[Request]) -> None:
    """Adds a batch of requests that have just been answered."""
    now = time.monotonic()
    with self._lock:
      self._seconds.extend([now - x.arrived_seconds for x in requests])
      self._batches += 1
      self._rows += sum(x.rows for x in requests)

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the metrics of replies since the last call."""
    with self._lock:
      seconds, batches, rows = list(self._seconds), self._batches, self._rows
      self._seconds.clear()
      self._batches = self._rows = 0
    median = slowest = None
    if seconds:
      median, slowest = np.quantile(seconds, (0.5, 0.99)).tolist()
    return {
      "inference_rows": rows / batches if batches else None,
      "reply_seconds_p50": median,
      "reply_seconds_p99": slowest,
    }


class Batcher(Generic[R]):
  """A queue of requests from many threads, which are taken in batches.

  One thread iterates over the batches, which are lists of requests, and answers
  the requests. A batch is complete when it has `target_rows`, or when its
  oldest request has waited for `max_wait_seconds`, so that a dead peer does not
  delay others.
  """

  def __init__(
    self,
    *,
    target_rows: int,
    max_rows: int,
    max_wait_seconds: float,
    waits: metrics.Waits,
  ) -> None:
    """Starts without requests.

    Args:
      target_rows: number of rows that completes a batch.
      max_rows: maximum number of rows of a batch.
      max_wait_seconds: seconds that a request waits at most for more rows.
      waits: measures `acting_wait_environments`.
    """
    self._target_rows = target_rows
    self._max_rows = max_rows
    self._max_wait_seconds = max_wait_seconds
    self._waits = waits
    self._changed = threading.Condition()
    self._closed = False
    # Unbounded, but each peer has at most one request in it.
    self._requests: collections.deque[R] = collections.deque()
    self._rows = 0
    # Number of waiting rows at which the thread that takes batches wakes up.
    self._wake_rows: float = math.inf
    # The requests of the newest batch.
    self._taken: list[R] = []

  def put(self, request: R) -> bool:
    """Adds a request; False if the batcher is closed.

    Raises:
      ValueError: the request has more rows than a batch may have.
    """
    if request.rows > self._max_rows:
      raise ValueError(
        f"expected at most {self._max_rows} rows, found {request.rows}"
      )
    with self._changed:
      if self._closed:
        return False
      self._requests.append(request)
      self._rows += request.rows
      if self._rows >= self._wake_rows:
        self._changed.notify()
      return True

  def __iter__(self) -> Iterator[list[R]]:
    return self

  def __next__(self) -> list[R]:
    """Waits for the next batch; stops when the batcher is closed."""
    with self._waits.timed(metrics.WAIT_ENVIRONMENTS), self._changed:
      self._wait()
      self._taken = self._take()
    if self._closed:
      self.close()  # An earlier `close` may have missed the taken requests.
      raise StopIteration
    return self._taken

  def close(self) -> None:
    """Ends the iteration and all requests; may be called twice."""
    with self._changed:
      self._closed = True
      self._changed.notify()
      left = [*self._taken, *self._requests]
      self._requests.clear()
    for request in left:
      request.end()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def _wait(self) -> None:
    """Waits until a batch is complete."""
    while not self._closed and self._rows < self._target_rows:
      patience_seconds, self._wake_rows = None, 1.0
      if self._requests:
        due_seconds = self._requests[0].arrived_seconds + self._max_wait_seconds
        patience_seconds = due_seconds - time.monotonic()
        if patience_seconds <= 0:
          break
        self._wake_rows = self._target_rows
      self._changed.wait(patience_seconds)
    self._wake_rows = math.inf

  def _take(self) -> list[R]:
    taken: list[R] = []
    room = self._max_rows
    while self._requests and self._requests[0].rows <= room:
      taken.append(self._requests.popleft())
      room -= taken[-1].rows
    self._rows -= self._max_rows - room
    return taken
