"""JAX's persistent compilation cache: a start compiles only what is new."""

import contextlib
import grp
import hashlib
import os
import pathlib
import platform
import pwd
import stat
import sys
from importlib import metadata

import jax

from seedx import types

OFF = "off"
# The largest size of a folder. A run of PPO needs half a megabyte.
_LIMIT_BYTES = 2**30
_DIRECTORY = "jax_compilation_cache_dir"
_SECONDS = "jax_persistent_cache_min_compile_time_secs"
# If one of these variables is set, JAX's own settings apply.
_VARIABLES = (_DIRECTORY.upper(), "JAX_ENABLE_COMPILATION_CACHE")
# Lines of /proc/cpuinfo that decide which instructions XLA uses.
_CPU = ("model name", "flags", "Features", "CPU implementer", "CPU part")


def keep(parent: str = "", root: pathlib.Path = pathlib.Path("/")) -> None:
  """Keeps compiled programs for later starts, in this process and its children.

  Compiled programs are code, so the directory must be one that only this user
  (and root) may write. The directory has a folder for each version of jaxlib
  and kind of CPU, because different machines may share a home directory. The
  programs used longest ago are removed if a folder has more than 1 GiB. If
  JAX's own settings name a directory or turn the cache off, they apply.

  If the default directory cannot be used, one line on stderr has the reason.

  Args:
    parent: directory of the folders; if empty, seedx/compiled in the user's
      cache directory; `OFF` to keep nothing.
    root: root of the file system, which has proc/cpuinfo.

  Raises:
    types.ConfigError: `parent` is given and cannot be used.
  """
  if parent == OFF or getattr(jax.config, _DIRECTORY):
    return
  if any(name in os.environ for name in _VARIABLES):
    return
  try:
    folder = _folder(parent, root)
    _limit(folder)
  except OSError as error:
    reason = f"compiled programs are not kept: {error}"
    if parent:
      raise types.ConfigError(
        f"{reason}; choose another --compilation-cache, or {OFF}"
      ) from None
    print(types.printable(reason), file=sys.stderr, flush=True)
    return
  for name, value in ((_DIRECTORY, str(folder)), (_SECONDS, 0)):
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)  # Children inherit it.


def _folder(parent: str, root: pathlib.Path) -> pathlib.Path:
  """Makes, checks and returns the folder for this JAX and this CPU."""
  if parent:
    path = pathlib.Path(parent).expanduser()
  else:
    home = os.environ.get("XDG_CACHE_HOME", "")
    home = home if os.path.isabs(home) else "~/.cache"  # As in its standard.
    path = pathlib.Path(home).expanduser() / "seedx" / "compiled"
  path = pathlib.Path(os.path.realpath(path)) / _kind(root)
  for directory in (*reversed(path.parents), path):
    with contextlib.suppress(FileExistsError):
      directory.mkdir(mode=0o700)
    _check(directory, is_sticky_safe=directory != path)
  if not os.access(path, os.W_OK | os.X_OK):
    raise PermissionError(f"{path} cannot be written")
  return path


def _kind(root: pathlib.Path) -> str:
  """Returns a name for this version of jaxlib and this kind of CPU."""
  try:
    text = (root / "proc/cpuinfo").read_text().partition("\n\n")[0]
  except OSError:
    text = platform.processor()
  lines = sorted(x for x in text.splitlines() if x.startswith(_CPU))
  digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
  return f"jaxlib-{metadata.version('jaxlib')}-{platform.machine()}-{digest}"


def _check(directory: pathlib.Path, is_sticky_safe: bool) -> None:
  """Raises PermissionError if another user may write this directory.

  `is_sticky_safe` allows a sticky directory such as /tmp, which others may
  write, because only the owner of an entry can replace it. Pass False for the
  folder of programs, to which others could add programs.
  """
  status = os.lstat(directory)
  user = os.getuid()
  if not stat.S_ISDIR(status.st_mode):
    raise PermissionError(f"{directory} is not a directory")
  if status.st_uid not in (0, user):
    raise PermissionError(f"{directory} belongs to another user")
  if is_sticky_safe and status.st_mode & stat.S_ISVTX:
    return
  is_shared = status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid)
  if status.st_mode & stat.S_IWOTH or is_shared:
    raise PermissionError(f"other users may write {directory}")


def _is_private(group: int) -> bool:
  """Returns whether Linux has made a group for this user alone."""
  try:
    name, entry = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
  except KeyError:
    return False
  return entry.gr_name == name and not {*entry.gr_mem} - {name}


def _limit(folder: pathlib.Path) -> None:
  files = []
  for path in folder.iterdir():
    with contextlib.suppress(FileNotFoundError):
      status = path.lstat()
      if stat.S_ISREG(status.st_mode):
        used = max(status.st_atime, status.st_mtime)
        files.append((used, status.st_size, path))
  total = 0
  for _, size, path in sorted(files, reverse=True):
    total += size
    if total > _LIMIT_BYTES:
      path.unlink(missing_ok=True)
