"""Prioritized replay: samples windows in proportion to their priorities.

Schaul et al. 2016, "Prioritized Experience Replay",
https://arxiv.org/abs/1511.05952, section 3.3, the proportional variant; with
many actors: Horgan et al. 2018, https://arxiv.org/abs/1803.00933.
"""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedx import types
from seedx.replay import sum_tree, uniform

# Added to priorities, so that every window can be sampled.
_MIN_PRIORITY = 1e-6
# The sum of 2^31 such priorities is finite in float32.
_MAX_PRIORITY = 1e29


class PrioritizedState(NamedTuple):
  """The state of a prioritized replay.

  Attributes:
    ring: ring of unrolls.
    tree: sum tree of (priority + 1e-6) ** alpha; window w of the unroll at
      entry e of the ring is leaf e * num_windows + w.
    clamped: `[]` int32, number of priorities so far that were NaN, negative or
      above 1e29; they were replaced by 0.
  """

  ring: uniform.State
  tree: sum_tree.Tree
  clamped: jax.Array


class Windows(NamedTuple):
  """The windows of a sample, for `Prioritized.update`.

  Attributes:
    leaf: `[B]` int32, leaves of the sum tree.
    newest: `[]` int32, number of the newest unroll when the sample was drawn;
      unrolls are numbered from 0 in the order in which they were added.
  """

  leaf: jax.Array
  newest: jax.Array


