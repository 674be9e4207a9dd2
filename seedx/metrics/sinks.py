"""Where lines of metrics go: a file of JSON lines and TensorBoard."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

import numpy as np

# A line is a flat mapping of names to values; None is a value not known yet.
Value = float | int | str | None
Line = Mapping[str, Value]


class Sink(Protocol):
  """Somewhere that lines of metrics go; used by one thread at a time."""

  def write(self, line: Line) -> None:
    """Takes one line."""

  def close(self) -> None:
    """Lets go of files and the terminal; a second call does nothing."""


class JsonLines:
  """A Sink: one JSON object a line, on disk before `write` returns."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    """Opens nothing yet; a run that does not begin leaves no file."""
    self._path = path
    self._file: TextIO | None = None

  def write(self, line: Line) -> None:
    """Adds the line at the end; what JSON has no number for becomes null."""
    values = {name: finite(value) for name, value in line.items()}
    if self._file is None:
      self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
    self._file.write(json.dumps(values, allow_nan=False) + "\n")
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    if self._file is not None:
      self._file.close()


class TensorBoard:
  """A Sink: scalars against `env_steps`, as TensorBoard events."""

  def __init__(self, run_dir: str | os.PathLike[str]) -> None:
    """Makes no file yet; see `JsonLines`."""
    self._run_dir = run_dir
    self._writer: Any = None

  def write(self, line: Line) -> None:
    """Adds every number but `env_steps`, which is the x-axis."""
    if self._writer is None:
      import tensorboardX

      self._writer = tensorboardX.SummaryWriter(
        str(self._run_dir), flush_secs=10
      )
    for name, value in line.items():
      value = finite(value)
      if name != "env_steps" and isinstance(value, int | float):
        self._writer.add_scalar(name, value, line["env_steps"])

  def close(self) -> None:
    """Writes what is left and ends the writer's thread."""
    if self._writer is not None:
      self._writer.close()


def finite(value: Any) -> Any:
  """A plain Python value; None for NaN and infinities."""
  if isinstance(value, np.generic | np.ndarray):
    value = value.item()
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
