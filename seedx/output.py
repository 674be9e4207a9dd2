"""What a program prints, whose reader may go: `seedx train ppo | head -1`.

A program imports this module before most others, so it imports little.
"""

import io
import sys
from typing import Any


def outlive_readers() -> None:
  """Loses what this program prints once its reader has gone.

  By default, a print then raises BrokenPipeError, which would end a run.
  """
  sys.stdout, sys.stderr = map(_outliving, (sys.stdout, sys.stderr))


class _Output(io.FileIO):
  """A file that takes bytes which nobody can read any more."""

  def write(self, data: Any) -> int:
    """Writes bytes, or loses them; returns their number."""
    try:
      return super().write(data)
    except BrokenPipeError:
      return len(data)


def _outliving(stream: Any) -> Any:
  """Returns a stream to the same file that outlives its reader.

  It also takes the name of any file, of which not all are text.
  """
  if stream is None:  # It was closed before the program began.
    return None
  file: Any = _Output(stream.fileno(), "wb", closefd=False)
  return io.TextIOWrapper(
    file if stream.write_through else io.BufferedWriter(file),
    stream.encoding,
    "backslashreplace" if stream.errors == "strict" else stream.errors,
    line_buffering=stream.line_buffering,
    write_through=stream.write_through,
  )
