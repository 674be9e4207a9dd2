"""Ctrl-C, SIGTERM and SIGHUP: they stop a run in order.

A process that such a signal ended has the exit status that a shell gives it:
130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

A thread of its own acts on signals, because Python runs handlers on the main
thread, which may be in a call that does not return: an update on a device that
hangs, or an environment's step.

A program imports this module before all others, so it imports little.
"""

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

# What ends a process, or a group of them.
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
# A program that passes Ctrl-C on to this one sends it a second time at once.
_SAME_SECONDS = 0.05
# How often `Ending.watch` is called.
_WATCH_SECONDS = 1.0
# No signal has this number.
_OVER = 0
# The pipe that Python writes signals to, if `stopping` has made it.
_written_to: set[int] = set()


class Ending:
  """Whether a signal has ended a run.

  Attributes:
    status: exit status of the process; 0 as long as there was no signal.
    seconds: `time.monotonic` of the first signal.
    watch: function that is called about once a second while signals are
      listened to, on the thread that listens.
    exits: whether the second Ctrl-C ends the process.
    in_main: whether this process hears signals by it.
    raises: whether the next signal ends a script by an exception.
  """

  status = 0
  seconds = math.inf
  watch: Callable[[], None] | None = None
  exits = False
  in_main = False
  raises = False

  def leave(self) -> None:
    """Ends the process; in a script, raises what ends it."""
    if self.exits:
      os._exit(self.status)
    self.raises = True
    main = threading.main_thread().ident
    assert main is not None
    # A signal ends a wait of the main thread; `interrupt_main` would not.
    signal.pthread_kill(main, signal.SIGINT)


def status(number: int) -> int:
  """The exit status of a process that a signal has ended."""
  return 128 + number


def say(text: str) -> None:
  """Writes to stderr at once, from any thread, whatever is being printed."""
  # Not `print`, whose lock a thread that hangs may hold.
  # It may be closed, or none.
  with contextlib.suppress(OSError, ValueError, AttributeError):
    os.write(sys.stderr.fileno(), text.encode())


def leave_at_once() -> None:
  """Until something else handles signals, they end this program in one word.

  Call it before all other imports of a program: they take seconds, and leave a
  traceback. As process 1 of a container, a program is ended by no signal that
  it does not handle.
  """
  for number in _heeded():
    signal.signal(number, lambda number, _: os._exit(status(number)))
  signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextlib.contextmanager
def stopping(stop: threading.Event, exits: bool = True) -> Iterator[Ending]:
  """Makes the first signal set `stop`, and a second Ctrl-C exit.

  Only the main thread receives signals: on another thread, only
  `Ending.watch` is called. A SIGHUP or SIGTERM that is ignored, as by nohup,
  stays so.

  Args:
    stop: the event that the first signal sets.
    exits: whether the second Ctrl-C exits the process at once, as in a program.
      If not, it raises KeyboardInterrupt, as in a script or a notebook.

  Yields:
    What tells whether a signal has come.
  """
  ending = Ending()
  ending.exits = exits
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  listener = threading.Thread(
    target=_listen, args=(reader, stop, ending), name="signals", daemon=True
  )

  def handle(number: int, frame: object) -> None:
    del number, frame  # The pipe has the number, too.
    if ending.raises and ending.status != status(signal.SIGINT):
      raise SystemExit(ending.status)
    if ending.raises:
      raise KeyboardInterrupt

  in_main = threading.current_thread() is threading.main_thread()
  before = {}
  ending.in_main = in_main
  if in_main:
    others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _written_to.add(writer)
    before = {number: signal.signal(number, handle) for number in _heeded()}
  listener.start()
  try:
    yield ending
  finally:
    if in_main:
      for number, handler in before.items():
        signal.signal(number, handler)
      signal.set_wakeup_fd(others)
      _written_to.discard(writer)
    # Not only closed: a process that was forked may have it, too.
    os.write(writer, bytes([_OVER]))
    listener.join()
    os.close(writer)
    os.close(reader)


def _listen(reader: int, stop: threading.Event, ending: Ending) -> None:
  """Acts on the signals of a pipe, and calls `Ending.watch` meanwhile."""
  readable = select.poll()
  readable.register(reader, select.POLLIN)
  while True:
    if readable.poll(1000 * _WATCH_SECONDS):
      for number in os.read(reader, 256):
        if number == _OVER:
          return
        if number in ENDING:
          _heed(signal.Signals(number), stop, ending)
    try:
      if ending.watch is not None:
        ending.watch()
    except Exception as error:  # Signals have to be heard all the same.
      ending.watch = None
      say(f"hangs are not looked for any more: {error!r}\n")


def _heed(
  number: signal.Signals, stop: threading.Event, ending: Ending
) -> None:
  """Sets `stop` at the first signal; leaves at the second Ctrl-C."""
  if not ending.status:
    ending.seconds, ending.status = time.monotonic(), status(number)
    stop.set()
    if number == signal.SIGHUP:
      _without_terminal()
    say("\nstopping; Ctrl-C again to exit at once\n")
  elif (
    number == signal.SIGINT
    and not ending.raises  # Else `Ending.leave` has sent it.
    and time.monotonic() > ending.seconds + _SAME_SECONDS
  ):
    ending.status = status(number)
    ending.leave()


def _forget_pipe() -> None:
  """In a forked process: signals to it are none to the one that forked it."""
  if _written_to:
    _written_to.clear()
    with contextlib.suppress(ValueError):  # Not the main thread.
      signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_pipe)


def _heeded() -> list[signal.Signals]:
  """The signals that nobody has told this process to ignore.

  A shell's background jobs ignore Ctrl-C; who sends it to one means it.
  """
  return [
    number
    for number in ENDING
    if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
  ]


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
