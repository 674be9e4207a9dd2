"""Batches of requests: many threads ask, one thread replies."""

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
  """The batcher was closed before the reply."""


class Replies:
  """Seconds that callers wait for replies; any thread may use it."""

  def __init__(self, window: int = 4096) -> None:
    """Starts without measurements; quantiles are over the last `window`."""
    self._lock = threading.Lock()
    self._seconds: collections.deque[float] = collections.deque(maxlen=window)
    self._batches = 0
    self._rows = 0

  def add(self, rows: int, seconds: Sequence[float]) -> None:
    """Adds a batch of `rows`, and the seconds that each request waited."""
    with self._lock:
      self._seconds.extend(seconds)
      self._batches += 1
      self._rows += rows

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


class Batcher:
  """Batches of the requests of many threads.

  One thread iterates over the batches and replies:

      for batch in batcher:
        batch.reply(function(batch.inputs))

  A batch is complete when it has `target_rows`, or when its oldest request has
  waited for `max_wait_seconds`, so that a dead caller does not delay others.
  Batches are padded with zeros to a few sizes, for which programs are compiled.
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
    """Starts without requests.

    Args:
      target_rows: number of rows that completes a batch.
      max_wait_seconds: seconds that a smaller batch waits at most.
      sizes: sizes of padded batches, in ascending order.
      waits: measures `acting_wait_environments`.
      replies: measures how long callers wait.
    """
    self._target_rows = target_rows
    self._max_wait_seconds = max_wait_seconds
    self._sizes = list(sizes)
    self._waits = waits
    self._replies = replies
    # Unbounded, but each caller has at most one request in it.
    self._requests = channels.Channel[_Request]()
    # The requests of the newest batch.
    self._taken: list[_Request] = []

  def __call__(self, inputs: types.Tree, rows: int) -> types.Tree:
    """Sends `[rows, ...]` inputs, and returns their `[rows, ...]` results.

    Raises:
      ValueError: there are more rows than in the largest batch.
      Closed: the batcher was closed before the reply.
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
      self.close()  # An earlier `close` may have missed the taken requests.
      raise StopIteration
    return Batch(self._taken, self._sizes, self._replies)

  def close(self) -> None:
    """Ends the iteration and all waits for replies; may be called twice."""
    self._requests.close()
    left = self._requests.take(lambda requests: (len(requests), None))
    for request in (*self._taken, *left):
      request.end()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def _due(self, requests: Sequence["_Request"]) -> tuple[int, float | None]:
    """Returns the number of requests to take, and the seconds to wait if 0."""
    if not requests:
      return 0, None
    rows = list(itertools.accumulate([request.rows for request in requests]))
    if rows[-1] < self._target_rows:
      age = time.monotonic() - requests[0].arrived_seconds
      if age < self._max_wait_seconds:
        return 0, self._max_wait_seconds - age
    return bisect.bisect_right(rows, self._sizes[-1]), None


class Batch:
  """A batch of requests.

  Attributes:
    inputs: nest of `[size, ...]` arrays.
    rows: number of rows that are not padding.
  """

  def __init__(
    self,
    requests: Sequence["_Request"],
    sizes: Sequence[int],
    replies: Replies,
  ) -> None:
    """Joins requests, padded to the smallest of the sizes that fits."""
    self._requests = requests
    self._replies = replies
    self.rows = sum(request.rows for request in requests)
    size = next(size for size in sizes if size >= self.rows)
    self.inputs = trees.concatenate([x.inputs for x in requests], size)

  def reply(self, outputs: types.Tree) -> None:
    """Sends each caller its rows of the `[size, ...]` results."""
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
  """Rows that wait for results; only the first answer counts."""

  def __init__(self, inputs: types.Tree, rows: int) -> None:
    self.inputs = inputs
    self.rows = rows
    self.arrived_seconds = time.monotonic()
    self.outputs: concurrent.futures.Future[types.Tree] = (
      concurrent.futures.Future()
    )

  def reply(self, outputs: types.Tree) -> None:
    """Sets the outputs, unless the request has ended."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
      self.outputs.set_result(outputs)

  def end(self) -> None:
    """Ends the request with `Closed`, unless it has outputs."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
      self.outputs.set_exception(Closed())
