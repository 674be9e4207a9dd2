"""A sum tree: samples leaves in proportion to their values.

A tree is a tuple of levels, the leaves first. Each node is the sum of a block
of `RADIX` nodes of the level below. A change recomputes the sums above it from
their blocks, so that rounding errors do not accumulate. All functions are pure.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

# Wider blocks make fewer levels, but `find` reads a whole block of each level:
# on CPU, with blocks of 128, it takes six times as long.
RADIX = 16
# Up to this number of nodes, summing a whole level is faster than summing the
# blocks that have changed.
_MAX_WHOLE = 2**16
# An index that stands for no leaf.
NOWHERE = 2**31 - 1

Tree = tuple[jax.Array, ...]


def init(num_leaves: int) -> Tree:
  """Returns a tree of zeros, whose levels are padded to whole blocks."""
  levels: list[jax.Array] = []
  size = num_leaves
  while not levels or len(levels[-1]) > RADIX:
    blocks = -(-size // RADIX)
    levels.append(jnp.zeros(blocks * RADIX, jnp.float32))
    size = blocks
  return tuple(levels)


def set_leaves(tree: Tree, leaf: jax.Array, value: jax.Array) -> Tree:
  """Sets leaves, and updates the sums above them.

  Args:
    tree: sum tree.
    leaf: `[B]` int32, leaves; `NOWHERE` sets none. A leaf that occurs twice
      gets one of its values, with which the sums agree.
    value: `[B]` float32, 0 or more.
  """
  chex.assert_rank([leaf, value], 1, custom_message="leaf, value")
  chex.assert_type([leaf, value], [int, float], custom_message="leaf, value")
  chex.assert_equal_shape([leaf, value], custom_message="leaf, value")
  level = tree[0].at[leaf].set(value, mode="drop")
  levels = [level]
  for upper in tree[1:]:
    if len(level) <= _MAX_WHOLE:
      sums = _sums(level.reshape(-1, RADIX))
      level = jnp.pad(sums, (0, len(upper) - len(sums)))
    else:
      # NOWHERE's parent is beyond the end too, or its sum does not change.
      leaf = leaf // RADIX
      block = level.reshape(-1, RADIX).at[leaf].get(mode="fill", fill_value=0)
      level = upper.at[leaf].set(_sums(block), mode="drop")
    levels.append(level)
  return tuple(levels)


def total(tree: Tree) -> jax.Array:
  """Returns the sum of all leaves, `[]`."""
  return jnp.sum(tree[-1])


def find(tree: Tree, start: jax.Array, offset: jax.Array) -> jax.Array:
  """Returns the first leaf at which the cumulative sum exceeds an amount.

  The amount is `start + offset`. These two are separate because their float32
  sum would be too coarse to distinguish small leaves.

  Args:
    tree: sum tree with at least one leaf above 0.
    start: `[B]`, 0 or more.
    offset: `[B]`, 0 or more; `start + offset` is less than `total`.

  Returns:
    Leaves `[B]` int32, which are above 0 despite rounding errors.
  """
  chex.assert_rank([start, offset], 1, custom_message="start, offset")
  chex.assert_equal_shape([start, offset], custom_message="start, offset")
  # Without the barrier, XLA draws the random amounts again at each level.
  start, offset = jax.lax.optimization_barrier((start, offset))
  node = jnp.zeros(1, jnp.int32)  # The top level is one block.
  place = np.arange(RADIX)
  for level in reversed(tree):
    block = level.reshape(-1, RADIX).at[node].get(mode="promise_in_bounds")
    ends = _times(block, np.triu(np.ones((RADIX, RADIX), np.float32)))
    beyond = ends - start[:, None] > offset[:, None]
    # The first node whose end exceeds the amount; if none, the last above 0.
    rank = jnp.where(beyond, 2 * RADIX - place, place)
    chosen = jnp.argmax(jnp.where(block > 0, rank, 0), axis=-1)
    before = jnp.take_along_axis(ends - block, chosen[:, None], axis=-1)
    start = start - before[:, 0]
    node = node * RADIX + chosen
  return node


def _sums(blocks: jax.Array) -> jax.Array:
  return _times(blocks, np.ones(RADIX, np.float32))


def _times(blocks: jax.Array, matrix: np.ndarray) -> jax.Array:
  # On CPU this makes a replay 20% faster than jnp.sum and jnp.cumsum do.
  return jnp.matmul(blocks, matrix, precision=jax.lax.Precision.HIGHEST)
