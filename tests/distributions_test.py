"""Action distributions, compared with SciPy."""

import functools

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
HYBRID = distributions.Hybrid(distributions.MultiCategorical((3, 2)), BOUNDS)


@functools.partial(jax.jit, static_argnames=("policy", "draws"))
def program(policy, parameters, actions, mask, draws):
  arguments = (parameters,) if mask is None else (parameters, mask)
  distribution = policy(*arguments)
  entropy, mode = distribution.entropy(), distribution.mode()
  log_prob = distribution.log_prob(actions)
  drawn = distribution.sample_and_log_prob(
    seed=jax.random.key(0), sample_shape=(draws,)
  )
  return log_prob, entropy, mode, drawn


def evaluate(policy, parameters, actions, mask=None, draws=0):
  """Returns log-probabilities, entropy, mode and draws as NumPy arrays."""
  return jax.device_get(program(policy, parameters, actions, mask, draws))


def test_categorical_and_its_samples_match_scipy():
  logits = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
  logits[:, 2] = -np.inf
  actions = np.array([[0, 0, 0], [1, 1, 1], [3, 3, 3]])
  log_prob, entropy, mode, (samples, log_prob_of_samples) = evaluate(
    distributions.Categorical(4), logits, actions, draws=2000
  )
  p = scipy.special.softmax(logits, axis=-1)
  np.testing.assert_allclose(log_prob, np.log(p.T[[0, 1, 3]]), rtol=1e-5)
  np.testing.assert_allclose(entropy, scipy.stats.entropy(p.T), rtol=1e-5)
  np.testing.assert_array_equal(mode, p.argmax(-1))
  assert (samples.shape, samples.dtype) == ((2000, 3), np.int32)
  one_hot = np.eye(4)[samples]
  assert not one_hot[..., 2].any()
  np.testing.assert_allclose(one_hot.mean(0), p, atol=0.04)
  expected = np.log((one_hot * p).sum(-1))
  np.testing.assert_allclose(log_prob_of_samples, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["masked", "hybrid"])
def test_parameterized_can_be_cut_and_scanned_as_a_nest(kind):
  rng = np.random.default_rng(3)
  family = HYBRID if kind == "hybrid" else distributions.Categorical(5)
  mask = np.resize(MASKS, (6, 5)).astype(bool) if kind == "masked" else None
  size = family.num_parameters
  before, now = (
    distributions.Parameterized(
      family, rng.normal(size=(6, size)).astype(np.float32), mask
    )
    for _ in range(2)
  )
  expected = before.distribution.kl_divergence(now.distribution)
  assert expected.shape == (6,) and expected.max() > 0.1
  cut = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), (before, now))

  def divergence(carry, pair):
    old, new = pair
    return carry, old.distribution.kl_divergence(new.distribution)

  _, actual = jax.lax.scan(divergence, (), cut)
  np.testing.assert_allclose(actual.ravel(), expected, rtol=1e-5, atol=1e-6)


# Legal actions

