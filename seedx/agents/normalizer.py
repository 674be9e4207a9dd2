"""Normalization of observations to mean 0 and variance 1.

Means and variances are running statistics. Only parts with floats are
normalized, not images or discrete parts. Statistics have one array for each
normalized part; `[F]` stands for the part's shape.
"""

from typing import NamedTuple

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import losses, types

# Normalized observations are clipped to +- this (Andrychowicz et al. 2020,
# https://arxiv.org/abs/2006.05990).
_LIMIT = 10.0
# A float32 variance that is measured around another mean is wrong by at most
# this, times the squared offset between the means.
_ERROR = 2.4e-7
# A gap between two means is only rounding if below this fraction of the mean.
_ROUNDING = 1e-6
# Relative error above which a batch's variance counts as lost.
_MAX_RELATIVE_ERROR = 0.01
_UNKNOWN = -1.0


class Statistics(NamedTuple):
  """Running statistics of all observations so far.

  Attributes:
    mean: `[F]` float32 means.
    variance: `[F]` float32 variances. A negative value marks an unknown
      variance, in place of which 1 is used.
    batches: `[]` int32 number of merged batches. It differs from the number of
      updates in a run that began with the statistics of another run.
  """

  mean: tuple[jax.Array, ...]
  variance: tuple[jax.Array, ...]
  batches: tuple[jax.Array, ...]


class Moments(NamedTuple):
  """Weighted means over a batch of its observations' offsets from `around`.

  Moments around 0 would be inexact: in float32, the square of a large mean
  swallows a small variance.

  Attributes:
    around: `[F]` float32, `Statistics.mean` when the batch was measured.
    offset: `[F]` float32, mean offsets.
    square: `[F]` float32, mean squared offsets.
  """

  around: tuple[jax.Array, ...]
  offset: tuple[jax.Array, ...]
  square: tuple[jax.Array, ...]


class Totals(NamedTuple):
  """Weighted sums over observations.

  Attributes:
    count: `[]` float32, sum of the weights.
    offset: `[F]` float32, sums of the offsets of `Moments`.
    square: `[F]` float32, sums of the squared offsets.
  """

  count: types.Array
  offset: tuple[types.Array, ...]
  square: tuple[types.Array, ...]


def init(observation: types.Tree) -> Statistics:
  """Returns statistics of mean 0 and unknown variance, for a nest of specs."""
  specs = jax.tree.leaves(observation)
  shapes = [spec.shape for spec in specs if is_normalized(spec)]
  return Statistics(
    tuple(jnp.zeros(shape, jnp.float32) for shape in shapes),
    tuple(jnp.full(shape, _UNKNOWN, jnp.float32) for shape in shapes),
    tuple(jnp.int32(0) for _ in shapes),
  )


def normalize(
  statistics: Statistics, spec: types.Tree, observation: types.Tree
) -> types.Tree:
  """Subtracts the mean, divides by the standard deviation, and clips.

  The observation is a nest `[T, B, ...]` like `spec`.
  """
  leaves, structure = jax.tree.flatten(observation)
  means_and_variances = zip(statistics.mean, statistics.variance, strict=True)
  for i, leaf_spec in enumerate(jax.tree.leaves(spec)):
    if is_normalized(leaf_spec):
      mean, variance = next(means_and_variances)
      variance = jnp.where(variance < 0, 1.0, jnp.maximum(variance, 1e-8))
      scale = jax.lax.rsqrt(variance)
      leaves[i] = jnp.clip((leaves[i] - mean) * scale, -_LIMIT, _LIMIT)
  return jax.tree.unflatten(structure, leaves)


def measure(
  statistics: Statistics,
  spec: types.Tree,
  observation: types.Tree,
  weight: jax.Array,
  axis_name: str | None,
) -> Moments:
  """Returns the moments of a batch's observations, averaged over all cores.

  See `total`; the `[T, B]` weights are those of the losses, 0 where nothing is
  learned.
  """
  own = total(statistics, spec, observation, weight)
  return moments(statistics, losses.sum_over_cores(own, axis_name))


