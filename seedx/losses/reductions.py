"""Reductions of per-step losses to a scalar."""

import chex
import jax
import jax.numpy as jnp
from jax import flatten_util

from seedx import types


def mean_share(
  values: jax.Array, weights: jax.Array, axis_name: str | None = None
) -> jax.Array:
  """Returns this core's term of the weighted mean over all cores' values.

      sum(values * weights) / sum over all cores of sum(weights)

  The terms of all cores add up to the mean of the batch, and their gradients to
  its gradient: differentiate, then call `sum_over_cores`. (A `psum` inside the
  differentiated function would count each core's gradient once per core.)

  >>> float(mean_share(jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 0.0, 3.0])))
  3.25

  Args:
    values: `[...]`.
    weights: `[...]`, shaped like `values`, not negative.
    axis_name: name of the mesh axis that shards the batch; None for one core.

  Returns:
    `[]`; 0 if all weights are 0.
  """
  chex.assert_equal_shape([values, weights], custom_message="values, weights")
  weight = sum_over_cores(jnp.sum(weights), axis_name)
  return jnp.sum(values * weights) / jnp.maximum(weight, 1e-8)


def sum_over_cores(nest: types.Tree, axis_name: str | None) -> types.Tree:
  """Sums each leaf over a mesh axis; for None, returns the nest unchanged.

  Leaves of one dtype are exchanged as one vector, because between hosts the
  number of exchanges costs more than their size.
  """
  if axis_name is None:
    return nest
  leaves, structure = jax.tree.flatten(nest)
  if jax.lax.axis_size(axis_name) == 1 or len({x.dtype for x in leaves}) > 1:
    return jax.lax.psum(nest, axis_name)
  vector, unravel = flatten_util.ravel_pytree(leaves)
  return jax.tree.unflatten(structure, unravel(jax.lax.psum(vector, axis_name)))
