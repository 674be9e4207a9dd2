"""The interface of replays, and a uniform replay.

The uniform replay stores each time step once and samples windows.

Consecutive unrolls have steps in common, because a window begins at each step
of an environment, or because sequences overlap. The unrolls share the rows of
these steps in the replay. Frames are stored one by one, even for agents that
see stacks of frames. A window begins with the frames before its first
transition, and the agent stacks them again.

Flashbax's trajectory buffer is as fast, but each row that is added to it must
continue the last one. Unrolls do not, when environments come and go.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from seedx import types
from seedx.on_cpu import packing
from seedx.replay import rows


class Replay(Protocol):
  """A replay of one learner core: pure functions over its state.

  The `data` of a `types.Share` are unrolls.
  """

  def init(self, example: types.Share) -> types.Tree:
    """Returns the state of an empty replay, for shares like the example."""

  def add(self, state: Any, share: types.Share) -> types.Tree:
    """Adds a share's unrolls, which overwrite the oldest ones."""

  def sample(
    self, state: Any, rng_key: jax.Array, size: int, done: jax.Array
  ) -> tuple[types.Sample, types.Tree]:
    """Samples windows of W time steps, with replacement.

    Args:
      state: state of a replay with at least one unroll.
      rng_key: random key.
      size: B, number of windows.
      done: `[]` float32, fraction of the run's updates that are done, from 0
        to 1; for schedules.

    Returns:
      A `types.Sample` of `[W, B, ...]`, and a nest by which `update` finds its
      windows, or ().
    """

  def update(self, state: Any, windows: Any, priorities: Any) -> types.Tree:
    """Sets the priorities `[B]` of a sample's windows, if a replay has any."""
    del windows, priorities
    return state

  def measure(self, state: Any) -> dict[str, jax.Array]:
    """Returns counts `[]` by name, to be summed over cores."""
    del state
    return {}

  def recorded(self) -> types.Tree:
    """Returns what a state has beside what is kept; () for nothing."""
    return ()

  def kept(self, state: Any) -> types.Tree:
    """Returns what a checkpoint stores of a state, not recorded experience."""
    return state

  def with_kept(self, state: Any, kept: Any) -> types.Tree:
    """Returns an initial state with what a checkpoint has stored."""
    del state
    return kept


class State(NamedTuple):
  """The state of a replay.

  Attributes:
    steps: `[R, ...]`, ring of time steps.
    book: the rows of the unrolls in the ring.
    core_state: `[capacity, ...]`, core states before the unrolls.
  """

  steps: packing.PackedNest
  book: rows.Book
  core_state: types.Tree

  @property
  def inserted(self) -> jax.Array:
    """`[]` int32, number of unrolls added so far."""
    return self.book.inserted

  @property
  def unrolls(self) -> types.Unroll:
    """All entries, `[capacity, L, ...]`; arbitrary where no unroll is kept."""
    steps = jax.tree.map(lambda ring: ring[self.book.rows], self.steps)
    return packing.unpack(steps)._replace(core_state=self.core_state)


