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
# https://arxiv.org/abs/2006.05990, section 3.4).
_LIMIT = 10.0


class Moments(NamedTuple):
  """Means of some observations.

  Attributes:
    mean: for each part that is normalised, `[F]` float32.
    square: likewise, of the squares.
  """

  mean: tuple[jax.Array, ...]
  square: tuple[jax.Array, ...]


def init(observation: types.Tree) -> Moments:
  """The moments that change nothing, for a nest of specs."""
  shapes = [spec.shape for spec in jax.tree.leaves(observation) if _is_in(spec)]
  return Moments(
    tuple(jnp.zeros(shape, jnp.float32) for shape in shapes),
    tuple(jnp.ones(shape, jnp.float32) for shape in shapes),
  )


def normalize(
  moments: Moments, spec: types.Tree, observation: types.Tree
) -> types.Tree:
  """The observation with its parts less their mean, by standard deviation.

  Args:
    moments: of observations so far.
    spec: a nest of specs.
    observation: `[T, B, ...]`, the same nest.
  """
  leaves, structure = jax.tree.flatten(observation)
  statistics = zip(*moments, strict=True)
  for i, leaf_spec in enumerate(jax.tree.leaves(spec)):
    if _is_in(leaf_spec):
      mean, square = next(statistics)
      scale = jax.lax.rsqrt(jnp.maximum(square - jnp.square(mean), 1e-8))
      leaves[i] = jnp.clip((leaves[i] - mean) * scale, -_LIMIT, _LIMIT)
  return jax.tree.unflatten(structure, leaves)


def measure(
  spec: types.Tree, observation: types.Tree, axis_name: str | None
) -> Moments:
  """The moments of a batch `[T, B, ...]`, over all cores."""
  pairs = zip(jax.tree.leaves(spec), jax.tree.leaves(observation), strict=True)
  leaves = [leaf for leaf_spec, leaf in pairs if _is_in(leaf_spec)]
  moments = Moments(
    tuple(leaf.mean(axis=(0, 1)) for leaf in leaves),
    tuple(jnp.square(leaf).mean(axis=(0, 1)) for leaf in leaves),
  )
  return moments if axis_name is None else jax.lax.pmean(moments, axis_name)


def merge(moments: Moments, batch: Moments, updates: jax.Array) -> Moments:
  """The mean of all batches, after `updates` of them and one more."""
  rate = 1.0 / (updates.astype(jnp.float32) + 1.0)
  return jax.tree.map(lambda old, new: old + rate * (new - old), moments, batch)


def _is_in(spec: dm_env.specs.Array) -> bool:
  return np.issubdtype(spec.dtype, np.floating)
