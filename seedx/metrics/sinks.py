"""Sinks for lines of metrics: a file of JSON lines, and functions.

With `Background`, a sink that fails or hangs does not stop the run.
"""

import contextlib
import json
import math
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from seedx import channels, files

# A line of metrics maps names to values; None is a missing value.
Value = float | int | str | None
Line = Mapping[str, Value]

# Number of lines that may wait for a sink; further lines are dropped.
_MAX_WAITING = 100


class Video(NamedTuple):
  """A video of an episode of the policy.

  Attributes:
    env_steps: env steps of the run at the policy's checkpoint.
    size: height and width of a frame.
    gif: content of a .gif file.
  """

  env_steps: int
  size: tuple[int, int]
  gif: bytes


class Sink(Protocol):
  """A receiver of lines of metrics, used by one thread at a time."""

  def write(self, line: Line) -> None:
    """Writes a line of metrics."""

  def close(self) -> None:
    """Closes files and frees the terminal; a second call does nothing."""


class JsonLines:
  """A Sink that appends lines to a file, each as a JSON object."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    self._path = pathlib.Path(path)

  def write(self, line: Line) -> None:
    """Appends the line to the file on disk; NaN and infinity become null."""
    values = {name: finite(value) for name, value in line.items()}
    text = json.dumps(values, allow_nan=False) + "\n"
    files.Folder(self._path.parent).append(self._path.name, text.encode())

  def close(self) -> None:
    """Does nothing: each line opens and closes the file."""


class Callbacks:
  """A Sink that calls functions, such as those of your own logger."""

  def __init__(
    self,
    write: Callable[[Line], object],
    close: Callable[[], object] = lambda: None,
  ) -> None:
    """Stores the functions; `close` is called once, at the end."""
    self._write = write
    self._close: Callable[[], object] | None = close

  def write(self, line: Line) -> None:
    """Passes a line on, without missing values."""
    self._write({k: x for k, x in line.items() if finite(x) is not None})

  def close(self) -> None:
    """Calls the function `close`; a second call does nothing."""
    close, self._close = self._close, None
    if close is not None:
      close()


class Background:
  """A Sink that passes lines to another sink on a separate thread.

  `write` does not wait. After an OSError, the line is lost and the next line is
  tried. A message on stderr reports the first lost line; when writing works
  again, another one reports the number of lost lines. After any other error,
  the sink receives no more lines. If the sink hangs, lines are dropped, and
  their number is printed at the end.
  """

  def __init__(
    self, name: str, sink: Sink, patience_seconds: float = 10.0
  ) -> None:
    """Starts the thread.

    Args:
      name: name of the sink's output, for messages.
      sink: the other sink.
      patience_seconds: longest wait of `close` for the remaining lines.
    """
    self._patience_seconds = patience_seconds
    self._name = name
    self._sink = sink
    self._lines = channels.Channel[Line](_MAX_WAITING)
    self._dropped = 0
    self._lost = 0
    self._lost_in_all, self._has_failed = 0, False
    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
    self._thread.start()

  def write(self, line: Line) -> None:
    """Passes the line to the thread, or drops it."""
    if self._thread.is_alive() and not self._lines.put(line, 0.0):
      self._dropped += 1

  def close(self) -> None:
    """Waits `patience_seconds` for the remaining lines."""
    self._lines.close()
    self._thread.join(self._patience_seconds)
    if self._thread.is_alive():
      _print(f"{self._name} lacks its last lines: writing them hangs")
    elif self._dropped:
      _print(f"{self._name} lacks {self._dropped} lines: writing was too slow")
      self._lost_in_all += self._dropped
      self._dropped = 0

  @property
  def unwritten(self) -> list[str]:
    """Names of what the sink has not written, after `close`."""
    if self._has_failed or self._thread.is_alive():
      return [f"the rest of {self._name}"]
    lost = self._lost_in_all
    return [f"{lost} line(s) of {self._name}"] if lost else []

  def _run(self) -> None:
    try:
      for (line,) in iter(self._lines.get, []):
        self._try(line)
      self._sink.close()
    except Exception as error:  # No error of a sink may end the run.
      self._has_failed = True
      _print(f"cannot write {self._name} any more ({error})")
      with contextlib.suppress(Exception):
        self._sink.close()
    if self._lost:
      _print(
        f"{self._name} lacks {self._lost} lines: they could not be written"
      )

  def _try(self, line: Line) -> None:
    """Writes a line to the other sink, or counts it as lost."""
    try:
      self._sink.write(line)
    except OSError as error:  # For example, the disk is full for a while.
      if not self._lost:
        _print(f"cannot write {self._name} ({error}); trying again")
      self._lost += 1
      self._lost_in_all += 1
      return
    if self._lost:
      _print(f"{self._name} is written again; {self._lost} lines are lost")
      self._lost = 0


def finite(value: Any) -> Any:
  """Converts a value to plain Python; NaN and infinity become None."""
  if isinstance(value, np.generic | np.ndarray):
    value = value.item()
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def _print(message: str) -> None:
  with contextlib.suppress(OSError):  # stderr may be a file on a full disk.
    print(message, file=sys.stderr, flush=True)
