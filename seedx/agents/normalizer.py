"""Observations brought to mean 0 and variance 1, by running statistics.

Only vectors of floats are: images and discrete parts pass as they are.
"""

from typing import NamedTuple

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types

# Rare observations must not drown the rest (Andrychowicz et al. 2020,
# https://arxiv.org/abs/2006.05990).
_LIMIT = 10.0


class Statistics(NamedTuple):
  """What is known of all observations so far.

  Attributes:
    mean: for each part that is normalised, `[F]` float32.
    variance: likewise.
  """

  mean: tuple[jax.Array, ...]
  variance: tuple[jax.Array, ...]


class Moments(NamedTuple):
  """Means over a batch, of how far its observations are from `Statistics.mean`.

  From there, and not from 0: the square of a large mean leaves float32 no
  digits for a small variance.

  Attributes:
    offset: for each part that is normalised, `[F]` float32.
    square: likewise, of the squares.
  """

  offset: tuple[jax.Array, ...]
  square: tuple[jax.Array, ...]


def init(observation: types.Tree) -> Statistics:
  """The statistics that change nothing, for a nest of specs."""
  shapes = [spec.shape for spec in jax.tree.leaves(observation) if _is_in(spec)]
  return Statistics(
    tuple(jnp.zeros(shape, jnp.float32) for shape in shapes),
    tuple(jnp.ones(shape, jnp.float32) for shape in shapes),
  )


def normalize(
  statistics: Statistics, spec: types.Tree, observation: types.Tree
) -> types.Tree:
  """The observation with its parts less their mean, by standard deviation.

  Args:
    statistics: of observations so far.
    spec: a nest of specs.
    observation: `[T, B, ...]`, the same nest.
  """
  leaves, structure = jax.tree.flatten(observation)
  of_parts = zip(*statistics, strict=True)
  for i, leaf_spec in enumerate(jax.tree.leaves(spec)):
    if _is_in(leaf_spec):
      mean, variance = next(of_parts)
      scale = jax.lax.rsqrt(jnp.maximum(variance, 1e-8))
      leaves[i] = jnp.clip((leaves[i] - mean) * scale, -_LIMIT, _LIMIT)
  return jax.tree.unflatten(structure, leaves)


def measure(
  statistics: Statistics,
  spec: types.Tree,
  observation: types.Tree,
  axis_name: str | None,
) -> Moments:
  """The moments of a batch `[T, B, ...]`, over all cores."""
  pairs = zip(jax.tree.leaves(spec), jax.tree.leaves(observation), strict=True)
  leaves = [leaf for leaf_spec, leaf in pairs if _is_in(leaf_spec)]
  offsets = [
    leaf - mean for leaf, mean in zip(leaves, statistics.mean, strict=True)
  ]
  moments = Moments(
    tuple(x.mean(axis=(0, 1)) for x in offsets),
    tuple(jnp.square(x).mean(axis=(0, 1)) for x in offsets),
  )
  return moments if axis_name is None else jax.lax.pmean(moments, axis_name)


def merge(
  statistics: Statistics, batch: Moments, updates: jax.Array
) -> Statistics:
  """Those of all batches, after `updates` of them and one more.

  Chan et al. 1979, "Updating formulae and a pairwise algorithm for computing
  sample variances", equation 2.1, for batches of one size.
  """
  rate = 1.0 / (updates.astype(jnp.float32) + 1.0)

  def variance(
    old: jax.Array, offset: jax.Array, square: jax.Array
  ) -> jax.Array:
    # The first batch is all there is: what `init` says is no observation.
    between = rate * (1.0 - rate) * jnp.square(offset)
    within = jnp.maximum(square - jnp.square(offset), 0.0)
    return (1.0 - rate) * old + rate * within + between

  return Statistics(
    jax.tree.map(lambda old, x: old + rate * x, statistics.mean, batch.offset),
    jax.tree.map(variance, statistics.variance, batch.offset, batch.square),
  )


def _is_in(spec: dm_env.specs.Array) -> bool:
  return np.issubdtype(spec.dtype, np.floating)