MASKS = np.array(
  [[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
)


def masked_case():
  """Returns logits, whose largest belong to illegal actions, and masks."""
  logits = np.random.default_rng(1).normal(size=MASKS.shape) * 3
  logits[MASKS == 0] += 40 * np.arange((MASKS == 0).sum()) - 100
  return logits.astype(np.float32), MASKS.astype(bool)


def test_masked_distribution_is_over_the_legal_actions():
  logits, mask = masked_case()
  every = np.repeat(np.arange(5)[:, None], 4, axis=1)
  log_prob, entropy, mode, (samples, _) = evaluate(
    distributions.Categorical(5), logits, every, mask, draws=3000
  )
  for row, legal in enumerate(mask):
    kept = logits[row, legal].astype(np.float64)
    expected = scipy.special.softmax(kept)
    np.testing.assert_allclose(
      log_prob[legal, row], np.log(expected), rtol=1e-4, atol=1e-6
    )
    assert np.all(log_prob[~legal, row] < -1e8)
    assert entropy[row] == pytest.approx(
      scipy.stats.entropy(expected), rel=1e-4, abs=1e-6
    )
    assert mode[row] == np.flatnonzero(legal)[np.argmax(kept)]
    counts = np.bincount(samples[:, row], minlength=5)
    assert counts[~legal].sum() == 0
    np.testing.assert_allclose(counts[legal] / 3000, expected, atol=0.04)
  # The only legal action is certain.
  assert (log_prob[3, 3], entropy[3]) == (0, 0)


def test_masked_gradients_are_those_of_the_legal_actions():
  logits, mask = masked_case()
  actions = np.argmax(mask, axis=-1)  # The first legal action.

  @jax.jit
  @jax.jacrev
  def gradients(logits):
    distribution = distributions.Categorical(5)(logits, mask)
    return distribution.entropy().sum(), distribution.log_prob(actions).sum()

  of_entropy, of_log_prob = jax.device_get(gradients(logits))
  for row, legal in enumerate(mask):
    p = scipy.special.softmax(logits[row, legal].astype(np.float64))
    expected = np.zeros((2, 5))
    expected[0, legal] = -p * (np.log(p) + scipy.stats.entropy(p))
    expected[1, legal] = (np.arange(len(p)) == 0) - p
    np.testing.assert_allclose(
      [of_entropy[row], of_log_prob[row]], expected, rtol=1e-4, atol=1e-5
    )
    if legal.sum() == 1:
      assert not np.any(of_entropy[row])


def test_only_legal_actions_keep_their_value():
  values = np.array([[-200.0, 3.0, 7.0], [1.0, 2.0, 3.0]], np.float32)
  mask = np.array([[1, 1, 0], [0, 0, 1]], np.int8)
  result = np.asarray(jax.jit(distributions.only_legal)(values, mask))
  assert (result.shape, result.dtype) == (values.shape, values.dtype)
  np.testing.assert_array_equal(result[mask != 0], [-200.0, 3.0, 3.0])
  # Illegal actions' values are below any Q-value of a legal action.
  assert np.all(result[mask == 0] < -1e6)
  assert distributions.only_legal(values, None) is values


# Several choices at once

CHOICES = (4, 1, 2, 7)


def choices_case():
  """Returns logits `[2, 3, 14]`, and the probabilities of each choice."""
  logits = np.random.default_rng(2).normal(size=(2, 3, 14)).astype(np.float32)
  parts = np.split(logits.astype(np.float64), np.cumsum(CHOICES)[:-1], axis=-1)
  return logits, [scipy.special.softmax(part, axis=-1) for part in parts]


def test_several_choices_are_independent():
  logits, probabilities = choices_case()
  actions = np.random.default_rng(0).integers(0, CHOICES, (50, 2, 3, 4))
  log_prob, entropy, _, (samples, log_prob_of_samples) = evaluate(
    distributions.MultiCategorical(CHOICES), logits, actions, draws=3000
  )
  for chosen, actual, atol in (
    (actions, log_prob, 1e-5),
    (samples, log_prob_of_samples, 1e-4),
  ):
    expected = sum(
      np.log((np.eye(n)[chosen[..., i]] * p).sum(-1))
      for i, (n, p) in enumerate(zip(CHOICES, probabilities, strict=True))
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=atol)
  expected = sum(scipy.stats.entropy(p, axis=-1) for p in probabilities)
  np.testing.assert_allclose(entropy, expected, rtol=1e-4)
  assert (samples.shape, samples.dtype) == ((3000, 2, 3, 4), np.int32)
  assert samples.min() == 0
  assert (samples.max(axis=(0, 1, 2)) == np.subtract(CHOICES, 1)).all()
  for i, (n, p) in enumerate(zip(CHOICES, probabilities, strict=True)):
    np.testing.assert_allclose(np.eye(n)[samples[..., i]].mean(0), p, atol=0.04)
  # The first and the last choice are independent.
  histogram = np.histogram2d(
    *samples[:, 0, 0, [0, 3]].T, bins=(range(5), range(8))
  )
  joint = np.outer(probabilities[0][0, 0], probabilities[3][0, 0])
  np.testing.assert_allclose(histogram[0] / 3000, joint, atol=0.03)


def test_illegal_values_of_several_choices_have_probability_0():
  logits, probabilities = choices_case()
  rng = np.random.default_rng(1)
  mask = rng.uniform(size=(2, 3, len(CHOICES), max(CHOICES))) < 0.5
  mask[..., 0] = True
  _, actual, _, (samples, log_prob) = evaluate(
    distributions.MultiCategorical(CHOICES),
    logits,
    np.zeros((2, 3, 4), int),
    mask,
    draws=200,
  )
  legal = [p * mask[..., i, : CHOICES[i]] for i, p in enumerate(probabilities)]
  legal = [p / p.sum(axis=-1, keepdims=True) for p in legal]
  entropy = sum(scipy.stats.entropy(p, axis=-1) for p in legal)
  np.testing.assert_allclose(actual, entropy, rtol=1e-4, atol=1e-6)
  chosen = [
    np.take_along_axis(p[None], np.asarray(samples)[..., i, None], axis=-1)
    for i, p in enumerate(legal)
  ]
  assert min(map(np.min, chosen)) > 0
  expected = sum(np.log(p[..., 0]) for p in chosen)
  np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)


def test_half_precision_parameters_are_computed_in_float32():
  @jax.jit
  def log_probs(parameters):
    halves = parameters.astype(jnp.bfloat16)
    logits, zeros = halves[1:], np.zeros(2, np.float32)
    several = distributions.MultiCategorical((1, 3))(halves)
    return (
      distributions.Categorical(3)(logits).log_prob(0),
      several.log_prob(np.zeros(2, np.int32)),
      BOUNDS(halves).log_prob(zeros),
      BOUNDS(halves.astype(jnp.float32)).log_prob(zeros),
    )

  actual = jax.device_get(log_probs(np.array([0.1, 1.0, 2.0, 3.0])))
  assert {x.dtype for x in actual} == {np.dtype("float32")}
  assert actual[:2] == pytest.approx([-2.4076059] * 2, rel=1e-5)
  assert actual[2] == pytest.approx(float(actual[3]), rel=1e-6)


def test_gaussian_matches_scipy_and_its_samples_are_not_clipped():
  rng = np.random.default_rng(0)
  mean, log_scale = rng.normal(size=(2, 6, 2)).astype(np.float32)
  # A mean of 0 is the middle; a log scale of 0 is half the distance to a bound.
  mean[0] = log_scale[0] = 0.0
  mean[1], log_scale[1] = (1, -1), (0.5, 0)
  # Extreme scales stay finite.
  log_scale[2:4] = np.array([[-1e6, 1e6], [1e6, -1e6]])
  actions = rng.uniform(-2, 4, size=(6, 2)).astype(np.float32)
  actions[2:4] = MIDDLE
  log_prob, entropy, mode, (samples, log_prob_of_samples) = evaluate(
    BOUNDS, np.concatenate([mean, log_scale], axis=-1), actions, draws=4000
  )
  np.testing.assert_allclose(mode[:2], [MIDDLE, [4.0, 0.0]])
  scale = 0.5 * HALF * np.exp(np.clip(log_scale, -5, 2))
  exact = scipy.stats.norm(MIDDLE + HALF * mean, scale)
  np.testing.assert_allclose(scale[0], HALF / 2)
  np.testing.assert_allclose(
    entropy, exact.entropy().sum(-1), rtol=1e-4, atol=1e-5
  )
  assert np.isfinite(log_prob).all()
  for chosen, actual, tolerance in (
    (actions, log_prob, {"rtol": 1e-4}),
    # If the scale is small, the difference of sample and mean is inexact.
    (samples, log_prob_of_samples, {"rtol": 1e-3, "atol": 1e-4}),
  ):
    rows = [0, 1, 4, 5]
    expected = exact.logpdf(chosen).sum(-1)[..., rows]
    np.testing.assert_allclose(actual[..., rows], expected, **tolerance)
  assert (samples.shape, samples.dtype) == ((4000, 6, 2), np.float32)
  np.testing.assert_allclose(samples[:, 1].mean(0), [4.0, 0.0], atol=0.15)
  np.testing.assert_allclose(samples.std(0), scale, rtol=0.05)
  assert np.mean(samples[:, 1, 0] > 4.0) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
  ("spec", "expected", "num_parameters"),
  [
    (specs.DiscreteArray(6), distributions.Categorical(6), 6),
    # A scalar bound holds for each dimension.
    (
      specs.BoundedArray((2,), np.float32, -1.0, [1.0, 2.0]),
      distributions.BoundedGaussian((-1.0, -1.0), (1.0, 2.0)),
      4,
    ),
    (
      specs.BoundedArray((3,), np.int32, 0, [5, 0, 2]),
      distributions.MultiCategorical((6, 1, 3)),
      10,
    ),
    # A standard deviation of 1, and a mean 2 within a single bound.
    (
      specs.BoundedArray(
        (4,), np.float32, [-np.inf, 3, -np.inf, 0], [np.inf, np.inf, 1, 2]
      ),
      distributions.BoundedGaussian((-2.0, 3.0, -3.0, 0.0), (2, 7, 1, 2)),
      8,
    ),
    (
      types.HybridArray(2, [0, 0, -1], [3, 1, 1]),
      distributions.Hybrid(
        distributions.MultiCategorical((4, 2)),
        distributions.BoundedGaussian((-1.0,), (1.0,)),
      ),
      8,
    ),
  ],
)
def test_spec_decides_the_distribution(spec, expected, num_parameters):
  policy = distributions.for_spec(spec)
  assert policy == expected
  assert policy.num_parameters == num_parameters


