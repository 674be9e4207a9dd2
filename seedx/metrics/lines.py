"""A reader of a run's lines of metrics."""

import errno
import json
import operator
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

from seedx import files

# Sums and squares of smaller numbers are finite.
_MAX_NUMBER = 1e100
_MAX_LINE_BYTES = 2**20


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Reads the lines of metrics that `JsonLines` wrote to a file.

  The run may still be training. If the run was resumed, the lines that it had
  written after the last checkpoint are dropped, so that the run's clock and
  `wall_seconds` never decrease.

  Raises:
    OSError: the file cannot be read, or has a line of more than 1 MiB.
    KeyError: a line has no number as its clock or as `wall_seconds`.
  """
  path = pathlib.Path(path).expanduser()
  lines: list[dict[str, Any]] = []
  with files.Folder(path.parent).open(path.name) as file:
    for text in _complete_lines(file):
      try:
        # A killed run may leave half a line, to which a resumed run appends.
        line = json.loads("{" + text.rpartition("{")[2])
      except (ValueError, RecursionError):
        continue
      times = _times(line)
      if lines and any(map(operator.lt, times, _times(lines[-1]))):
        while lines and any(map(operator.ge, _times(lines[-1]), times)):
          lines.pop()
      lines.append(line)
  return lines


def clock(line: Mapping[str, Any]) -> str:
  """Returns the name of the clock of a line's run: the line's first entry."""
  return next(iter(line), "env_steps")


def unit(line: Mapping[str, Any]) -> str:
  """Returns the unit of a line's clock, "env steps" or "updates"."""
  return "updates" if clock(line) == "learner_steps" else "env steps"


def is_number(value: Any) -> bool:
  """Returns whether a value is a finite number, and not a bool."""
  is_real = isinstance(value, int | float) and not isinstance(value, bool)
  return is_real and abs(value) < _MAX_NUMBER


def _times(line: Mapping[str, Any]) -> list[float]:
  """Returns the metrics that decrease only when a run resumes."""
  names = clock(line), "wall_seconds"
  for name in names:
    if not is_number(line.get(name)):
      raise KeyError(name)
  return [line[name] for name in names]


def _complete_lines(file: IO[bytes]) -> Iterator[str]:
  while line := file.readline(_MAX_LINE_BYTES):
    if line.endswith(b"\n"):
      yield line.decode(errors="replace")
    elif len(line) == _MAX_LINE_BYTES:
      raise OSError(errno.EFBIG, f"has a line of {_MAX_LINE_BYTES:,} bytes")
    else:
      return  # A run may still be writing this line.
