"""A2C, compared with a worked example."""

import jax
import numpy as np

from tests.losses import cases
from tests.losses.streams import FIRST, MID


def test_losses_match_a_worked_example():
  stream = {
    "values": np.array([1.0, 2.0, 3.0], np.float32),
    "log_prob": np.array([-0.5, -2.0], np.float32),
    "entropy": np.array([0.25, 0.75], np.float32),
    "step_type": np.array([FIRST, MID, MID], np.int32),
    "reward": np.array([9.0, 1.0, 2.0], np.float32),
    "discount": np.array([1.0, 0.5, 0.5], np.float32),
  }
  a2c = jax.jit(cases.CASES["a2c"])
  # G_1 = 2 + 0.5 * 3 = 3.5 and A_1 = 3.5 - 2 = 1.5, for every lambda;
  # lambda 1:   G_0 = 1 + 0.5 * 3.5               = 2.75,  A_0 = 1.75
  # lambda 0.5: G_0 = 1 + 0.5 (0.5 * 2 + 0.5 * 3.5) = 2.375, A_0 = 1.375
  # lambda 0:   G_0 = 1 + 0.5 * 2                 = 2,     A_0 = 1
  for lambda_, advantage in ((1.0, 1.75), (0.5, 1.375), (0.0, 1.0)):
    loss = a2c(stream, lambda_=lambda_)
    np.testing.assert_array_equal(loss.policy_gradient, [0.5 * advantage, 3.0])
    np.testing.assert_array_equal(loss.value, [0.5 * advantage**2, 1.125])
    np.testing.assert_array_equal(loss.entropy, [-0.25, -0.75])
    np.testing.assert_array_equal(loss.weight, [1.0, 1.0])