@pytest.mark.parametrize(
  "spec",
  [
    specs.BoundedArray((), np.float32, -1.0, 1.0),
    specs.BoundedArray((2,), np.float32, -1.0, [1.0, -1.0]),
    specs.BoundedArray((1,), np.float32, 1e9, np.inf),
    specs.BoundedArray((2,), np.int32, [0, -1], 4),
    specs.BoundedArray((2, 2), np.int32, 0, 4),
  ],
  ids=str,
)
def test_spec_without_a_distribution_is_refused(spec):
  with pytest.raises(types.ConfigError, match=r"bounds, found .* packs"):
    distributions.for_spec(spec)


def test_a_hybrid_is_the_product_of_choices_and_numbers():
  rng = np.random.default_rng(5)
  parameters = rng.normal(size=(4, 9)).astype(np.float32)
  actions = np.hstack(
    [[[0, 1], [2, 0], [1, 1], [2, 1]], rng.normal(size=(4, 2))]
  ).astype(np.float32)
  log_prob, entropy, mode, (samples, log_prob_of_samples) = evaluate(
    HYBRID, parameters, actions, draws=3000
  )
  p = [scipy.special.softmax(x, -1) for x in np.split(parameters, [3, 5], -1)]
  mean = MIDDLE + HALF * parameters[:, 5:7]
  scale = 0.5 * HALF * np.exp(parameters[:, 7:])
  normal = scipy.stats.norm(mean, scale)

  def expected(actions):
    rows, choices = np.arange(4), actions[..., :2].astype(int)
    chosen = [p[k][rows, choices[..., k]] for k in range(2)]
    return np.log(chosen).sum(0) + normal.logpdf(actions[..., 2:]).sum(-1)

  np.testing.assert_allclose(log_prob, expected(actions), rtol=1e-4)
  entropies = [scipy.stats.entropy(x, axis=-1) for x in p[:2]]
  np.testing.assert_allclose(
    entropy, sum(entropies) + normal.entropy().sum(-1), rtol=1e-4
  )
  np.testing.assert_allclose(
    mode, np.column_stack([p[0].argmax(-1), p[1].argmax(-1), mean]), rtol=1e-5
  )
  assert (samples.shape, samples.dtype) == ((3000, 4, 4), np.float32)
  np.testing.assert_allclose(
    log_prob_of_samples, expected(samples), rtol=1e-3, atol=1e-4
  )
  for k in range(2):
    shares = np.eye(3 - k)[samples[..., k].astype(int)].mean(0)
    np.testing.assert_allclose(shares, p[k], atol=0.04)
  np.testing.assert_allclose(samples[..., 2:].std(0), scale, rtol=0.06)


