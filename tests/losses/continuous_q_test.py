"""Losses of continuous actions: worked examples, gradients and identities."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import losses
from tests.losses import cases, references, streams
from tests.losses.streams import FIRST, LAST, MID

STEPS = {
  "step_type": np.array([MID, MID, LAST, FIRST, MID], np.int32),
  "reward": np.array([0.0, 1.0, 2.0, 50.0, 1.0], np.float32),
  "discount": np.array([1.0, 0.5, 0.5, 1.0, 0.5], np.float32),
}


# The critics


def test_clipped_double_q_learning_matches_a_worked_example():
  q_values = np.float32([[1, 2], [1, 0], [7, 7], [3, 1]])
  target_q_values = np.float32([[9, 9], [5, 3], [4, 8], [9, 9], [6, 7]])
  bonus = np.float32([9, 1, -2, 9, 2])
  evaluate = jax.jit(losses.clipped_double_q_learning)
  loss = evaluate(q_values, target_q_values, **STEPS)
  # The minima are 3, 4 and 6: 1 + 0.5 * 3 = 2.5, 2 + 0.5 * 4 = 4, and in the
  # next episode 1 + 0.5 * 6 = 4. The errors are (1.5, 0.5), (3, 4) and (1, 3).
  np.testing.assert_array_equal(loss.loss, [1.25, 12.5, 0.0, 5.0])
  np.testing.assert_array_equal(loss.td_error, [1.0, 3.5, 0.0, 2.0])
  np.testing.assert_array_equal(loss.weight, [1.0, 1.0, 0.0, 1.0])
  loss = evaluate(q_values, target_q_values, **STEPS, entropy_bonus=bonus)
  # The soft values are 4, 2 and 8: 3, 3 and 5.
  # The errors are (2, 1), (2, 3) and (2, 4).
  np.testing.assert_array_equal(loss.td_error, [1.5, 2.5, 0.0, 3.0])
  loss = losses.clipped_double_q_learning(
    q_values, target_q_values, **STEPS, entropy_bonus=bonus, n=2
  )
  # Only the last value of a return has a bonus: 1 + 0.5 (2 + 0.5 * 2) = 2.5.
  np.testing.assert_array_equal(loss.td_error, [1.0, 2.5, 0.0, 3.0])


def test_one_critic_and_one_step_give_the_target_of_ddpg():
  stream = streams.random_stream(streams.THREE_RESETS, seed=3)
  for name in ("q_values", "target_q_values"):
    stream[f"critics.{name}"] = stream[f"critics.{name}"][:, :1]
  loss = cases.CASES["clipped_double_q_learning"](stream, soft=False)
  # y_t = r_t+1 + gamma Q'(s_t+1, mu'(s_t+1))
  later = stream["critics.target_q_values"][1:, 0]
  target = stream["reward"][1:] + stream["discount"][1:] * later
  error = target - stream["critics.q_values"][:, 0]
  kept = stream["step_type"][1:] != FIRST
  np.testing.assert_allclose(loss.loss[kept], 0.5 * error[kept] ** 2, rtol=1e-5)
  np.testing.assert_allclose(loss.td_error[kept], abs(error)[kept], rtol=1e-5)


ATOMS = np.float32([-1.0, 0.0, 1.0, 2.0])


@jax.jit
@functools.partial(jax.value_and_grad, has_aux=True)
def categorical_critics(logits, others):
  loss = losses.categorical_clipped_double_q_learning(
    logits, **others, atoms=ATOMS
  )
  return loss.loss.sum(), loss


def test_of_categorical_critics_the_smallest_mean_is_the_target():
  def certain(*atoms):
    return np.where(np.float32(atoms)[:, None] == ATOMS, 0, -99.0)

  even = np.zeros(4, np.float32)  # Its mean is 0.5.
  target_logits = np.zeros((5, 2, 4), np.float32)
  target_logits[1] = certain(1, 0)
  target_logits[2] = even, *certain(2)
  target_logits[4] = *certain(1), even
  (_, loss), gradient = categorical_critics(
    np.zeros((4, 1, 4), np.float32),
    {"target_logits": target_logits, **STEPS},
  )
  # 1 + 0.5 * 0 is an atom. 2 + 0.5 z is at least 1.5: two atoms are 1.5 and 2,
  # and two lie beyond 2. 1 + 0.5 z is 0.5, 1, 1.5 or 2.
  targets = [
    [0.0, 0.0, 1.0, 0.0],
    [0.0, 0.0, 0.125, 0.875],
    [0.25, 0.25, 0.25, 0.25],
    [0.0, 0.125, 0.5, 0.375],
  ]
  np.testing.assert_allclose(0.25 - gradient[:, 0], targets, atol=1e-6)
  entropies = [-sum(p * np.log(p) for p in x if p) for x in targets]
  expected = np.log(4) - np.array(entropies)
  np.testing.assert_allclose(loss.loss, expected, atol=1e-6)
  np.testing.assert_allclose(loss.td_error, expected, atol=1e-6)


# A deterministic actor


def test_the_deterministic_gradient_is_that_of_minus_q():
  """Q(s, a) = -1/2 a'Ma + a'Ns of random M and N, and mu(s) = tanh(Ws)."""
  rng = np.random.default_rng(0)
  m, n, w = rng.normal(size=(3, 3, 3)).astype(np.float32)
  states = rng.normal(size=(4, 3)).astype(np.float32)

  def q(state, action):
    return -0.5 * action @ m @ action + action @ n @ state

  def actor(w):
    return jnp.tanh(states @ w.T)

  @jax.jit
  def evaluate(w):
    def loss(w):
      action = actor(w)
      q_gradient = jax.vmap(jax.grad(q, 1))(states, action)
      loss = losses.deterministic_policy_gradient(
        action, q_gradient, np.full(5, MID)
      ).loss
      return loss.sum(), (loss, q_gradient)

    def minus_q(w):
      return -jax.vmap(q)(states, actor(w)).sum()

    return jax.grad(loss, has_aux=True)(w), jax.grad(minus_q)(w)

  (actual, (loss, q_gradient)), expected = evaluate(w)
  assert np.abs(expected).min() > 1e-3
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    loss, 0.5 * np.sum(np.square(q_gradient), axis=-1), rtol=1e-5
  )


def test_each_element_of_the_action_gradient_is_clipped_alone():
  action = np.float32([[0.5, -0.5], [0.25, 0.0]])
  action_gradient = np.float32([[3.0, -0.5], [-2.0, 1.5]])

  @jax.jit
  def evaluate(action):
    def total(action):
      loss = losses.deterministic_policy_gradient(
        action, action_gradient, np.full(3, MID), gradient_clip=1.0
      ).loss
      return loss.sum(), loss

    return jax.grad(total, has_aux=True)(action)

  gradient, loss = evaluate(action)
  # The norm of (3, -0.5) would be clipped to 1 as (0.99, -0.16).
  np.testing.assert_allclose(gradient, [[-1.0, 0.5], [1.0, -1.0]], rtol=1e-6)
  np.testing.assert_allclose(loss, [0.5 * (1 + 0.25), 1.0], rtol=1e-6)


# A stochastic actor, and its temperature

ALPHA = 0.5


@jax.jit
def soft_gradient(learned, q_values):
  """Returns the loss of a discrete policy, and its gradient.

  Learned are the logits `[T, A]`; Q-values are `[T, A, C]`.
  """

  def total(logits):
    log_policy = jax.nn.log_softmax(logits)
    policy = jnp.exp(log_policy)
    smallest = jnp.sum(policy * q_values.min(axis=-1), axis=-1)
    loss = losses.soft_policy(
      smallest[:, None],
      jnp.sum(policy * log_policy, axis=-1),
      jnp.full(len(logits) + 1, MID),
      temperature=ALPHA,
    ).loss
    return loss.sum(), loss

  return jax.value_and_grad(total, has_aux=True)(learned)


def test_the_means_of_a_discrete_policy_give_its_loss_and_gradient():
  rng = np.random.default_rng(1)
  logits = rng.normal(size=(6, 4))
  q_values = 2 * rng.normal(size=(6, 4, 2))
  (_, loss), gradient = soft_gradient(
    logits.astype(np.float32), q_values.astype(np.float32)
  )
  for t in range(6):
    policy = references.probabilities(logits[t])
    # Christodoulou 2019, equation 12; pi_a depends on each logit.
    each = ALPHA * np.log(policy) - q_values[t].min(axis=-1)
    np.testing.assert_allclose(loss[t], policy @ each, rtol=1e-4, atol=1e-5)
    expected = policy * (each - policy @ each)
    np.testing.assert_allclose(gradient[t], expected, rtol=1e-3, atol=1e-5)


def test_the_gradient_of_a_gaussian_flows_through_action_and_probability():
  """The action is m + s noise, the scale s is exp(l), and Q is -a^2."""
  noise = np.random.default_rng(3).normal(size=5).astype(np.float32)

  @jax.jit
  def evaluate(mean, log_scale):
    def total(mean, log_scale):
      action = mean + jnp.exp(log_scale) * noise
      z = (action - mean) / jnp.exp(log_scale)
      q_values = -jnp.stack([action**2, action**2 - 1], axis=-1)
      return losses.soft_policy(
        q_values, -0.5 * z**2 - log_scale, np.full(6, MID), temperature=ALPHA
      ).loss.sum()

    return jax.grad(total, argnums=(0, 1))(mean, log_scale)

  mean, scale = 0.75, 0.5
  actual = evaluate(jnp.float32(mean), jnp.log(jnp.float32(scale)))
  action = mean + scale * noise.astype(np.float64)
  # log pi is -noise^2 / 2 - l: it does not depend on m, and -1 is its
  # derivative with respect to l.
  expected = (
    np.sum(2 * action),
    np.sum(2 * action * scale * noise - ALPHA),
  )
  chex.assert_trees_all_close(actual, expected, rtol=1e-4)


def test_alpha_has_no_gradient_from_the_policys_loss():
  def total(alpha):
    return losses.soft_policy(
      np.float32([[3, 2]]), np.float32([-1]), np.full(2, MID), temperature=alpha
    ).loss.sum()

  value, gradient = jax.value_and_grad(total)(jnp.float32(ALPHA))
  assert value == -2.5 and gradient == 0


def temperature_gradient(log_temperature, log_prob, target_entropy):
  return jax.grad(
    lambda x: losses.temperature(
      x,
      np.float32(log_prob),
      np.full(len(log_prob) + 1, MID),
      target_entropy=target_entropy,
    ).loss.sum()
  )(jnp.float32(log_temperature))


def test_the_temperature_rises_while_the_entropy_is_below_its_target():
  # The entropy of these actions is 1, alpha is 1.
  log_prob = [-0.5, -1.5]
  # A descent changes log alpha by the negative gradient.
  assert temperature_gradient(0.0, log_prob, 3.0) == -4.0
  assert temperature_gradient(0.0, log_prob, 0.0) == 2.0
  assert temperature_gradient(0.0, log_prob, 1.0) == 0.0
  assert temperature_gradient(np.log(2), log_prob, 3.0) == -8.0


@pytest.mark.parametrize("wrong", [np.ones(1), np.ones((1, 1))])
def test_a_temperature_or_target_that_is_an_array_is_refused(wrong):
  one, steps = np.ones(1, np.float32), np.full(2, MID)
  with pytest.raises(AssertionError, match="temperature"):
    losses.soft_policy(one[:, None], one, steps, temperature=wrong)
  with pytest.raises(AssertionError, match="target_entropy"):
    losses.temperature(one[0], one, steps, target_entropy=wrong)


def test_atoms_that_are_no_vector_of_floats_are_refused():
  case = cases.CASES["categorical_clipped_double_q_learning"]
  stream = cases.all_streams()["resets"]
  atoms = cases.WIDE
  for wrong in (atoms[:-1], atoms[None], atoms.sum(), atoms.astype(int)):
    with pytest.raises(AssertionError, match="atoms"):
      jax.eval_shape(functools.partial(case, atoms=wrong), stream)
