"""Returns and advantages: worked numbers, and how they are related."""

import numpy as np
import pytest

from tests.losses import cases, streams
from tests.losses.streams import FIRST, LAST, MID

n_step_returns, lambda_returns, gae = (
  cases.CASES[name] for name in ("n_step_returns", "lambda_returns", "gae")
)


def worked_stream():
  return {
    "values": np.array([1.0, 2.0, 4.0, 8.0], np.float32),
    "step_type": np.array([FIRST, MID, MID, MID], np.int32),
    "reward": np.array([9.0, 1.0, 2.0, 3.0], np.float32),
    "discount": np.array([1.0, 0.5, 0.5, 0.5], np.float32),
  }


@pytest.mark.parametrize(
  ("n", "expected"),
  [
    # 1 + 0.5 * 2, 2 + 0.5 * 4, 3 + 0.5 * 8
    (1, [2.0, 4.0, 7.0]),
    # 1 + 0.5 (2 + 0.5 * 4), 2 + 0.5 (3 + 0.5 * 8), 3 + 0.5 * 8
    (2, [3.0, 5.5, 7.0]),
    # 1 + 0.5 (2 + 0.5 (3 + 0.5 * 8)), and the others end with the stream.
    (3, [3.75, 5.5, 7.0]),
    (4, [3.75, 5.5, 7.0]),
  ],
)
def test_worked_n_step_returns(n, expected):
  actual = n_step_returns(worked_stream(), n=n)
  np.testing.assert_array_equal(actual, expected)


# G_2 = 3 + 0.5 * 8                       = 7
# G_1 = 2 + 0.5 (0.5 * 4 + 0.5 * 7)       = 4.75
# G_0 = 1 + 0.5 (0.5 * 2 + 0.5 * 4.75)    = 2.6875
HALF = np.array([2.6875, 4.75, 7.0])


def test_worked_lambda_returns():
  actual = lambda_returns(worked_stream(), lambda_=0.5)
  np.testing.assert_array_equal(actual, HALF)


def test_worked_advantages():
  # delta = 1 + 0.5 * 2 - 1, 2 + 0.5 * 4 - 2, 3 + 0.5 * 8 - 4 = 1, 2, 3
  # A_1 = 2 + 0.25 * 3 = 2.75, A_0 = 1 + 0.25 * 2.75 = 1.6875
  actual = gae(worked_stream(), lambda_=0.5)
  np.testing.assert_array_equal(actual, [1.6875, 2.75, 3.0])
  np.testing.assert_array_equal(actual, HALF - [1.0, 2.0, 4.0])


@pytest.mark.parametrize(("discount", "expected"), [(0.5, 2.5), (0.0, 1.5)])
def test_worked_boundary(discount, expected):
  # The episode ends at step 2, worth 4, by truncation or by termination:
  # 1 + 0.5 (1 + d * 4) is 2.5 or 1.5. All of it ends there for any n beyond.
  stream = worked_stream() | {
    "step_type": np.array([MID, MID, LAST, FIRST], np.int32),
    "reward": np.array([9.0, 1.0, 1.0, 50.0], np.float32),
    "discount": np.array([1.0, 0.5, discount, 1.0], np.float32),
  }
  for actual in (
    n_step_returns(stream, n=2),
    n_step_returns(stream, n=3),
    lambda_returns(stream),
    gae(stream, lambda_=1.0) + stream["values"][:-1],
  ):
    np.testing.assert_array_equal(actual, [expected, 1 + 4 * discount, 4.0])


@pytest.fixture
def stream():
  return streams.random_stream(streams.THREE_RESETS, seed=2)


@pytest.mark.parametrize(("lambda_", "n"), [(1.0, 9), (0.0, 1)])
def test_lambda_1_is_the_longest_return_and_0_the_shortest(stream, lambda_, n):
  cases.assert_close(
    lambda_returns(stream, lambda_=lambda_), n_step_returns(stream, n=n), 1e-6
  )


def test_the_longest_return_is_the_default(stream):
  cases.assert_equal(
    lambda_returns(stream), lambda_returns(stream, lambda_=1.0)
  )


def test_an_n_beyond_the_stream_ends_with_it(stream):
  cases.assert_equal(n_step_returns(stream, n=50), n_step_returns(stream, n=9))


@pytest.mark.parametrize("lambda_", [1.0, 0.7, 0.0])
def test_advantages_are_lambda_returns_less_values(stream, lambda_):
  cases.assert_close(
    gae(stream, lambda_=lambda_),
    lambda_returns(stream, lambda_=lambda_) - stream["values"][:-1],
    1e-5,
  )
