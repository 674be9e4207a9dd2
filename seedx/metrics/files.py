"""The files of a run: its directory, its configuration, its metrics."""

import dataclasses
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx import types

# What never falls in a run, and goes on from the checkpoint in one resumed.
_CLOCKS = ("env_steps", "wall_seconds")


def open_run_dir(path: str | os.PathLike[str]) -> pathlib.Path:
  """Makes the directory of a run, and makes sure that files can be written.

  Args:
    path: need not exist; `~` is the home directory.

  Returns:
    The directory.

  Raises:
    types.ConfigError: if a file in it cannot be written.
  """
  run_dir = pathlib.Path(path).expanduser()
  try:
    run_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=run_dir, prefix=".probe-") as probe:
      probe.write(b"seedx")
  except OSError as error:
    raise types.ConfigError(
      f"cannot write in the run directory {str(run_dir)!r}"
      f" ({error.strerror or error}); choose one that you can write in"
    ) from error
  return run_dir


def write_config(run_dir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Writes what was asked of a run to `config.json`.

  Dataclasses become objects; what JSON has nothing for becomes its text.
  """
  text = json.dumps(_plain(config), indent=2, allow_nan=False)
  # Whoever reads it meanwhile sees the old one, and not half of one.
  unfinished = run_dir / "config.unfinished"
  unfinished.write_text(text + "\n", encoding="utf-8")
  unfinished.replace(run_dir / "config.json")


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Reads the lines of a run, which may still be writing them.

  A run that is resumed goes on from its checkpoint: the lines that it had
  written after that are overtaken, and are left out.

  Args:
    path: what `JsonLines` wrote.

  Returns:
    The lines; neither env steps nor wall seconds fall from one to the next.

  Raises:
    OSError: if the file cannot be read.
    KeyError: if a line has no env steps or wall seconds.
  """
  text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
  lines: list[dict[str, Any]] = []
  # The last piece is empty, or a line that is being written.
  for piece in text.split("\n")[:-1]:
    try:
      # A run that was killed left half a line, before the next one's first.
      line = json.loads("{" + piece.rpartition("{")[2])
    except json.JSONDecodeError:
      continue
    if lines and any(line[clock] < lines[-1][clock] for clock in _CLOCKS):
      while lines and any(lines[-1][clock] >= line[clock] for clock in _CLOCKS):
        lines.pop()
    lines.append(line)
  return lines


def time_unit(longest_seconds: float) -> tuple[int, str]:
  """The unit that suits times of up to so many seconds.

  Returns:
    Its size in seconds, and its name in the plural.
  """
  for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
    if longest_seconds >= 2 * size:
      return size, unit
  return 1, "seconds"


def _plain(value: Any) -> Any:
  if isinstance(value, np.generic | np.ndarray):
    value = value.tolist()
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    value = {
      field.name: getattr(value, field.name)
      for field in dataclasses.fields(value)
    }
  if isinstance(value, Mapping):
    return {str(key): _plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  exact = value is None or isinstance(value, bool | int | str)
  if exact or (isinstance(value, float) and math.isfinite(value)):
    return value
  return str(value)
