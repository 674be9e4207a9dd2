"""Transitions at episode boundaries."""

import jax
import numpy as np

from seedx import losses
from tests.losses.streams import FIRST, LAST, MID


def test_a_reset_has_the_last_value_as_reward_and_no_weight():
  steps = jax.jit(losses.transitions)(
    np.array([MID, LAST, FIRST, MID]),
    np.array([0.0, 1.0, 50.0, 2.0]),
    np.array([1.0, 1.0, 1.0, 0.0]),
    np.array([3.0, 4.0, 5.0, 6.0]),
  )
  np.testing.assert_array_equal(steps.reward_t, [1.0, 4.0, 2.0])
  np.testing.assert_array_equal(steps.discount_t, [1.0, 0.0, 0.0])
  np.testing.assert_array_equal(steps.weight, [1.0, 0.0, 1.0])


def test_transitions_have_no_gradient_with_respect_to_values():
  def total(values):
    steps = losses.transitions(
      np.array([MID, LAST, FIRST]), np.ones(3), np.ones(3), values
    )
    return steps.reward_t.sum() + steps.discount_t.sum()

  gradient = jax.jit(jax.grad(total))(np.arange(3.0))
  np.testing.assert_array_equal(gradient, np.zeros(3))
