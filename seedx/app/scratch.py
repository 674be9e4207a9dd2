"""Directories for a program's temporary files and sockets."""

import os
import tempfile

from seedx import types, wire

# Directories for sockets if the path of $TMPDIR is too long, best first.
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")


def folder(prefix: str) -> "tempfile.TemporaryDirectory[str]":
  """Makes a directory of which only this user may read and write the files.

  Raises:
    types.ConfigError: no directory is writable.
  """
  try:
    return tempfile.TemporaryDirectory(prefix=prefix)
  except OSError as error:
    raise types.ConfigError(
      f"cannot make a directory for temporary files ({error.strerror or error})"
      "; set TMPDIR to a directory that is writable"
    ) from error


def folder_for_sockets(prefix: str) -> "tempfile.TemporaryDirectory[str]":
  """Makes a directory as `folder` does, whose path is short enough for sockets.

  The path of a unix socket is limited, so if that of $TMPDIR is too long, the
  directory is in $XDG_RUNTIME_DIR, /tmp, /var/tmp or /dev/shm.

  Raises:
    types.ConfigError: no directory is writable, or all paths are too long.
  """
  made = folder(prefix)
  if wire.has_room(made.name):
    return made
  made.cleanup()
  runtime = os.environ.get("XDG_RUNTIME_DIR")
  for parent in filter(None, (runtime, *_SHORT)):
    try:
      other = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    except OSError:
      continue
    if wire.has_room(other.name):
      return other
    other.cleanup()
  raise types.ConfigError(
    f"expected a directory for sockets with a short path, found {made.name};"
    " set TMPDIR to a writable directory such as /tmp"
  )
