"""Reductions of per-step losses to a scalar."""

import chex
import jax
import jax.numpy as jnp
from jax import flatten_util

from seedx import types


def mean_share(
  values: jax.Array, weights: jax.Array, axis_name: str | None = None
) -> jax.Array:
  """This core's share of the weighted mean over every core's values.

      sum(values * weights) / sum over all cores of sum(weights)

  The shares of all cores add up to the mean of the whole batch, and so do
  their gradients: differentiate the share, then `sum_over_cores`. (A mean of
  per-core means would give a core with few unmasked steps the same weight as
  any other. A `psum` inside the differentiated function would count each core's
  gradient once per core.)

  >>> float(mean_share(jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 0.0, 3.0])))
  3.25

  Args:
    values: `[...]`.
    weights: `[...]`, the same shape, not negative.
    axis_name: the mesh axis over which the batch is sharded; None if it is not.

  Returns:
    `[]`; 0 if all weights are 0.

  Raises:
    AssertionError: shapes differ.
  """
  chex.assert_equal_shape([values, weights], custom_message="values, weights")
  weight = sum_over_cores(jnp.sum(weights), axis_name)
  return jnp.sum(values * weights) / jnp.maximum(weight, 1e-8)


def sum_over_cores(nest: types.Tree, axis_name: str | None) -> types.Tree:
  """Sums each leaf over a mesh axis; returns the nest if the axis is None.

  Numbers of a dtype are exchanged as one vector: between hosts, each exchange
  takes as long as another, however small it is.
  """
  if axis_name is None:
    return nest
  leaves, structure = jax.tree.flatten(nest)
  if jax.lax.axis_size(axis_name) == 1 or len({x.dtype for x in leaves}) > 1:
    return jax.lax.psum(nest, axis_name)
  vector, unravel = flatten_util.ravel_pytree(leaves)
  return jax.tree.unflatten(structure, unravel(jax.lax.psum(vector, axis_name)))
