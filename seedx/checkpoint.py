"""Checkpoints of a run: nests of arrays on disk, each array with a checksum.

    <directory>/<env steps>/<item>

An item is a file of three parts: the bytes of its arrays, each padded to a
multiple of 64; an index of the arrays in JSON; the index's checksum and length.
Reading a file that was changed after it was written raises `Damaged`.

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

# Suffixes of directories with an unfinished checkpoint, one that is being
# deleted, or a damaged one. Readers ignore these directories.
_UNFINISHED = ".unfinished"
_REMOVED = ".removed"
_DAMAGED = ".damaged"
# The item with a checkpoint's score, written first: a directory with only this
# item is recognized as an unfinished checkpoint.
_SCORE = "score"
_ALIGNMENT_BYTES = 64
_MAX_INDEX_BYTES = 2**26
_MAX_SIZE = 2**62
# The end of an item's file: checksum and length of the index, magic.
_END = struct.Struct("<IQ8s")
_MAGIC = b"seedx-01"
# A file in each checkpoint of older versions, which is not deleted.
_OLDER = "_CHECKPOINT_METADATA"


class Damaged(types.ConfigError):
  """The error of a checkpoint's item that is missing or was changed."""


class Checkpoints:
  """The checkpoints in a directory, by their numbers of env steps.

  The newest `keep`, the best and the first of every `keep_every` env steps are
  kept. Only one thread may use an instance.
  Directories without a file of this format are left alone.

  Attributes:
    directory: directory of the checkpoints.
    held: env steps of further checkpoints that are kept.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    keep: int | None = None,
    keep_every: int = 0,
    newest_only: Collection[str] = (),
  ) -> None:
    """Opens a directory; the first `save` makes it if it does not exist.

    Args:
      directory: directory of the checkpoints; if it is a `files.Folder`, a link
        in its place is not followed.
      keep: number of the newest checkpoints that `save` keeps; None for all.
      keep_every: number of env steps of which `save` keeps the first checkpoint
        forever; 0 for none.
      newest_only: items that `save` keeps only in the newest checkpoint that
        has them.
    """
    self.directory = files.Folder(directory)
    self.held: set[int] = set()
    self._keep, self._keep_every = keep, keep_every
    self._newest_only = newest_only

  def save(
    self, env_steps: int, items: Mapping[str, types.Tree], score: float
  ) -> int:
    """Writes a checkpoint, unless one with the same `env_steps` exists.

    Then deletes the checkpoints and items that are not kept.

    Args:
      env_steps: number of env steps since the start of the run.
      items: nests of arrays by name; no name is `score`. Each nest can be
        restored alone.
      score: score of the agent, larger is better; -inf if unknown.

    Returns:
      The number of bytes that were written; 0 if the checkpoint exists.

    Raises:
      OSError: the checkpoint cannot be written.
    """
    if env_steps in self.steps():
      return 0
    # No other process writes, so a killed process has left these directories.
    self._delete(_UNFINISHED)
    name, size = f"{env_steps}{_UNFINISHED}", 0
    try:
      folder = self.directory.make().make_new(name)
      for item, nest in {_SCORE: np.float64(score), **items}.items():
        with folder.open(item, "x") as file:
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
    """Replaces the score of a checkpoint, if the checkpoint exists.

    Raises:
      OSError: the score cannot be written.
    """
    if env_steps in self._steps_named("", _is_current):
      folder = self.directory.folder(str(env_steps))
      folder.write(_SCORE, to_bytes(np.float64(score)))
      self._retain()

  def has(self, env_steps: int, name: str) -> bool:
    """Returns whether a checkpoint has an item of this name."""
    return self.directory.folder(str(env_steps)).has(name)

  def steps(self) -> list[int]:
    """Returns the env steps of all checkpoints, ascending.

    Checkpoints that an older version wrote are included.
    """
    return self._steps_named("", lambda x: _is_current(x) or x.has(_OLDER))

  def ranked(self) -> list[int]:
    """Returns the env steps of all checkpoints, the best score first.

    Of equal scores the newest comes first; unreadable scores come last.
    """
    return sorted(
      self.steps(), key=lambda step: (self.score(step), step), reverse=True
    )

  def score(self, env_steps: int) -> float:
    """Returns the score of a checkpoint; -inf if it cannot be read."""
    try:
      return float(self.restore(env_steps, _SCORE, np.float64(0)))
    except types.ConfigError:
      return -math.inf

  def restore(
    self,
    env_steps: int,
    name: str,
    shapes: types.Tree | None = None,
    max_bytes: float = math.inf,
  ) -> types.Tree:
    """Reads an item of a checkpoint.

    Args:
      env_steps: number of env steps of the checkpoint.
      name: name of the item.
      shapes: nest with the expected structure, shapes and dtypes, of arrays or
        of `jax.ShapeDtypeStruct`; None to accept any.
      max_bytes: maximum number of bytes of the item's arrays.

    Returns:
      A nest of NumPy arrays. If `shapes` is None, a dict of the arrays by
      their paths in the nest, such as `a/0`.

    Raises:
      Damaged: the item is missing, was changed, or is too large.
      types.ConfigError: the item has another structure, shapes or dtypes, or an
        older version wrote it.
    """
    where = f"checkpoint {env_steps} in {str(self.directory)!r}"
    folder = self.directory.folder(str(env_steps))
    if folder.has(_OLDER):
      raise types.ConfigError(
        f"{where} was written by an older version of seedx in another format;"
        " use that version, or train again"
      )
    return read(folder, name, shapes, max_bytes, where)

  def set_aside(self, env_steps: int) -> str:
    """Renames a damaged checkpoint, so that it no longer counts as one.

    Returns:
      The new path.
    """
    name, number = f"{env_steps}{_DAMAGED}", 1
    while self.directory.has(name):
      number += 1
      name = f"{env_steps}{_DAMAGED}-{number}"
    self.directory.rename(str(env_steps), name)
    return str(self.directory / name)

  def _retain(self) -> None:
    steps = self._steps_named("", _is_current)
    for name in self._newest_only:
      for step in [x for x in steps if self.has(x, name)][:-1]:
        self.directory.folder(str(step)).remove(name)
    if self._keep is not None:
      kept = {*steps[-self._keep :], *self.ranked()[:1], *self.held}
      if self._keep_every:
        firsts = {step // self._keep_every: step for step in steps[::-1]}
        kept |= {*firsts.values()}
      for step in {*steps} - kept:
        self.directory.rename(str(step), f"{step}{_REMOVED}")
    self._delete(_REMOVED)

  def _steps_named(
    self, suffix: str, fits: Callable[[files.Folder], bool]
  ) -> list[int]:
    """Returns the env steps in the names of directories that `fits` accepts.

    They are ascending. A directory that cannot be read is left out.
    """
    try:
      names = self.directory.names()
    except (FileNotFoundError, NotADirectoryError):
      return []
    # Leading zeros are not accepted: 007 and 7 would be the same checkpoint.
    form = re.compile(rf"(0|[1-9][0-9]{{0,18}}){re.escape(suffix)}")
    steps = []
    for name in filter(form.fullmatch, names):
      with contextlib.suppress(OSError):
        if fits(self.directory.folder(name)):
          steps.append(int(name.removesuffix(suffix)))
    return sorted(steps)

  def _delete(self, suffix: str) -> None:
    # A killed process may leave an unfinished checkpoint without an item.
    is_unfinished = suffix == _UNFINISHED
    for step in self._steps_named(
      suffix,
      lambda x: _is_current(x) or (is_unfinished and {*x.names()} <= {_SCORE}),
    ):
      self.directory.remove_folder(f"{step}{suffix}")


def read(
  folder: files.Folder,
  name: str,
  shapes: types.Tree | None = None,
  max_bytes: float = math.inf,
  where: str = "",
) -> types.Tree:
  """Reads an item's file, as `Checkpoints.restore` does.

  In messages, `where` describes the directory; if empty, its path does.
  """
  where = where or repr(str(folder))
  try:
    with folder.open(name) as file:
      columns = _read_index(file)
      if shapes is not None:  # Checked before memory is allocated.
        like(columns, shapes, f"{name!r} of {where}")
      size = sum(x.num_bytes for x in columns.values())
      if size > max_bytes:
        raise Damaged(
          f"expected at most {max_bytes:,.0f} bytes of arrays, found {size:,}"
        )
      arrays = _arrays(np.fromfile(file, np.uint8), columns)
  except OSError as error:
    raise Damaged(
      f"{name!r} in {where} cannot be read ({error.strerror})"
    ) from error
  except Damaged as error:
    raise Damaged(f"{name!r} in {where} is damaged: {error}") from error
  if shapes is None:
    return arrays
  return like(arrays, shapes, f"{name!r} of {where}")


def to_bytes(nest: types.Tree) -> bytes:
  """Returns the content of an item's file; `from_bytes` reads it."""
  file = io.BytesIO()
  _write(file, nest)
  return file.getvalue()


