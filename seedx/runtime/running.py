"""Runs a process: starts, stops and checks it, and writes lines of metrics."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from seedx import metrics
from seedx.runtime import hangs
from seedx.runtime import hosts as hosts_lib
from seedx.runtime import process as process_lib

# A program that is being compiled cannot be stopped; all else ends at once.
_STOP_SECONDS = 60.0
# How often the main thread looks whether the work is done.
_LOOK_SECONDS = 0.02


def run(
  process: process_lib.Process,
  context: process_lib.Context,
  sinks: Sequence[metrics.Sink] = (),
  log_seconds: float = 0.5,
  check: Callable[[], None] = lambda: None,
  watch: hangs.Watch | None = None,
) -> dict[str, metrics.Value]:
  """Runs a process until its work is done, a stop, or a failure.

  Args:
    process: what runs.
    context: that it was made in.
    sinks: take the lines of metrics; the caller closes them.
    log_seconds: between two lines.
    check: is called before each line, and may raise.
    watch: notices that it hangs.

  Returns:
    The last line of metrics.

  Raises:
    types.ConfigError: the server's address is in use.
    Exception: whatever a thread failed with.
  """
  team = ThreadGroup(context.stop, context.hosts)
  watch = watch or hangs.Watch()

  def write(line: metrics.Line) -> dict[str, metrics.Value]:
    noted = watch.noted(line)
    for sink in sinks:
      sink.write(noted)
    return noted

  own = {threading.get_ident(): "main"}
  watch.begin(
    lambda: process.acted.env_steps, lambda: own | team.identifiers(), write
  )
  if process.server is not None:
    process.server.start()
  try:
    for name, target in process.threads.items():
      team.start(name, target)
    steps = process.steps or (lambda: _looks(process, context, log_seconds))
    written = time.monotonic()
    for _ in steps():
      if time.monotonic() - written >= log_seconds:
        check()
        write(process.measure())
        written = time.monotonic()
      if context.stop.is_set():  # With other hosts, perhaps not yet over.
        process.stopping()
      if context.over.is_set():
        break
  except BaseException:
    context.hosts.failed = True
    raise
  finally:
    context.stop.set()
    process.stopping()
    process.ending()
    if process.server is not None:
      process.server.stop()
    process.close()
    try:
      team.join(_STOP_SECONDS)
    finally:
      watch.end()
      last = write(process.measure())
  return last


class ThreadGroup:
  """Threads that stop together: one that fails stops them all.

  Attributes:
    stop: set when the threads should end; every wait of theirs ends with it, or
      by `Process.stopping`, which `run` calls then.
  """

  def __init__(
    self,
    stop: threading.Event | None = None,
    others: hosts_lib.Hosts | None = None,
  ) -> None:
    """Makes a group of no thread yet.

    Args:
      stop: with which it ends.
      others: learner hosts that stop where a thread here fails.
    """
    self.stop = stop or threading.Event()
    self._others = others or hosts_lib.Hosts()
    self._threads: list[threading.Thread] = []
    self._failures: list[BaseException] = []

  def start(self, name: str, target: Callable[[], None]) -> None:
    """Starts a thread; an exception of `target` is kept, and stops all."""

    def run() -> None:
      try:
        target()
      except BaseException as failure:
        self._failures.append(failure)
        self._others.failed = True
        self.stop.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    self._threads.append(thread)
    thread.start()

  def identifiers(self) -> dict[int, str]:
    """The names of the threads by their identifiers."""
    return {x.ident: x.name for x in self._threads if x.ident is not None}

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


def _looks(
  process: process_lib.Process, context: process_lib.Context, log_seconds: float
) -> Iterator[None]:
  """Yields now and then until the others have done the work."""
  done = process.done or (lambda: process.acted.is_done)
  while not done():
    context.over.wait(min(log_seconds, _LOOK_SECONDS))
    yield
