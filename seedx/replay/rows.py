"""The rows of a replay's ring that hold the steps of each unroll.

An unroll that continues another one shares the rows of their common steps.
Unrolls are numbered from 0 in the order in which they were added. Unroll u is
at entry u % capacity.
"""

import dataclasses
import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types

# An environment may take this many times as long for an unroll as the others;
# if it takes longer, its next unroll is stored as a whole.
_PATIENCE = 2
# Unrolls share rows if at least this fraction of their steps is in common.
_MIN_SHARED = 0.25


class _Continued(NamedTuple):
  """The unrolls that new ones continue, `[S]` each.

  Attributes:
    number: number of the continued unroll.
    is_new: whether an unroll continues none, so that all its steps are new.
  """

  number: jax.Array
  is_new: jax.Array


@dataclasses.dataclass(frozen=True)
class Ring:
  """The sizes of a ring, and pure functions over its `Book`.

  Unrolls are forgotten in the order in which they were added. An unroll shares
  rows only if they are at most `late` rows older than its first own row. The
  unroll is forgotten `late` rows before that row is overwritten, so its shared
  rows are still there until then.

  Attributes:
    capacity: capacity in unrolls.
    length: L, time steps of an unroll.
    period: T, time steps that an unroll adds to the one before it; L if unrolls
      share no rows.
    late: see above; at least S * L.
    in_order: whether each share has one unroll of each environment, always in
      the same order.
  """

  capacity: int
  length: int
  period: int
  late: int = 0
  in_order: bool = True

  @classmethod
  def of(
    cls,
    share: types.Share,
    capacity: int,
    period: int | None,
    streams: int,
  ) -> "Ring":
    """Returns the ring for shares like `share`; see `uniform.Uniform`."""
    length, size = share.data.version.shape
    if isinstance(share.origin, tuple) or period is None:
      return cls(capacity, length, length)
    # A search for shared rows takes time. The search would save little memory
    # in a small replay, or without stacked frames or burn-in.
    is_small = size * length > capacity * period
    if is_small or length - period < _MIN_SHARED * length:
      return cls(capacity, length, length)
    late = (_PATIENCE * (streams or size) + size) * length
    return cls(capacity, length, min(period, length), late, not streams)

  @property
  def overlap(self) -> int:
    """Number of an unroll's steps that are also in the previous unroll."""
    return self.length - self.period

  @property
  def num_rows(self) -> int:
    """R, number of rows of the ring."""
    spare = self.late + 1 if self.overlap else 0
    return self.capacity * self.period + spare

  def init(self) -> "Book":
    """Returns the book of an empty ring."""
    shape = self.capacity if self.overlap else 0, self.length + 2
    # An array that occurs twice could not be donated.
    next_row, oldest, inserted = (jnp.int32(0) for _ in range(3))
    unrolls = jnp.zeros(shape, jnp.int32)
    return Book(unrolls, next_row, oldest, inserted, self)

  def add(
    self, book: "Book", origin: types.Tree, size: int
  ) -> tuple["Book", jax.Array]:
    """Adds `size` (S) unrolls.

    Returns:
      The new book, and the `[S, L]` rows to which the time steps are to be
      written; R for a step that is stored already.
    """
    chex.assert_scalar_in(size, 1, self.capacity)
    if isinstance(origin, tuple):
      origin = jnp.full((size, 2), -1)  # No unroll continues another.
    chex.assert_shape(origin, (size, 2), custom_message="origin")
    if self.overlap:
      limit = min(self.late, self.capacity * self.period)
      chex.assert_scalar_in(size * self.length, 1, limit)
      continued = self._continued(book, origin)
      num_new = jnp.where(continued.is_new, self.length, self.period)
      place, next_row = self._new_rows(book, num_new)
      unrolls, place = self._shared(book, continued, origin, place)
      written = self._written(book, continued, place)
      # If this read `book.unrolls`, XLA would copy that array.
      oldest = self._oldest(book, unrolls, next_row, size)
    else:
      entry = (book.inserted + jnp.arange(size)) % self.capacity
      written = self.rows(book, entry[:, None], np.arange(self.length))
      unrolls, next_row = book.unrolls, book.next_row
      forgotten = book.inserted + size - self.capacity
      oldest = jnp.maximum(book.oldest, forgotten)
    book = dataclasses.replace(
      book,
      unrolls=unrolls,
      next_row=next_row,
      oldest=oldest,
      inserted=book.inserted + size,
    )
    return book, written

  def rows(
    self, book: "Book", entry: types.Array, time: types.Array
  ) -> jax.Array:
    """Returns the row of each time step `time` of the unroll at `entry`."""
    if not self.overlap:
      return jnp.asarray(entry) * self.length + time
    return book.unrolls.at[entry, time].get(mode="promise_in_bounds")

  def _entered(
    self, book: "Book", unrolls: jax.Array, origin: jax.Array, place: jax.Array
  ) -> jax.Array:
    entry = (book.inserted + jnp.arange(len(place))) % self.capacity
    return unrolls.at[entry].set(jnp.concatenate([place, origin], axis=1))

  def _new_rows(
    self, book: "Book", num_new: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns rows `[S, L]`, and the row after them.

    Of each unroll, the last `num_new` rows are new. New rows are consecutive.
    """
    ends = book.next_row + jnp.cumsum(num_new)
    place = ends[:, None] + np.arange(-self.length, 0)
    return place % self.num_rows, ends[-1] % self.num_rows

  def _continued(self, book: "Book", origin: jax.Array) -> _Continued:
    """Finds the unrolls that new ones continue, except those too old."""
    size = len(origin)
    own = book.inserted + jnp.arange(size)[:, None]
    if self.in_order:
      number = own - size
      origins = book.unrolls[number % self.capacity, self.length :]
    else:
      # Older unrolls are too old: each unroll adds at least `period` rows.
      count = (self.late - size * self.length) // self.period + 1
      number = book.inserted - 1 - jnp.arange(min(self.capacity, count))
      origins = jnp.concatenate(
        [origin[::-1], book.unrolls[number % self.capacity, self.length :]]
      )[None]
      # From the newest unroll to the oldest.
      number = jnp.concatenate([own[::-1, 0], number])[None]
    before = origin - np.array([0, 1], np.int32)
    is_before = jnp.all(origins == before[:, None], axis=-1)
    # The oldest unroll whose entry no new unroll overwrites.
    kept = jnp.maximum(book.oldest, book.inserted + size - self.capacity)
    is_before &= (number >= kept) & (number < own)
    newest = jnp.argmax(is_before, axis=1)[:, None]
    number = jnp.broadcast_to(number, is_before.shape)
    number = jnp.take_along_axis(number, newest, axis=1)[:, 0]
    first = book.unrolls[number % self.capacity, self.period]
    age = (book.next_row - first) % self.num_rows
    is_near = (age <= self.late - size * self.length) | (
      number >= book.inserted
    )
    return _Continued(number, ~(jnp.any(is_before, axis=1) & is_near))

  def _shared(
    self,
    book: "Book",
    continued: _Continued,
    origin: jax.Array,
    place: jax.Array,
  ) -> tuple[jax.Array, jax.Array]:
    """Replaces the first rows of unrolls by rows of those they continue.

    Returns `Book.unrolls` with the new unrolls, and their rows `[S, L]`.
    """
    unrolls, new = book.unrolls, place[:, self.overlap :]
    # In a share, an unroll may continue one that itself continues another.
    depth = 1 if self.in_order else math.ceil(self.overlap / self.period)
    for _ in range(depth):
      if not self.in_order:
        unrolls = self._entered(book, unrolls, origin, place)
      shared = unrolls[continued.number % self.capacity]
      shared = shared[:, self.period : self.length]
      shared = jnp.concatenate([shared, new], axis=1)
      place = jnp.where(continued.is_new[:, None], place, shared)
    return self._entered(book, unrolls, origin, place), place

  def _written(
    self, book: "Book", continued: _Continued, place: jax.Array
  ) -> jax.Array:
    """Returns the rows to write, `[S, L]`; R for steps that are stored already.

    An unroll also writes the last step of the unroll that it continues, because
    the agent may have acted on it again, with newer parameters.
    """
    size = len(place)
    step = np.arange(self.length)
    begin = jnp.where(continued.is_new, 0, self.overlap - 1)[:, None]
    is_written = step >= begin
    if not self.in_order:
      own = jnp.where(continued.is_new, -1, continued.number - book.inserted)
      is_continued = jnp.any(own == jnp.arange(size)[:, None], axis=1)
      is_last = step == self.length - 1
      is_written &= ~(is_continued[:, None] & is_last)
    return jnp.where(is_written, place, self.num_rows)

  def _oldest(
    self, book: "Book", unrolls: jax.Array, next_row: jax.Array, size: int
  ) -> jax.Array:
    """Returns `Book.oldest` after adding `size` unrolls to `Book.unrolls`."""
    # The largest number of unrolls that one addition can forget.
    count = math.ceil(size * self.length / self.period) + 1
    number = book.oldest + jnp.arange(min(count, self.capacity))
    first = unrolls[number % self.capacity, self.overlap]
    age = (next_row - first) % self.num_rows
    is_gone = age > self.capacity * self.period
    is_gone |= number < book.inserted + size - self.capacity
    return book.oldest + jnp.sum(
      is_gone & (number < book.inserted), dtype=jnp.int32
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Book:
  """The list of unrolls in a ring.

  Attributes:
    unrolls: `[capacity, L + 2]` int32, the row of each time step of an unroll,
      then its origin, see `types.Share`; `[0, L + 2]` if unrolls share no rows.
      Rows and origin share one array to save time, see `on_cpu.packing`.
    next_row: `[]` int32, row of the next new time step; 0 without shared rows.
    oldest: `[]` int32, number of the oldest unroll that is kept.
    inserted: `[]` int32, number of unrolls added so far.
    ring: the ring.
  """

  unrolls: jax.Array
  next_row: jax.Array
  oldest: jax.Array
  inserted: jax.Array
  ring: Ring = dataclasses.field(metadata={"static": True})

  @property
  def rows(self) -> jax.Array:
    """`[capacity, L]` int32, the row of each time step of an unroll."""
    entry = jnp.arange(self.ring.capacity)[:, None]
    return self.ring.rows(self, entry, np.arange(self.ring.length))
