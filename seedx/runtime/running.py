"""The main loop of a process: starts it, writes its metrics, and stops it."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from seedx import metrics
from seedx.runtime import hangs, hosts, process

# A compilation cannot be interrupted; everything else stops at once.
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.02


def run(
  process: process.Process,
  context: process.Context,
  sinks: Sequence[metrics.Sink] = (),
  log_seconds: float = 0.5,
  check: Callable[[], None] = lambda: None,
  watch: hangs.Watch | None = None,
) -> dict[str, metrics.Value]:
  """Runs a process until its work is done, it is stopped, or it fails.

  Args:
    process: the process.
    context: the context that `process` was made in.
    sinks: receivers of the lines of metrics; the caller closes them.
    log_seconds: seconds between two lines.
    check: called before each line; may raise.
    watch: watch that reports a hang.

  Returns:
    The last line of metrics.

  Raises:
    types.ConfigError: the server's address is in use.
    Exception: the first exception of a thread.
    TimeoutError: a thread has not ended within a minute after the run.
  """
  team = ThreadGroup(context.stop, context.hosts)
  watch = watch or hangs.Watch()

  def write(line: metrics.Line) -> dict[str, metrics.Value]:
    line = watch.noted(line)
    for sink in sinks:
      sink.write(line)
    return line

  main = {threading.get_ident(): "main"}
  watch.begin(process.clock, lambda: main | team.identifiers(), write)
  if process.server is not None:
    process.server.start()
  try:
    for name, target in process.threads.items():
      team.start(name, target)
    steps = process.steps or (lambda: _polls(process, context, log_seconds))
    written = time.monotonic()
    for _ in steps():
      if time.monotonic() - written >= log_seconds:
        check()
        write(process.measure())
        written = time.monotonic()
      if context.stop.is_set():
        # This host wants to stop; `over` waits until all hosts stop together.
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
  """Threads that stop together: if one fails, all stop.

  Attributes:
    stop: event that ends the threads. Some waits end with the event, the others
      when `run` calls `Process.stopping`.
  """

  def __init__(
    self,
    stop: threading.Event | None = None,
    others: hosts.Hosts | None = None,
  ) -> None:
    """Makes a group without threads; if a thread fails, `others` stop, too."""
    self.stop = stop or threading.Event()
    self._others = others or hosts.Hosts()
    self._threads: list[threading.Thread] = []
    self._failures: list[BaseException] = []

  def start(self, name: str, target: Callable[[], None]) -> None:
    """Starts a thread; an exception in it stops all, and `join` raises it."""

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
    """Returns the names of the threads by their identifiers."""
    return {x.ident: x.name for x in self._threads if x.ident is not None}

  def join(self, timeout_seconds: float) -> None:
    """Stops all threads and waits for each.

    Raises:
      BaseException: the first exception of a thread.
      TimeoutError: a thread is still running after `timeout_seconds`.
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


def _polls(
  process: process.Process, context: process.Context, log_seconds: float
) -> Iterator[None]:
  """Yields at intervals until the other threads have done the work."""
  done = process.done or (lambda: process.clock.is_over)
  while not done():
    context.over.wait(min(log_seconds, _POLL_SECONDS))
    yield
