"""Ctrl-C: the first stops a run in order, the second exits at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

INTERRUPTED_STATUS = 130
# What ends a process, or a group of them.
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stopping(
  stop: threading.Event, exits: bool = True
) -> Iterator[threading.Event]:
  """Makes the first Ctrl-C (or SIGTERM) set `stop`, and the second exit.

  Only the main thread receives signals: on another thread, nothing changes.

  Args:
    stop: the event that the first Ctrl-C sets.
    exits: whether the second Ctrl-C exits the process at once, as in a program.
      If not, it raises KeyboardInterrupt, as in a script or a notebook.

  Yields:
    An event that only Ctrl-C sets.
  """
  interrupted = threading.Event()

  def handle(number: int, frame: object) -> None:
    del number, frame
    if interrupted.is_set():
      if not exits:
        raise KeyboardInterrupt
      os._exit(INTERRUPTED_STATUS)
    interrupted.set()
    stop.set()
    print("\nstopping; Ctrl-C again to exit at once", file=sys.stderr)

  if threading.current_thread() is not threading.main_thread():
    yield interrupted
    return
  before = {
    number: signal.signal(number, handle)
    for number in (signal.SIGINT, signal.SIGTERM)
  }
  try:
    yield interrupted
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
