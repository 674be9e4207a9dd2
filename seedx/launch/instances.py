"""Instances of nodes, restarted when they die; here as processes."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Protocol

from seedx import signals, types
from seedx.launch import nodes

# One that dies so often within this time never will do its work.
_MOST_DEATHS = 6
_WITHIN_SECONDS = 600.0
# The first restart is at once, the second after so long, those that follow
# after 3, 7 and 15 times that.
_BACKOFF_SECONDS = 1.0
# That somebody killed it is no fault of its own, unless it was as young as
# this: who finds no memory is killed each time.
_YOUNG_SECONDS = 10.0
# Of what a process says that it died of.
_MOST_BYTES = 4_096


class Running(Protocol):
  """What an instance of a node runs in."""

  @property
  def name(self) -> str:
    """What it is called in messages."""
    ...

  def status(self) -> int | None:
    """Its exit status; None while it runs."""
    ...

  def last_error(self) -> str:
    """What it says that it died of; or nothing. Called once, after its end."""
    ...

  def leave(self) -> None:
    """Tells it to end."""
    ...

  def end(self, timeout_seconds: float) -> None:
    """Waits for its end, and kills it after the timeout."""
    ...


class Instances:
  """Instances of some nodes.

  One that dies is started again, later each time; one that exits with status 0
  has done its work.

  Attributes:
    restarts: how many have died and were started again.
  """

  def __init__(
    self,
    running: list[nodes.Node],
    start: Callable[[str, bytes], Running],
    folder: str = "",
  ) -> None:
    """Starts all instances of the nodes.

    Args:
      running: the nodes.
      start: starts one, by its role and its `nodes.message`.
      folder: see `nodes.message`.

    Raises:
      types.ConfigError: one of them cannot be sent to another process.
    """
    self.restarts = 0
    self._instances = [
      _Instance(node, nodes.message(node, folder), start)
      for node in running
      for _ in range(node.count)
    ]

  def check(self) -> None:
    """Starts again what has died; call it every now and then.

    Raises:
      types.ConfigError: an instance says that it was called wrong.
      RuntimeError: one dies again and again.
    """
    for instance in self._instances:
      self.restarts += instance.check()

  def stop(self, timeout_seconds: float = 2.0) -> None:
    """Ends all of them: asks first, then kills."""
    for instance in self._instances:
      instance.running.leave()
    deadline = time.monotonic() + timeout_seconds
    for instance in self._instances:
      instance.running.end(max(0.0, deadline - time.monotonic()))


class Processes(Instances):
  """Processes of this machine for the instances of some nodes.

  The standard input of each is a socket from this process, and each ends when
  it closes. So when this process exits in any way, all end. They ignore the
  signals that end a group of processes: this one gets them too, and decides.
  """

  def __init__(self, running: list[nodes.Node], folder: str = "") -> None:
    """Starts all instances of the nodes.

    Args:
      running: the nodes.
      folder: their sockets'; they remove it where this process is killed.

    Raises:
      types.ConfigError: one of them cannot be sent to another process.
    """
    super().__init__(running, Process, folder)


class Deaths:
  """The deaths of one instance, of which it may not die too many."""

  def __init__(self, role: str) -> None:
    """Knows none yet; `role` is whose they are."""
    self._role = role
    self._seconds: list[float] = []

  def add(self, died: str) -> float:
    """Counts one; returns the seconds until it should start again.

    Args:
      died: what is said of it.

    Raises:
      RuntimeError: it dies again and again.
    """
    now = time.monotonic()
    recent = [x for x in self._seconds if x > now - _WITHIN_SECONDS]
    self._seconds = [*recent, now]
    if len(self._seconds) >= _MOST_DEATHS:
      raise RuntimeError(
        f"{self._role} died {len(self._seconds)} times within"
        f" {now - self._seconds[0]:.0f} s; at last, {died}"
      )
    return _BACKOFF_SECONDS * (2 ** len(recent) - 1)


class _Instance:
  """One instance of a node, and what it runs in now."""

  def __init__(
    self,
    node: nodes.Node,
    message: bytes,
    start: Callable[[str, bytes], Running],
  ) -> None:
    self._node, self._message, self._start = node, message, start
    self._is_first = True
    self._deaths = Deaths(node.role)
    # When one that has died starts again.
    self._due_seconds: float | None = None
    self._started_seconds = time.monotonic()
    self.running = start(node.role, message)

  def check(self) -> bool:
    """Replaces one that has died, in time; whether it did so now."""
    if self._due_seconds is None:
      status = self.running.status()
      if not status:
        return False
      self._due_seconds = time.monotonic() + self._died(status)
    if time.monotonic() < self._due_seconds:
      return False
    self._due_seconds, self._is_first = None, False
    self._started_seconds = time.monotonic()
    self.running = self._start(self._node.role, self._message)
    return True

  def _died(self, status: int) -> float:
    """Says so; returns the seconds until it is to start again."""
    error = self.running.last_error()
    who, error = self.running.name, f": {error}" if error else ""
    # One that has worked before was not called wrong.
    if status == nodes.USAGE_STATUS and self._is_first:
      raise types.ConfigError(f"{who} cannot do its work{error}")
    died, seconds = f"{who} died with status {status}{error}", 0.0
    young = time.monotonic() - self._started_seconds < _YOUNG_SECONDS
    if young or status != -signal.SIGKILL:
      why = "" if error else types.see("a-process-dies-without-a-message")
      seconds = self._deaths.add(died + why)
    again = f"; it starts again in {seconds:g} s" if seconds else ""
    print(f"{died}{again}", file=sys.stderr, flush=True)
    return seconds


class Process:
  """A process of this machine that runs a node."""

  def __init__(self, role: str, message: bytes) -> None:
    """Starts it.

    Args:
      role: of the node.
      message: what it reads, see `nodes.message`.
    """
    self._role = role
    self._socket, stdin = socket.socketpair()
    # Until the process ignores them, they wait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
    try:
      with stdin:
        self._process = subprocess.Popen(
          [sys.executable, "-m", __package__, role],
          stdin=stdin.fileno(),
        )
    finally:
      signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # It may die before it has read all.
    with contextlib.suppress(OSError):
      self._socket.sendall(message)

  @property
  def name(self) -> str:
    """Its role, and its number on this machine."""
    return f"{self._role} {self._process.pid}"

  def status(self) -> int | None:
    """See `Running`."""
    return self._process.poll()

  def last_error(self) -> str:
    """See `Running`."""
    self._socket.setblocking(False)
    text = b""
    with contextlib.suppress(OSError):
      text = self._socket.recv(_MOST_BYTES)
    self._socket.close()
    return text.decode(errors="replace")

  def leave(self) -> None:
    """See `Running`."""
    self._socket.close()

  def end(self, timeout_seconds: float) -> None:
    """See `Running`."""
    try:
      self._process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