@dataclasses.dataclass(frozen=True)
class Prioritized(uniform.Replay):
  """A ring of unrolls; pure functions over its `PrioritizedState`.

      P(i) = p_i^alpha / sum_k p_k^alpha
      w_i  = (N P(i))^-beta / max_j w_j

  where p_i is the priority of window i of N, plus 1e-6. The maximum is over the
  sampled windows whose priority is above 1e-6, and so not over resets, whose
  priority is 0. Weights are at most 1. `Uniform` describes the ring and its
  windows.

  Attributes:
    capacity: capacity in unrolls; new ones overwrite the oldest.
    window: W, time steps of a window.
    period: see `Uniform`.
    streams: see `Uniform`.
    priority_exponent: alpha.
    importance_exponent: beta at the start of the run.
    importance_exponent_rise: linear increase of beta over the run, up to a beta
      of 1.
  """

  capacity: int
  window: int
  period: int | None = None
  streams: int = 0
  priority_exponent: float = types.setting(0.6, low=0.0, high=1.0)
  importance_exponent: float = types.setting(0.4, low=0.0, high=1.0)
  importance_exponent_rise: float = types.setting(0.0, low=0.0, high=1.0)

  def __post_init__(self) -> None:
    types.check_settings(self)
    _ = self._ring  # Checks the sizes.

  def init(self, example: types.Share) -> PrioritizedState:
    """Returns the state of an empty replay; see `uniform.Replay`.

    Raises:
      types.ConfigError: an unroll is shorter than a window, S is larger than
        the capacity, the replay has too many time steps or windows for int32,
        or there are no priorities.
    """
    uniform.check_share(example)
    if isinstance(example.priorities, tuple):
      raise types.ConfigError(
        "expected priorities with the unrolls for a prioritized replay, found"
        " none"
      )
    length = example.data.version.shape[0]
    leaves = self.capacity * (length - self.window + 1)
    if leaves >= sum_tree.NOWHERE:
      raise types.ConfigError(
        f"expected a replay of fewer than {sum_tree.NOWHERE} windows, found"
        f" {leaves}"
      )
    return PrioritizedState(
      self._ring.init(example), sum_tree.init(leaves), jnp.int32(0)
    )

  def add(
    self, state: PrioritizedState, share: types.Share
  ) -> PrioritizedState:
    """Adds unrolls, which overwrite the oldest ones.

    Priorities are `[S, L - W + 1]`, one for each window of an unroll, from 0 to
    1e29. Other numbers are replaced by 0, and counted.

    Raises:
      AssertionError: priorities have another shape or are not floats, or
        unrolls have other shapes than the example of `init`.
    """
    uniform.check_share(share)
    num_windows = self._ring.num_windows(state.ring)
    entry = self._ring.next_entries(state.ring, share.data.version.shape[1])
    leaf = entry[:, None] * num_windows + jnp.arange(num_windows)
    ring = self._ring.add(state.ring, share)
    state = self._forget(state._replace(ring=ring), state.ring.book.oldest)
    return self._set(state, leaf, share.priorities)

  def sample(
    self,
    state: PrioritizedState,
    rng_key: jax.Array,
    size: int,
    done: types.Array = 0.0,
  ) -> tuple[types.Sample, Windows]:
    """Samples windows in proportion to priority ** alpha.

    Sampling is stratified: the sum of priority ** alpha is divided into B equal
    ranges, with one draw from each. See `uniform.Replay`.
    """
    width = sum_tree.total(state.tree) / size
    leaf = sum_tree.find(
      state.tree,
      start=jnp.arange(size) * width,
      offset=jax.random.uniform(rng_key, (size,)) * width,
    )
    num_windows = self._ring.num_windows(state.ring)
    entry, start = leaf // num_windows, leaf % num_windows
    mass = state.tree[0].at[leaf].get(mode="promise_in_bounds")
    rise = self.importance_exponent_rise * done
    beta = jnp.minimum(self.importance_exponent + rise, 1.0)
    sample = types.Sample(
      unroll=self._ring.windows(state.ring, entry, start),
      importance_weight=self._weights(mass) ** beta,
    )
    return sample, Windows(leaf, state.ring.inserted - 1)

  def update(
    self, state: PrioritizedState, windows: Windows, priorities: jax.Array
  ) -> PrioritizedState:
    """Sets the priorities `[B]` of the windows of a sample; see `add`.

    A window whose unroll has been overwritten is ignored. A window that occurs
    twice gets one of its priorities.

    Raises:
      AssertionError: priorities have another shape or are not floats.
    """
    entry = windows.leaf // self._ring.num_windows(state.ring)
    # The numbers of the unrolls at these entries, now and then.
    now, then = (
      newest - (newest - entry) % self.capacity
      for newest in (state.ring.inserted - 1, windows.newest)
    )
    is_kept = (now == then) & (then >= state.ring.book.oldest)
    leaf = jnp.where(is_kept, windows.leaf, sum_tree.NOWHERE)
    return self._set(state, leaf, priorities)

  def measure(self, state: PrioritizedState) -> dict[str, jax.Array]:
    """Returns the number of priorities that were replaced by 0, see `add`."""
    return {"priorities_clamped": state.clamped}

  @property
  def _ring(self) -> uniform.Uniform:
    return uniform.Uniform(
      self.capacity, self.window, self.period, self.streams
    )

  def _forget(
    self, state: PrioritizedState, oldest: jax.Array
  ) -> PrioritizedState:
    """Sets the leaves of forgotten unrolls to 0, from number `oldest` on.

    Does nothing while all unrolls share rows, because then each new unroll
    takes the entry of a forgotten one.
    """
    ring, num_windows = state.ring, self._ring.num_windows(state.ring)
    if not ring.book.ring.overlap:
      return state
    zeros = jnp.zeros(num_windows, jnp.float32)

    def forget(number: jax.Array, tree: sum_tree.Tree) -> sum_tree.Tree:
      leaf = number % self.capacity * num_windows + jnp.arange(num_windows)
      return sum_tree.set_leaves(tree, leaf, zeros)

    first = jnp.maximum(oldest, ring.inserted - self.capacity)
    tree = jax.lax.fori_loop(first, ring.book.oldest, forget, state.tree)
    return state._replace(tree=tree)

  def _weights(self, mass: jax.Array) -> jax.Array:
    """Returns importance weights `[B]` for beta = 1 from priority ** alpha."""
    # N and the sum of all priorities cancel in w_i / max_j w_j.
    has_priority = mass > (2 * _MIN_PRIORITY) ** self.priority_exponent
    minimum = jnp.min(jnp.where(has_priority, mass, jnp.inf))
    return jnp.minimum(minimum / mass, 1.0)

  def _set(
    self, state: PrioritizedState, leaf: jax.Array, priorities: jax.Array
  ) -> PrioritizedState:
    chex.assert_type(priorities, float, custom_message="priorities")
    chex.assert_shape(priorities, leaf.shape, custom_message="priorities")
    # NaN is not valid: it compares as False.
    valid = (priorities >= 0) & (priorities <= _MAX_PRIORITY)
    priorities = jnp.where(valid, priorities, 0.0)
    mass = (priorities + _MIN_PRIORITY) ** self.priority_exponent
    tree = sum_tree.set_leaves(
      state.tree, leaf.reshape(-1), mass.reshape(-1).astype(jnp.float32)
    )
    clamped = state.clamped + jnp.sum(~valid, dtype=jnp.int32)
    return state._replace(tree=tree, clamped=clamped)
