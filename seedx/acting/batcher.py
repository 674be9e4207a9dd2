"""Groups the requests of many threads into batches for one function."""

import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence

import tree

from seedx import metrics, trees, types

Reply = Callable[[types.Tree], None]


class Closed(Exception):
  """The batcher has been closed; no reply will come."""


class Batcher:
  """Calls a batched function on one thread with what other threads ask for.

  A batch goes out when it has `target_rows`, or when its oldest request has
  waited for `max_wait_seconds`, so that a caller that died stalls nobody. It is
  padded with zeros to the next of a few sizes, so that nothing recompiles.
  """

  def __init__(
    self,
    function: Callable[[types.Tree, int, Reply], None],
    *,
    target_rows: int,
    max_wait_seconds: float,
    sizes: Sequence[int],
    waits: metrics.Waits,
  ) -> None:
    """Makes a batcher; `run` has to be called on a thread.

    Args:
      function: takes a nest of `[size, ...]`, how many rows of it are not
        padding, and a function that it must call once with a nest of at least
        as many rows of results; callers go on from then.
      target_rows: rows that are worth a call.
      max_wait_seconds: how long fewer rows than that are waited with.
      sizes: ascending; a request of more rows than the last is an error.
      waits: counts `acting_wait_environments`.
    """
    self._function = function
    self._target_rows = target_rows
    self._max_wait_seconds = max_wait_seconds
    self._sizes = list(sizes)
    self._waits = waits
    self._requests: collections.deque[_Request] = collections.deque()
    self._changed = threading.Condition()
    self._closed = False

  def __call__(self, inputs: types.Tree, rows: int) -> types.Tree:
    """Waits for the results `[rows, ...]` of a request of `[rows, ...]`.

    Raises:
      ValueError: more rows than the largest batch.
      Closed: the batcher was closed first.
    """
    if rows > self._sizes[-1]:
      raise ValueError(f"expected at most {self._sizes[-1]} rows, found {rows}")
    request = _Request(inputs, rows)
    with self._changed:
      if self._closed:
        raise Closed
      self._requests.append(request)
      self._changed.notify()
    return request.outputs.result()

  def run(self) -> None:
    """Serves requests until `close`."""
    try:
      while batch := self._next_batch():
        self._serve(batch)
    finally:
      self.close()

  def close(self) -> None:
    """Ends `run` and every wait for a reply; may be called often."""
    with self._changed:
      self._closed = True
      for request in self._requests:
        request.outputs.set_exception(Closed())
      self._requests.clear()
      self._changed.notify_all()

  def _next_batch(self) -> list["_Request"]:
    with self._waits.timed("acting_wait_environments"), self._changed:
      while not self._closed:
        missing = self._target_rows - sum(r.rows for r in self._requests)
        patience = None
        if self._requests:
          age = time.monotonic() - self._requests[0].arrived_seconds
          patience = self._max_wait_seconds - age
          if missing <= 0 or patience <= 0:
            break
        self._changed.wait(patience)
      batch: list[_Request] = []
      rows = 0
      while self._requests:
        rows += self._requests[0].rows
        if rows > self._sizes[-1]:
          break
        batch.append(self._requests.popleft())
      return batch

  def _serve(self, batch: list["_Request"]) -> None:
    rows = sum(request.rows for request in batch)
    size = next(size for size in self._sizes if size >= rows)

    def reply(outputs: types.Tree) -> None:
      start = 0
      for request in batch:
        end = start + request.rows
        request.outputs.set_result(
          tree.map_structure(lambda leaf, s=start, e=end: leaf[s:e], outputs)
        )
        start = end

    try:
      inputs = trees.concatenate([request.inputs for request in batch], size)
      self._function(inputs, rows, reply)
    except BaseException as failure:
      for request in batch:
        if not request.outputs.done():
          request.outputs.set_exception(failure)
      raise


class _Request:
  """Rows that wait for their results."""

  def __init__(self, inputs: types.Tree, rows: int) -> None:
    self.inputs = inputs
    self.rows = rows
    self.arrived_seconds = time.monotonic()
    self.outputs: concurrent.futures.Future[types.Tree] = (
      concurrent.futures.Future()
    )
