"""Relations between the references."""

import chex
import numpy as np
import pytest

from tests.losses import references, streams

STREAM = streams.random_stream(streams.THREE_RESETS, seed=2)
ON_POLICY = STREAM | {"behaviour_log_prob": STREAM["log_prob"]}


@pytest.mark.parametrize(("lambda_", "n"), [(1.0, 9), (0.0, 1)])
def test_lambda_1_gives_the_longest_return_and_0_the_shortest(lambda_, n):
  expected = references.n_step_returns(STREAM, None, n)
  actual = references.lambda_returns(STREAM, None, lambda_)
  np.testing.assert_allclose(actual, expected, rtol=1e-12)
  loss = references.vtrace(ON_POLICY, ON_POLICY, lambda_)
  weight = references.weights(STREAM)
  np.testing.assert_allclose(
    loss.diagnostics["value_target"], expected * weight, rtol=1e-12
  )


@pytest.mark.parametrize("lambda_", [1.0, 0.7, 0.0])
def test_advantages_are_lambda_returns_minus_values(lambda_):
  returns = references.lambda_returns(STREAM, None, lambda_)
  np.testing.assert_allclose(
    references.gae(STREAM, None, lambda_),
    returns - STREAM["values"][:-1],
    rtol=1e-9,
    atol=1e-12,
  )


@pytest.mark.parametrize("lambda_", [1.0, 0.8, 0.0])
def test_vtrace_on_policy_is_a2c(lambda_):
  one, two = (
    loss(ON_POLICY, ON_POLICY, lambda_)
    for loss in (references.vtrace, references.a2c)
  )
  chex.assert_trees_all_close(one[:4], two[:4], rtol=1e-9, atol=1e-9)


def test_unrescaled_is_the_inverse_of_rescaled():
  x = np.linspace(-300.0, 300.0, 61)
  np.testing.assert_allclose(
    references.unrescaled(references.rescaled(x)), x, rtol=1e-9, atol=1e-9
  )
