"""Safe access to directories that other people may have written, such as runs.

`Folder` opens regular files only, by name, relative to a descriptor of the
directory: no link within the directory, no pipe and no device. SECURITY.md has
the reasons. Links on the path to the directory are the user's own, and are
followed.
"""

import contextlib
import contextvars
import errno
import fcntl
import itertools
import json
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
# The directories that the innermost `tentative` may remove.
_made: "contextvars.ContextVar[list[Folder] | None]"
_made = contextvars.ContextVar("made", default=None)
# Maximum size of text files that are read as a whole, such as config.json.
_MAX_TEXT_BYTES = 2**24


class Folder:
  """A directory with data that is not trusted.

  Except `remove_folder`, the methods raise OSError if the directory or a name
  in it cannot be used. An instance holds no descriptor, so it can be kept,
  copied and pickled.
  """

  def __init__(self, path: "str | os.PathLike[str]") -> None:
    """Makes a reference to a directory, which need not exist.

    `~` is the home directory. Links in the path are followed, also at its end.
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
    """Returns the subdirectory of this name, which need not exist."""
    folder = Folder(self)
    folder._below = (*self._below, name)
    return folder

  def make(self) -> Self:
    """Makes the directory and its parents, unless they exist."""
    root = self._root.absolute()
    new = [x for x in (*reversed(root.parents), root) if not x.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for path in new:
      _record_made(Folder(path))
    above = Folder(self._root)
    for name in self._below:
      with above._opened() as directory, contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
        _record_made(above.folder(name))
      above = above.folder(name)
    return self

  def make_new(self, name: str) -> "Folder":
    """Makes a subdirectory; raises FileExistsError if the name is taken."""
    with self._opened() as directory:
      os.mkdir(name, dir_fd=directory)
    _record_made(self.folder(name))
    return self.folder(name)

  def names(self) -> list[str]:
    """Returns the names of all entries."""
    with self._opened() as directory:
      return os.listdir(directory)

  def folders(self, max_entries: int) -> "list[Folder]":
    """Returns the subdirectories among the first entries; links are left out.

    At most `max_entries` entries are read, in any order.
    """
    with self._opened() as directory, os.scandir(directory) as entries:
      return [
        self.folder(entry.name)
        for entry in itertools.islice(entries, max_entries)
        if entry.is_dir(follow_symlinks=False)
      ]

  def has(self, name: str) -> bool:
    """Returns whether an entry has this name, even a broken link."""
    try:
      with self._opened() as directory:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
      return False
    return True

  def open(self, name: str, mode: Literal["r", "a", "x"] = "r") -> IO[bytes]:
    """Opens a regular file.

    Args:
      name: name of the file.
      mode: "r" to read, "a" to append or make, "x" to make a new file.
    """
    with self._opened() as directory:
      return _open_regular(directory, name, mode)

  def read(self, name: str, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    """Reads a text file, unless it has more than `max_bytes`.

    Raises:
      UnicodeDecodeError: the file is not UTF-8.
    """
    with self.open(name) as file:
      size = os.fstat(file.fileno()).st_size
      if size > max_bytes:
        raise OSError(
          errno.EFBIG, f"has {size:,} bytes, more than {max_bytes:,}"
        )
      return file.read(max_bytes).decode()

  def read_json(self, name: str, max_bytes: int = _MAX_TEXT_BYTES) -> Any:
    """Parses a JSON file, whose texts UTF-8 can encode; see `read`.

    Raises:
      ValueError: the content is not valid.
      RecursionError: it has too many levels.
    """
    content = json.loads(self.read(name, max_bytes))
    json.dumps(content, ensure_ascii=False).encode()
    return content

  def write(self, name: str, content: bytes | str) -> None:
    """Writes a file atomically: readers see the old content or the new one.

    An entry with this name is replaced, even a link. Text is encoded as UTF-8.
    """
    if isinstance(content, str):
      content = content.encode()
    unfinished = f"{name}.{secrets.token_hex(8)}.unfinished"
    with self._opened() as directory:
      file = _open_regular(directory, unfinished, "x")
      try:
        with file:
          file.write(content)
        os.replace(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
      except BaseException:
        with contextlib.suppress(OSError):  # Frees the space on a full disk.
          os.unlink(unfinished, dir_fd=directory)
        raise

  def append(self, name: str, content: bytes) -> None:
    """Appends to a file, or makes it; if that fails, the file is as before."""
    with self.open(name, "a") as file:
      size = os.fstat(file.fileno()).st_size
      try:
        while content:
          content = content[os.write(file.fileno(), content) :]
      except OSError:
        os.ftruncate(file.fileno(), size)
        raise

  def rename(self, name: str, new: str) -> None:
    """Renames an entry; replaces a file or an empty directory named `new`."""
    with self._opened() as directory:
      os.replace(name, new, src_dir_fd=directory, dst_dir_fd=directory)

  def remove(self, name: str) -> None:
    """Removes a file or a link, if it exists."""
    with self._opened() as directory, contextlib.suppress(FileNotFoundError):
      os.unlink(name, dir_fd=directory)

  def remove_folder(self, name: str) -> None:
    """Removes a subdirectory and its content as far as possible."""
    with contextlib.suppress(OSError), self._opened() as directory:
      shutil.rmtree(name, dir_fd=directory, ignore_errors=True)

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """Locks the directory; BlockingIOError if it is locked already."""
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
    directory = os.open(self._root, _FOLDER)
    try:
      for name in self._below:
        inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=directory)
        os.close(directory)
        directory = inner
      yield directory
    finally:
      os.close(directory)


@contextlib.contextmanager
def tentative() -> Iterator[None]:
  """Removes directories made in its block that are empty at the block's end.

  A program that refuses its command line thus leaves no directories behind.
  """
  made: list[Folder] = []
  token = _made.set(made)
  try:
    yield
  finally:
    _made.reset(token)
    for folder in reversed(made):
      with contextlib.suppress(OSError):
        os.rmdir(folder)


def open_folder(
  path: str | os.PathLike[str], names: Collection[str] = ()
) -> Folder:
  """Makes a directory for writing files with these names, unless it exists.

  Raises:
    types.ConfigError: one of the names is taken, and nothing is made; or the
      directory is not writable.
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
  """Checks that no entry of a directory, if it exists, has one of the names.

  Raises:
    types.ConfigError: one of the names is taken.
  """
  folder = Folder(path)
  try:
    taken = sorted(name for name in names if folder.has(name))
  except OSError as error:
    raise types.ConfigError(
      f"cannot read the directory {str(folder)!r} ({error.strerror}); choose"
      " another"
    ) from error
  if taken:
    raise types.ConfigError(
      f"expected a directory without {' and '.join(taken)}, which would be"
      f" written over, found {str(folder)!r}; choose another"
    )


