"""Reads the lines of metrics of a run."""

import errno
import json
import os
import pathlib
from collections.abc import Iterator
from typing import IO, Any

from seedx import files

# They never decrease in a run, except when it resumes from a checkpoint.
_CLOCKS = ("env_steps", "wall_seconds")
# Sums and squares of smaller numbers are finite.
_MOST = 1e100
_MOST_LINE_BYTES = 2**20


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Reads the lines of metrics of a run, which may still be training.

  A run that is resumed continues from its last checkpoint. This drops the
  lines that the run had written after that checkpoint.

  Args:
    path: a file that `JsonLines` wrote.

  Returns:
    The lines; `env_steps` and `wall_seconds` never decrease.

  Raises:
    OSError: the file cannot be read, or is none of text.
    KeyError: a line has no number as `env_steps` or as `wall_seconds`.
  """
  path = pathlib.Path(path).expanduser()
  lines: list[dict[str, Any]] = []
  with files.Folder(path.parent).open(path.name) as file:
    for piece in _pieces(file):
      try:
        # A killed run may leave half a line before the first line after it.
        line = json.loads("{" + piece.rpartition("{")[2])
      except (ValueError, RecursionError):
        continue
      for clock in _CLOCKS:
        if not is_number(line.get(clock)):
          raise KeyError(clock)
      if lines and any(line[clock] < lines[-1][clock] for clock in _CLOCKS):
        while lines and any(
          lines[-1][clock] >= line[clock] for clock in _CLOCKS
        ):
          lines.pop()
      lines.append(line)
  return lines


def is_number(value: Any) -> bool:
  """Whether a value is a number that can be drawn, finite and no switch."""
  known = isinstance(value, int | float) and not isinstance(value, bool)
  return known and abs(value) < _MOST


def _pieces(file: IO[bytes]) -> Iterator[str]:
  """The lines of a file, without the last one where it is not complete."""
  while piece := file.readline(_MOST_LINE_BYTES):
    if piece.endswith(b"\n"):
      yield piece.decode(errors="replace")
    elif len(piece) == _MOST_LINE_BYTES:
      raise OSError(errno.EFBIG, f"has a line of {_MOST_LINE_BYTES:,} bytes")
    else:
      return  # Its rest may be written meanwhile.
