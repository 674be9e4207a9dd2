"""CPU time of processes, as Linux reports it in /proc."""

import os
import pathlib
import time
from collections.abc import Iterator
from typing import NamedTuple

_PROC = pathlib.Path("/proc")
# Columns of /proc/stat with the time of processes (user, nice, system), and of
# other virtual machines on the same cores (steal). Interrupts are left out,
# because this process's own messages cause some of them.
_BUSY = (1, 2, 3, 8)


class Others:
  """A meter of the CPU time of all processes but this one and its descendants.

  Only the cores on which this process may run count.
  """

  def __init__(self, proc: pathlib.Path = _PROC) -> None:
    """Starts to measure; `proc` is the directory /proc."""
    self._proc = proc
    self._started_seconds = time.monotonic()
    self._start = self._now()

  @property
  def seconds(self) -> float | None:
    """CPU seconds of the other processes since `__init__`; None if unknown."""
    now = self._now()
    if now is None or self._start is None:
      return None
    # The kernel counts in ticks, so the difference may be below 0.
    return max(0.0, now - self._start)

  @property
  def cores(self) -> float | None:
    """Mean number of cores that the other processes used; None if unknown."""
    seconds = self.seconds
    if seconds is None:
      return None
    return seconds / (time.monotonic() - self._started_seconds)

  def _now(self) -> float | None:
    """Returns the CPU seconds of all other processes; None if unknown."""
    everything = of_machine(self._proc)
    if not everything:  # Some sandboxes report zeros.
      return None
    own = _tree(os.getpid(), self._proc)
    return everything - sum(x.seconds + x.of_ended for x in own.values())


def of_machine(proc: pathlib.Path = _PROC) -> float | None:
  """Returns the CPU seconds of all processes since the machine's start.

  Only the cores on which this process may run count. None if unknown.
  """
  try:
    lines = (proc / "stat").read_text().splitlines()
  except OSError:
    return None
  cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
  rows = [row for line in lines if (row := line.split()) and row[0] in cores]
  ticks = sum(int(row[column]) for row in rows for column in _BUSY)
  return ticks / os.sysconf("SC_CLK_TCK")


def of_tree(root: int, proc: pathlib.Path = _PROC) -> dict[int, float]:
  """Returns the CPU seconds of a process and its descendants, by process id."""
  return {pid: x.seconds for pid, x in _tree(root, proc).items()}


class _Used(NamedTuple):
  """CPU time of a process.

  Attributes:
    parent: id of the parent.
    seconds: CPU seconds of the process.
    of_ended: CPU seconds of ended children, and of their ended children.
  """

  parent: int
  seconds: float
  of_ended: float


def _tree(root: int, proc: pathlib.Path) -> dict[int, _Used]:
  """Returns the CPU time of a process and its descendants, by process id."""
  used = dict(_processes(proc))
  tree = {root} & used.keys()
  while children := {x for x in used if used[x].parent in tree} - tree:
    tree |= children
  return {pid: used[pid] for pid in tree}


def _processes(proc: pathlib.Path) -> Iterator[tuple[int, _Used]]:
  tick = 1 / os.sysconf("SC_CLK_TCK")
  for path in proc.glob("[0-9]*/stat"):
    try:
      # The process's name, in brackets, may contain spaces and brackets.
      values = path.read_text().rpartition(")")[2].split()
    except OSError:  # The process has ended.
      continue
    own, of_ended = (
      tick * (int(values[i]) + int(values[i + 1])) for i in (11, 13)
    )
    yield int(path.parent.name), _Used(int(values[1]), own, of_ended)
