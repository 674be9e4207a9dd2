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


# Legal actions

MASKS = np.array(
  [[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
)
MASK_DTYPES = ("bool", "int8", "float32")


def masked_case(dtype="bool"):
  """Logits of which some illegal ones are the largest by far."""
  logits = np.random.default_rng(1).normal(size=MASKS.shape) * 3
  logits[MASKS == 0] += 40 * np.arange((MASKS == 0).sum()) - 100
  return logits.astype(np.float32), MASKS.astype(dtype)


@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("how", ["plain", "jit", "vmap"])
def test_masked_is_the_categorical_over_the_legal_actions(dtype, how):
  logits, mask = masked_case(dtype)

  def evaluate(logits, mask):
    distribution = distributions.Categorical(5)(logits, mask)
    every = jnp.moveaxis(jnp.broadcast_to(jnp.arange(5), mask.shape), -1, 0)
    return (
      distribution.probs,
      jnp.moveaxis(distribution.log_prob(every), 0, -1),
      distribution.entropy(),
      distribution.mode(),
    )

  transform = {"plain": lambda f: f, "jit": jax.jit, "vmap": jax.vmap}[how]
  probs, log_prob, entropy, mode = transform(evaluate)(logits, mask)
  for row, legal in enumerate(MASKS > 0):
    kept = logits[row, legal].astype(np.float64)
    expected = scipy.special.softmax(kept)
    np.testing.assert_array_equal(probs[row, ~legal], 0)
    np.testing.assert_allclose(probs[row, legal], expected, rtol=1e-5)
    np.testing.assert_allclose(
      log_prob[row, legal], np.log(expected), rtol=1e-4, atol=1e-6
    )
    assert np.all(log_prob[row, ~legal] < -1e8)
    assert entropy[row] == pytest.approx(
      scipy.stats.entropy(expected), rel=1e-4, abs=1e-6
    )
    assert mode[row] == np.flatnonzero(legal)[np.argmax(kept)]


@pytest.mark.parametrize("quantity", ["entropy", "log_prob"])
def test_masked_gradients_are_those_of_the_legal_actions_alone(quantity):
  logits, mask = masked_case()
  actions = np.argmax(mask, axis=-1)  # The first that is legal.

  def total(logits):
    distribution = distributions.Categorical(5)(logits, mask)
    if quantity == "entropy":
      return distribution.entropy().sum()
    return distribution.log_prob(actions).sum()

  gradient = jax.jit(jax.grad(total))(logits)
  for row, legal in enumerate(mask):
    p = scipy.special.softmax(logits[row, legal].astype(np.float64))
    expected = np.zeros(5)
    if quantity == "entropy":
      expected[legal] = -p * (np.log(p) + scipy.stats.entropy(p))
    else:
      expected[legal] = (np.arange(len(p)) == 0) - p
    np.testing.assert_allclose(gradient[row], expected, rtol=1e-4, atol=1e-5)


def test_an_illegal_action_is_never_sampled():
  logits, mask = masked_case()
  draws = 3000

  @jax.jit
  def sample(logits, mask):
    distribution = distributions.Categorical(5)(logits, mask)
    return distribution.sample(seed=jax.random.key(0), sample_shape=(draws,))

  samples = np.asarray(sample(logits, mask))
  for row, legal in enumerate(mask):
    counts = np.bincount(samples[:, row], minlength=5)
    assert counts[~legal].sum() == 0
    expected = scipy.special.softmax(logits[row, legal])
    np.testing.assert_allclose(counts[legal] / draws, expected, atol=0.04)


def test_one_legal_action_is_certain():
  logits = jnp.array([50.0, -50.0, 0.0])
  mask = jnp.array([False, True, False])

  def entropy(logits):
    return distributions.Categorical(3)(logits, mask).entropy()

  value, gradient = jax.value_and_grad(entropy)(logits)
  assert value == 0
  np.testing.assert_array_equal(gradient, np.zeros(3))
  distribution = distributions.Categorical(3)(logits, mask)
  assert distribution.log_prob(1) == 0
  np.testing.assert_array_equal(
    distribution.sample(seed=jax.random.key(0), sample_shape=(50,)), 1
  )


@pytest.mark.parametrize("dtype", MASK_DTYPES)
def test_only_legal_values_keep_their_value(dtype):
  values = jnp.array([[-200.0, 3.0, 7.0], [1.0, 2.0, 3.0]])
  mask = np.array([[1, 1, 0], [0, 0, 1]], dtype)
  result = distributions.only_legal(values, mask)
  assert (result.shape, result.dtype) == (values.shape, values.dtype)
  np.testing.assert_array_equal(result[mask != 0], [-200.0, 3.0, 3.0])
  # Also the worst Q-value of a legal action is above them.
  assert np.all(result[mask == 0] < -1e6)
  np.testing.assert_array_equal(result.argmax(-1), [1, 2])
  assert distributions.only_legal(values, None) is values


# Several choices at once

CHOICES = (4, 1, 2, 7)


def choices_case():
  """Logits `[2, 3, 14]`, and the probabilities of each choice."""
  logits = np.random.default_rng(2).normal(size=(2, 3, 14)).astype(np.float32)
  parts = np.split(logits.astype(np.float64), np.cumsum(CHOICES)[:-1], axis=-1)
  return logits, [scipy.special.softmax(part, axis=-1) for part in parts]


def test_several_choices_are_independent():
  logits, probabilities = choices_case()
  rng = np.random.default_rng(0)
  actions = rng.integers(0, CHOICES, (50, 2, 3, 4)).astype(np.int32)
  policy = distributions.MultiCategorical(CHOICES)

  @jax.jit
  def evaluate(logits):
    return policy(logits).log_prob(actions), policy(logits).entropy()

  log_prob, entropy = evaluate(logits)
  expected = sum(
    np.take_along_axis(np.log(p)[None], actions[..., i, None], axis=-1)[..., 0]
    for i, p in enumerate(probabilities)
  )
  np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-5)
  expected = sum(scipy.stats.entropy(p, axis=-1) for p in probabilities)
  np.testing.assert_allclose(entropy, expected, rtol=1e-4)


def test_gradients_of_several_choices_are_those_of_each():
  logits, probabilities = choices_case()
  policy = distributions.MultiCategorical(CHOICES)
  gradient = jax.jit(jax.grad(lambda x: policy(x).entropy().sum()))(logits)
  expected = np.concatenate(
    [
      -p * (np.log(p) + scipy.stats.entropy(p, axis=-1)[..., None])
      for p in probabilities
    ],
    axis=-1,
  )
  np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def test_samples_of_several_choices_have_the_frequencies():
  logits, probabilities = choices_case()
  draws = 3000

  @jax.jit
  def sample(logits):
    return distributions.MultiCategorical(CHOICES)(logits).sample_and_log_prob(
      seed=jax.random.key(0), sample_shape=(draws,)
    )

  samples, log_prob = map(np.asarray, sample(logits))
  assert (samples.shape, samples.dtype) == ((draws, 2, 3, 4), np.int32)
  assert samples.min() == 0
  assert (samples.max(axis=(0, 1, 2)) == np.subtract(CHOICES, 1)).all()
  expected = 0.0
  for i, p in enumerate(probabilities):
    one_hot = np.eye(CHOICES[i])[samples[..., i]]
    np.testing.assert_allclose(one_hot.mean(axis=0), p, atol=0.04)
    expected = expected + np.log((one_hot * p).sum(-1))
  np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)
  # Choices do not follow one another: the first and the last.
  row = np.histogram2d(*samples[:, 0, 0, [0, 3]].T, bins=(range(5), range(8)))
  joint = np.outer(probabilities[0][0, 0], probabilities[3][0, 0])
  np.testing.assert_allclose(row[0] / draws, joint, atol=0.03)


