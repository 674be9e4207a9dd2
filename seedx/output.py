"""Output of a program whose reader may close it: `seedx train ppo | head -1`.

Programs import this module before most others, so it imports little.
"""

import errno
import io
import os
import sys
from typing import Any


def outlive_readers() -> None:
  """Discards what is printed after the reader has closed the pipe.

  By default, printing then raises BrokenPipeError, which would end a run. If
  stdin, stdout or stderr was closed when the program started (`2>&-`), it
  becomes /dev/null: otherwise, the next file to be opened would take its place.
  """
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # The lowest free number is this one.
  sys.stdout, sys.stderr = map(_outliving, (sys.stdout, sys.stderr))


def discard() -> None:
  """Discards what is printed from now on, because stdout cannot be written."""
  sys.stdout = _nowhere()


class FullError(OSError):
  """The disk below stdout or stderr is full."""


class _Output(io.FileIO):
  """A file that discards bytes after its reader has closed the pipe."""

  def write(self, data: Any) -> int:
    try:
      return super().write(data)
    except BrokenPipeError:
      return len(data)
    except OSError as error:
      if error.errno == errno.ENOSPC:
        raise FullError(error.errno, error.strerror) from None
      raise


def _outliving(stream: Any) -> Any:
  """Returns a stream to the same file that does not raise two usual errors.

  After the reader of a pipe has left, the stream discards text. The stream
  escapes characters that cannot be encoded, such as those of some files' names.
  """
  if stream is None:  # The stream was closed before the program started.
    return _nowhere()
  file: Any = _Output(stream.fileno(), "wb", closefd=False)
  return io.TextIOWrapper(
    file if stream.write_through else io.BufferedWriter(file),
    stream.encoding,
    "backslashreplace" if stream.errors == "strict" else stream.errors,
    line_buffering=stream.line_buffering,
    write_through=stream.write_through,
  )


def _nowhere() -> Any:
  return open(os.devnull, "w")
