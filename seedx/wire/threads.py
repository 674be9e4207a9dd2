"""A pool of daemon threads that serve calls."""

import queue
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any


class DaemonThreads(futures.ThreadPoolExecutor):
  """A pool of threads that never keep the process alive.

  At its exit, Python waits for the threads of any other `ThreadPoolExecutor`,
  and hangs if a thread is blocked. This pool has no maximum number of threads,
  since gRPC limits the number of calls.
  """

  def __init__(self, keep: int) -> None:
    """Makes a pool that keeps up to `keep` idle threads for further jobs."""
    super().__init__(1)  # Unused: the base class starts no thread.
    self._jobs: queue.SimpleQueue[Callable[[], None] | None] = (
      queue.SimpleQueue()
    )
    self._count_lock = threading.Lock()
    self._idle = 0
    self._keep = keep

  def submit(
    self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
  ) -> futures.Future:
    """Runs a function on a thread; see `concurrent.futures.Executor`."""
    future: futures.Future = futures.Future()

    def job() -> None:
      try:
        future.set_result(fn(*args, **kwargs))
      except BaseException as error:
        future.set_exception(error)

    with self._count_lock:
      start = self._idle == 0
      self._idle -= not start
    self._jobs.put(job)
    if start:
      threading.Thread(target=self._work, name="wire", daemon=True).start()
    return future

  def shutdown(
    self, wait: bool = True, *, cancel_futures: bool = False
  ) -> None:
    """Ends each thread after its current job; does not wait for the threads."""
    del wait, cancel_futures
    with self._count_lock:
      self._keep = 0
      for _ in range(self._idle):
        self._jobs.put(None)
      self._idle = 0

  def _work(self) -> None:
    while (job := self._jobs.get()) is not None:
      job()
      del job
      with self._count_lock:
        if self._idle >= self._keep:
          return
        self._idle += 1
