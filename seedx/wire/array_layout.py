"""Messages of arrays, as bytes in a layout that both ends agree on first.

`seedx.wire` specifies the bytes for other languages.
"""

import dataclasses
import functools
import itertools
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from seedx import trees, types

PROTOCOL = 2
MAGIC = b"SEDX"
# Magic, protocol version, reserved, number of rows, bytes of the message.
HEADER = struct.Struct("<4sHHII")
ALIGNMENT_BYTES = 8
MAX_MESSAGE_BYTES = 2**31 - 1  # gRPC's own limit.
DTYPES = frozenset(
  np.dtype(code).newbyteorder("<").str for code in "?BHILQbhilqefdFD"
)

# The bytes of a message, as a socket or gRPC has received them.
Buffer = bytes | memoryview

_PADDING = [bytes(size) for size in range(ALIGNMENT_BYTES)]
# A handshake is nested 4 deep.
_MAX_NESTING = 32


class MessageError(ValueError):
  """An error for a message that does not follow its layout or is not JSON."""


def from_json(text: bytes) -> Any:
  """Returns the value of a JSON text from a peer.

  Raises:
    MessageError: the text is not JSON, or is nested so deeply that reading or
      printing it might overflow the stack.
  """
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise MessageError(f"expected JSON, found {error}") from None
  level = [value]
  for _ in range(_MAX_NESTING):
    dicts = [list(each.values()) for each in level if isinstance(each, dict)]
    lists = [each for each in level if isinstance(each, list)]
    level = list(itertools.chain.from_iterable(dicts + lists))
    if not level:
      return value
  raise MessageError(
    f"expected JSON nested at most {_MAX_NESTING} deep, found more"
  )


def message_size(header: Buffer) -> int:
  """Returns the number of bytes of the message that begins with a header."""
  *_, size = HEADER.unpack_from(header)
  return max(size, HEADER.size)


class Column(NamedTuple):
  """A leaf of the nest.

  Attributes:
    name: path of the leaf, such as `timestep/observation`.
    dtype: one of `DTYPES`: a little-endian dtype in NumPy's notation.
    shape: shape of one row.
    once: whether a message has a single row of it, without a row axis.
  """

  name: str
  dtype: str
  shape: tuple[int, ...]
  once: bool = False


class _Plan(NamedTuple):
  """A column in the form that encoding and decoding use."""

  dtype: np.dtype
  shape: tuple[int, ...]
  row_bytes: int
  once: bool


class _Once:
  """Spec of an array that a message has once, not in each row."""

  def __init__(self, leaf: Any) -> None:
    self.dtype, self.shape = leaf.dtype, leaf.shape


def once(specs: types.Tree) -> types.Tree:
  """Marks specs of arrays that a message has once, instead of in each row."""
  return tree.map_structure(_Once, specs)


