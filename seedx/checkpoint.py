"""Checkpoints of a run: nests of arrays on disk, each array with a checksum.

    <directory>/<env steps>/<item>

An item is a file: the bytes of its arrays, each padded to a multiple of 64; an
index of them in JSON; and the index's checksum and length. What is read is what
was written, or `Damaged` is raised.

A checkpoint exists as a whole or not at all, even if the process is killed
while it writes. Another process may read at the same time.
"""

import contextlib
import io
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedx import files, types

# What a checkpoint is called before it is whole, and when it is to be deleted:
# no reader finds half of one.
_UNFINISHED = ".unfinished"
_REMOVED = ".removed"
_DAMAGED = ".damaged"
_SCORE = "score"  # Written first.
_ALIGNMENT_BYTES = 64
_MOST_INDEX_BYTES = 2**26
_MOST_SIZE = 2**62
# Of an item: the checksum and the length of the index, magic.
_END = struct.Struct("<IQ8s")
_MAGIC = b"seedx-01"
# A file in each checkpoint of older versions.
_OLDER = "_CHECKPOINT_METADATA"


class Damaged(types.ConfigError):
  """An item of a checkpoint is not there, or not as it was written."""


class Checkpoints:
  """The checkpoints in a directory, by the env steps that they were made at.

  The newest `keep` and the best are kept. Only one thread may use it.
  Directories that no file marks as a checkpoint of seedx are left alone: other
  programs call theirs by a number, too.

  Attributes:
    directory: where they are.
    held: env steps of checkpoints that are kept, too.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    keep: int | None = None,
    newest_only: Collection[str] = (),
  ) -> None:
    """Opens a directory; the first `save` makes it if it does not exist.

    Args:
      directory: for the checkpoints; a `files.Folder` of a run directory's, so
        that a link in its place is not followed.
      keep: how many of the newest a `save` keeps; None for all.
      newest_only: items that a `save` deletes in all checkpoints but the newest
        that has them.
    """
    self.directory = files.Folder(directory)
    self.held: set[int] = set()
    self._keep = keep
    self._newest_only = newest_only

  def save(
    self, env_steps: int, items: Mapping[str, types.Tree], score: float
  ) -> int:
    """Writes a checkpoint, unless one with the same `env_steps` exists.

    Args:
      env_steps: since the start of the run.
      items: nests of arrays by name; each can be restored on its own.
      score: larger is better; -inf if unknown.

    Returns:
      The bytes that were written.

    Raises:
      OSError: the checkpoint cannot be written.
    """
    if env_steps in self.steps():
      return 0
    # No other process writes: what is unfinished is a killed process's.
    self._delete(_UNFINISHED)
    name, size = f"{env_steps}{_UNFINISHED}", 0
    try:
      part = self.directory.make().make_new(name)
      for item, nest in {_SCORE: np.float64(score), **items}.items():
        with part.open(item, "x") as file:
          _write(file, nest)
          file.flush()
          os.fsync(file.fileno())
          size += file.tell()
      self.directory.rename(name, str(env_steps))
    except OSError as error:
      raise OSError(
        f"cannot write checkpoint {env_steps} in {str(self.directory)!r}"
        f" ({error.strerror})"
      ) from error
    finally:
      self._delete(_UNFINISHED)
    self._retain()
    return size

  def rate(self, env_steps: int, score: float) -> None:
    """Replaces the score of a checkpoint, if it is there; see `save`.

    Raises:
      OSError: it cannot be written.
    """
    if env_steps in self._own_steps():
      folder = self.directory.folder(str(env_steps))
      folder.write(_SCORE, to_bytes(np.float64(score)))
      self._retain()

  def has(self, env_steps: int, name: str) -> bool:
    """Whether a checkpoint has an item of this name."""
    return self.directory.folder(str(env_steps)).has(name)

  def steps(self) -> list[int]:
    """The env steps of all checkpoints, ascending; also of older versions."""
    return sorted(self._named("", lambda x: _is_own(x) or _is_older(x)))

  def ranked(self) -> list[int]:
    """The env steps of all checkpoints, the best first.

    Of several with the same score the newest; those of no readable score come
    last.
    """
    return sorted(
      self.steps(), key=lambda step: (self._score(step), step), reverse=True
    )

  def restore(
    self,
    env_steps: int,
    name: str,
    shapes: types.Tree | None = None,
    most_bytes: float = math.inf,
  ) -> types.Tree:
    """Reads one nest of a checkpoint.

    Args:
      env_steps: the checkpoint's.
      name: the nest's, as given to `save`.
      shapes: a nest with the same structure, shapes and dtypes, of arrays or of
        `jax.ShapeDtypeStruct`.
      most_bytes: of its arrays together; larger ones are not read.

    Returns:
      A nest of NumPy arrays; if `shapes` is None, a dict of them by their paths
      in the nest, such as `a/0`.

    Raises:
      Damaged: the checkpoint or nest is not there as it was written.
      types.ConfigError: it has another structure, shapes or dtypes, or an older
        version wrote it.
    """
    where = f"checkpoint {env_steps} in {str(self.directory)!r}"
    folder = self.directory.folder(str(env_steps))
    if folder.has(_OLDER):
      raise types.ConfigError(
        f"expected {where} of this version of seedx, found one that an older"
        " version wrote in another format; use that version, or train again"
      )
    try:
      with folder.open(name) as file:
        columns = _read_index(file)
        if shapes is not None:  # Before memory is taken for others.
          like(columns, shapes, f"{name!r} of {where}")
        size = sum(x.num_bytes for x in columns.values())
        if size > most_bytes:
          raise Damaged(
            f"{size:,} bytes of arrays, of {most_bytes:,.0f} at most"
          )
        found = _arrays(np.fromfile(file, np.uint8), columns)
    except OSError as error:
      raise Damaged(
        f"expected {name!r} in {where}, found that it cannot be read"
        f" ({error.strerror})"
      ) from error
    except Damaged as error:
      raise Damaged(
        f"expected {name!r} in {where} as it was written, found {error}"
      ) from error
    if shapes is None:
      return found
    return like(found, shapes, f"{name!r} of {where}")

  def set_aside(self, env_steps: int) -> str:
    """Renames a damaged checkpoint, so that it is none any more.

    Returns:
      Its new path.
    """
    name, number = f"{env_steps}{_DAMAGED}", 1
    while self.directory.has(name):
      number += 1
      name = f"{env_steps}{_DAMAGED}-{number}"
    self.directory.rename(str(env_steps), name)
    return str(self.directory / name)

  def _score(self, env_steps: int) -> float:
    try:
      return float(self.restore(env_steps, _SCORE, np.float64(0)))
    except types.ConfigError:
      return -math.inf

  def _retain(self) -> None:
    """Deletes what is not kept."""
    steps = self._own_steps()
    for name in self._newest_only:
      for step in [x for x in steps if self.has(x, name)][:-1]:
        self.directory.folder(str(step)).remove(name)
    if self._keep is not None:
      kept = {*steps[-self._keep :], *self.ranked()[:1], *self.held}
      for step in {*steps} - kept:
        self.directory.rename(str(step), f"{step}{_REMOVED}")
    self._delete(_REMOVED)

  def _own_steps(self) -> list[int]:
    """The env steps of the checkpoints that this version wrote, ascending."""
    return sorted(self._named("", _is_own))

  def _named(
    self, suffix: str, is_one: Callable[[files.Folder], bool]
  ) -> list[int]:
    """The env steps of the directories with this suffix that are `is_one`."""
    try:
      names = self.directory.names()
    except (FileNotFoundError, NotADirectoryError):
      return []
    # No 007, which would be another one's 7.
    form = re.compile(rf"(0|[1-9][0-9]{{0,18}}){re.escape(suffix)}")
    return [
      int(name.removesuffix(suffix))
      for name in names
      if form.fullmatch(name) and is_one(self.directory.folder(name))
    ]

  def _delete(self, suffix: str) -> None:
    """Deletes the directories of checkpoints with this suffix."""
    begun = suffix == _UNFINISHED
    for step in self._named(
      suffix, lambda x: _is_own(x) or (begun and _is_begun(x))
    ):
      self.directory.remove_folder(f"{step}{suffix}")


def to_bytes(nest: types.Tree) -> bytes:
  """What the file of an item has, for `from_bytes`."""
  file = io.BytesIO()
  _write(file, nest)
  return file.getvalue()


def from_bytes(content: np.ndarray) -> dict[str, np.ndarray]:
  """Reads what `to_bytes` made.

  Args:
    content: `[bytes]` uint8; the arrays are views of it.

  Returns:
    The arrays of the nest, by their paths in it.

  Raises:
    Damaged: the bytes are others.
  """
  return _arrays(content, _read_index(io.BytesIO(content.tobytes())))


def like(found: Mapping[str, Any], nest: types.Tree, where: str) -> types.Tree:
  """Arrays by their paths as a nest like another.

  Args:
    found: the arrays, or their shapes and dtypes.
    nest: with the same structure, shapes and dtypes.
    where: they were found, in words.

  Raises:
    types.ConfigError: they have another structure, shapes or dtypes.
  """
  wanted = dict(_named(nest))
  for name in [*wanted, *found]:
    if name not in found or name not in wanted:
      raise types.ConfigError(
        f"expected {where} with this program's structure, written with the same"
        f" options by the same version, found another structure: {name!r} is"
        f" {'missing' if name in wanted else 'not expected'}"
      )
  for name, leaf in wanted.items():
    other = found[name]
    if (leaf.shape, leaf.dtype) != (other.shape, other.dtype):
      raise types.ConfigError(
        f"expected {name!r} of shape {leaf.shape}, {leaf.dtype}, in {where},"
        f" found {other.shape}, {other.dtype}: the run had other options"
      )
  return jax.tree.unflatten(
    jax.tree.structure(nest), [found[name] for name in wanted]
  )


def _write(file: IO[bytes], nest: types.Tree) -> None:
  columns = []
  for name, leaf in _named(nest):
    array = np.asarray(leaf, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    content = array.reshape(-1).view(np.uint8).data
    columns.append([name, array.dtype.name, array.shape, zlib.crc32(content)])
    file.write(content)
    file.write(bytes(-len(content) % _ALIGNMENT_BYTES))
  index = json.dumps(columns).encode()
  file.write(index)
  file.write(_END.pack(zlib.crc32(index), len(index), _MAGIC))


def _is_own(folder: files.Folder) -> bool:
  """Whether a directory has a file that `_write` wrote, if a damaged one."""
  try:
    names = folder.names()
  except OSError:
    return False
  for name in names:
    with contextlib.suppress(OSError), folder.open(name) as file:
      file.seek(-len(_MAGIC), os.SEEK_END)
      if file.read() == _MAGIC:
        return True
  return False


def _is_older(folder: files.Folder) -> bool:
  """Whether a directory is a checkpoint of an older version."""
  with contextlib.suppress(OSError):
    return folder.has(_OLDER)
  return False


def _is_begun(folder: files.Folder) -> bool:
  """Whether a directory is that of a process that was killed at its start."""
  with contextlib.suppress(OSError):
    return {*folder.names()} <= {_SCORE}
  return False


class _Column(NamedTuple):
  """An array in a file.

  Attributes:
    shape: its shape.
    dtype: its dtype.
    checksum: of its bytes.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  checksum: int

  @property
  def num_bytes(self) -> int:
    """Its bytes, without those that pad it."""
    return self.dtype.itemsize * math.prod(self.shape)