def total(
  statistics: Statistics,
  spec: types.Tree,
  observation: types.Tree,
  weight: jax.Array,
) -> Totals:
  """Returns weighted sums; the observation is `[..., *shape]` like `spec`.

  The weight is `[...]`.
  """
  pairs = zip(jax.tree.leaves(spec), jax.tree.leaves(observation), strict=True)
  leaves = [leaf for leaf_spec, leaf in pairs if is_normalized(leaf_spec)]
  offsets = [
    leaf - mean for leaf, mean in zip(leaves, statistics.mean, strict=True)
  ]
  axes = tuple(range(weight.ndim))

  def weighted(values: jax.Array) -> jax.Array:
    weights = jnp.expand_dims(weight, tuple(range(weight.ndim, values.ndim)))
    return jnp.sum(weights * values, axis=axes)

  return Totals(
    jnp.sum(weight, dtype=jnp.float32),
    tuple(weighted(x) for x in offsets),
    tuple(weighted(jnp.square(x)) for x in offsets),
  )


def moments(statistics: Statistics, totals: Totals) -> Moments:
  """Returns the means of sums around the mean of `statistics`.

  If all weights are 0, merging the moments leaves the statistics as they are.
  """
  count = totals.count
  offset, square = jax.tree.map(
    lambda x: x / jnp.maximum(count, 1e-8), (totals.offset, totals.square)
  )
  square = jax.tree.map(
    lambda x, old: jnp.where(count > 0, x, old), square, statistics.variance
  )
  return Moments(statistics.mean, offset, square)


def merge(statistics: Statistics, batch: Moments) -> Statistics:
  """Merges one batch's moments into the statistics of earlier batches.

  Chan et al. 1979, "Updating formulae and a pairwise algorithm for computing
  sample variances", equation 2.1, for batches of equal size. Each batch counts
  the same, even if few of its steps are learned from. Other batches may have
  been merged since this one was measured.

  Float32 loses the variance of a batch that was measured around a far mean.
  Such a batch keeps the variance of the previous batches; if there are none,
  the variance stays unknown until a batch is measured around a near mean.
  """
  means, variances = [], []
  for mean, variance, batches, around, offset, square in zip(
    *statistics, *batch, strict=True
  ):
    rate = 1.0 / (batches.astype(jnp.float32) + 1.0)
    gap = offset + (around - mean)
    means.append(mean + rate * gap)
    # The first batch, with rate 1, replaces the statistics of `init`.
    is_gap = (rate < 1) & (jnp.abs(gap) > _ROUNDING * jnp.abs(mean))
    apart = jnp.square(jnp.where(is_gap, gap, 0.0))
    within = jnp.maximum(square - jnp.square(offset), 0.0)
    within = jnp.where(jnp.isfinite(square), within, 0.0)
    scale = jnp.maximum(jnp.maximum(variance, within), apart)
    is_lost = _ERROR * jnp.square(offset) > _MAX_RELATIVE_ERROR * scale
    # The moments of an empty batch copy the variance, which may be unknown.
    is_lost |= square < 0
    is_known = variance >= 0
    old = jnp.where(is_known, variance, within)
    new = jnp.where(is_lost, old, within)
    new = (1.0 - rate) * old + rate * new + rate * (1.0 - rate) * apart
    variances.append(jnp.where(is_lost & ~is_known, _UNKNOWN, new))
  counts = tuple(x + 1 for x in statistics.batches)
  return Statistics(tuple(means), tuple(variances), counts)


def is_normalized(spec: dm_env.specs.Array) -> bool:
  """Returns whether an array has floats, and is not an image."""
  is_float = np.issubdtype(spec.dtype, np.floating)
  return is_float and not isinstance(spec, types.ImageArray)