@dataclasses.dataclass(frozen=True)
class Layout:
  """The layout of a method's requests, or of its replies.

  Attributes:
    columns: leaves in the order of their bytes.
    max_rows: maximum number of rows in a message, at least 1; exactly 1 if all
      columns are `once`.
    structure: nest with each leaf replaced by its column's number. The
      structure does not count in comparisons of layouts.
  """

  columns: tuple[Column, ...]
  max_rows: int
  structure: types.Tree = dataclasses.field(compare=False, repr=False)

  @classmethod
  def of(cls, specs: types.Tree, max_rows: int) -> "Layout":
    """Returns the layout of a nest, with dtypes made little-endian.

    Args:
      specs: nest of tuples, NamedTuples, lists and dicts, whose leaves have a
        `shape` *without* the row axis and a `dtype`, such as arrays or specs.
        `once` marks leaves that have no row axis in messages either.
      max_rows: maximum number of rows in a message.

    Raises:
      types.ConfigError: such a nest cannot be sent.
    """
    if max_rows < 1:
      raise types.ConfigError(
        f"expected max_rows of at least 1, found {max_rows}"
      )
    named = trees.named_leaves(specs)
    columns = tuple(_column(name, leaf) for name, leaf in named)
    names = [column.name for column in columns]
    for name in names:
      if names.count(name) > 1:
        raise types.ConfigError(
          f"two leaves have the name {name!r}, maybe because a key has a /;"
          " rename a key"
        )
    structure = tree.unflatten_as(specs, list(range(len(columns))))
    _fill(structure, names)  # Refuses unsupported containers.
    has_rows = not all(column.once for column in columns)
    layout = cls(columns, max_rows if has_rows else 1, structure)
    if layout.message_bytes(max_rows) > MAX_MESSAGE_BYTES:
      raise types.ConfigError(
        f"expected at most {MAX_MESSAGE_BYTES} bytes in a message, found"
        f" {layout.message_bytes(max_rows)} in {max_rows} rows; send fewer rows"
      )
    return layout

  def message_bytes(self, rows: int) -> int:
    """Returns the number of bytes of a message with this number of rows."""
    return HEADER.size + sum(
      _padded(row_bytes if once else rows * row_bytes)
      for *_, row_bytes, once in self._plan
    )

  def encode(self, nest: types.Tree) -> bytes:
    """Copies the arrays into a message, which it returns.

    Args:
      nest: `[rows, *shape]` arrays, or `[*shape]` for columns that are `once`.

    Raises:
      ValueError: the nest does not fit the layout.
    """
    arrays = self._arrays(nest)
    first = self._first_with_rows
    rows = len(arrays[first]) if first is not None else 1
    self._check(arrays, rows)
    return _message(arrays, rows)

  def encode_all(
    self, nest: types.Tree, rows: Sequence[int]
  ) -> Iterator[bytes]:
    """Yields messages with consecutive rows of `[B, *shape]` arrays.

    Args:
      nest: arrays as in `encode`, without columns that are `once`.
      rows: number of rows of each message; in sum, at most B.

    Raises:
      ValueError: the nest does not fit the layout.
    """
    arrays = self._arrays(nest)
    self._check(arrays, len(arrays[0]))
    start = 0
    for count in rows:
      yield _message([x[start : start + count] for x in arrays], count)
      start += count

  def rows(self, message: Buffer) -> int:
    """Returns the number of rows in a message, after a check of its size.

    Raises:
      MessageError: the header or the size does not follow this layout.
    """
    if len(message) < HEADER.size:
      raise MessageError(
        f"expected a header of {HEADER.size} bytes, found a message of"
        f" {len(message)}"
      )
    magic, protocol, reserved, rows, total = HEADER.unpack_from(message)
    if magic != MAGIC:
      raise MessageError(f"expected magic {MAGIC!r}, found {magic!r}")
    if protocol != PROTOCOL:
      raise MessageError(f"expected protocol {PROTOCOL}, found {protocol}")
    if reserved:
      raise MessageError(f"expected 0 in reserved bits, found {reserved}")
    if not 1 <= rows <= self.max_rows:
      raise MessageError(f"expected 1 to {self.max_rows} rows, found {rows}")
    expected = self.message_bytes(rows)
    if total != expected or len(message) != expected:
      raise MessageError(
        f"expected {expected} bytes for {rows} rows, found {len(message)}, and"
        f" {total} in the header"
      )
    return rows

  def decode(self, message: Buffer) -> types.Tree:
    """Returns the arrays of a message, as read-only views of it.

    Returns:
      `[rows, *shape]` arrays, or `[*shape]` for columns that are `once`.

    Raises:
      MessageError: the bytes are not a message of this layout.
    """
    rows = self.rows(message)
    offset = HEADER.size
    arrays = []
    for dtype, shape, row_bytes, once in self._plan:
      full_shape = shape if once else (rows, *shape)
      array = np.ndarray(full_shape, dtype, message, offset)
      _check_bools(array)
      arrays.append(array)
      offset += _padded(row_bytes if once else rows * row_bytes)
    return _fill(self.structure, arrays)

  # NumPy's copies release Python's lock. Copies that keep it gained 11% with 16
  # cores and a GPU, but cost the learner 4% on two cores.
  def decode_all(
    self, messages: Sequence[Buffer], rows: Sequence[int], pad_to: int
  ) -> types.Tree:
    """Returns the rows of several messages as one batch.

    Args:
      messages: messages without columns that are `once`.
      rows: number of rows of each message, as `rows` returns it.
      pad_to: number of rows of the batch; rows after the messages' are zeros.

    Raises:
      MessageError: the bytes are not messages of this layout.
    """
    if len(messages) == 1 and rows[0] == pad_to:
      return self.decode(messages[0])
    offsets, arrays = [HEADER.size] * len(messages), []
    for dtype, shape, row_bytes, _ in self._plan:
      sizes = [count * row_bytes for count in rows]
      parts = [
        np.ndarray(size, np.uint8, message, offset)
        for size, message, offset in zip(sizes, messages, offsets, strict=True)
      ]
      joined = np.empty(pad_to * row_bytes, np.uint8)
      end = sum(sizes)
      np.concatenate(parts, out=joined[:end])
      joined[end:] = 0
      array = joined.view(dtype).reshape(pad_to, *shape)
      _check_bools(array)
      arrays.append(array)
      offsets = [x + _padded(y) for x, y in zip(offsets, sizes, strict=True)]
    return _fill(self.structure, arrays)

  def to_json(self) -> dict[str, Any]:
    """Returns the layout's part of the handshake, for `json.dumps`."""
    columns = [
      {**column._asdict(), "shape": [*column.shape]} for column in self.columns
    ]
    return {
      "protocol": PROTOCOL,
      "max_rows": self.max_rows,
      "columns": columns,
    }

  def difference(self, other: Any) -> str | None:
    """Describes the first difference from the other end's JSON.

    Returns:
      The description, or None if messages can be exchanged. `max_rows` may
      differ.
    """
    if not isinstance(other, Mapping):
      return f"expected a JSON object, found {other!r:.80}"
    if other.get("protocol") != PROTOCOL:
      protocol = other.get("protocol")
      return f"expected protocol {PROTOCOL}, found {protocol!r:.80}"
    theirs = other.get("columns")
    if not isinstance(theirs, list):
      return f"expected a list of columns, found {theirs!r:.80}"
    ours = self.to_json()["columns"]
    columns = itertools.zip_longest(ours, theirs)
    for number, (expected, actual) in enumerate(columns):
      if expected != actual:
        return (
          f"column {number}: expected {_in_words(expected)}, "
          f"found {_in_words(actual)}"
        )
    return None

  @functools.cached_property
  def _plan(self) -> list[_Plan]:
    plan = []
    for _, code, shape, once in self.columns:
      dtype = np.dtype(code)
      row_bytes = dtype.itemsize * math.prod(shape)
      plan.append(_Plan(dtype, shape, row_bytes, once))
    return plan

  @functools.cached_property
  def _first_with_rows(self) -> int | None:
    return next((k for k, x in enumerate(self.columns) if not x.once), None)

  def _arrays(self, nest: types.Tree) -> list[np.ndarray]:
    """Returns the leaves as arrays; only the structure is checked."""
    leaves: list[Any] = [None] * len(self.columns)
    if not _collect(self.structure, nest, leaves):
      expected = [column.name for column in self.columns]
      names = [name for name, _ in trees.named_leaves(nest)]
      raise ValueError(f"expected the leaves {expected}, found {names}")
    arrays = [np.asarray(leaf) for leaf in leaves]
    first = self._first_with_rows
    if first is not None and not arrays[first].shape:
      raise ValueError(
        f"column {self.columns[first].name!r}: expected a row axis, found a"
        " scalar"
      )
    return arrays

  def _check(self, arrays: list[np.ndarray], rows: int) -> None:
    if not 1 <= rows <= self.max_rows:
      raise ValueError(f"expected 1 to {self.max_rows} rows, found {rows}")
    for array, column, (dtype, shape, _, once) in zip(
      arrays, self.columns, self._plan, strict=True
    ):
      expected = shape if once else (rows, *shape)
      if array.dtype != dtype or array.shape != expected:
        raise ValueError(
          f"column {column.name!r}: expected {dtype.str} of shape"
          f" {expected}, found {array.dtype.str} of {array.shape}"
        )


