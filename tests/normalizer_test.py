"""Running statistics of observations, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import sharding
from seedx.agents import normalizer
from tests import conftest

SPEC = {
  "a": specs.Array((3,), np.float32),
  "choice": specs.DiscreteArray(4),
  "image": specs.BoundedArray((1, 3, 3), np.uint8, 0, 255),
  "matrix": specs.Array((2, 2), np.float32),
  "counts": specs.Array((2,), np.int32),
  "scalar": specs.Array((), np.float32),
}
FLOATS = ("a", "matrix", "scalar")


def observations(seed, rows=(5, 8)):
  rng = np.random.default_rng(seed)
  nest = {k: conftest.random_values(rng, x, rows) for k, x in SPEC.items()}
  for i, name in enumerate(FLOATS):
    nest[name] = nest[name] * (i + 0.5) + 3.0 * i + seed
  return nest


def merged(batches):
  measure = jax.jit(
    lambda known, x: normalizer.measure(
      known, SPEC, x, np.ones(x["scalar"].shape), None
    )
  )
  known = normalizer.init(SPEC)
  for updates, batch in enumerate(batches):
    known = normalizer.merge(known, measure(known, batch), jnp.int32(updates))
  return known


def test_statistics_are_those_of_all_batches():
  batches = [observations(seed) for seed in range(4)]
  for count in (1, 2, 4):
    known = merged(batches[:count])
    for i, name in enumerate(FLOATS):
      parts = np.stack([x[name] for x in batches[:count]]).astype(np.float64)
      axes = (0, 1, 2)
      for actual, expected in (
        (known.mean[i], parts.mean(axes)),
        (known.variance[i], parts.var(axes)),
      ):
        assert actual.dtype == jnp.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_small_variance_beside_a_large_mean_is_seen():
  spec, rng = specs.Array((1,), np.float32), np.random.default_rng(0)
  known = normalizer.init(spec)
  for updates in range(20):
    batch = rng.normal(1000.0, 0.1, (20, 50, 1)).astype(np.float32)
    measured = normalizer.measure(known, spec, batch, np.ones((20, 50)), None)
    known = normalizer.merge(known, measured, jnp.int32(updates))
  spread = np.std(normalizer.normalize(known, spec, batch))
  assert spread == pytest.approx(1.0, rel=0.3)


@pytest.mark.parametrize("workers", [2, 16])
def test_batches_measured_with_an_old_mean_count_as_any_others(workers):
  """A3C's workers measure with the mean of then, and are merged in turn."""
  rng = np.random.default_rng(0)
  spec = specs.Array((1,), np.float32)
  batches = rng.normal(100.0, 1.0, (3, workers, 5, 8, 1)).astype(np.float32)
  known, updates = normalizer.init(spec), 0
  for round_ in batches:
    ones = np.ones((5, 8))
    moments = [normalizer.measure(known, spec, x, ones, None) for x in round_]
    for each in moments:
      known = normalizer.merge(known, each, jnp.int32(updates))
      updates += 1
  assert float(known.mean[0][0]) == pytest.approx(batches.mean(), rel=1e-5)
  assert float(known.variance[0][0]) == pytest.approx(batches.var(), rel=2e-2)


def test_floats_come_out_with_mean_0_and_variance_1_and_the_rest_as_it_is():
  batch = observations(7, (50, 8))
  actual = normalizer.normalize(merged([batch]), SPEC, batch)
  for name, leaf in batch.items():
    if name not in FLOATS:
      np.testing.assert_array_equal(actual[name], leaf)
      assert actual[name].dtype == leaf.dtype
      continue
    axes = (0, 1)
    expected = (leaf - leaf.mean(axes)) / leaf.std(axes)
    np.testing.assert_allclose(actual[name], expected, rtol=1e-3, atol=1e-3)
    assert actual[name].dtype == np.float32


def test_initial_statistics_change_nothing():
  batch = observations(0)
  actual = normalizer.normalize(normalizer.init(SPEC), SPEC, batch)
  expected = batch | {k: np.clip(batch[k], -10, 10) for k in FLOATS}
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize(
  ("value", "expected"),
  [(2.0, 0.0), (4.0, 1.0), (-8.0, -5.0), (21.9, 9.95), (23.0, 10), (-99, -10)],
)
def test_values_far_out_are_cut_at_10(value, expected):
  # The mean is 2, the standard deviation 2.
  spec = specs.Array((1,), np.float32)
  known = normalizer.Statistics((jnp.array([2.0]),), (jnp.array([4.0]),))
  actual = normalizer.normalize(known, spec, np.full((1, 1, 1), value))
  assert float(actual[0, 0, 0]) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_constant_part_stays_finite():
  spec = specs.Array((1,), np.float32)
  known = normalizer.Statistics((jnp.array([3.0]),), (jnp.array([0.0]),))
  actual = normalizer.normalize(known, spec, np.array([[[3.0]], [[3.1]]]))
  np.testing.assert_array_equal(np.ravel(actual), [0.0, 10.0])


def weights(seed, rows):
  """Half of the steps are learned from, at least one and not all."""
  return (np.random.default_rng(seed).random(rows) < 0.5).astype(np.float32)


def test_what_is_not_learned_from_does_not_count():
  batch, known = observations(3), merged([observations(1)])
  weight = weights(0, (5, 8))
  moments = normalizer.measure(known, SPEC, batch, weight, None)
  for i, name in enumerate(FLOATS):
    offsets = batch[name][weight > 0] - known.mean[i]
    for actual, expected in (
      (moments.offset[i], offsets.mean(0)),
      (moments.square[i], np.square(offsets).mean(0)),
    ):
      np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("updates", [0, 7])
def test_a_batch_of_nothing_changes_nothing(updates):
  known, batch = merged([observations(1)]), observations(3)
  nothing = normalizer.measure(known, SPEC, batch, np.zeros((5, 8)), None)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
    normalizer.merge(known, nothing, jnp.int32(updates)),
    known,
  )


def test_8_cores_measure_what_one_does():
  rows = 5, 16
  batch, weight = observations(3, rows), weights(1, rows)
  mesh = sharding.mesh(jax.devices()[:8])
  by_rows = jax.sharding.PartitionSpec(None, sharding.CORES)
  known = merged([observations(1)])
  measure = sharding.per_core(
    lambda x, weight: normalizer.measure(
      known, SPEC, x, weight, sharding.CORES
    ),
    mesh,
    (by_rows, by_rows),
    sharding.REPLICATED,
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
    measure(batch, weight),
    normalizer.measure(known, SPEC, batch, weight, None),
  )
