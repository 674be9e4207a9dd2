"""Nodes as processes of this machine, restarted when they die."""

import contextlib
import signal
import socket
import subprocess
import sys
import time

from seedx import types
from seedx.launch import nodes
from seedx.runtime import signals

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


class Processes:
  """Processes for the instances of some nodes.

  A process that dies is started again, later each time; one that exits with
  status 0 has done its work. The standard input of each is a socket from this
  process, and each ends when it closes. So when this process exits in any way,
  all end. They ignore the signals that end a group of processes: this one gets
  them too, and decides.

  Attributes:
    restarts: how many have died and were started again.
  """

  def __init__(self, running: list[nodes.Node], folder: str = "") -> None:
    """Starts all instances of the nodes.

    Args:
      running: the nodes.
      folder: their sockets'; they remove it where this process is killed.

    Raises:
      types.ConfigError: one of them cannot be sent to another process.
    """
    self.restarts = 0
    self._children = [
      _Child(node, folder) for node in running for _ in range(node.count)
    ]

  def check(self) -> None:
    """Starts again what has died; call it every now and then.

    Raises:
      types.ConfigError: a process says that it was called wrong.
      RuntimeError: one dies again and again.
    """
    for child in self._children:
      self.restarts += child.check()

  def stop(self, timeout_seconds: float = 2.0) -> None:
    """Ends all processes: asks first, then kills."""
    for child in self._children:
      child.socket.close()
    deadline = time.monotonic() + timeout_seconds
    for child in self._children:
      try:
        child.process.wait(max(0.0, deadline - time.monotonic()))
      except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()


class _Child:
  """One instance of a node, and its newest process."""

  def __init__(self, node: nodes.Node, folder: str) -> None:
    self.node = node
    self._message = nodes.message(node, folder)
    self._is_first = True
    self._deaths: list[float] = []
    # When the process of one that has died starts again.
    self._due_seconds: float | None = None
    self._start()

  def check(self) -> bool:
    """Replaces a process that has died, in time; whether it did so now."""
    if self._due_seconds is None:
      if not self.process.poll():
        return False
      self._due_seconds = time.monotonic() + self._died()
    if time.monotonic() < self._due_seconds:
      return False
    self._due_seconds, self._is_first = None, False
    self._start()
    return True

  def _died(self) -> float:
    """Says so; returns the seconds until it is to start again."""
    now, status = time.monotonic(), self.process.returncode
    who, error = f"{self.node.role} {self.process.pid}", self._last_error()
    # One that has worked before was not called wrong.
    if status == nodes.USAGE_STATUS and self._is_first:
      raise types.ConfigError(f"{who} cannot do its work{error}")
    seconds = 0.0
    young = now - self._started_seconds < _YOUNG_SECONDS
    if young or status != -signal.SIGKILL:
      recent = [x for x in self._deaths if x > now - _WITHIN_SECONDS]
      seconds = _BACKOFF_SECONDS * (2 ** len(recent) - 1)
      self._deaths = [*recent, now]
    died = f"{who} died with status {status}{error}"
    if len(self._deaths) >= _MOST_DEATHS:
      raise RuntimeError(
        f"{self.node.role} died {len(self._deaths)} times within"
        f" {now - self._deaths[0]:.0f} s; at last, {died}"
      )
    again = f"; it starts again in {seconds:g} s" if seconds else ""
    print(f"{died}{again}", file=sys.stderr, flush=True)
    return seconds

  def _last_error(self) -> str:
    """What the process says that it died of, after a colon; or nothing."""
    self.socket.setblocking(False)
    text = b""
    with contextlib.suppress(OSError):
      text = self.socket.recv(_MOST_BYTES)
    self.socket.close()
    return f": {text.decode(errors='replace')}" if text else ""

  def _start(self) -> None:
    self._started_seconds = time.monotonic()
    self.socket, stdin = socket.socketpair()
    # Until the process ignores them, they wait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
    try:
      with stdin:
        self.process = subprocess.Popen(
          [sys.executable, "-m", __package__, self.node.role],
          stdin=stdin.fileno(),
        )
    finally:
      signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # It may die before it has read all.
    with contextlib.suppress(OSError):
      self.socket.sendall(self._message)
