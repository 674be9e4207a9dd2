"""Checkpoints of a run: nests of arrays on disk, each array with a checksum.

    <directory>/<env steps>/<item>

An item is a file: the bytes of its arrays, each padded to a multiple of 64; an
index of them in JSON; and the index's checksum and length. What is read is what
was written, or `Damaged` is raised.

A checkpoint exists as a whole or not at all, even if the process is killed
while it writes. Another process may read at the same time.
"""

import io
import json
import math
import os
import pathlib
import shutil
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from seedx import types

# What a checkpoint is called before it is whole, and when it is to be deleted:
# no reader finds half of one.
_UNFINISHED = ".unfinished"
_REMOVED = ".removed"
_DAMAGED = ".damaged"
_SCORE = "score"
_ALIGNMENT_BYTES = 64
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

  Attributes:
    directory: an absolute path.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    keep: int | None = None,
    newest_only: Collection[str] = (),
  ) -> None:
    """Opens a directory; the first `save` makes it if it does not exist.

    Args:
      directory: for the checkpoints.
      keep: how many of the newest a `save` keeps; None for all.
      newest_only: items that a `save` deletes in all checkpoints before.
    """
    self.directory = pathlib.Path(directory).absolute()
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
    self._delete(self.directory.glob(f"*{_UNFINISHED}"))
    part = self.directory / f"{env_steps}{_UNFINISHED}"
    size = 0
    try:
      part.mkdir(parents=True)
      for name, nest in {**items, _SCORE: np.float64(score)}.items():
        with (part / name).open("xb") as file:
          _write(file, nest)
          file.flush()
          os.fsync(file.fileno())
          size += file.tell()
      part.rename(self._path(env_steps))
    except OSError as error:
      raise OSError(
        f"cannot write checkpoint {env_steps} in {str(self.directory)!r}"
        f" ({error.strerror})"
      ) from error
    finally:
      self._delete([part])
    self._retain()
    return size

  def steps(self) -> list[int]:
    """The env steps of all checkpoints, ascending."""
    if not self.directory.is_dir():
      return []
    found = (
      int(path.name)
      for path in self.directory.iterdir()
      if path.name.isdecimal() and path.name.isascii() and path.is_dir()
    )
    return sorted(step for step in found if self._path(step).is_dir())

  def ranked(self) -> list[int]:
    """The env steps of all checkpoints, the best first.

    Of several with the same score the newest; those of no readable score come
    last.
    """
    return sorted(
      self.steps(), key=lambda step: (self._score(step), step), reverse=True
    )

  def restore(
    self, env_steps: int, name: str, shapes: types.Tree | None = None
  ) -> types.Tree:
    """Reads one nest of a checkpoint.

    Args:
      env_steps: the checkpoint's.
      name: the nest's, as given to `save`.
      shapes: a nest with the same structure, shapes and dtypes, of arrays or of
        `jax.ShapeDtypeStruct`.

    Returns:
      A nest of NumPy arrays; if `shapes` is None, a dict of them by their paths
      in the nest, such as `a/0`.

    Raises:
      Damaged: the checkpoint or nest is not there as it was written.
      types.ConfigError: it has another structure, shapes or dtypes, or an older
        version wrote it.
    """
    where = f"checkpoint {env_steps} in {str(self.directory)!r}"
    if (self._path(env_steps) / _OLDER).exists():
      raise types.ConfigError(
        f"expected {where} of this version of seedx, found one that an older"
        " version wrote in another format; use that version, or train again"
      )
    try:
      found = from_bytes(np.fromfile(self._path(env_steps) / name, np.uint8))
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

  def set_aside(self, env_steps: int) -> pathlib.Path:
    """Renames a damaged checkpoint, so that it is none any more.

    Returns:
      Its new path.
    """
    path = self.directory / f"{env_steps}{_DAMAGED}"
    self._delete([path])
    return self._path(env_steps).rename(path)

  def _path(self, env_steps: int) -> pathlib.Path:
    return self.directory / str(env_steps)

  def _score(self, env_steps: int) -> float:
    try:
      return float(self.restore(env_steps, _SCORE, np.float64(0)))
    except types.ConfigError:
      return -math.inf

  def _retain(self) -> None:
    """Deletes what is not kept."""
    steps = self.steps()
    for step in steps[:-1]:
      for name in self._newest_only:
        (self._path(step) / name).unlink(missing_ok=True)
    if self._keep is not None:
      kept = {*steps[-self._keep :], *self.ranked()[:1]}
      for step in {*steps} - kept:
        path = self._path(step)
        path.rename(path.with_suffix(_REMOVED))
    self._delete(self.directory.glob(f"*{_REMOVED}"))

  def _delete(self, paths: Iterable[pathlib.Path]) -> None:
    for path in list(paths):
      shutil.rmtree(path, ignore_errors=True)


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
  end = content[-_END.size :].tobytes()
  if len(end) < _END.size or not end.endswith(_MAGIC):
    raise Damaged(f"{len(content)} bytes without the end that all have")
  checksum, length, _ = _END.unpack(end)
  index = content[: -_END.size][-length:].tobytes() if length else b""
  if zlib.crc32(index) != checksum:
    raise Damaged("an index with another checksum")
  try:
    return _arrays(content, json.loads(index))
  except (TypeError, ValueError, OverflowError, RecursionError) as error:
    if isinstance(error, Damaged):
      raise
    raise Damaged(f"an index that cannot be read ({error})") from error


def like(
  found: Mapping[str, np.ndarray], nest: types.Tree, where: str
) -> types.Tree:
  """Arrays by their paths as a nest like another.

  Args:
    found: the arrays.
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


def _write(file: BinaryIO, nest: types.Tree) -> None:
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


def _arrays(content: np.ndarray, columns: list) -> dict[str, np.ndarray]:
  """The arrays that an index says are in the content of a file."""
  arrays, offset = {}, 0
  for name, dtype, shape, checksum in columns:
    kind = jnp.dtype(dtype)
    size = kind.itemsize * math.prod(shape)
    part = content[offset : offset + size]
    if zlib.crc32(part.data) != checksum:
      raise Damaged(f"another checksum of {name!r}")
    arrays[name] = part.view(kind).reshape(shape)
    offset += size + -size % _ALIGNMENT_BYTES
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
