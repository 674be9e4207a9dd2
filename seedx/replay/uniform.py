"""A uniform replay of unrolls, from which windows are drawn.

Frames are stored singly, also where agents see stacks of them: a window brings
the frames before its first step along, and the agent stacks them again. Unrolls
with T new steps hold T + window - 1 of them, so a large T stores little twice.

Flashbax's trajectory buffer is as fast, but each row that is added to it has to
go on where the last one ended. Unrolls of environments that come and go do not.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from seedx import types


class State(NamedTuple):
  """All that a replay holds; a checkpoint saves it.

  Attributes:
    unrolls: a `types.Unroll` of `[capacity, L, ...]`.
    inserted: `[]` int32, unrolls put in so far.
  """

  unrolls: types.Unroll
  inserted: jax.Array


@dataclasses.dataclass(frozen=True)
class Uniform:
  """A ring of unrolls; pure functions over its `State`.

  Unrolls of length L have L - window + 1 windows each. So that each step of an
  environment starts one window, no more and no less, consecutive unrolls share
  `window - 1` steps.

  Attributes:
    capacity: unrolls it holds; the oldest make room for the newest.
    window: W, time steps of a window.
  """

  capacity: int
  window: int

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a size below 1."""
    types.check_ranges(self, capacity=(1, 2**31 - 1), window=(1, 2**31 - 1))

  def init(self, unrolls: types.Unroll) -> State:
    """An empty replay.

    Args:
      unrolls: `[L, S, ...]`, an example.

    Raises:
      types.ConfigError: unrolls are shorter than a window, or more come at a
        time than there is room for.
    """
    length, size = unrolls.version.shape
    if length < self.window or size > self.capacity:
      raise types.ConfigError(
        f"expected unrolls of at least {self.window} time steps, at most"
        f" {self.capacity} at a time, found {size} of {length}"
      )
    shapes = jax.eval_shape(_by_item, unrolls)
    empty = jax.tree.map(
      lambda x: jnp.zeros((self.capacity, *x.shape[1:]), x.dtype), shapes
    )
    return State(empty, jnp.int32(0))

  def add(self, state: State, unrolls: types.Unroll) -> State:
    """Puts `[L, S, ...]` unrolls in the place of the oldest."""
    size = unrolls.version.shape[1]
    entry = self.next_entries(state, size)
    stored = jax.tree.map(
      lambda ring, new: ring.at[entry].set(new),
      state.unrolls,
      _by_item(unrolls),
    )
    return State(stored, state.inserted + size)

  def sample(
    self, state: State, rng_key: jax.Array, batch_size: int
  ) -> types.Sample:
    """Draws windows, each with the same probability, with replacement.

    Args:
      state: with at least one unroll in it.
      rng_key: decides what is drawn.
      batch_size: B.

    Returns:
      A `types.Sample` of `[W, B, ...]`. Its core states are zeros but where a
      window is the beginning of an unroll, whose own they have then.
    """
    entry_key, start_key = jax.random.split(rng_key)
    size = jnp.minimum(state.inserted, self.capacity)
    entry = jax.random.randint(entry_key, (batch_size,), 0, size)
    windows = self.num_windows(state)
    start = jax.random.randint(start_key, (batch_size,), 0, windows)
    return types.Sample(
      unroll=self.windows(state, entry, start),
      importance_weight=jnp.ones(batch_size, jnp.float32),
    )

  def num_windows(self, state: State) -> int:
    """How many windows an unroll has."""
    return state.unrolls.version.shape[1] - self.window + 1

  def next_entries(self, state: State, size: int) -> jax.Array:
    """The entries `[size]` int32 of the ring that the next unrolls go to."""
    return (state.inserted + jnp.arange(size)) % self.capacity

  def windows(
    self, state: State, entry: jax.Array, start: jax.Array
  ) -> types.Unroll:
    """The windows `[W, B, ...]` of unrolls.

    Args:
      state: of the replay.
      entry: `[B]`, which unrolls of the ring.
      start: `[B]`, the first time step of each window.
    """
    time = start + jnp.arange(self.window)[:, None]
    steps = jax.tree.map(
      lambda ring: ring[entry, time], state.unrolls._replace(core_state=())
    )

    def first(ring: jax.Array) -> jax.Array:
      begins = (start == 0).reshape(-1, *(1,) * (ring.ndim - 1))
      return jnp.where(begins, ring[entry], jnp.zeros_like(ring[entry]))

    core_state = jax.tree.map(first, state.unrolls.core_state)
    return steps._replace(core_state=core_state)


def _by_item(unrolls: types.Unroll) -> types.Unroll:
  """`[L, S, ...]` unrolls as `[S, L, ...]`, so that each lies in one piece."""
  steps = jax.tree.map(
    lambda x: jnp.swapaxes(x, 0, 1), unrolls._replace(core_state=())
  )
  return steps._replace(core_state=unrolls.core_state)