@dataclasses.dataclass(frozen=True)
class Uniform(Replay):
  """A ring of unrolls; pure functions over its `State`.

  An unroll of length L has L - window + 1 windows. With a `period` T, unroll
  k + 1 of an environment begins T steps after unroll k, and shares the rows of
  L - T steps with it. If the replay lacks unroll k, unroll k + 1 is stored as a
  whole: the environment's first unroll, and the first one after a gap. While
  many unrolls are stored as a whole, there is room for fewer than `capacity`.

  Attributes:
    capacity: capacity in unrolls; new ones overwrite the oldest.
    window: W, time steps of a window.
    period: T; None to store all unrolls as a whole.
    streams: number of environments whose unrolls arrive in any order; 0 if each
      share has one unroll of each environment, in the same order.
  """

  capacity: int
  window: int
  period: int | None = None
  streams: int = 0

  def __post_init__(self) -> None:
    types.check_range("capacity", self.capacity, 1, 2**31 - 1)
    types.check_range("window", self.window, 1, 2**31 - 1)

  def init(self, example: types.Share) -> State:
    """Returns the state of an empty replay; see `Replay`.

    Raises:
      types.ConfigError: an unroll is shorter than a window, S is larger than
        the capacity, or the replay has more than 2^30 time steps.
    """
    check_share(example)
    length, size = example.data.version.shape
    if length < self.window or size > self.capacity:
      raise types.ConfigError(
        f"expected unrolls of at least {self.window} time steps, at most"
        f" {self.capacity} at a time, found {size} of {length} time steps"
      )
    ring = self._ring(example)
    if ring.num_rows > 2**30:
      raise types.ConfigError(
        f"expected a replay of at most {2**30} time steps, found"
        f" {ring.num_rows}"
      )
    steps, core_state = jax.eval_shape(_packed, example.data)
    return State(
      steps=jax.tree.map(
        lambda x: jnp.zeros((ring.num_rows, *x.shape[2:]), x.dtype), steps
      ),
      book=ring.init(),
      core_state=jax.tree.map(
        lambda x: jnp.zeros((self.capacity, *x.shape[1:]), x.dtype), core_state
      ),
    )

  def add(self, state: State, share: types.Share) -> State:
    """Adds unrolls `[L, S, ...]`, which overwrite the oldest ones.

    Raises:
      AssertionError: axes other than S differ from the example of `init`, or S
        is several times the example's.
    """
    check_share(share)
    size = share.data.version.shape[1]
    entry = self.next_entries(state, size)
    book, row = state.book.ring.add(state.book, share.origin, size)
    steps, core_state = _packed(share.data)

    def write(ring: jax.Array, new: jax.Array, index: jax.Array) -> jax.Array:
      shape = *index.shape, *ring.shape[1:]
      chex.assert_shape(new, shape, custom_message="unrolls")
      return ring.at[index].set(new, mode="drop")

    return State(
      jax.tree.map(lambda x, y: write(x, y, row.T), state.steps, steps),
      book,
      jax.tree.map(
        lambda x, y: write(x, y, entry), state.core_state, core_state
      ),
    )

  def sample(
    self, state: State, rng_key: jax.Array, size: int, done: types.Array = 0.0
  ) -> tuple[types.Sample, tuple[()]]:
    """Samples windows uniformly, with replacement; see `Replay`.

    A window at the start of an unroll has the unroll's core state; all other
    windows have zeros.
    """
    del done
    entry_key, start_key = jax.random.split(rng_key)
    oldest = state.book.oldest
    kept = state.inserted - oldest
    number = oldest + jax.random.randint(entry_key, (size,), 0, kept)
    num_windows = self.num_windows(state)
    start = jax.random.randint(start_key, (size,), 0, num_windows)
    sample = types.Sample(
      unroll=self.windows(state, number % self.capacity, start),
      importance_weight=jnp.ones(size, jnp.float32),
    )
    return sample, ()

  def num_windows(self, state: State) -> int:
    """Returns the number of windows in an unroll."""
    return state.book.ring.length - self.window + 1

  def next_entries(self, state: State, size: int) -> jax.Array:
    """Returns the ring's entries `[size]` int32 for the next unrolls."""
    return (state.inserted + jnp.arange(size)) % self.capacity

  def windows(
    self, state: State, entry: jax.Array, start: jax.Array
  ) -> types.Unroll:
    """Reads windows `[W, B, ...]`.

    Args:
      state: state of the replay.
      entry: `[B]`, the entry of each window's unroll.
      start: `[B]`, the first time step of each window.
    """
    chex.assert_rank([entry, start], 1, custom_message="entry, start")
    chex.assert_type([entry, start], int, custom_message="entry, start")
    time = start + jnp.arange(self.window)[:, None]
    row = state.book.ring.rows(state.book, entry, time)
    steps = jax.tree.map(
      lambda ring: ring.at[row].get(mode="promise_in_bounds"), state.steps
    )

    def core_states(ring: jax.Array) -> jax.Array:
      is_first = (start == 0).reshape(-1, *(1,) * (ring.ndim - 1))
      return jnp.where(is_first, ring[entry], jnp.zeros_like(ring[entry]))

    core_state = jax.tree.map(core_states, state.core_state)
    return packing.unpack(steps)._replace(core_state=core_state)

  def _ring(self, example: types.Share) -> rows.Ring:
    return rows.Ring.of(example, self.capacity, self.period, self.streams)


def check_share(share: types.Share) -> None:
  """Raises TypeError for anything but a share of unrolls, such as a dict."""
  data = getattr(share, "data", share)
  if not isinstance(data, types.Unroll):
    raise TypeError(
      "expected types.Share of a types.Unroll, found"
      f" {type(data).__name__}; Flashbax has replays of single transitions"
    )


def _packed(unrolls: types.Unroll) -> tuple[packing.PackedNest, types.Tree]:
  """Returns the steps `[L, S, ...]`, packed, and the core states."""
  steps = packing.pack(unrolls._replace(core_state=()), row_axes=2)
  return steps, unrolls.core_state
