"""A uniform replay: stores unrolls, samples windows of them.

Frames are stored one by one, even for agents that see stacks: a window begins
with the frames before its first transition, and the agent stacks them again.
Unless a window is a whole unroll, an unroll with T new steps stores
T + window - 1 steps, so with a large T few steps are stored twice.
"""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedx import types
from seedx.on_cpu import packing


class State(NamedTuple):
  """The state of a replay.

  Attributes:
    steps: `[capacity, L, ...]`, steps of the unrolls.
    core_state: `[capacity, ...]`, core states before the unrolls.
    inserted: `[]` int32, number of unrolls added so far.
  """

  steps: packing.Packed
  core_state: types.Tree
  inserted: jax.Array

  @property
  def unrolls(self) -> types.Unroll:
    """All entries, `[capacity, L, ...]`; zeros where no unroll was added."""
    return packing.unpack(self.steps)._replace(core_state=self.core_state)


@dataclasses.dataclass(frozen=True)
class Uniform:
  """A ring of unrolls; pure functions over its `State`.

  An unroll of length L has L - window + 1 windows. If L > window, consecutive
  unrolls share `window - 1` steps, so that each step of an environment starts
  exactly one window.

  Attributes:
    capacity: capacity in unrolls; new ones overwrite the oldest.
    window: W, time steps of a window.
  """

  capacity: int
  window: int

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_range("capacity", self.capacity, 1, 2**31 - 1)
    types.check_range("window", self.window, 1, 2**31 - 1)

  def init(self, example: types.Share) -> State:
    """Returns the state of an empty replay; see `config.Replay`.

    Raises:
      types.ConfigError: an unroll is shorter than a window, or S is larger than
        the capacity.
    """
    length, size = example.data.version.shape
    if length < self.window or size > self.capacity:
      raise types.ConfigError(
        f"expected unrolls of at least {self.window} time steps, at most"
        f" {self.capacity} at a time, found {size} of {length}"
      )
    shapes = jax.eval_shape(_packed, example.data)
    steps, core_state = jax.tree.map(
      lambda x: jnp.zeros((self.capacity, *x.shape[1:]), x.dtype), shapes
    )
    return State(steps, core_state, jnp.int32(0))

  def add(self, state: State, share: types.Share) -> State:
    """Adds unrolls `[L, S, ...]`, which overwrite the oldest ones.

    Raises:
      AssertionError: axes other than S differ from the example of `init`.
    """
    size = share.data.version.shape[1]
    entry = self.next_entries(state, size)

    def write(ring: jax.Array, new: jax.Array) -> jax.Array:
      chex.assert_shape(new, (size, *ring.shape[1:]), custom_message="unrolls")
      return ring.at[entry].set(new)

    steps, core_state = jax.tree.map(
      write, (state.steps, state.core_state), _packed(share.data)
    )
    return State(steps, core_state, state.inserted + size)

  def sample(
    self, state: State, rng_key: jax.Array, size: int, done: types.Array = 0.0
  ) -> tuple[types.Sample, tuple[()]]:
    """Samples windows uniformly, with replacement; see `config.Replay`.

    A window at the start of an unroll has the unroll's core state; all other
    windows have zeros.
    """
    del done
    entry_key, start_key = jax.random.split(rng_key)
    filled = jnp.minimum(state.inserted, self.capacity)
    entry = jax.random.randint(entry_key, (size,), 0, filled)
    num_windows = self.num_windows(state)
    start = jax.random.randint(start_key, (size,), 0, num_windows)
    sample = types.Sample(
      unroll=self.windows(state, entry, start),
      importance_weight=jnp.ones(size, jnp.float32),
    )
    return sample, ()

  def update(
    self, state: State, windows: tuple[()], priorities: jax.Array | None
  ) -> State:
    """Returns the state unchanged: there are no priorities."""
    del windows, priorities
    return state

  def measure(self, state: State) -> dict[str, jax.Array]:
    """Returns no counts."""
    del state
    return {}

  def num_windows(self, state: State) -> int:
    """Returns the number of windows in an unroll."""
    return state.steps.words.shape[1] - self.window + 1

  def next_entries(self, state: State, size: int) -> jax.Array:
    """Returns the ring's entries `[size]` int32 for the next unrolls."""
    return (state.inserted + jnp.arange(size)) % self.capacity

  def windows(
    self, state: State, entry: jax.Array, start: jax.Array
  ) -> types.Unroll:
    """Reads windows `[W, B, ...]`.

    Args:
      state: state of the replay.
      entry: `[B]`, the ring's entry of each window's unroll.
      start: `[B]`, the first time step of each window.
    """
    chex.assert_rank([entry, start], 1, custom_message="entry, start")
    chex.assert_type([entry, start], int, custom_message="entry, start")
    time = start + jnp.arange(self.window)[:, None]
    steps = jax.tree.map(
      lambda ring: ring.at[entry, time].get(mode="promise_in_bounds"),
      state.steps,
    )

    def core_states(ring: jax.Array) -> jax.Array:
      is_first = (start == 0).reshape(-1, *(1,) * (ring.ndim - 1))
      return jnp.where(is_first, ring[entry], jnp.zeros_like(ring[entry]))

    core_state = jax.tree.map(core_states, state.core_state)
    return packing.unpack(steps)._replace(core_state=core_state)


def _packed(unrolls: types.Unroll) -> tuple[packing.Packed, types.Tree]:
  """Returns the steps as `[S, L, ...]`, and the core states."""
  # Each unroll is then contiguous in memory.
  steps = packing.pack(unrolls._replace(core_state=()), row_axes=2)
  return (
    jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps),
    unrolls.core_state,
  )
