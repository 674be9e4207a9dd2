"""Groups the requests of many threads into batches for one thread."""

import bisect
import collections
import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import tree

from seedx import channels, metrics, trees, types


class Closed(Exception):
  """The batcher has been closed; no reply will come."""


class Replies:
  """How long callers wait for their replies; any thread may use it."""

  def __init__(self, newest: int = 4096) -> None:
    """Has seen none yet.

    Args:
      newest: of how many requests the quantiles are, at most.
    """
    self._lock = threading.Lock()
    self._seconds: collections.deque[float] = collections.deque(maxlen=newest)
    self._batches = 0
    self._rows = 0

  def add(self, rows: int, seconds: Sequence[float]) -> None:
    """Counts a batch of so many rows, and the seconds of its requests."""
    with self._lock:
      self._seconds.extend(seconds)
      self._batches += 1
      self._rows += rows

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics, since the last call."""
    with self._lock:
      seconds, batches, rows = list(self._seconds), self._batches, self._rows
      self._seconds.clear()
      self._batches = self._rows = 0
    median = most = None
    if seconds:
      median, most = np.quantile(seconds, (0.5, 0.99)).tolist()
    return {
      "inference_rows": rows / batches if batches else None,
      "reply_seconds_p50": median,
      "reply_seconds_p99": most,
    }


class Batcher:
  """Threads call it and wait; one thread iterates over it and replies.

      for batch in batcher:
        batch.reply(function(batch.inputs))

  A batch goes out when it has `target_rows`, or when its oldest request has
  waited for `max_wait_seconds`: a caller that died stalls nobody. The batch is
  padded with zeros to one of a few sizes, so that programs compile only once.
  """

  def __init__(
    self,
    *,
    target_rows: int,
    max_wait_seconds: float,
    sizes: Sequence[int],
    waits: metrics.Waits,
    replies: Replies,
  ) -> None:
    """Has no request yet.

    Args:
      target_rows: batch size at which a batch goes out.
      max_wait_seconds: longest time that a smaller batch waits.
      sizes: ascending; a request of more rows than the last is an error.
      waits: counts `acting_wait_environments`.
      replies: is told of each batch.
    """
    self._target_rows = target_rows
    self._max_wait_seconds = max_wait_seconds
    self._sizes = list(sizes)
    self._waits = waits
    self._replies = replies
    # No more than there are callers, each of which waits for its reply.
    self._requests = channels.Channel[_Request]()
    # Those of the newest batch.
    self._taken: list[_Request] = []

  def __call__(self, inputs: types.Tree, rows: int) -> types.Tree:
    """Waits for the results `[rows, ...]` of a request of `[rows, ...]`.

    Raises:
      ValueError: more rows than the largest batch.
      Closed: the batcher was closed first.
    """
    if rows > self._sizes[-1]:
      raise ValueError(f"expected at most {self._sizes[-1]} rows, found {rows}")
    request = _Request(inputs, rows)
    if not self._requests.put(request):
      raise Closed
    return request.outputs.result()

  def __iter__(self) -> Iterator["Batch"]:
    return self

  def __next__(self) -> "Batch":
    """Waits for the next batch; stops when the batcher is closed."""
    with self._waits.timed(metrics.WAIT_ENVIRONMENTS):
      self._taken = self._requests.take(self._due)
    if self._requests.closed:
      self.close()  # `close` may have come before these were taken.
      raise StopIteration
    return Batch(self._taken, self._sizes, self._replies)

  def close(self) -> None:
    """Ends the iteration and every wait for a reply; may be called often."""
    self._requests.close()
    left = self._requests.take(lambda requests: (len(requests), None))
    for request in (*self._taken, *left):
      request.end()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def _due(self, requests: Sequence["_Request"]) -> tuple[int, float | None]:
    """Number of requests to serve now, or seconds to wait for more."""
    if not requests:
      return 0, None
    rows = list(itertools.accumulate([request.rows for request in requests]))
    if rows[-1] < self._target_rows:
      age = time.monotonic() - requests[0].arrived_seconds
      if age < self._max_wait_seconds:
        return 0, self._max_wait_seconds - age
    return bisect.bisect_right(rows, self._sizes[-1]), None


class Batch:
  """Requests that are served together.

  Attributes:
    inputs: nest of `[size, ...]`.
    rows: how many of its rows are requests; the rest is padding.
  """

  def __init__(
    self,
    requests: Sequence["_Request"],
    sizes: Sequence[int],
    replies: Replies,
  ) -> None:
    """Joins requests, padded to the first of the ascending sizes that fits."""
    self._requests = requests
    self._replies = replies
    self.rows = sum(request.rows for request in requests)
    size = next(size for size in sizes if size >= self.rows)
    self.inputs = trees.concatenate([x.inputs for x in requests], size)

  def reply(self, outputs: types.Tree) -> None:
    """Gives each caller its rows of `[size, ...]` results; it goes on."""
    start = 0
    for request in self._requests:
      end = start + request.rows
      request.reply(
        tree.map_structure(lambda leaf, s=start, e=end: leaf[s:e], outputs)
      )
      start = end
    now = time.monotonic()
    seconds = [now - request.arrived_seconds for request in self._requests]
    self._replies.add(self.rows, seconds)


class _Request:
  """Rows that wait for their results; the first who answers wins."""

  def __init__(self, inputs: types.Tree, rows: int) -> None:
    self.inputs = inputs
    self.rows = rows
    self.arrived_seconds = time.monotonic()
    self.outputs: concurrent.futures.Future[types.Tree] = (
      concurrent.futures.Future()
    )

  def reply(self, outputs: types.Tree) -> None:
    """Ends the wait with results."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
      self.outputs.set_result(outputs)

  def end(self) -> None:
    """Ends the wait with `Closed`."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
      self.outputs.set_exception(Closed())
