"""Sinks for lines of metrics: a file of JSON lines, and TensorBoard."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

import numpy as np

# A line of metrics maps names to values; None means not yet known.
Value = float | int | str | None
Line = Mapping[str, Value]


class Sink(Protocol):
  """Takes lines of metrics. One thread uses it at a time."""

  def write(self, line: Line) -> None:
    """Takes a line of metrics."""

  def close(self) -> None:
    """Closes files and frees the terminal; a second call does nothing."""


class JsonLines:
  """A Sink that appends lines to a file, each as a JSON object."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    """Creates no file before the first line.

    Args:
      path: the file; existing lines are kept.
    """
    self._path = path
    self._file: TextIO | None = None

  def write(self, line: Line) -> None:
    """Appends the line to the file on disk; NaN and infinity become null."""
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
  """A Sink that writes TensorBoard scalars against `env_steps`."""

  def __init__(self, run_dir: str | os.PathLike[str]) -> None:
    """Creates no file before the first line.

    Args:
      run_dir: the directory for the event files.
    """
    self._run_dir = run_dir
    self._writer: Any = None

  def write(self, line: Line) -> None:
    """Adds every number except `env_steps`, which is the x-axis."""
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
    """Writes pending events and stops the writer's thread."""
    if self._writer is not None:
      self._writer.close()


def finite(value: Any) -> Any:
  """Converts a value to plain Python; NaN and infinity become None."""
  if isinstance(value, np.generic | np.ndarray):
    value = value.item()
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
