"""Ctrl-C, SIGTERM and SIGHUP: they stop a run in order.

A process that such a signal ended has the exit status that a shell gives it:
130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

# What ends a process, or a group of them.
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
# A program that passes Ctrl-C on to this one sends it a second time at once.
_SAME_SECONDS = 0.05


class Ending:
  """Whether a signal has ended a run.

  Attributes:
    status: exit status of the process; 0 as long as there was no signal.
  """

  status = 0


def status(number: int) -> int:
  """The exit status of a process that a signal has ended."""
  return 128 + number


def leave_at_once() -> None:
  """Until something else handles signals, they end this program in one word.

  Call it first in a program: its imports take seconds, and leave a traceback.
  """
  for number in _heeded():
    signal.signal(number, lambda number, _: os._exit(status(number)))
  signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextlib.contextmanager
def stopping(stop: threading.Event, exits: bool = True) -> Iterator[Ending]:
  """Makes the first signal set `stop`, and a second Ctrl-C exit.

  Only the main thread receives signals: on another thread, nothing changes. A
  SIGHUP or SIGTERM that is ignored, as by nohup, stays so.

  Args:
    stop: the event that the first signal sets.
    exits: whether the second Ctrl-C exits the process at once, as in a program.
      If not, it raises KeyboardInterrupt, as in a script or a notebook.

  Yields:
    What tells whether a signal has come.
  """
  ending = Ending()
  first_seconds = 0.0

  def handle(number: int, frame: object) -> None:
    nonlocal first_seconds
    del frame
    now = time.monotonic()
    if not ending.status:
      first_seconds, ending.status = now, status(number)
      # On another thread: the signal may have come while this one, about to
      # wait, held the event's lock. `_thread` itself takes no lock of Python's.
      _thread.start_new_thread(stop.set, ())
      if number == signal.SIGHUP:
        _without_terminal()
      _say("\nstopping; Ctrl-C again to exit at once\n")
    elif number == signal.SIGINT and now > first_seconds + _SAME_SECONDS:
      if not exits:
        raise KeyboardInterrupt
      os._exit(status(number))

  if threading.current_thread() is not threading.main_thread():
    yield ending
    return
  before = {number: signal.signal(number, handle) for number in _heeded()}
  try:
    yield ending
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _heeded() -> list[signal.Signals]:
  """The signals that nobody has told this process to ignore.

  A shell's background jobs ignore Ctrl-C; who sends it to one means it.
  """
  return [
    number
    for number in ENDING
    if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
  ]


def _say(text: str) -> None:
  # Not `print`: a signal may come in the middle of another.
  with contextlib.suppress(OSError):
    os.write(sys.stderr.fileno(), text.encode())


def _without_terminal() -> None:
  """Has nothing fail for want of the terminal that was hung up."""
  nowhere = os.open(os.devnull, os.O_RDWR)
  for number in (1, 2):
    try:
      os.write(number, b"")
      gone = os.isatty(number)
    except OSError:
      gone = True
    if gone:
      os.dup2(nowhere, number)
  os.close(nowhere)
