"""Threads whose failure ends the run, and whose waits can all be ended."""

import threading
from collections.abc import Callable


class Crew:
  """Threads that stop together: one that fails stops them all.

  Attributes:
    stop: set when the threads should end; every wait of theirs must watch it.
  """

  def __init__(self, stop: threading.Event | None = None) -> None:
    """Makes a crew of nobody yet, that ends with `stop`."""
    self.stop = stop or threading.Event()
    self._threads: list[threading.Thread] = []
    self._failures: list[BaseException] = []

  def start(self, name: str, target: Callable[[], None]) -> None:
    """Starts a thread; an exception of `target` is kept, and stops all."""

    def run() -> None:
      try:
        target()
      except BaseException as failure:
        self._failures.append(failure)
        self.stop.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    self._threads.append(thread)
    thread.start()

  def join(self, timeout_seconds: float) -> None:
    """Stops all threads and waits for each.

    Raises:
      BaseException: the first exception that a thread ended with.
      TimeoutError: a thread goes on for longer than `timeout_seconds`.
    """
    self.stop.set()
    for thread in self._threads:
      thread.join(timeout_seconds)
    if self._failures:
      raise self._failures[0]
    stuck = [thread.name for thread in self._threads if thread.is_alive()]
    if stuck:
      raise TimeoutError(
        f"expected threads to end in {timeout_seconds} s, still running:"
        f" {', '.join(stuck)}"
      )
