"""Ctrl-C: once for an orderly end, twice for an end at once."""

import os
import signal
import sys
import threading

INTERRUPTED_STATUS = 130


def stop_on_signals(stop: threading.Event) -> threading.Event:
  """Lets the first Ctrl-C set `stop`, and the second end the process.

  Returns:
    An event that is set by Ctrl-C, and by nothing else.
  """
  interrupted = threading.Event()

  def handle(number: int, frame: object) -> None:
    del number, frame
    if interrupted.is_set():
      os._exit(INTERRUPTED_STATUS)
    interrupted.set()
    stop.set()
    print("\nstopping; Ctrl-C again to exit at once", file=sys.stderr)

  signal.signal(signal.SIGINT, handle)
  signal.signal(signal.SIGTERM, handle)
  return interrupted
