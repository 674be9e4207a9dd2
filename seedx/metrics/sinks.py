"""Sinks for lines of metrics: a file of JSON lines, and functions.

`Background` keeps a sink that fails or hangs from stopping the run.
"""

import contextlib
import json
import math
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any, Protocol

import numpy as np

from seedx import channels, files

# A line of metrics maps names to values; None means not yet known.
Value = float | int | str | None
Line = Mapping[str, Value]

# Lines that wait for a sink; more are dropped.
_MOST_WAITING = 100
# How long a sink may take at the end.
_PATIENCE_SECONDS = 10.0


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
    self._path = pathlib.Path(path)
    self._file: IO[bytes] | None = None

  def write(self, line: Line) -> None:
    """Appends the line to the file on disk; NaN and infinity become null."""
    values = {name: finite(value) for name, value in line.items()}
    text = json.dumps(values, allow_nan=False) + "\n"
    if self._file is None:
      self._file = files.Folder(self._path.parent).open(self._path.name, "a")
    try:
      self._file.write(text.encode())
      self._file.flush()
    except OSError:
      self._end()
      raise

  def close(self) -> None:
    """Closes the file."""
    if self._file is not None:
      self._file.close()

  def _end(self) -> None:
    """Gives up the file; the next line opens it again."""
    file, self._file = self._file, None
    if file is not None:
      with contextlib.suppress(OSError):  # What is left of a line.
        file.close()


class Callbacks:
  """A Sink of functions, for a logger of yours."""

  def __init__(
    self,
    write: Callable[[Line], object],
    close: Callable[[], object] = lambda: None,
  ) -> None:
    """Calls neither.

    Args:
      write: takes a line of metrics.
      close: is called once, at the end.
    """
    self._write = write
    self._close: Callable[[], object] | None = close

  def write(self, line: Line) -> None:
    """Takes a line of metrics, without values that are not yet known."""
    self._write({k: x for k, x in line.items() if finite(x) is not None})

  def close(self) -> None:
    """Ends it; a second call does nothing."""
    close, self._close = self._close, None
    if close is not None:
      close()


class Background:
  """A Sink whose lines another one takes on a thread of its own.

  Nobody waits for the other sink. A line that it cannot write because of the
  disk is lost, and the next one is tried: stderr has one message when that
  begins, and one with the number of lost lines when it ends. After any other
  error the sink gets no more lines. If it hangs, lines are dropped, and their
  number is printed at the end.
  """

  def __init__(
    self, name: str, sink: Sink, patience_seconds: float = _PATIENCE_SECONDS
  ) -> None:
    """Starts the thread.

    Args:
      name: of what the sink writes, for messages.
      sink: takes the lines.
      patience_seconds: of `close`, for the lines that are left.
    """
    self._patience_seconds = patience_seconds
    self._name = name
    self._sink = sink
    self._lines = channels.Channel[Line](_MOST_WAITING)
    self._dropped = 0
    self._lost = 0
    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
    self._thread.start()

  def write(self, line: Line) -> None:
    """Hands the line over, or drops it."""
    if self._thread.is_alive() and not self._lines.put(line, 0.0):
      self._dropped += 1

  def close(self) -> None:
    """Waits some seconds for the lines that are left."""
    self._lines.close()
    self._thread.join(self._patience_seconds)
    if self._thread.is_alive():
      _say(f"{self._name} lacks its last lines: writing them hangs")
    elif self._dropped:
      _say(f"{self._name} lacks {self._dropped} lines: writing was too slow")
      self._dropped = 0

  def _run(self) -> None:
    try:
      for (line,) in iter(self._lines.get, []):
        self._take(line)
      self._sink.close()
    except Exception as error:  # Whatever it is, the run is worth more.
      _say(f"cannot write {self._name} any more ({error})")
      with contextlib.suppress(Exception):
        self._sink.close()
    if self._lost:
      _say(f"{self._name} lacks {self._lost} lines: they could not be written")

  def _take(self, line: Line) -> None:
    """Has the other sink write a line, or counts it as lost."""
    try:
      self._sink.write(line)
    except OSError as error:  # Such as a disk that is full for a while.
      if not self._lost:
        _say(f"cannot write {self._name} ({error}); trying again")
      self._lost += 1
      return
    if self._lost:
      _say(f"{self._name} is written again; {self._lost} lines are lost")
      self._lost = 0


def finite(value: Any) -> Any:
  """Converts a value to plain Python; NaN and infinity become None."""
  if isinstance(value, np.generic | np.ndarray):
    value = value.item()
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def _say(message: str) -> None:
  with contextlib.suppress(OSError):  # It may be a file on the same disk.
    print(message, file=sys.stderr, flush=True)