def open_new_folder(parent: str | os.PathLike[str], name: str) -> Folder:
  """Makes a new directory; its name may become `name-2`, `name-3` and so on.

  Raises:
    types.ConfigError: the directory cannot be made.
  """
  above = open_folder(parent)
  number = 1
  while True:
    try:
      return above.make_new(name if number == 1 else f"{name}-{number}")
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


def _record_made(folder: Folder) -> None:
  made = _made.get()
  if made is not None:
    made.append(folder)


def _open_regular(
  directory: int, name: str, mode: Literal["r", "a", "x"]
) -> IO[bytes]:
  """Opens a regular file below a directory; raises OSError for other kinds."""
  # Opening a device may have effects, so the kind is checked before, too.
  with contextlib.suppress(FileNotFoundError):
    _check_regular(os.stat(name, dir_fd=directory, follow_symlinks=False))
  file = os.open(name, _FLAGS[mode] | _SAFELY, 0o666, dir_fd=directory)
  try:
    status = os.fstat(file)
    _check_regular(status)
    if mode == "a" and status.st_nlink > 1:
      raise OSError(errno.EMLINK, "has a second name that would change, too")
    return os.fdopen(file, f"{mode}b")
  except BaseException:
    os.close(file)
    raise


def _check_regular(status: os.stat_result) -> None:
  if not stat.S_ISREG(status.st_mode):
    raise OSError(errno.EINVAL, "is not a regular file; links are not followed")
