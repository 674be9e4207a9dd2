"""Running statistics of observations, compared with NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import sharding, types
from seedx.agents import normalizer
from tests import conftest

SPEC = {
  "a": specs.Array((3,), np.float32),
  "choice": specs.DiscreteArray(4),
  "image": specs.BoundedArray((1, 3, 3), np.uint8, 0, 255),
  "matrix": specs.Array((2, 2), np.float32),
  "picture": types.ImageArray((1, 2, 2), np.float32, 0, 1),
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


def programs(spec):
  """Returns the jitted `measure` and `normalize` for a spec."""
  return (
    jax.jit(lambda *x: normalizer.measure(x[0], spec, *x[1:], None)),
    jax.jit(lambda statistics, x: normalizer.normalize(statistics, spec, x)),
  )


ONE = specs.Array((1,), np.float32)
measure, normalize = programs(SPEC)
measure_one, normalize_one = programs(ONE)
merge = jax.jit(normalizer.merge)
ONES = np.ones((5, 8))


def merged(batches):
  statistics = normalizer.init(SPEC)
  for batch in batches:
    statistics = merge(statistics, measure(statistics, batch, ONES))
  return statistics


def one(mean, variance):
  """Returns statistics for the spec `ONE`."""
  parts = np.float32([mean]), np.float32([variance]), np.int32(9)
  return normalizer.Statistics(*((x,) for x in parts))


def test_statistics_match_numpy_over_all_batches():
  batches = [observations(seed) for seed in range(4)]
  for count in (1, 2, 4):
    statistics = merged(batches[:count])
    for i, name in enumerate(FLOATS):
      parts = np.stack([x[name] for x in batches[:count]]).astype(np.float64)
      axes = (0, 1, 2)
      for actual, expected in (
        (statistics.mean[i], parts.mean(axes)),
        (statistics.variance[i], parts.var(axes)),
      ):
        assert actual.dtype == jnp.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mean", [0.0, -1e3, 3e7])
def test_a_deviation_of_100_ulp_of_the_mean_is_measured_to_2_percent(mean):
  rng = np.random.default_rng(0)
  std = max(100 * float(np.spacing(np.float32(abs(mean)))), 1e-3)
  statistics, merged_batches = normalizer.init(ONE), []
  for updates in range(20):
    batch = (mean + std * rng.normal(size=(5, 800, 1))).astype(np.float32)
    merged_batches.append(batch.astype(np.float64))
    statistics = merge(
      statistics, measure_one(statistics, batch, np.ones((5, 800)))
    )
    if updates:
      actual = float(statistics.variance[0][0]) ** 0.5
      assert actual == pytest.approx(np.std(merged_batches), rel=0.02), updates
      assert abs(np.mean(normalize_one(statistics, batch))) < 0.1


@pytest.mark.parametrize("value", [0.0, 12345.678, 1e20])
def test_a_constant_feature_stays_finite_and_small(value):
  """A feature that is constant only at first is later normalized as usual."""
  statistics, batch = (
    normalizer.init(ONE),
    np.full((5, 8, 1), value, np.float32),
  )
  for _ in range(10):
    statistics = merge(statistics, measure_one(statistics, batch, ONES))
    assert np.abs(normalize_one(statistics, batch)).max() < 0.1 + 1e-6 * abs(
      value
    )
  if abs(value) > 1e6:
    return
  rng = np.random.default_rng(0)
  for _ in range(390):
    batch = (value + rng.normal(size=(5, 8, 1))).astype(np.float32)
    statistics = merge(statistics, measure_one(statistics, batch, ONES))
  assert np.std(normalize_one(statistics, batch)) == pytest.approx(1.0, rel=0.3)


def test_features_that_are_constant_within_a_batch_count_too():
  """A game's level, for example, may be the same in a whole batch."""
  values = [3.0, 7.0, 3.0, 3.0, 7.0, 7.0, 3.0, 7.0]
  statistics = normalizer.init(ONE)
  for value in values:
    batch = np.full((5, 8, 1), value, np.float32)
    statistics = merge(statistics, measure_one(statistics, batch, ONES))
  assert float(statistics.mean[0][0]) == pytest.approx(5.0, rel=1e-4)
  assert float(statistics.variance[0][0]) == pytest.approx(4.0, rel=1e-3)


