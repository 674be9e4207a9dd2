"""A2C: worked numbers, and what it has in common with others."""

import jax
import numpy as np
import pytest

from tests.losses import cases, streams
from tests.losses.streams import FIRST, MID

a2c = cases.CASES["a2c"]


# G_1 = 2 + 0.5 * 3 = 3.5 and A_1 = 3.5 - 2 = 1.5, for every lambda;
# lambda 1:   G_0 = 1 + 0.5 * 3.5               = 2.75,  A_0 = 1.75
# lambda 0.5: G_0 = 1 + 0.5 (0.5 * 2 + 0.5 * 3.5) = 2.375, A_0 = 1.375
# lambda 0:   G_0 = 1 + 0.5 * 2                 = 2,     A_0 = 1
@pytest.mark.parametrize(
  ("lambda_", "advantage"), [(1.0, 1.75), (0.5, 1.375), (0.0, 1.0)]
)
def test_worked_arithmetic(lambda_, advantage):
  stream = {
    "values": np.array([1.0, 2.0, 3.0], np.float32),
    "log_prob": np.array([-0.5, -2.0], np.float32),
    "entropy": np.array([0.25, 0.75], np.float32),
    "step_type": np.array([FIRST, MID, MID], np.int32),
    "reward": np.array([9.0, 1.0, 2.0], np.float32),
    "discount": np.array([1.0, 0.5, 0.5], np.float32),
  }
  loss = a2c(stream, lambda_=lambda_)
  np.testing.assert_array_equal(loss.policy_gradient, [0.5 * advantage, 3.0])
  np.testing.assert_array_equal(loss.value, [0.5 * advantage**2, 1.125])
  np.testing.assert_array_equal(loss.entropy, [-0.25, -0.75])
  np.testing.assert_array_equal(loss.weight, [1.0, 1.0])


@pytest.mark.parametrize("lambda_", [1.0, 0.9, 0.0])
def test_its_gradient_is_that_of_advantages_and_entropy(lambda_):
  stream = streams.random_stream(streams.THREE_RESETS, seed=3)
  # An advantage of 0 at a reset, whose entropy is left out as well.
  advantage = cases.CASES["gae"](stream, lambda_=lambda_)
  weight = stream["step_type"][1:] != FIRST

  def total(learned):
    loss = a2c(stream | learned, lambda_=lambda_)
    return sum(part.sum() for part in loss[:3])

  learned = {name: stream[name] for name in ("values", "log_prob", "entropy")}
  expected = {
    "values": np.append(-advantage, 0.0),
    "log_prob": -advantage,
    "entropy": -weight.astype(np.float32),
  }
  cases.assert_close(jax.grad(total)(learned), expected, 1e-5)