def test_the_mask_of_a_hybrid_is_for_its_choices():
  mask = np.array([[0, 1, 0], [1, 0, 0]], np.int8)
  parameters = np.zeros((1, 9), np.float32)
  _, entropy, mode, (samples, _) = evaluate(
    HYBRID, parameters, np.zeros((1, 4), np.float32), mask[None], draws=20
  )
  assert (samples[..., :2] == [1, 0]).all() and samples[..., 2].std() > 0
  normal = scipy.stats.norm(MIDDLE, 0.5 * HALF)
  np.testing.assert_allclose(entropy, [normal.entropy().sum()], rtol=1e-5)
  np.testing.assert_allclose(mode, [[1, 0, *MIDDLE]])


# Squashed Gaussians


SQUASHED = distributions.SquashedGaussian(2)


@jax.jit
def squash(parameters, noise):
  """Returns actions, log-probabilities, and gradients of both."""

  def total(parameters):
    action, log_prob = SQUASHED.sample(parameters, noise)
    return jnp.sum(log_prob), (action, log_prob)

  gradient, drawn = jax.grad(total, has_aux=True)(parameters)
  return *drawn, gradient


def squashed(parameters, noise):
  """Computes actions and log-probabilities in float64, as the paper does."""
  mean, raw = np.split(np.asarray(parameters, float), 2, axis=-1)
  log_scale = -5 + 3.5 * (np.tanh(raw) + 1)
  unbounded = mean + np.exp(log_scale) * noise
  size = np.abs(unbounded)
  # log(1 - tanh(u)^2) without cancellation.
  log_slope = 2 * (np.log(2) - size - np.log1p(np.exp(-2 * size)))
  normal = scipy.stats.norm.logpdf(noise) - log_scale
  return np.tanh(unbounded), np.sum(normal - log_slope, axis=-1)