def _message(arrays: Iterable[np.ndarray], rows: int) -> bytes:
  parts: list[Any] = [b""]
  total_bytes = HEADER.size
  for array in arrays:
    parts.append(np.ascontiguousarray(array))
    parts.append(_PADDING[-array.nbytes % ALIGNMENT_BYTES])
    total_bytes += _padded(array.nbytes)
  parts[0] = HEADER.pack(MAGIC, PROTOCOL, 0, rows, total_bytes)
  return b"".join(parts)


def _check_bools(array: np.ndarray) -> None:
  if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
    raise MessageError("expected 0 or 1 in a column of |b1, found more")


def _padded(size: int) -> int:
  return size + -size % ALIGNMENT_BYTES


def _column(name: str, leaf: Any) -> Column:
  if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
    raise types.ConfigError(
      f"leaf {name!r}: expected an array or a spec, found {leaf!r:.80}"
    )
  dtype = np.dtype(leaf.dtype).newbyteorder("<")
  if dtype.str not in DTYPES:
    raise types.ConfigError(
      f"leaf {name!r}: expected one of {sorted(DTYPES)}, found {dtype};"
      " convert it first"
    )
  shape = tuple(int(size) for size in leaf.shape)
  return Column(name, dtype.str, shape, isinstance(leaf, _Once))


def _fill(structure: types.Tree, leaves: list[Any]) -> types.Tree:
  """Replaces the column numbers of a structure by leaves."""
  if isinstance(structure, int):
    return leaves[structure]
  if type(structure) is dict:
    return {key: _fill(value, leaves) for key, value in structure.items()}
  if isinstance(structure, tuple) and hasattr(structure, "_make"):
    return structure._make([_fill(value, leaves) for value in structure])
  if type(structure) in (list, tuple):
    return type(structure)([_fill(value, leaves) for value in structure])
  raise types.ConfigError(
    "expected nests of tuples, NamedTuples, lists and dicts, found"
    f" {type(structure).__name__}"
  )


def _collect(
  structure: types.Tree, nest: types.Tree, leaves: list[Any]
) -> bool:
  """Puts each leaf at its column's number; False if structures differ."""
  if isinstance(structure, int):
    leaves[structure] = nest
    return True
  if type(structure) is dict:
    return (
      isinstance(nest, Mapping)
      and nest.keys() == structure.keys()
      and all(_collect(structure[key], nest[key], leaves) for key in structure)
    )
  return (
    isinstance(nest, (list, tuple))
    and len(nest) == len(structure)
    and getattr(nest, "_fields", None) == getattr(structure, "_fields", None)
    and all(map(_collect, structure, nest, itertools.repeat(leaves)))
  )


def _in_words(column: Any) -> str:
  if column is None:
    return "no more columns"
  try:
    once = " once per message" if column["once"] else ""
    words = f"{column['name']!r} {column['dtype']} {column['shape']}{once}"
    return words[:200]
  except (TypeError, KeyError, IndexError):
    return f"{column!r:.200}"


# Layout of messages without content, of which only the arrival matters.
NOTHING = Layout.of((), 1)
