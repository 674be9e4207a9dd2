"""The files of a run: its directory, and its lines of metrics."""

import contextlib
import json
import os
import pathlib
import tempfile
from typing import Any

from seedx import types

# They never decrease in a run, except when it resumes from a checkpoint.
_CLOCKS = ("env_steps", "wall_seconds")
# Sums and squares of smaller numbers are finite.
_MOST = 1e100


def open_run_dir(path: str | os.PathLike[str]) -> pathlib.Path:
  """Creates the directory of a run and checks that it is writable.

  Args:
    path: the directory, which may exist; `~` is the home directory.

  Returns:
    The directory.

  Raises:
    types.ConfigError: the directory is not writable.
  """
  run_dir = pathlib.Path(path).expanduser()
  try:
    run_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=run_dir, prefix=".probe-") as probe:
      probe.write(b"seedx")
  except OSError as error:
    raise types.ConfigError(
      f"cannot write in the run directory {str(run_dir)!r}"
      f" ({error.strerror or error}); choose a directory that is writable"
    ) from error
  return run_dir


def write_file(path: pathlib.Path, content: bytes | str) -> None:
  """Writes a file atomically: readers see the old content or the new one.

  Args:
    path: the file, in a directory that exists.
    content: what to write; text is encoded as UTF-8.

  Raises:
    types.ConfigError: the file is not writable.
  """
  if isinstance(content, str):
    content = content.encode()
  unfinished = path.with_suffix(".unfinished")
  try:
    unfinished.write_bytes(content)
    unfinished.replace(path)
  except OSError as error:
    with contextlib.suppress(OSError):  # Half of it takes room, too.
      unfinished.unlink()
    raise types.ConfigError(
      f"cannot write {str(path)!r} ({error.strerror or error}); choose a file"
      " that is writable"
    ) from error


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Reads the lines of metrics of a run, which may still be training.

  A run that is resumed continues from its last checkpoint. This drops the
  lines that the run had written after that checkpoint.

  Args:
    path: a file that `JsonLines` wrote.

  Returns:
    The lines; `env_steps` and `wall_seconds` never decrease.

  Raises:
    OSError: the file cannot be read.
    KeyError: a line has no number as `env_steps` or as `wall_seconds`.
  """
  text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
  lines: list[dict[str, Any]] = []
  # The last piece is empty, or a line that is still being written.
  for piece in text.split("\n")[:-1]:
    try:
      # A killed run may leave half a line before the first line after it.
      line = json.loads("{" + piece.rpartition("{")[2])
    except (ValueError, RecursionError):
      continue
    for clock in _CLOCKS:
      if not is_number(line.get(clock)):
        raise KeyError(clock)
    if lines and any(line[clock] < lines[-1][clock] for clock in _CLOCKS):
      while lines and any(lines[-1][clock] >= line[clock] for clock in _CLOCKS):
        lines.pop()
    lines.append(line)
  return lines


def is_number(value: Any) -> bool:
  """Whether a value is a number that can be drawn, finite and no switch."""
  known = isinstance(value, int | float) and not isinstance(value, bool)
  return known and abs(value) < _MOST
