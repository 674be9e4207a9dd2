"""A replay that draws windows in proportion to their priorities.

Schaul et al. 2016, "Prioritized Experience Replay",
https://arxiv.org/abs/1511.05952, section 3.3, the proportional variant; shared
by many actors in Horgan et al. 2018, https://arxiv.org/abs/1803.00933.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from seedx import types
from seedx.replay import sum_tree, uniform

# Added to priorities, so that everything is drawn at times.
_LEAST_PRIORITY = 1e-6


class PrioritizedState(NamedTuple):
  """All that a prioritized replay holds; a checkpoint saves it.

  Attributes:
    ring: the unrolls.
    tree: of priority ** alpha; window w of the unroll at entry p of the ring is
      leaf p * windows + w.
  """

  ring: uniform.State
  tree: sum_tree.Tree


class Windows(NamedTuple):
  """Which windows a sample is of, for its new priorities to find the way back.

  Attributes:
    leaf: `[B]` int32.
    number: `[B]` int32, of the unroll that was there, counted from the first.
  """

  leaf: jax.Array
  number: jax.Array


@dataclasses.dataclass(frozen=True)
class Prioritized:
  """A ring of unrolls; pure functions over its `PrioritizedState`.

      P(i) = p_i^alpha / sum_k p_k^alpha
      w_i  = (N P(i))^-beta / max_j w_j

  where p is the priority of one of N windows, and the largest w is that of the
  sample. See `Uniform` for the ring, and for the windows of its unrolls.

  Attributes:
    capacity: unrolls it holds; the oldest make room for the newest.
    window: W, time steps of a window.
    priority_exponent: alpha.
    importance_exponent: beta.
  """

  capacity: int
  window: int
  priority_exponent: float = 0.6
  importance_exponent: float = 0.4

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_ranges(
      self,
      capacity=(1, 2**31 - 1),
      window=(1, 2**31 - 1),
      priority_exponent=(0.0, 1.0),
      importance_exponent=(0.0, 1.0),
    )

  def init(self, unrolls: types.Unroll) -> PrioritizedState:
    """An empty replay.

    Args:
      unrolls: `[L, S, ...]`, an example.

    Raises:
      types.ConfigError: unrolls are shorter than a window, or more come at a
        time than there is room for, or there are too many windows to count.
    """
    shapes = jax.eval_shape(self._ring.init, unrolls)
    leaves = self.capacity * self._ring.num_windows(shapes)
    if leaves >= sum_tree.NOWHERE:
      raise types.ConfigError(
        f"expected a replay of less than {sum_tree.NOWHERE} windows, found"
        f" {leaves}"
      )
    return PrioritizedState(self._ring.init(unrolls), sum_tree.init(leaves))

  def add(
    self, state: PrioritizedState, unrolls: types.Unroll, priorities: jax.Array
  ) -> PrioritizedState:
    """Puts unrolls in the place of the oldest.

    Args:
      state: of the replay.
      unrolls: `[L, S, ...]`.
      priorities: `[S, L - W + 1]`, 0 or more, of each unroll's windows.

    Raises:
      ValueError: priorities are of another shape.
    """
    windows = self._ring.num_windows(state.ring)
    entry = self._ring.next_entries(state.ring, unrolls.version.shape[1])
    leaf = entry[:, None] * windows + jnp.arange(windows)
    tree = self._set(state.tree, leaf, priorities)
    return PrioritizedState(self._ring.add(state.ring, unrolls), tree)

  def sample(
    self, state: PrioritizedState, rng_key: jax.Array, batch_size: int
  ) -> tuple[types.Sample, Windows]:
    """Draws windows in proportion to their priorities ** alpha.

    All priorities are divided into B equal parts, and there is a draw in each,
    so that a window is drawn about as often as expected; with replacement.

    Args:
      state: with at least one unroll in it.
      rng_key: decides what is drawn.
      batch_size: B.

    Returns:
      A `types.Sample` of `[W, B, ...]`, see `Uniform.sample`; and which
      windows these are.
    """
    part = sum_tree.total(state.tree) / batch_size
    leaf = sum_tree.find(
      state.tree,
      start=jnp.arange(batch_size) * part,
      offset=jax.random.uniform(rng_key, (batch_size,)) * part,
    )
    windows = self._ring.num_windows(state.ring)
    entry, start = leaf // windows, leaf % windows
    mass = state.tree[0][leaf]
    sample = types.Sample(
      unroll=self._ring.windows(state.ring, entry, start),
      # N and the total are in every weight, and so in none that is returned.
      importance_weight=(jnp.min(mass) / mass) ** self.importance_exponent,
    )
    return sample, Windows(leaf, self._number(state.ring, entry))

  def update(
    self, state: PrioritizedState, windows: Windows, priorities: jax.Array
  ) -> PrioritizedState:
    """Gives windows new priorities.

    Args:
      state: of the replay.
      windows: `[B]`, of a sample.
      priorities: `[B]`, 0 or more; ignored where another unroll has taken the
        entry since. A window that comes twice gets either of its priorities.

    Raises:
      ValueError: priorities are of another shape.
    """
    entry = windows.leaf // self._ring.num_windows(state.ring)
    there = self._number(state.ring, entry) == windows.number
    leaf = jnp.where(there, windows.leaf, sum_tree.NOWHERE)
    return state._replace(tree=self._set(state.tree, leaf, priorities))

  @property
  def _ring(self) -> uniform.Uniform:
    return uniform.Uniform(self.capacity, self.window)

  def _number(self, ring: uniform.State, entry: jax.Array) -> jax.Array:
    """The number of the unroll that is at an entry, counted from the first."""
    newest = ring.inserted - 1
    return newest - (newest - entry) % self.capacity

  def _set(
    self, tree: sum_tree.Tree, leaf: jax.Array, priorities: jax.Array
  ) -> sum_tree.Tree:
    if priorities.shape != leaf.shape:
      raise ValueError(
        f"expected priorities of shape {leaf.shape}, found {priorities.shape}"
      )
    mass = (priorities + _LEAST_PRIORITY) ** self.priority_exponent
    return sum_tree.set_leaves(
      tree, leaf.reshape(-1), mass.reshape(-1).astype(jnp.float32)
    )
