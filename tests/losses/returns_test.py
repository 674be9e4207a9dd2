"""Returns and advantages, compared with worked examples."""

import jax
import numpy as np

from tests.losses import cases
from tests.losses.streams import FIRST, LAST, MID

n_step_returns = jax.jit(cases.CASES["n_step_returns"], static_argnames="n")
lambda_returns, gae = (
  jax.jit(cases.CASES[name]) for name in ("lambda_returns", "gae")
)
STREAM = {
  "values": np.array([1.0, 2.0, 4.0, 8.0], np.float32),
  "step_type": np.array([FIRST, MID, MID, MID], np.int32),
  "reward": np.array([9.0, 1.0, 2.0, 3.0], np.float32),
  "discount": np.array([1.0, 0.5, 0.5, 0.5], np.float32),
}


def test_n_step_returns_match_worked_examples():
  for n, expected in (
    # 1 + 0.5 * 2, 2 + 0.5 * 4, 3 + 0.5 * 8
    (1, [2.0, 4.0, 7.0]),
    # 1 + 0.5 (2 + 0.5 * 4), 2 + 0.5 (3 + 0.5 * 8), 3 + 0.5 * 8
    (2, [3.0, 5.5, 7.0]),
    # 1 + 0.5 (2 + 0.5 (3 + 0.5 * 8)); the other returns end with the stream.
    (3, [3.75, 5.5, 7.0]),
    (4, [3.75, 5.5, 7.0]),
  ):
    np.testing.assert_array_equal(n_step_returns(STREAM, n=n), expected)


def test_lambda_returns_and_advantages_match_worked_examples():
  # G_2 = 3 + 0.5 * 8                       = 7
  # G_1 = 2 + 0.5 (0.5 * 4 + 0.5 * 7)       = 4.75
  # G_0 = 1 + 0.5 (0.5 * 2 + 0.5 * 4.75)    = 2.6875
  actual = lambda_returns(STREAM, lambda_=0.5)
  np.testing.assert_array_equal(actual, [2.6875, 4.75, 7.0])
  # delta = 1 + 0.5 * 2 - 1, 2 + 0.5 * 4 - 2, 3 + 0.5 * 8 - 4 = 1, 2, 3
  # A_1 = 2 + 0.25 * 3 = 2.75, A_0 = 1 + 0.25 * 2.75 = 1.6875
  actual = gae(STREAM, lambda_=0.5)
  np.testing.assert_array_equal(actual, [1.6875, 2.75, 3.0])


def test_returns_end_with_their_episode():
  # The episode ends at step 2, with value 4, by truncation or by termination:
  # 1 + 0.5 (1 + d * 4) is 2.5 or 1.5. A larger n gives the same returns.
  for discount, expected in ((0.5, 2.5), (0.0, 1.5)):
    stream = STREAM | {
      "step_type": np.array([MID, MID, LAST, FIRST], np.int32),
      "reward": np.array([9.0, 1.0, 1.0, 50.0], np.float32),
      "discount": np.array([1.0, 0.5, discount, 1.0], np.float32),
    }
    for actual in (
      n_step_returns(stream, n=2),
      n_step_returns(stream, n=3),
      lambda_returns(stream, lambda_=1.0),
      gae(stream, lambda_=1.0) + stream["values"][:-1],
    ):
      np.testing.assert_array_equal(actual, [expected, 1 + 4 * discount, 4.0])
