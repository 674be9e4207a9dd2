"""Nests of arrays as bytes, by a layout that both ends agree on beforehand.

The bytes are described, for other languages, in `seedx.wire`.
"""

import dataclasses
import functools
import itertools
import json
import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tree

from seedx import trees, types

PROTOCOL = 2
MAGIC = b"SEDX"
# Magic, protocol version, reserved, rows, bytes of the whole message.
HEADER = struct.Struct("<4sHHII")
ALIGNMENT_BYTES = 8
MAX_MESSAGE_BYTES = 2**31 - 1  # gRPC's own limit.
DTYPES = frozenset(
  np.dtype(code).newbyteorder("<").str for code in "?BHILQbhilqefdFD"
)

_PADDING = [bytes(size) for size in range(ALIGNMENT_BYTES)]


# A handshake has 3.
_MOST_NESTED = 32


class MessageError(ValueError):
  """A message that does not follow its layout, or is not JSON."""


def from_json(text: bytes) -> Any:
  """What a peer's JSON says.

  Raises:
    MessageError: it is not JSON, or so nested that to look at it or to print it
      might need more stack than there is.
  """
  try:
    found = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise MessageError(f"expected JSON, found {error}") from None
  level = [found]
  for _ in range(_MOST_NESTED):
    dicts = [list(each.values()) for each in level if isinstance(each, dict)]
    lists = [each for each in level if isinstance(each, list)]
    level = list(itertools.chain.from_iterable(dicts + lists))
    if not level:
      return found
  raise MessageError(f"expected JSON nested {_MOST_NESTED} deep, found deeper")


def message_size(header: bytes) -> int:
  """The bytes of the whole message that begins with a header."""
  *_, size = HEADER.unpack_from(header)
  return max(size, HEADER.size)


class Column(NamedTuple):
  """One leaf of the nest.

  Attributes:
    name: the path of the leaf, such as `timestep/observation`.
    dtype: one of `DTYPES`, in NumPy's notation, always little-endian.
    shape: of one row.
    once: whether a message has a single row of it, without a row axis.
  """

  name: str
  dtype: str
  shape: tuple[int, ...]
  once: bool = False


class _Plan(NamedTuple):
  """What encoding and decoding a column need."""

  dtype: np.dtype
  shape: tuple[int, ...]
  row_bytes: int
  once: bool


class _Once:
  """A spec of what a message has once."""

  def __init__(self, leaf: Any) -> None:
    self.dtype, self.shape = leaf.dtype, leaf.shape


def once(specs: types.Tree) -> types.Tree:
  """Specs of what a message has once, not once for each row."""
  return tree.map_structure(_Once, specs)


