"""Weighted means over one core and over several."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from seedx import losses, sharding


def test_mean_share_of_one_core_is_the_weighted_mean():
  # (1 * 1 + 2 * 0 + 4 * 3) / (1 + 0 + 3) = 3.25
  mean = losses.mean_share(jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 0, 3]))
  assert mean == 3.25
  assert losses.mean_share(jnp.ones(3), jnp.zeros(3)) == 0.0


def test_weights_of_another_shape_are_refused():
  # The two shapes would broadcast.
  with pytest.raises(
    AssertionError, match=r"\(3, 1\), \(3,\).*values, weights"
  ):
    losses.mean_share(jnp.ones((3, 1)), jnp.ones(3))


def test_shares_of_8_cores_add_up_to_the_mean_and_to_its_gradient():
  rng = np.random.default_rng(0)
  values = rng.normal(size=(8, 5)).astype(np.float32)
  weights = np.array([np.arange(5) < n for n in (5, 0, 1, 5, 2, 3, 0, 4)])
  weights = weights.astype(np.float32)
  mesh = sharding.mesh(jax.devices())
  cores = PartitionSpec(sharding.CORES)

  def share(scale, values, weights):
    return losses.mean_share(scale * values, weights, sharding.CORES)

  def per_core(scale, values, weights):
    shares = jax.value_and_grad(share)(scale, values, weights)
    return jax.tree.map(lambda x: x[None], shares), losses.sum_over_cores(
      shares, sharding.CORES
    )

  program = sharding.per_core(
    per_core,
    mesh,
    (sharding.REPLICATED, cores, cores),
    (cores, sharding.REPLICATED),
  )
  (shares, _), (total, gradient) = program(jnp.float32(3.0), values, weights)
  mean = np.sum(values * weights) / 20
  assert shares.shape == (8,)
  assert len({float(x) for x in shares}) == 7  # Two cores have no weight.
  assert np.sum(shares) == pytest.approx(3 * mean, rel=1e-5)
  assert total == pytest.approx(3 * mean, rel=1e-5)
  assert gradient == pytest.approx(mean, rel=1e-5)
