"""Nodes as processes of this machine, restarted when they die."""

import contextlib
import subprocess
import sys
import time

from seedx import types
from seedx.launch import nodes

# One that dies this young, this many times in a row, never will do its work.
_YOUNG_SECONDS = 10.0
_MOST_EARLY_DEATHS = 5


class Processes:
  """Processes for the instances of some nodes.

  A process that dies is started again; one that exits with status 0 has done
  its work. The standard input of each is a pipe from this process, and each
  ends when its pipe closes. So when this process exits in any way, all end.

  Attributes:
    restarts: how many have died and were started again.
  """

  def __init__(self, running: list[nodes.Node]) -> None:
    """Starts all instances of the nodes.

    Raises:
      types.ConfigError: one of them cannot be sent to another process.
    """
    self.restarts = 0
    self._children = [
      _Child(node) for node in running for _ in range(node.count)
    ]

  def check(self) -> None:
    """Starts again what has died; call it every now and then.

    Raises:
      types.ConfigError: a process says that it was called wrong.
      RuntimeError: one dies again and again.
    """
    for child in self._children:
      status = child.process.poll()
      if status == nodes.USAGE_STATUS:
        raise types.ConfigError(
          f"{child.node.role} {child.process.pid} cannot do its work; see its"
          " message above"
        )
      if status:
        child.restart()
        self.restarts += 1

  def stop(self, timeout_seconds: float = 2.0) -> None:
    """Ends all processes: asks first, then kills."""
    for child in self._children:
      if child.process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
          child.process.stdin.close()
    deadline = time.monotonic() + timeout_seconds
    for child in self._children:
      try:
        child.process.wait(max(0.0, deadline - time.monotonic()))
      except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()


class _Child:
  """One instance of a node, and its newest process."""

  def __init__(self, node: nodes.Node) -> None:
    self.node = node
    self._message = nodes.message(node)
    self._early_deaths = 0
    self._start()

  def restart(self) -> None:
    """Replaces a process that died by a new one, and says so."""
    young = time.monotonic() - self._started_seconds < _YOUNG_SECONDS
    self._early_deaths = self._early_deaths + 1 if young else 0
    died = f"{self.node.role} {self.process.pid} died with status"
    print(f"{died} {self.process.returncode}", file=sys.stderr, flush=True)
    if self._early_deaths > _MOST_EARLY_DEATHS:
      raise RuntimeError(
        f"{self.node.role} died {self._early_deaths} times within"
        f" {_YOUNG_SECONDS:g} s of its start, with status"
        f" {self.process.returncode} at last"
      )
    self._start()

  def _start(self) -> None:
    self._started_seconds = time.monotonic()
    self.process = subprocess.Popen(
      [sys.executable, "-m", __package__, self.node.role],
      stdin=subprocess.PIPE,
    )
    assert self.process.stdin is not None
    # It may die before it has read all.
    with contextlib.suppress(BrokenPipeError):
      self.process.stdin.write(self._message)
      self.process.stdin.flush()
