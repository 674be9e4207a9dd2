"""Sums of many numbers, for draws in proportion to them.

A tree is a tuple of levels, the leaves first; each number of a level is the sum
of a block of `RADIX` of the level below. With such wide blocks a million leaves
have three levels, and a change recomputes three sums, so that no rounding adds
up. All functions are pure.
"""

import jax
import jax.numpy as jnp

RADIX = 128
# As a leaf: a change of none.
NOWHERE = 2**31 - 1

Tree = tuple[jax.Array, ...]


def init(num_leaves: int) -> Tree:
  """A tree of zeros; each level is as many whole blocks as it needs."""
  levels: list[jax.Array] = []
  size = num_leaves
  while not levels or len(levels[-1]) > RADIX:
    blocks = -(-size // RADIX)
    levels.append(jnp.zeros(blocks * RADIX, jnp.float32))
    size = blocks
  return tuple(levels)


def set_leaves(tree: Tree, leaf: jax.Array, value: jax.Array) -> Tree:
  """Changes leaves.

  Args:
    tree: of any size.
    leaf: `[B]` int32; `NOWHERE` for no change. Where one comes twice, either of
      its values stays.
    value: `[B]` float32, 0 or more.

  Returns:
    The tree with the leaves, and the sums above them, changed.
  """
  level = tree[0].at[leaf].set(value, mode="drop")
  levels = [level]
  for upper in tree[1:]:
    leaf = jnp.where(leaf == NOWHERE, NOWHERE, leaf // RADIX)
    block = level.reshape(-1, RADIX).at[leaf].get(mode="fill", fill_value=0)
    level = upper.at[leaf].set(jnp.sum(block, axis=-1), mode="drop")
    levels.append(level)
  return tuple(levels)


def total(tree: Tree) -> jax.Array:
  """The sum of all leaves, `[]`."""
  return jnp.sum(tree[-1])


def find(tree: Tree, amount: jax.Array) -> jax.Array:
  """The leaves that amounts fall on, if leaves lie side by side.

  Args:
    tree: with a leaf above 0.
    amount: `[B]`, from 0 to less than `total`.

  Returns:
    `[B]` int32, leaves above 0, also where rounding would miss them.
  """
  place = jnp.zeros(amount.shape, jnp.int32)
  for level in reversed(tree):
    block = level.reshape(-1, RADIX)[place]
    ends = jnp.cumsum(block, axis=-1)
    holds = (ends > amount[:, None]) & (block > 0)
    last = RADIX - 1 - jnp.argmax(jnp.flip(block > 0, axis=-1), axis=-1)
    inside = jnp.where(jnp.any(holds, axis=-1), jnp.argmax(holds, -1), last)
    inside = inside[:, None].astype(jnp.int32)
    before = ends - block
    amount -= jnp.take_along_axis(before, inside, axis=-1)[:, 0]
    amount = jnp.maximum(amount, 0.0)
    place = place * RADIX + inside[:, 0]
  return place
