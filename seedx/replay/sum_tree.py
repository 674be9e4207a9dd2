"""A sum tree: samples leaves in proportion to their values.

A tree is a tuple of levels, the leaves first. Each node is the sum of a block
of `RADIX` nodes of the level below. A change recomputes the sums above it from
their blocks, so rounding errors do not accumulate. All functions are pure.

A million leaves have five levels. Wider blocks make fewer levels, but `find`
reads one whole block of each level: on a CPU, with blocks of 128, `find` takes
six times as long and `set_leaves` no less.
"""

import jax
import jax.numpy as jnp

RADIX = 16
# As the index of a leaf: no leaf.
NOWHERE = 2**31 - 1

Tree = tuple[jax.Array, ...]


def init(num_leaves: int) -> Tree:
  """A tree of zeros; each level is padded to whole blocks."""
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
    tree: of any size.
    leaf: `[B]` int32; `NOWHERE` sets none. A leaf that occurs twice gets one of
      its values, and the sums agree with it.
    value: `[B]` float32, 0 or more.

  Returns:
    The changed tree.
  """
  level = tree[0].at[leaf].set(value, mode="drop")
  levels = [level]
  for upper in tree[1:]:
    # NOWHERE's parent is beyond the end too, or a sum that comes out unchanged.
    leaf = leaf // RADIX
    block = level.reshape(-1, RADIX).at[leaf].get(mode="fill", fill_value=0)
    level = upper.at[leaf].set(jnp.sum(block, axis=-1), mode="drop")
    levels.append(level)
  return tuple(levels)


def total(tree: Tree) -> jax.Array:
  """The sum of all leaves, `[]`."""
  return jnp.sum(tree[-1])


def find(tree: Tree, start: jax.Array, offset: jax.Array) -> jax.Array:
  """Inverts the cumulative sum: the leaf at which it first exceeds an amount.

  The amount is given as `start + offset`, because the sum of the two would be
  too coarse to tell small leaves apart: between half the total and the total,
  float32 has 2^23 numbers, 16 for each of a million equal leaves.

  Args:
    tree: at least one leaf is above 0.
    start: `[B]`, 0 or more.
    offset: `[B]`, 0 or more; `start + offset` is less than `total`.

  Returns:
    `[B]` int32, leaves above 0, whatever the rounding errors.
  """
  node = jnp.zeros(start.shape, jnp.int32)
  inside = jnp.arange(RADIX)
  # On CPUs this matrix product takes half as long as jnp.cumsum.
  up_to = jnp.triu(jnp.ones((RADIX, RADIX), jnp.float32))
  for level in reversed(tree):
    block = level.reshape(-1, RADIX)[node]
    ends = jnp.matmul(block, up_to, precision=jax.lax.Precision.HIGHEST)
    beyond = ends - start[:, None] > offset[:, None]
    # The first node that ends beyond the amount; if none, the last above 0.
    rank = jnp.where(beyond, 2 * RADIX - inside, inside)
    chosen = jnp.argmax(jnp.where(block > 0, rank, -1), axis=-1)[:, None]
    before = jnp.take_along_axis(ends - block, chosen, axis=-1)
    start = start - before[:, 0]
    node = node * RADIX + chosen[:, 0].astype(jnp.int32)
  return node