@dataclasses.dataclass(frozen=True)
class Layout:
  """What the messages of one direction of a method look like.

  Attributes:
    columns: the leaves in the order of their bytes.
    max_rows: a message has 1 to this many rows; exactly 1 without a column of
      rows.
    structure: the nest, with each leaf replaced by its column's number.
      Layouts with the same columns are equal whatever their structure is.
  """

  columns: tuple[Column, ...]
  max_rows: int
  structure: types.Tree = dataclasses.field(compare=False, repr=False)

  @classmethod
  def of(cls, specs: types.Tree, max_rows: int) -> "Layout":
    """The layout of a nest.

    Args:
      specs: tuples, NamedTuples, lists and dicts of anything that has a `shape`
        and a `dtype`, such as an array or a spec, *without* the row axis; what
        has none in messages either is marked by `once`. No leaf at all makes
        messages of the header alone.
      max_rows: the most rows in a message.

    Returns:
      The layout; big-endian dtypes are laid out as little-endian.

    Raises:
      types.ConfigError: for what cannot be sent.
    """
    if max_rows < 1:
      raise types.ConfigError(f"max_rows must be at least 1, found {max_rows}.")
    named = trees.named_leaves(specs)
    columns = tuple(_column(name, leaf) for name, leaf in named)
    names = [column.name for column in columns]
    for name in names:
      if names.count(name) > 1:
        raise types.ConfigError(
          f"two leaves are called {name!r}; rename a key (a / in a key can "
          "make it look like a path)."
        )
    structure = tree.unflatten_as(specs, list(range(len(columns))))
    _fill(structure, names)  # Raises where a container is not supported.
    has_rows = not all(column.once for column in columns)
    layout = cls(columns, max_rows if has_rows else 1, structure)
    if layout.message_bytes(max_rows) > MAX_MESSAGE_BYTES:
      raise types.ConfigError(
        f"a message of {max_rows} rows has {layout.message_bytes(max_rows)} "
        f"bytes; expected at most {MAX_MESSAGE_BYTES}: send fewer rows."
      )
    return layout

  def message_bytes(self, rows: int) -> int:
    """The size of a message of so many rows."""
    return HEADER.size + sum(
      _padded(row_bytes if once else rows * row_bytes)
      for *_, row_bytes, once in self._plan
    )

  def encode(self, nest: types.Tree) -> bytes:
    """Writes a message; the arrays are copied once.

    Args:
      nest: the layout's nest, of `[rows, *shape]` arrays, and `[*shape]` of
        what the message has once.

    Returns:
      The message.

    Raises:
      ValueError: the nest does not fit the layout.
    """
    arrays = self._arrays(nest)
    rows = len(arrays[self._first]) if self._first is not None else 1
    if not 1 <= rows <= self.max_rows:
      raise ValueError(f"expected 1 to {self.max_rows} rows, found {rows}.")
    parts: list[Any] = [b""]
    total_bytes = HEADER.size
    for array, column, (dtype, shape, row_bytes, once) in zip(
      arrays, self.columns, self._plan, strict=True
    ):
      expected = shape if once else (rows, *shape)
      if array.dtype != dtype or array.shape != expected:
        raise ValueError(
          f"column {column.name!r}: expected {dtype.str} of shape "
          f"{expected}, found {array.dtype.str} of {array.shape}."
        )
      parts.append(np.ascontiguousarray(array))
      size = row_bytes if once else rows * row_bytes
      parts.append(_PADDING[-size % ALIGNMENT_BYTES])
      total_bytes += _padded(size)
    parts[0] = HEADER.pack(MAGIC, PROTOCOL, 0, rows, total_bytes)
    return b"".join(parts)

  def decode(self, message: bytes) -> types.Tree:
    """Reads a message without copying it.

    Args:
      message: what `encode` wrote.

    Returns:
      The nest of `[rows, *shape]` arrays, and `[*shape]` of what the message
      has once: read-only views of `message`.

    Raises:
      MessageError: it is not a message of this layout.
    """
    rows = self._rows(message)
    offset = HEADER.size
    arrays = []
    for dtype, shape, row_bytes, once in self._plan:
      found = shape if once else (rows, *shape)
      array = np.ndarray(found, dtype, message, offset)
      if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise MessageError("expected 0 or 1 in a column of |b1, found more.")
      arrays.append(array)
      offset += _padded(row_bytes if once else rows * row_bytes)
    return _fill(self.structure, arrays)

  def to_json(self) -> dict[str, Any]:
    """What the other end has to know, ready for `json.dumps`."""
    columns = [
      {**column._asdict(), "shape": [*column.shape]} for column in self.columns
    ]
    return {
      "protocol": PROTOCOL,
      "max_rows": self.max_rows,
      "columns": columns,
    }

  def difference(self, other: Any) -> str | None:
    """Where another end's layout is not this one.

    Args:
      other: what it sent: anything at all that came out of a JSON text.

    Returns:
      The first difference in words, or None where messages of the two can be
      exchanged. Row limits are not compared.
    """
    if not isinstance(other, Mapping):
      return f"expected a JSON object, found {other!r:.80}"
    if other.get("protocol") != PROTOCOL:
      found = other.get("protocol")
      return f"expected protocol {PROTOCOL}, found {found!r:.80}"
    theirs = other.get("columns")
    if not isinstance(theirs, list):
      return f"expected a list of columns, found {theirs!r:.80}"
    mine = self.to_json()["columns"]
    for number in range(max(len(mine), len(theirs))):
      expected = mine[number] if number < len(mine) else None
      found = theirs[number] if number < len(theirs) else None
      if expected != found:
        return (
          f"column {number}: expected {_in_words(expected)}, "
          f"found {_in_words(found)}"
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
  def _first(self) -> int | None:
    """The number of the first column of rows."""
    return next((k for k, x in enumerate(self.columns) if not x.once), None)

  def _arrays(self, nest: types.Tree) -> list[np.ndarray]:
    """The leaves as arrays; checks the structure but not the arrays."""
    leaves: list[Any] = [None] * len(self.columns)
    if not _collect(self.structure, nest, leaves):
      expected = [column.name for column in self.columns]
      found = [name for name, _ in trees.named_leaves(nest)]
      raise ValueError(f"expected the leaves {expected}, found {found}.")
    arrays = [np.asarray(leaf) for leaf in leaves]
    if self._first is not None and not arrays[self._first].shape:
      raise ValueError(
        f"column {self.columns[self._first].name!r}: expected a row axis, found"
        " a scalar."
      )
    return arrays

  def _rows(self, message: bytes) -> int:
    """Checks the header and the size; returns the rows."""
    if len(message) < HEADER.size:
      raise MessageError(
        f"expected a header of {HEADER.size} bytes, found a message of "
        f"{len(message)}."
      )
    magic, protocol, reserved, rows, total = HEADER.unpack_from(message)
    if magic != MAGIC:
      raise MessageError(f"expected magic {MAGIC!r}, found {magic!r}.")
    if protocol != PROTOCOL:
      raise MessageError(f"expected protocol {PROTOCOL}, found {protocol}.")
    if reserved:
      raise MessageError(f"expected 0 in reserved bits, found {reserved}.")
    if not 1 <= rows <= self.max_rows:
      raise MessageError(f"expected 1 to {self.max_rows} rows, found {rows}.")
    expected = self.message_bytes(rows)
    if total != expected or len(message) != expected:
      raise MessageError(
        f"expected {expected} bytes for {rows} rows, found {len(message)}, "
        f"and {total} in the header."
      )
    return rows


def _padded(size: int) -> int:
  return size + -size % ALIGNMENT_BYTES


def _column(name: str, leaf: Any) -> Column:
  if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
    raise types.ConfigError(
      f"leaf {name!r}: expected an array or a spec, found {leaf!r:.80}."
    )
  dtype = np.dtype(leaf.dtype).newbyteorder("<")
  if dtype.str not in DTYPES:
    raise types.ConfigError(
      f"leaf {name!r}: expected one of {sorted(DTYPES)}, found {dtype}; "
      "convert it first."
    )
  shape = tuple(int(size) for size in leaf.shape)
  return Column(name, dtype.str, shape, isinstance(leaf, _Once))


def _fill(structure: types.Tree, leaves: list[Any]) -> types.Tree:
  """The structure with its column numbers replaced by leaves."""
  if isinstance(structure, int):
    return leaves[structure]
  if type(structure) is dict:
    return {key: _fill(value, leaves) for key, value in structure.items()}
  if isinstance(structure, tuple) and hasattr(structure, "_make"):
    return structure._make([_fill(value, leaves) for value in structure])
  if type(structure) in (list, tuple):
    return type(structure)([_fill(value, leaves) for value in structure])
  raise types.ConfigError(
    "expected nests of tuples, NamedTuples, lists and dicts, found "
    f"{type(structure).__name__}."
  )


def _collect(
  structure: types.Tree, nest: types.Tree, leaves: list[Any]
) -> bool:
  """Puts each leaf at its column's number; False for another structure."""
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


# Of messages that say nothing but that they were sent.
NOTHING = Layout.of((), 1)
