"""Ctrl-C: once for an orderly end, twice for an end at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

INTERRUPTED_STATUS = 130


@contextlib.contextmanager
def stopping(
  stop: threading.Event, exits: bool = True
) -> Iterator[threading.Event]:
  """Lets the first Ctrl-C set `stop`, and the second end the process.

  Signals reach the main thread only: on another, nothing changes.

  Args:
    stop: is set by the first.
    exits: whether the second ends the process at once, as a program's does; a
      notebook's or a script's raises KeyboardInterrupt.

  Yields:
    An event that is set by Ctrl-C, and by nothing else.
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