def test_squashed_gaussian_and_its_gradients_match_float64():
  rng = np.random.default_rng(0)
  parameters, noise = rng.normal(size=(6, 4)), rng.normal(size=(6, 2))
  parameters, noise = np.float32(parameters), np.float32(noise)
  action, log_prob, gradient = jax.device_get(squash(parameters, noise))
  expected = squashed(parameters, noise)
  assert (action.dtype, log_prob.dtype) == (np.float32, np.float32)
  np.testing.assert_allclose(action, expected[0], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(log_prob, expected[1], rtol=1e-4, atol=1e-5)
  # The density of the action is the same as that of the sample.
  np.testing.assert_allclose(
    jax.jit(lambda x, y: SQUASHED(x).log_prob(y))(parameters, action),
    expected[1],
    rtol=1e-3,
    atol=1e-3,
  )
  differences = np.zeros(parameters.shape)
  for i in range(4):
    step = 1e-6 * (np.arange(4) == i)
    up, down = (squashed(parameters + x, noise)[1] for x in (step, -step))
    differences[:, i] = (up - down) / 2e-6
  np.testing.assert_allclose(gradient, differences, rtol=1e-3, atol=1e-4)


def test_squashed_gaussian_is_finite_at_large_parameters():
  parameters = np.float32(
    [[60, -60, 0, 0], [1e4, -1e4, 9, -9], [0, 3, 1e6, -1e6]]
  )
  noise = np.float32([[1, -2], [3, 0], [-4, 4]])
  action, log_prob, gradient = jax.device_get(squash(parameters, noise))
  expected = squashed(parameters, noise)
  np.testing.assert_allclose(action, expected[0], rtol=1e-5)
  np.testing.assert_allclose(log_prob, expected[1], rtol=1e-4)
  assert np.isfinite(gradient).all()
  # Beyond the tanh, the density grows by 2 for each unit of the mean.
  np.testing.assert_allclose(gradient[:2, :2], [[2, -2]] * 2, rtol=1e-5)
  _, scale = jax.device_get(SQUASHED.moments(parameters))
  expected = np.exp([[-1.5, -1.5], [2, -5], [2, -5]])
  np.testing.assert_allclose(scale, expected, rtol=1e-5)