def _read_index(file: IO[bytes]) -> dict[str, _Column]:
  """Reads what a file of arrays has, without the arrays; ends at its start.

  Raises:
    Damaged: it is no such file, or has another size than its index says.
  """
  size = file.seek(0, os.SEEK_END)
  if size < _END.size:
    raise Damaged(f"{size} bytes without the end that all have")
  file.seek(size - _END.size)
  checksum, length, magic = _END.unpack(file.read(_END.size))
  if magic != _MAGIC:
    raise Damaged(f"{size} bytes without the end that all have")
  if length > min(_MOST_INDEX_BYTES, size - _END.size):
    raise Damaged(f"an index of {length} bytes")
  file.seek(size - _END.size - length)
  index = file.read(length)
  if zlib.crc32(index) != checksum:
    raise Damaged("an index with another checksum")
  try:
    columns = dict(map(_column, json.loads(index)))
  except (TypeError, ValueError, OverflowError, RecursionError) as error:
    raise Damaged(f"an index that cannot be read ({error})") from error
  expected = sum(_padded(x.num_bytes) for x in columns.values())
  if expected != size - _END.size - length:
    raise Damaged(f"{size} bytes, and an index of {expected} bytes of arrays")
  file.seek(0)
  return columns


def _column(entry: Any) -> tuple[str, _Column]:
  """An entry of an index; raises TypeError or ValueError if it is none."""
  name, dtype, shape, checksum = entry
  # Names of dtypes may be programs: NumPy evaluates some of them.
  if not isinstance(dtype, str) or not re.fullmatch(r"[a-z]+[a-z0-9_]*", dtype):
    raise ValueError(f"no dtype {dtype!r:.80}")
  kind = jnp.dtype(dtype)
  if kind.hasobject or not kind.itemsize:
    raise ValueError(f"no dtype of arrays {dtype!r:.80}")
  if not all(type(x) is int and 0 <= x < _MOST_SIZE for x in shape):
    raise ValueError(f"no shape {shape!r:.80}")
  if not isinstance(name, str):
    raise ValueError(f"no name {name!r:.80}")
  column = _Column(tuple(shape), kind, checksum)
  if column.num_bytes >= _MOST_SIZE:
    raise ValueError("an array of no possible size")
  return name, column


def _padded(size: int) -> int:
  return size + -size % _ALIGNMENT_BYTES


def _arrays(
  content: np.ndarray, columns: Mapping[str, _Column]
) -> dict[str, np.ndarray]:
  """The arrays that an index says are in the content of a file."""
  arrays, offset = {}, 0
  for name, column in columns.items():
    part = content[offset : offset + column.num_bytes]
    if zlib.crc32(part.data) != column.checksum:
      raise Damaged(f"another checksum of {name!r}")
    try:
      arrays[name] = part.view(column.dtype).reshape(column.shape)
    except ValueError as error:  # Such as of 99 dimensions.
      raise Damaged(f"an index that cannot be true ({error})") from error
    offset += _padded(column.num_bytes)
  return arrays


def _named(nest: types.Tree) -> list[tuple[str, types.Array]]:
  """The leaves of a nest, each with its path, such as `a/0`.

  A dict of arrays by such paths has the same as the nest itself.
  """
  named = [
    (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(nest)
  ]
  assert len(dict(named)) == len(named), "two leaves have the same path"
  return named
