"""Gradients and outputs of a batch, computed in blocks that fit into a cache.

On CPU this saves 10% of the time of `anakin_ppo` with 512 environments and
unrolls of 128. A small batch is one block, and so is any batch on other
platforms. The choice is made when a program is compiled.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from seedx import types

# Maximum number of steps of a block. With two layers of 128 units, the gradient
# of 16,384 steps took 20 ms as a whole, 10.5 in blocks of 2,048 or 4,096, and
# 12.8 in blocks of 1,024.
STEPS = 4096


def gradient(
  function: Callable[[types.Tree, Any], tuple[jax.Array, types.Tree]],
  params: types.Tree,
  batch: Any,
  axes: Any,
) -> tuple[types.Tree, types.Tree]:
  """Computes the gradient of a sum over a batch.

  Args:
    function: function of parameters and a part of the batch that returns a sum
      over the part, and outputs `[T, N, ...]` of its N entries of T steps.
    params: parameters to differentiate with respect to.
    batch: nest of arrays.
    axes: prefix of the batch's structure, with the index of each array's axis
      of entries; None to compute the whole batch at once.

  Returns:
    The gradient, and the outputs of all entries.
  """
  differentiate = jax.grad(function, has_aux=True)
  num_blocks = _num_blocks(lambda part: function(params, part)[1], batch, axes)
  if num_blocks == 1:
    return differentiate(params, batch)

  def in_blocks(params: types.Tree, batch: Any) -> tuple[types.Tree, Any]:
    def add(total: types.Tree, block: Any) -> tuple[types.Tree, Any]:
      gradient, outputs = differentiate(params, block)
      return jax.tree.map(jnp.add, total, gradient), outputs

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, outputs = jax.lax.scan(add, zeros, _cut(batch, axes, num_blocks))
    return total, jax.tree.map(_joined, outputs)

  return jax.lax.platform_dependent(
    params, batch, cpu=in_blocks, default=differentiate
  )


def outputs(
  function: Callable[[Any], types.Tree], batch: Any, axes: Any
) -> types.Tree:
  """Computes a function's outputs `[T, N, ...]` for a batch; see `gradient`."""
  num_blocks = _num_blocks(function, batch, axes)
  if num_blocks == 1:
    return function(batch)

  def in_blocks(batch: Any) -> types.Tree:
    stacked = jax.lax.map(function, _cut(batch, axes, num_blocks))
    return jax.tree.map(_joined, stacked)

  return jax.lax.platform_dependent(batch, cpu=in_blocks, default=function)


def _num_blocks(
  function: Callable[[Any], types.Tree], batch: Any, axes: Any
) -> int:
  """Returns a number of equal blocks of up to `STEPS` steps; 1 if none fits."""
  if axes is None:
    return 1
  steps, entries, *_ = jax.tree.leaves(jax.eval_shape(function, batch))[0].shape
  minimum = -(-steps * entries // STEPS)
  for num_blocks in range(minimum, 2 * minimum):
    if entries % num_blocks == 0:
      return num_blocks
  return 1


def _cut(batch: Any, axes: Any, num_blocks: int) -> Any:
  def cut(axis: int, leaf: jax.Array) -> jax.Array:
    shape = leaf.shape
    parts = leaf.reshape(*shape[:axis], num_blocks, -1, *shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)

  return jax.tree.map(
    lambda axis, part: jax.tree.map(functools.partial(cut, axis), part),
    axes,
    batch,
  )


def _joined(leaf: jax.Array) -> jax.Array:
  """Joins the blocks' outputs `[blocks, T, n, ...]` to `[T, N, ...]`."""
  return jax.lax.collapse(jnp.moveaxis(leaf, 0, 1), 1, 3)
