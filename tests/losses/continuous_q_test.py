"""Losses of continuous actions: worked examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import losses
from tests.losses import cases
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


# A stochastic actor, and its temperature

ALPHA = 0.5


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
