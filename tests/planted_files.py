"""Things that other people may have put in place of a file."""

import os


def _sparse(path, outside):
  with path.open("wb") as file:
    file.truncate(2**40)


# Things that may be in place of a file.
PLANTED = {
  "a link to a file": lambda x, outside: x.symlink_to(outside / "own"),
  "a link to a directory": lambda x, outside: x.symlink_to(outside),
  "a link to nothing": lambda x, outside: x.symlink_to(outside / "new"),
  "a pipe": lambda x, outside: os.mkfifo(x),
  "a directory": lambda x, outside: x.mkdir(),
}
# Regular files that are refused: the first for appending, the second for
# reading.
FILES = {
  "a second name": lambda x, outside: os.link(outside / "own", x),
  "a sparse file": _sparse,
}
