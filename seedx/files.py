"""Files of directories that somebody else may have written.

A run directory is data. `Folder` opens what is in it by its name, relative to a
descriptor of the directory, and only a regular file: a link within the
directory is never followed, a pipe or a device never opened, and a file that
has a second name is not appended to. Links on the way to the directory are the
user's own, and are followed.
"""

import contextlib
import contextvars
import errno
import fcntl
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator
from typing import IO, Any, Literal, Self

from seedx import types

_FLAGS = {
  "r": os.O_RDONLY,
  "a": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
  "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}
# A pipe that took the file's place would block without O_NONBLOCK.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = (
  (stat.S_ISLNK, "is a link, which is not followed"),
  (stat.S_ISDIR, "is a directory"),
  (stat.S_ISFIFO, "is a pipe"),
  (stat.S_ISSOCK, "is a socket"),
)
# The directories that `tentative` may remove, while it is entered.
_made: "contextvars.ContextVar[list[Folder] | None]"
_made = contextvars.ContextVar("made", default=None)
# Text that seedx writes and reads as a whole, such as config.json, is smaller.
_MOST_TEXT_BYTES = 2**24


class Folder:
  """A directory whose content is data.

  All methods raise OSError where the directory or a name in it cannot be used.
  It holds no descriptor, so that it can be kept, copied and pickled.
  """

  def __init__(self, path: "str | os.PathLike[str]") -> None:
    """Opens nothing yet.

    Args:
      path: the directory; `~` is the home directory. Links on the way to it
        are followed, also where it is one itself.
    """
    self._root = pathlib.Path(path).expanduser()
    self._below: tuple[str, ...] = ()
    if isinstance(path, Folder):
      self._root, self._below = path._root, path._below

  def __fspath__(self) -> str:
    return os.path.join(self._root, *self._below)

  def __str__(self) -> str:
    return os.fspath(self)

  def __truediv__(self, name: str) -> pathlib.Path:
    return pathlib.Path(self, name)

  def folder(self, name: str) -> "Folder":
    """Returns the directory of this name in it, which need not exist."""
    found = Folder(self)
    found._below = (*self._below, name)
    return found

  def make(self) -> Self:
    """Makes the directory, and those on the way to it, if there is none."""
    root = self._root.absolute()
    new = [x for x in (*reversed(root.parents), root) if not x.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for path in new:
      _note(Folder(path))
    above = Folder(self._root)
    for name in self._below:
      with above._opened() as directory, contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
        _note(above.folder(name))
      above = above.folder(name)
    return self

  def make_new(self, name: str) -> "Folder":
    """Makes a directory in it; FileExistsError if the name is taken."""
    with self._opened() as directory:
      os.mkdir(name, dir_fd=directory)
    _note(self.folder(name))
    return self.folder(name)

  def names(self) -> list[str]:
    """The names of all that is in it."""
    with self._opened() as directory:
      return os.listdir(directory)

  def has(self, name: str) -> bool:
    """Whether anything has this name, be it a link that leads nowhere."""
    try:
      with self._opened() as directory:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
      return False
    return True

  def open(self, name: str, mode: Literal["r", "a", "x"] = "r") -> IO[bytes]:
    """Opens a regular file.

    Args:
      name: its name.
      mode: "r" to read, "a" to append to it or make it, "x" to make it.
    """
    with self._opened() as directory:
      # Opening a device has effects, so look first.
      with contextlib.suppress(FileNotFoundError):
        _check_regular(os.stat(name, dir_fd=directory, follow_symlinks=False))
      file = os.open(name, _FLAGS[mode] | _SAFELY, 0o666, dir_fd=directory)
    try:
      found = os.fstat(file)
      _check_regular(found)
      if mode == "a" and found.st_nlink > 1:
        raise OSError(errno.EMLINK, "has a second name, which would change")
      return os.fdopen(file, f"{mode}b")
    except BaseException:
      os.close(file)
      raise

  def read(self, name: str, most_bytes: int = _MOST_TEXT_BYTES) -> str:
    """Reads a text file.

    Args:
      name: its name.
      most_bytes: a longer file is refused, before it is read.

    Raises:
      UnicodeDecodeError: it is not UTF-8.
    """
    with self.open(name) as file:
      size = os.fstat(file.fileno()).st_size
      if size > most_bytes:
        raise OSError(errno.EFBIG, f"has {size:,} bytes; {most_bytes:,} fit")
      return file.read(most_bytes).decode()

  def write(self, name: str, content: bytes | str) -> None:
    """Writes a file atomically: readers see the old content or the new one.

    Args:
      name: its name. What had it before is replaced; a link is not followed.
      content: what to write; text is encoded as UTF-8.
    """
    if isinstance(content, str):
      content = content.encode()
    unfinished = f"{name}.{secrets.token_hex(8)}.unfinished"
    with self._opened() as directory:
      flags = _FLAGS["x"] | _SAFELY
      file = os.open(unfinished, flags, 0o666, dir_fd=directory)
      try:
        with os.fdopen(file, "wb") as writer:
          writer.write(content)
        self._rename(directory, unfinished, name)
      except BaseException:
        with contextlib.suppress(OSError):  # Half of it takes room, too.
          os.unlink(unfinished, dir_fd=directory)
        raise

  def rename(self, name: str, new: str) -> None:
    """Renames what is in it."""
    with self._opened() as directory:
      self._rename(directory, name, new)

  def remove(self, name: str) -> None:
    """Removes a file, or a link to one; there may be none."""
    with self._opened() as directory, contextlib.suppress(FileNotFoundError):
      os.unlink(name, dir_fd=directory)

  def remove_if_empty(self) -> None:
    """Removes the directory itself, if nothing is in it."""
    with contextlib.suppress(OSError):
      os.rmdir(self)

  def remove_folder(self, name: str) -> None:
    """Removes a directory and all that is in it, as far as it can be."""
    with contextlib.suppress(OSError), self._opened() as directory:
      shutil.rmtree(name, dir_fd=directory, ignore_errors=True)

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """Locks it: another process that does so gets BlockingIOError."""
    with self._opened() as directory:
      try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise
      except OSError:
        pass  # Some network file systems cannot lock directories.
      yield

  @contextlib.contextmanager
  def _opened(self) -> Iterator[int]:
    """A descriptor of the directory."""
    directory = os.open(self._root, _FOLDER)
    try:
      for name in self._below:
        inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=directory)
        os.close(directory)
        directory = inner
      yield directory
    finally:
      os.close(directory)

  def _rename(self, directory: int, name: str, new: str) -> None:
    os.replace(name, new, src_dir_fd=directory, dst_dir_fd=directory)


