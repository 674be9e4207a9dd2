"""Instances of nodes, as processes or tasks, restarted when they die."""

import collections
import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Protocol

from seedx import signals, types
from seedx.launch import topology

# The run ends after this number of deaths of an instance within this time.
_FATAL_DEATHS = 6
_WITHIN_SECONDS = 600.0
# The first restart is at once, the second after this time, the next ones after
# 3, 7 and 15 times as long.
_BACKOFF_SECONDS = 1.0
# A death by SIGKILL is not counted unless the process was younger than this: a
# process without enough memory is killed again and again.
_YOUNG_SECONDS = 10.0
# Numbers that differ between equal errors: seeds, addresses, process IDs.
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


class DiedError(RuntimeError):
  """An instance has died too many times, so that the run ends."""


class Running(Protocol):
  """The process or task in which an instance of a node runs."""

  @property
  def name(self) -> str:
    """The name in messages."""

  def status(self) -> int | None:
    """Returns the exit status; None while the instance runs."""

  def last_error(self) -> str:
    """Returns the instance's error, or ""; call once, after the end.

    The first line has the error, the other lines its traceback, if any.
    """

  def leave(self) -> None:
    """Asks the instance to end."""

  def end(self, timeout_seconds: float) -> None:
    """Waits for the instance's end; after the timeout, kills the instance."""


class Instances:
  """The instances of some nodes.

  An instance that dies is restarted, after a longer time with each death. An
  instance that exits with status 0 has done its work.

  Attributes:
    restarts: number of restarts so far.
  """

  def __init__(
    self,
    all_nodes: list[topology.Node],
    start: Callable[[str, bytes], Running],
    folder: str = "",
  ) -> None:
    """Starts all instances of the nodes.

    Args:
      all_nodes: the nodes.
      start: starts an instance, given its role and its `topology.message`.
      folder: directory that the processes remove when this process has ended;
        empty for none.

    Raises:
      types.ConfigError: a node cannot be sent to another process.
    """
    self.restarts = 0
    self._start = start
    self._traces = _Traces()
    self._instances: list[_Instance] = []
    self.add(all_nodes, folder)

  def add(self, all_nodes: list[topology.Node], folder: str = "") -> None:
    """Starts all instances of more nodes; see `__init__`."""
    self._instances += [
      _Instance(node, topology.message(node, folder), self._start, self._traces)
      for node in all_nodes
      for _ in range(node.count)
    ]

  def check(self) -> None:
    """Restarts instances that have died; call it about once a second.

    Raises:
      types.ConfigError: an instance reports an error in its config.
      DiedError: an instance has died too many times.
    """
    for instance in self._instances:
      self.restarts += instance.check()

  def stop(self, timeout_seconds: float = 2.0) -> None:
    """Asks all instances to end, and kills them after the timeout."""
    for instance in self._instances:
      instance.running.leave()
    deadline = time.monotonic() + timeout_seconds
    for instance in self._instances:
      instance.running.end(max(0.0, deadline - time.monotonic()))


class Processes(Instances):
  """The instances of some nodes as processes of this machine.

  The standard input of each instance is a socket from this process, and the
  instance ends when the socket closes. So all instances end, however this
  process exits. Instances ignore signals to the process group, because this
  process gets the signals too, and decides.
  """

  def __init__(self, all_nodes: list[topology.Node], folder: str = "") -> None:
    super().__init__(all_nodes, Process, folder)


class Deaths:
  """Counter of the deaths of one instance."""

  def __init__(self, role: str) -> None:
    self._role = role
    self._seconds: list[float] = []

  def add(self, message: str) -> float:
    """Counts a death that `message` reports; returns seconds until a restart.

    Raises:
      DiedError: the instance has died too many times.
    """
    now = time.monotonic()
    recent = [x for x in self._seconds if x > now - _WITHIN_SECONDS]
    self._seconds = [*recent, now]
    if len(self._seconds) >= _FATAL_DEATHS:
      raise DiedError(
        f"{self._role} died {len(self._seconds)} times within"
        f" {now - self._seconds[0]:.0f} s; at last, {message}"
      )
    return _BACKOFF_SECONDS * (2 ** len(recent) - 1)


class _Traces:
  """The tracebacks of instances that died; equal ones are printed once."""

  def __init__(self) -> None:
    self._counts: collections.Counter[str] = collections.Counter()

  def report(self, trace: str) -> str:
    """Prints a traceback, or returns words about how often it has occurred."""
    if not trace:
      return ""
    key = _NUMBER.sub("0", trace)
    self._counts[key] += 1
    if self._counts[key] > 1:
      return f" (the traceback above, {self._counts[key]} times so far)"
    print(trace, file=sys.stderr, flush=True)
    return ""


class _Instance:
  """One instance of a node, and the process or task in which it runs now."""

  def __init__(
    self,
    node: topology.Node,
    message: bytes,
    start: Callable[[str, bytes], Running],
    traces: _Traces,
  ) -> None:
    self._node, self._message, self._start = node, message, start
    self._traces = traces
    self._is_first = True
    self._deaths = Deaths(node.role)
    # The time of the next restart; None while the instance runs.
    self._due_seconds: float | None = None
    self._started_seconds = time.monotonic()
    self.running = start(node.role, message)

  def check(self) -> bool:
    """Restarts a dead instance after its delay; True if it was restarted."""
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
    """Reports a death; returns the seconds until the restart."""
    error, _, trace = self.running.last_error().partition("\n")
    repeated = self._traces.report(trace)
    name, error = self.running.name, f": {error}" if error else ""
    # The config of an instance that has worked before is not wrong.
    if status == topology.USAGE_STATUS and self._is_first:
      raise types.ConfigError(f"{name} cannot do its work{error}")
    died, seconds = f"{name} died with status {status}{error}", 0.0
    is_young = time.monotonic() - self._started_seconds < _YOUNG_SECONDS
    if is_young or status != -signal.SIGKILL:
      help_text = "" if error else types.see("a-process-dies-without-a-message")
      seconds = self._deaths.add(died + help_text)
    restart = f"; it restarts in {seconds:g} s" if seconds else ""
    print(f"{died}{restart}{repeated}", file=sys.stderr, flush=True)
    return seconds


class Process:
  """A process of this machine that runs a node."""

  def __init__(self, role: str, message: bytes, address: str = "") -> None:
    """Starts the process, which reads a `topology.message`.

    An `address` replaces the one in the node's config.
    """
    self._role = role
    self._socket, stdin = socket.socketpair()
    with stdin, signals.pending():
      self._process = subprocess.Popen(
        [sys.executable, "-m", __package__, *filter(None, [address]), role],
        stdin=stdin.fileno(),
      )
    # The process may die before it has read all of the message.
    with contextlib.suppress(OSError):
      self._socket.sendall(message)

  @property
  def name(self) -> str:
    """The role and the process ID."""
    return f"{self._role} {self._process.pid}"

  def status(self) -> int | None:
    """See `Running`."""
    return self._process.poll()

  def last_error(self) -> str:
    """See `Running`."""
    self._socket.setblocking(False)
    text = b""
    with contextlib.suppress(OSError):
      while part := self._socket.recv(topology.ERROR_BYTES):
        text += part
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
