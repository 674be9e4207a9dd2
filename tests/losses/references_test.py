"""Relations between the references."""

import chex
import numpy as np

from tests.losses import references, streams

STREAM = streams.random_stream(streams.THREE_RESETS, seed=2)
ON_POLICY = STREAM | {"behaviour_log_prob": STREAM["log_prob"]}


def test_advantages_are_lambda_returns_minus_values():
  returns = references.lambda_returns(STREAM, None, 0.7)
  np.testing.assert_allclose(
    references.gae(STREAM, None, 0.7),
    returns - STREAM["values"][:-1],
    rtol=1e-9,
    atol=1e-12,
  )


def test_vtrace_on_policy_is_a2c():
  one, two = (
    loss(ON_POLICY, ON_POLICY, 0.8)
    for loss in (references.vtrace, references.a2c)
  )
  chex.assert_trees_all_close(one[:4], two[:4], rtol=1e-9, atol=1e-9)