def from_bytes(content: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the arrays that `to_bytes` wrote, by path in the nest.

  Args:
    content: `[bytes]` uint8; the arrays are views of it.

  Raises:
    Damaged: the bytes have been changed.
  """
  return _arrays(content, _read_index(io.BytesIO(content.tobytes())))


def like(arrays: Mapping[str, Any], nest: types.Tree, where: str) -> types.Tree:
  """Returns arrays in the structure of a nest.

  Args:
    arrays: arrays, or their shapes and dtypes, by path.
    nest: nest with the expected structure, shapes and dtypes.
    where: origin of the arrays, for errors.

  Raises:
    types.ConfigError: the arrays have another structure, shapes or dtypes.
  """
  wanted = dict(named(nest))
  for name in [*wanted, *arrays]:
    if name not in arrays or name not in wanted:
      raise types.ConfigError(
        f"{where} has another structure than this program: {name!r} is"
        f" {'missing' if name in wanted else 'not expected'}; use the version"
        " and the options that wrote it"
      )
  for name, leaf in wanted.items():
    actual = arrays[name]
    if (leaf.shape, leaf.dtype) != (actual.shape, actual.dtype):
      raise types.ConfigError(
        f"expected {name!r} of shape {leaf.shape}, {leaf.dtype}, in {where},"
        f" found {actual.shape}, {actual.dtype}; use the options of that run"
      )
  return jax.tree.unflatten(
    jax.tree.structure(nest), [arrays[name] for name in wanted]
  )


def named(nest: types.Tree) -> list[tuple[str, types.Array]]:
  """Returns the leaves of a nest with their paths, such as `a/0`."""
  leaves = [
    (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(nest)
  ]
  assert len(dict(leaves)) == len(leaves), "two leaves have the same path"
  return leaves


def _write(file: IO[bytes], nest: types.Tree) -> None:
  columns = []
  for name, leaf in named(nest):
    array = np.asarray(leaf, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    content = array.reshape(-1).view(np.uint8).data
    columns.append([name, array.dtype.name, array.shape, zlib.crc32(content)])
    file.write(content)
    file.write(bytes(-len(content) % _ALIGNMENT_BYTES))
  index = json.dumps(columns).encode()
  file.write(index)
  file.write(_END.pack(zlib.crc32(index), len(index), _MAGIC))


def _is_current(folder: files.Folder) -> bool:
  # A file that `_write` wrote ends with `_MAGIC`.
  for name in folder.names():
    with contextlib.suppress(OSError), folder.open(name) as file:
      file.seek(-len(_MAGIC), os.SEEK_END)
      if file.read() == _MAGIC:
        return True
  return False


class _Column(NamedTuple):
  shape: tuple[int, ...]
  dtype: np.dtype
  checksum: int

  @property
  def num_bytes(self) -> int:  # Without padding.
    return self.dtype.itemsize * math.prod(self.shape)


def _read_index(file: IO[bytes]) -> dict[str, _Column]:
  """Reads the index of an item's file, then seeks the file's start.

  Raises:
    Damaged: the file has another form, or its size contradicts its index.
  """
  size = file.seek(0, os.SEEK_END)
  file.seek(max(0, size - _END.size))
  end = file.read(_END.size)
  if len(end) < _END.size or not end.endswith(_MAGIC):
    raise Damaged(f"its {size} bytes have no valid end")
  checksum, length, _ = _END.unpack(end)
  if length > min(_MAX_INDEX_BYTES, size - _END.size):
    raise Damaged(f"its index cannot have {length} bytes")
  file.seek(size - _END.size - length)
  index = file.read(length)
  if zlib.crc32(index) != checksum:
    raise Damaged("the checksum of its index is wrong")
  try:
    columns = dict(map(_column, json.loads(index)))
  except (TypeError, ValueError, OverflowError, RecursionError) as error:
    raise Damaged(f"its index cannot be read ({error})") from error
  expected = sum(_padded(x.num_bytes) for x in columns.values())
  actual = size - _END.size - length
  if expected != actual:
    raise Damaged(f"expected {expected} bytes of arrays, found {actual}")
  file.seek(0)
  return columns


def _column(entry: Any) -> tuple[str, _Column]:
  """Parses an index entry; TypeError or ValueError if it is not valid."""
  name, dtype, shape, checksum = entry
  kind = dtype_of(dtype)
  if not all(type(x) is int and 0 <= x < _MAX_SIZE for x in shape):
    raise ValueError(f"expected a shape, found {shape!r:.80}")
  if not isinstance(name, str):
    raise ValueError(f"expected a name, found {name!r:.80}")
  column = _Column(tuple(shape), kind, checksum)
  if column.num_bytes >= _MAX_SIZE:
    raise ValueError("an array is too large")
  return name, column


def dtype_of(name: Any) -> np.dtype:
  """Returns the dtype of a name from a file; ValueError if it is not valid."""
  # NumPy evaluates some dtype names as expressions, so only words are accepted.
  if not isinstance(name, str) or not re.fullmatch(r"[a-z]+[a-z0-9_]*", name):
    raise ValueError(f"expected a dtype, found {name!r:.80}")
  dtype = jnp.dtype(name)
  if dtype.hasobject or not dtype.itemsize:
    raise ValueError(f"expected a dtype of numbers, found {name!r:.80}")
  return dtype


def _padded(size: int) -> int:
  return size + -size % _ALIGNMENT_BYTES


def _arrays(
  content: np.ndarray, columns: Mapping[str, _Column]
) -> dict[str, np.ndarray]:
  """Returns the arrays of an index as views of a file's content."""
  arrays, offset = {}, 0
  for name, column in columns.items():
    part = content[offset : offset + column.num_bytes]
    if zlib.crc32(part.data) != column.checksum:
      raise Damaged(f"the checksum of its array {name!r} is wrong")
    try:
      arrays[name] = part.view(column.dtype).reshape(column.shape)
    except ValueError as error:  # NumPy has at most 64 dimensions.
      raise Damaged(f"its index has an impossible array ({error})") from error
    offset += _padded(column.num_bytes)
  return arrays
