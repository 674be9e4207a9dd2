"""The main thread of a process that serves others and learns meanwhile."""

from collections.abc import Callable, Mapping

from seedx import metrics, wire
from seedx.runtime import crew, monitor

# A program that is being compiled cannot be stopped; all else ends at once.
_STOP_SECONDS = 60.0


def run(
  server: wire.Server,
  threads: Mapping[str, Callable[[], None]],
  team: crew.Crew,
  lines: monitor.Monitor,
  done: Callable[[], bool],
  log_seconds: float,
  check: Callable[[], None],
  close: Callable[[], None] = lambda: None,
) -> dict[str, metrics.Value]:
  """Serves and runs the threads until the work is done, a stop, or a failure.

  Args:
    server: started here, and stopped.
    threads: by name, what runs beside it.
    team: that the threads join.
    lines: writes a line of metrics every `log_seconds`, and one at the end.
    done: whether the work is.
    log_seconds: between two lines of metrics.
    check: is called before each line, and may raise.
    close: ends waits that do not watch the crew's `stop`.

  Returns:
    The last line of metrics.

  Raises:
    types.ConfigError: the address is in use.
    Exception: whatever a thread failed with.
  """
  server.start()
  try:
    for name, target in threads.items():
      team.start(name, target)
    while not done():
      check()
      if team.stop.wait(log_seconds):
        break
      lines.write()
  finally:
    team.stop.set()
    server.stop()
    close()
    try:
      team.join(_STOP_SECONDS)
    finally:
      last = lines.write()
      lines.close()
  return last