def test_illegal_values_of_several_choices_have_probability_0():
  logits, probabilities = choices_case()
  rng = np.random.default_rng(1)
  most = max(CHOICES)
  mask = rng.uniform(size=(2, 3, len(CHOICES), most)) < 0.5
  mask[..., 0] = True
  policy = distributions.MultiCategorical(CHOICES)(logits, mask)
  legal = [p * mask[..., i, : CHOICES[i]] for i, p in enumerate(probabilities)]
  legal = [p / p.sum(axis=-1, keepdims=True) for p in legal]
  entropy = sum(scipy.stats.entropy(p, axis=-1) for p in legal)
  np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-4, atol=1e-6)
  samples, log_prob = policy.sample_and_log_prob(
    seed=jax.random.key(0), sample_shape=(200,)
  )
  chosen = [
    np.take_along_axis(p[None], np.asarray(samples)[..., i, None], axis=-1)
    for i, p in enumerate(legal)
  ]
  assert min(map(np.min, chosen)) > 0
  expected = sum(np.log(p[..., 0]) for p in chosen)
  np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)


def test_half_precision_parameters_are_computed_in_float32():
  logits = jnp.array([1.0, 2.0, 3.0], jnp.bfloat16)
  log_prob = distributions.Categorical(3)(logits).log_prob(0)
  assert log_prob.dtype == jnp.float32
  assert log_prob == pytest.approx(-2.4076059, rel=1e-5)
  several = distributions.MultiCategorical((1, 3))
  log_prob = several(jnp.concatenate([logits[:1], logits])).log_prob(
    jnp.array([0, 0])
  )
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
  ("dtype", "maximum", "num_actions"),
  [
    (np.int32, [5, 0, 2], (6, 1, 3)),
    (np.int64, 9, (10, 10, 10)),
    (np.uint8, [1, 1, 255], (2, 2, 256)),
  ],
)
def test_a_vector_of_integers_is_several_choices(dtype, maximum, num_actions):
  policy = distributions.for_spec(specs.BoundedArray((3,), dtype, 0, maximum))
  assert policy == distributions.MultiCategorical(num_actions)
  assert policy.num_parameters == sum(num_actions)


@pytest.mark.parametrize(
  "spec",
  [
    specs.BoundedArray((), np.float32, -1.0, 1.0),
    specs.BoundedArray((2, 2), np.float32, -1.0, 1.0),
    specs.BoundedArray((2,), np.float32, -np.inf, 1.0),
    specs.BoundedArray((2,), np.float32, -1.0, [1.0, np.inf]),
    specs.BoundedArray((2,), np.float32, -1.0, [1.0, -1.0]),
    specs.BoundedArray((2,), np.int32, 1, 4),
    specs.BoundedArray((2,), np.int32, [0, -1], 4),
    specs.BoundedArray((2, 2), np.int32, 0, 4),
    specs.BoundedArray((), np.int32, 0, 4),
  ],
  ids=[
    "scalar",
    "matrix",
    "unbounded_below",
    "unbounded_above",
    "without_width",
    "integers_from_1",
    "an_integer_from_-1",
    "matrix_of_integers",
    "integer",
  ],
)
def test_spec_without_a_distribution_is_refused(spec):
  with pytest.raises(types.ConfigError, match="finite bounds, found Bounded"):
    distributions.for_spec(spec)