def test_batches_measured_with_an_old_mean_count_the_same():
  """A3C's workers measure with an old mean; batches are merged one by one."""
  rng = np.random.default_rng(0)
  batches = rng.normal(100.0, 1.0, (3, 16, 5, 8, 1)).astype(np.float32)
  statistics = normalizer.init(ONE)
  for batches_of_workers in batches:
    for moments in [
      measure_one(statistics, x, ONES) for x in batches_of_workers
    ]:
      statistics = merge(statistics, moments)
  assert float(statistics.mean[0][0]) == pytest.approx(batches.mean(), rel=1e-5)
  assert float(statistics.variance[0][0]) == pytest.approx(
    batches.var(), rel=2e-2
  )


def test_only_floats_are_normalized():
  batch = observations(7)
  actual = normalize(merged([batch]), batch)
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
  actual = normalize(normalizer.init(SPEC), batch)
  expected = batch | {k: np.clip(batch[k], -10, 10) for k in FLOATS}
  chex.assert_trees_all_equal(actual, expected)


def test_normalized_values_are_clipped_to_10():
  # The mean is 2, the standard deviation 2.
  values = np.array([[[2.0]], [[4.0]], [[-8.0]], [[21.9]], [[23.0]], [[-99.0]]])
  np.testing.assert_allclose(
    np.ravel(normalize_one(one(2.0, 4.0), values)),
    [0.0, 1.0, -5.0, 9.95, 10.0, -10.0],
    rtol=1e-5,
    atol=1e-6,
  )


def test_a_variance_of_0_gives_finite_values():
  actual = normalize_one(one(3.0, 0.0), np.array([[[3.0]], [[3.1]]]))
  np.testing.assert_array_equal(np.ravel(actual), [0.0, 10.0])


def weights(seed, rows):
  """Returns random weights, 0 or 1 with equal probability."""
  return (np.random.default_rng(seed).random(rows) < 0.5).astype(np.float32)


def test_steps_that_are_not_learned_from_do_not_count():
  batch, statistics = observations(3), merged([observations(1)])
  weight = weights(0, (5, 8))
  moments = measure(statistics, batch, weight)
  for i, name in enumerate(FLOATS):
    offsets = batch[name][weight > 0] - statistics.mean[i]
    for actual, expected in (
      (moments.offset[i], offsets.mean(0)),
      (moments.square[i], np.square(offsets).mean(0)),
    ):
      np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batches", [0, 7])
def test_a_batch_without_weight_changes_nothing(batches):
  statistics, batch = merged([observations(1)]), observations(3)
  counts = tuple(np.int32(batches) for _ in statistics.batches)
  statistics = statistics._replace(batches=counts)
  nothing = measure(statistics, batch, 0 * ONES)
  actual = merge(statistics, nothing)
  assert all(x == batches + 1 for x in actual.batches)
  chex.assert_trees_all_close(
    actual._replace(batches=counts), statistics, rtol=1e-6
  )


def test_8_cores_measure_the_same_as_one():
  batch, weight = observations(3), weights(1, (5, 8))
  mesh = sharding.mesh(jax.devices()[:8])
  by_rows = jax.sharding.PartitionSpec(None, sharding.CORES)
  statistics = merged([observations(1)])
  on_cores = sharding.per_core(
    lambda x, weight: normalizer.measure(
      statistics, SPEC, x, weight, sharding.CORES
    ),
    mesh,
    (by_rows, by_rows),
    sharding.REPLICATED,
  )
  chex.assert_trees_all_close(
    on_cores(batch, weight),
    measure(statistics, batch, weight),
    rtol=1e-5,
    atol=1e-5,
  )
