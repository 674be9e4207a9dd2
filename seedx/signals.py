"""Handling of Ctrl-C and other signals, which end a run in order.

The exit status of a process is the one that shells use: 130 after Ctrl-C, 143
after SIGTERM, 129 after SIGHUP. SIGUSR1 and SIGUSR2 count as SIGTERM, because
schedulers of clusters send them some time before they end a job.

A thread acts on the signals. Python runs handlers on the main thread, which may
be in a call that does not return: an update on a device that hangs, or a step
of an environment.

Programs import this module before all others, so it imports little.
"""

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator

# The signals that end a process or a process group.
ENDING = (
  signal.SIGHUP,
  signal.SIGINT,
  signal.SIGTERM,
  signal.SIGUSR1,
  signal.SIGUSR2,
)
# Those that schedulers send as a warning; they count as SIGTERM.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
# Two Ctrl-C within this time count as one, since a parent may forward it.
_SAME_SECONDS = 0.05
# The time between two calls of `Ending.watch`.
_WATCH_SECONDS = 1.0
# Ends the thread of `stopping`; no signal has this number.
_OVER = 0
# The pipe of `stopping` to which Python writes signals, if there is one.
_written_to: set[int] = set()


class Ending:
  """The end of a run by a signal.

  Attributes:
    status: exit status of the process; 0 until there is a signal.
    seconds: `time.monotonic` of the first signal; infinity until then.
    watch: function that the thread for signals calls about once a second.
    exits: whether the second Ctrl-C exits the process.
    in_main: whether `stopping` runs on the main thread and receives signals.
    raises: whether the next signal raises an exception in the main thread.
  """

  status = 0
  seconds = math.inf
  watch: Callable[[], None] | None = None
  exits = False
  in_main = False
  raises = False

  def leave(self) -> None:
    """Exits the process, or raises an exception in the main thread."""
    if self.exits:
      os._exit(self.status)
    self.raises = True
    main = threading.main_thread().ident
    assert main is not None
    # Unlike `interrupt_main`, a signal ends a wait of the main thread.
    signal.pthread_kill(main, signal.SIGINT)


def status(number: int) -> int:
  """Returns the exit status of a process that a signal has ended."""
  return 128 + (signal.SIGTERM if number in WARNINGS else number)


def print_at_once(text: str) -> None:
  """Writes to stderr at once, even if another thread hangs while it prints."""
  # `print` would wait for the lock of such a thread. stderr may be closed, or
  # None.
  with contextlib.suppress(OSError, ValueError, AttributeError):
    os.write(sys.stderr.fileno(), text.encode())


def exit_on_signals() -> None:
  """Makes signals exit this program at once, until they are handled otherwise.

  A program calls this before its other imports, which take seconds and would
  print a traceback. The call also lets signals end process 1 of a container,
  which receives only signals that it handles.
  """
  for number in _handled():
    signal.signal(number, lambda number, _: os._exit(status(number)))
  signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextlib.contextmanager
def pending() -> Iterator[None]:
  """Makes processes that start in its block begin with all signals pending.

  A new process would otherwise die of a signal that arrives before it has
  handlers. With its handlers it calls `pthread_sigmask(SIG_UNBLOCK, ENDING)`.
  """
  mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def stopping(
  stop: threading.Event,
  exits: bool = True,
  ignored: Collection[signal.Signals] = (),
) -> Iterator[Ending]:
  """Makes the first signal set `stop`, and a second Ctrl-C exit the process.

  If `exits` is False, as in a notebook, the second Ctrl-C raises
  KeyboardInterrupt instead. Only the main thread can handle signals; on another
  thread, this only calls `Ending.watch`. A signal other than SIGINT that is
  ignored already, such as SIGHUP with nohup, stays ignored. Signals in
  `ignored` have no effect. If `exits` is False, a script's own handlers of
  SIGUSR1 and SIGUSR2, such as those of submitit, stay in place.
  """
  ending = Ending()
  ending.exits = exits
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  own = [] if exits else [x for x in WARNINGS if callable(signal.getsignal(x))]
  numbers = [x for x in ENDING if x not in ignored and x not in own]
  arguments = (reader, numbers, stop, ending)
  listener = threading.Thread(
    target=_listen, args=arguments, name="signals", daemon=True
  )

  def handle(number: int, frame: object) -> None:
    del number, frame  # The thread reads the number from the pipe.
    if ending.raises and ending.status != status(signal.SIGINT):
      raise SystemExit(ending.status)
    if ending.raises:
      raise KeyboardInterrupt

  previous_handlers = {}
  ending.in_main = threading.current_thread() is threading.main_thread()
  if ending.in_main:
    previous_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _written_to.add(writer)
    previous_handlers = {
      number: signal.signal(number, handle)
      for number in _handled()
      if number not in own
    }
  listener.start()
  try:
    yield ending
  finally:
    if ending.in_main:
      for number, handler in previous_handlers.items():
        signal.signal(number, handler)
      signal.set_wakeup_fd(previous_writer)
      _written_to.discard(writer)
    # Closing the pipe is not enough, because a forked process may have it open.
    os.write(writer, bytes([_OVER]))
    listener.join()
    os.close(writer)
    os.close(reader)


def _listen(
  reader: int,
  numbers: Collection[signal.Signals],
  stop: threading.Event,
  ending: Ending,
) -> None:
  readable = select.poll()
  readable.register(reader, select.POLLIN)
  while True:
    if readable.poll(1000 * _WATCH_SECONDS):
      for number in os.read(reader, 256):
        if number == _OVER:
          return
        if number in numbers:
          _handle(signal.Signals(number), stop, ending)
    try:
      if ending.watch is not None:
        ending.watch()
    except Exception as error:  # The thread must still handle signals.
      ending.watch = None
      print_at_once(f"the search for hangs has failed and ends: {error!r}\n")


def _handle(
  number: signal.Signals, stop: threading.Event, ending: Ending
) -> None:
  if not ending.status:
    ending.seconds, ending.status = time.monotonic(), status(number)
    stop.set()
    if number == signal.SIGHUP:
      _without_terminal()
    print_at_once("\nstopping; Ctrl-C again to exit at once\n")
  elif (
    number == signal.SIGINT
    and not ending.raises  # Else `Ending.leave` has sent this signal.
    and time.monotonic() > ending.seconds + _SAME_SECONDS
  ):
    ending.status = status(number)
    ending.leave()


def _forget_pipe() -> None:
  """Makes signals to a forked process not count as signals to its parent."""
  if _written_to:
    _written_to.clear()
    with contextlib.suppress(ValueError):  # Raised outside of the main thread.
      signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_pipe)


def _handled() -> list[signal.Signals]:
  """Returns the signals in `ENDING` that this process does not ignore.

  SIGINT is always among them: shells make background jobs ignore it, but a
  SIGINT that is sent to such a job is meant for it.
  """
  return [
    number
    for number in ENDING
    if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
  ]


def _without_terminal() -> None:
  """Redirects stdout and stderr to /dev/null if their terminal is gone."""
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
