"""Action distributions against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from dm_env import specs

from seedx import distributions, types

BOUNDS = distributions.BoundedGaussian((-2.0, 0.0), (4.0, 1.0))
MIDDLE = np.array([1.0, 0.5], np.float32)
HALF = np.array([3.0, 0.5], np.float32)


def test_categorical_against_scipy():
  logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
  probabilities = scipy.special.softmax(logits, axis=-1)
  distribution = distributions.Categorical(5)(logits)
  np.testing.assert_allclose(
    distribution.entropy(),
    scipy.stats.entropy(probabilities, axis=-1),
    rtol=1e-5,
  )
  for action in range(5):
    np.testing.assert_allclose(
      distribution.log_prob(jnp.full((3, 4), action)),
      np.log(probabilities[..., action]),
      rtol=1e-5,
    )


def test_categorical_samples_have_the_frequencies():
  probabilities = np.array([0.1, 0.6, 0.0, 0.3])
  with np.errstate(divide="ignore"):
    logits = np.log(probabilities).astype(np.float32)
  distribution = distributions.Categorical(4)(np.tile(logits, (2000, 1)))
  samples, log_prob = distribution.sample_and_log_prob(seed=jax.random.key(0))
  assert (samples.shape, samples.dtype) == ((2000,), jnp.int32)
  counts = np.bincount(samples, minlength=4)
  np.testing.assert_allclose(counts / 2000, probabilities, atol=0.04)
  assert counts[2] == 0
  np.testing.assert_allclose(log_prob, logits[samples], rtol=1e-5)


def test_half_precision_parameters_are_computed_in_float32():
  logits = jnp.array([1.0, 2.0, 3.0], jnp.bfloat16)
  log_prob = distributions.Categorical(3)(logits).log_prob(0)
  assert log_prob.dtype == jnp.float32
  assert log_prob == pytest.approx(-2.4076059, rel=1e-5)
  parameters = jnp.array([0.1, 0.2, 0.3, 0.7], jnp.bfloat16)
  log_prob = BOUNDS(parameters).log_prob(jnp.zeros(2))
  assert log_prob.dtype == jnp.float32
  assert log_prob == BOUNDS(parameters.astype(jnp.float32)).log_prob(
    jnp.zeros(2)
  )


def test_gaussian_of_zeros_is_the_middle_and_half_way_to_a_bound():
  distribution = BOUNDS(np.zeros((7, 4), np.float32))
  np.testing.assert_allclose(distribution.mode(), np.tile(MIDDLE, (7, 1)))
  np.testing.assert_allclose(distribution.stddev(), np.tile(HALF / 2, (7, 1)))


def test_gaussian_against_scipy():
  rng = np.random.default_rng(0)
  mean, log_scale = rng.normal(size=(2, 6, 2)).astype(np.float32)
  actions = rng.uniform(-2, 4, size=(6, 2)).astype(np.float32)
  distribution = BOUNDS(np.concatenate([mean, log_scale], axis=-1))
  by_hand = scipy.stats.norm(
    MIDDLE + HALF * mean, 0.5 * HALF * np.exp(log_scale)
  )
  np.testing.assert_allclose(
    distribution.log_prob(actions),
    by_hand.logpdf(actions).sum(-1),
    rtol=1e-4,
  )
  np.testing.assert_allclose(
    distribution.entropy(), by_hand.entropy().sum(-1), rtol=1e-4, atol=1e-5
  )


def test_gaussian_samples_are_of_its_density_and_not_cut():
  parameters = np.tile(np.array([1, -1, 0.5, 0], np.float32), (4000, 1))
  distribution = BOUNDS(parameters)
  samples, log_prob = distribution.sample_and_log_prob(seed=jax.random.key(0))
  assert (samples.shape, samples.dtype) == ((4000, 2), jnp.float32)
  scale = 0.5 * HALF * np.exp([0.5, 0.0])
  np.testing.assert_allclose(samples.mean(0), [4.0, 0.0], atol=0.15)
  np.testing.assert_allclose(samples.std(0), scale, rtol=0.05)
  assert np.mean(samples[:, 0] > 4.0) == pytest.approx(0.5, abs=0.04)
  np.testing.assert_allclose(
    log_prob,
    scipy.stats.norm([4.0, 0.0], scale).logpdf(samples).sum(-1),
    rtol=1e-3,
    atol=1e-4,
  )


def test_extreme_scales_stay_finite():
  distribution = BOUNDS(jnp.array([[0, 0, -1e6, 1e6], [0, 0, 1e6, -1e6]]))
  low, high = np.exp(-5), np.exp(2)
  np.testing.assert_allclose(
    distribution.stddev(),
    0.5 * HALF * np.array([[low, high], [high, low]]),
    rtol=1e-5,
  )
  assert np.isfinite(distribution.log_prob(MIDDLE)).all()


def test_spec_decides_the_distribution():
  discrete = distributions.for_spec(specs.DiscreteArray(6))
  assert discrete == distributions.Categorical(6)
  assert discrete.num_parameters == 6
  # One bound for all dimensions is a bound for each.
  bounded = distributions.for_spec(
    specs.BoundedArray((3,), np.float32, -1.0, [1.0, 2.0, 3.0])
  )
  assert bounded == distributions.BoundedGaussian(
    (-1.0, -1.0, -1.0), (1.0, 2.0, 3.0)
  )
  assert bounded.num_parameters == 6


@pytest.mark.parametrize(
  "spec",
  [
    specs.BoundedArray((), np.float32, -1.0, 1.0),
    specs.BoundedArray((2, 2), np.float32, -1.0, 1.0),
    specs.BoundedArray((2,), np.float32, -np.inf, 1.0),
    specs.BoundedArray((2,), np.float32, -1.0, [1.0, np.inf]),
    specs.BoundedArray((2,), np.float32, -1.0, [1.0, -1.0]),
    specs.BoundedArray((2,), np.int32, 0, 4),
  ],
  ids=[
    "scalar",
    "matrix",
    "unbounded_below",
    "unbounded_above",
    "without_width",
    "integers",
  ],
)
def test_spec_without_a_distribution_is_refused(spec):
  with pytest.raises(types.ConfigError, match="finite bounds, found Bounded"):
    distributions.for_spec(spec)