@contextlib.contextmanager
def tentative() -> Iterator[None]:
  """Removes directories that are made within it and are empty at its end.

  So that nothing is left of what is refused.
  """
  made: list[Folder] = []
  token = _made.set(made)
  try:
    yield
  finally:
    _made.reset(token)
    for folder in reversed(made):
      folder.remove_if_empty()


def open_folder(
  path: str | os.PathLike[str], names: Collection[str] = ()
) -> Folder:
  """Makes a directory to write in, unless it exists.

  Args:
    path: the directory; `~` is the home directory.
    names: what is going to be written there. Other names may be taken.

  Returns:
    The directory.

  Raises:
    types.ConfigError: one of the names is taken, or nothing can be written
      there; then nothing has been made.
  """
  folder = Folder(path)
  check_free(folder, names)
  probe = f".probe-{secrets.token_hex(8)}"
  try:
    folder.make()
    try:
      with folder.open(probe, "x") as file:
        file.write(b"seedx")
    finally:
      folder.remove(probe)
  except OSError as error:
    raise types.ConfigError(
      f"cannot write in the directory {str(folder)!r}"
      f" ({error.strerror or error}); choose a directory that is writable"
    ) from error
  return folder


def check_free(path: str | os.PathLike[str], names: Collection[str]) -> None:
  """Checks that nothing in a directory has one of these names.

  Args:
    path: the directory, which need not exist.
    names: what is going to be written there.

  Raises:
    types.ConfigError: something has.
  """
  folder = Folder(path)
  try:
    taken = sorted(name for name in names if folder.has(name))
  except OSError as error:
    raise types.ConfigError(
      f"cannot look into the directory {str(folder)!r} ({error.strerror});"
      " choose another"
    ) from error
  if taken:
    raise types.ConfigError(
      f"expected a directory without {' and '.join(taken)}, which would be"
      f" written over, found {str(folder)!r}; choose another"
    )


def open_new_folder(parent: str | os.PathLike[str], name: str) -> Folder:
  """Makes a directory that no other process has made.

  Args:
    parent: the directory that it is in.
    name: its name; if that is taken, `name-2`, `name-3` and so on.

  Raises:
    types.ConfigError: it cannot be made.
  """
  above = open_folder(parent)
  number = 1
  while True:
    try:
      return Folder(above.make_new(name if number == 1 else f"{name}-{number}"))
    except FileExistsError:
      number += 1
    except OSError as error:
      raise types.ConfigError(
        f"cannot make a directory in {str(above)!r} ({error.strerror})"
      ) from error


def write_file(path: str | os.PathLike[str], content: bytes | str) -> None:
  """Writes a file that the user names; see `Folder.write`.

  Raises:
    types.ConfigError: the file is not writable.
  """
  path = pathlib.Path(path).expanduser()
  try:
    Folder(path.parent).write(path.name, content)
  except OSError as error:
    raise types.ConfigError(
      f"cannot write {str(path)!r} ({error.strerror or error}); choose a file"
      " that is writable"
    ) from error


def _note(folder: Folder) -> None:
  """Notes a directory that has been made, see `tentative`."""
  made = _made.get()
  if made is not None:
    made.append(folder)


def _check_regular(found: Any) -> None:
  """Raises OSError unless a `stat_result` is a regular file's."""
  if stat.S_ISREG(found.st_mode):
    return
  words = (words for is_kind, words in _KINDS if is_kind(found.st_mode))
  raise OSError(errno.EINVAL, next(words, "is not a regular file"))
