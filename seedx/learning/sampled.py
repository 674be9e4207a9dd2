"""A buffer of the newest batches, from which updates draw unrolls."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.learning import experience


@dataclasses.dataclass(frozen=True)
class Config:
  """Settings of the buffer.

  Attributes:
    reuse: mean number of updates that learn from an unroll. With 1, each batch
      is learned from once, as it arrives, and there is no buffer.
    buffer_batches: number of the newest batches in the buffer.
  """

  reuse: int = types.setting(1, low=1, high=2**10)
  buffer_batches: int = types.setting(4, low=1, high=2**16)

  def __post_init__(self) -> None:
    types.check_settings(self)

  def source(
    self,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    once: experience.Experience,
  ) -> experience.Experience:
    """Returns a source with the buffer; without reuse, `once` itself.

    Args:
      cores: the learner devices.
      rng_key: random key of the draws.
      once: source of batches that are learned from once.
    """
    return once if self.reuse == 1 else SampledSource(self, cores, rng_key)


class SampledSource(experience.Experience):
  """Batches that are drawn from the newest batches, on each core.

  For each new batch, there are `reuse` updates. Unroll k of a batch is drawn
  from the unrolls k of all batches in the buffer, with equal probabilities.

  Berner et al. 2019, "Dota 2 with Large Scale Deep Reinforcement Learning",
  https://arxiv.org/abs/1912.06680, section 4.1 and figure 5.
  """

  def __init__(
    self, config: Config, cores: Sequence[jax.Device], rng_key: jax.Array
  ) -> None:
    """Makes an empty buffer, which the first shares allocate."""
    self._config = config
    self._rings: list[types.Tree] = []
    self._keys = [
      jax.device_put(jax.random.fold_in(rng_key, i), core)
      for i, core in enumerate(cores)
    ]
    self._num_added = self._num_drawn = 0
    self._add = jax.jit(_add, donate_argnums=0)
    self._draw = jax.jit(_draw)

  def __call__(
    self, shares: Sequence[types.Share]
  ) -> Iterator[experience.Batch]:
    """Adds a batch, and yields `reuse` batches."""
    self._begin(shares)
    index = np.int32(self._num_added % self._config.buffer_batches)
    self._num_added += 1
    self._rings = [
      self._add(ring, share.data, index)
      for ring, share in zip(self._rings, shares, strict=True)
    ]
    for _ in range(self._config.reuse):
      yield self._batch()
      self._num_drawn += 1

  def example(self, shares: Sequence[types.Share]) -> experience.Batch:
    """Returns a batch to compile with; the first call allocates the buffer."""
    self._begin(shares)
    return self._batch()

  def resume(self, updates: int, resets: float) -> None:
    """Continues the random numbers; the buffer starts empty."""
    self._num_drawn = updates

  def _begin(self, shares: Sequence[types.Share]) -> None:
    def empty(leaf: jax.Array) -> jax.Array:
      shape = self._config.buffer_batches, *leaf.shape
      return jnp.zeros(shape, leaf.dtype, device=leaf.device)

    if not self._rings:
      self._rings = [jax.tree.map(empty, share.data) for share in shares]

  def _batch(self) -> experience.Batch:
    size = min(max(1, self._num_added), self._config.buffer_batches)
    numbers = np.int32(self._num_drawn), np.int32(size)
    pairs = zip(self._rings, self._keys, strict=True)
    return experience.Batch([self._draw(*pair, *numbers) for pair in pairs])


def _add(ring: types.Tree, batch: types.Tree, index: jax.Array) -> types.Tree:
  return jax.tree.map(lambda x, y: x.at[index].set(y), ring, batch)


def _draw(
  ring: types.Unroll, rng_key: jax.Array, number: jax.Array, size: jax.Array
) -> types.Unroll:
  """Draws each unroll of a batch from one of the first `size` batches."""
  key = jax.random.fold_in(rng_key, number)
  batch = jax.random.randint(key, (ring.version.shape[-1],), 0, size)

  def draw(ring: types.Unroll, batch: jax.Array) -> types.Unroll:
    return jax.tree.map(lambda leaf: leaf[batch], ring)

  steps = ring._replace(core_state=())
  drawn = jax.vmap(draw, (2, 0), 1)(steps, batch)
  core_state = jax.vmap(draw, (1, 0))(ring.core_state, batch)
  return drawn._replace(core_state=core_state)
