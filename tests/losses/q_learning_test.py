"""Q-learning: each of its options in worked numbers, and identities."""

import jax
import numpy as np
import pytest
import rlax

from seedx import losses
from tests.losses import cases, references, streams
from tests.losses.streams import FIRST, LAST, MID

ARGUMENTS = cases.CASES["q_learning"].arguments[:-1]


def q_learning(stream, **setting):
  """The loss with an importance weight only where the test has one."""
  return losses.q_learning(*(stream[name] for name in ARGUMENTS), **setting)


def worked_stream():
  return {
    "q_values": np.array([[1.0, 0.0], [2.0, 5.0], [4.0, 3.0]], np.float32),
    "target_q_values": np.array([[0, 0], [6, 4], [8, 10]], np.float32),
    "action": np.array([0, 1], np.int32),
    "step_type": np.array([FIRST, MID, MID], np.int32),
    "reward": np.array([9.0, 1.0, 2.0], np.float32),
    "discount": np.array([1.0, 0.5, 0.5], np.float32),
  }


@pytest.mark.parametrize(
  ("setting", "td_error", "loss"),
  [
    # Q chooses actions 1 and 0, which Q' says are worth 4 and 8.
    # 1 + 0.5 * 4 - 1, 2 + 0.5 * 8 - 5
    ({}, [2.0, 1.0], [2.0, 0.5]),
    # The best of Q' are 6 and 10: 1 + 0.5 * 6 - 1, 2 + 0.5 * 10 - 5
    ({"double": False}, [3.0, 2.0], [4.5, 2.0]),
    # 1 + 0.5 (2 + 0.5 * 8) - 1, and the other as before
    ({"n": 2}, [3.0, 1.0], [4.5, 0.5]),
    ({"n": 5}, [3.0, 1.0], [4.5, 0.5]),
    # 1 + 0.5 (2 + 0.5 * 10) - 1
    ({"n": 2, "double": False}, [3.5, 2.0], [6.125, 2.0]),
    # 1.5 (2 - 0.5 * 1.5), and 1 is no more than 1.5
    ({"huber_delta": 1.5}, [2.0, 1.0], [1.875, 0.5]),
    # What the loss is multiplied by is no part of the priority.
    ({"importance_weight": np.float32(3)}, [2.0, 1.0], [6.0, 1.5]),
    (
      {"importance_weight": np.float32(3), "huber_delta": 1.5},
      [2.0, 1.0],
      [5.625, 1.5],
    ),
  ],
)
def test_worked_arithmetic(setting, td_error, loss):
  actual = q_learning(worked_stream(), **setting)
  np.testing.assert_array_equal(actual.td_error, td_error)
  np.testing.assert_array_equal(actual.loss, loss)
  np.testing.assert_array_equal(actual.weight, [1.0, 1.0])


@pytest.mark.parametrize("sign", [1, -1])
def test_worked_rescaling(sign):
  # h(3) = sqrt(4) - 1 + 0.003 = 1.003 and h(8) = sqrt(9) - 1 + 0.008 = 2.008,
  # and the same below 0. Q' says 1.003, for a value of 3:
  # h(6.5 + 0.5 * 3) - 1 = 2.008 - 1.
  stream = {
    "q_values": np.array([[sign, 0.0], [0.0, 0.0]], np.float32),
    "target_q_values": np.array([[0, 0], [sign * 1.003, 0]], np.float32),
    "action": np.array([0], np.int32),
    "step_type": np.array([FIRST, MID], np.int32),
    "reward": np.array([0.0, sign * 6.5], np.float32),
    "discount": np.array([1.0, 0.5], np.float32),
  }
  actual = q_learning(stream, rescale=True)
  np.testing.assert_allclose(actual.td_error, [sign * 1.008], rtol=1e-3)
  np.testing.assert_allclose(actual.loss, [0.5 * 1.008**2], rtol=2e-3)


def test_the_reference_has_the_inverse_of_h():
  x = np.linspace(-300.0, 300.0, 61)
  np.testing.assert_allclose(
    references.unrescaled(references.rescaled(x)), x, rtol=1e-9, atol=1e-9
  )


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_return_bootstraps_where_its_episode_was_truncated(n):
  # Step 2 is LAST: Q chooses action 0 there, and Q' says it is worth 4.
  # td_0 = 1 + 0.5 (2 + 0.5 * 4) - 1 = 2, td_1 = 2 + 0.5 * 4 - 1 = 3,
  # and of the next episode td_3 = 1 + 0.5 * 6 - 1 = 3.
  stream = {
    "q_values": np.tile(np.float32([1, 0]), (5, 1)),
    "target_q_values": np.array(
      [[9, 9], [9, 9], [4, 8], [9, 9], [6, 8]], np.float32
    ),
    "action": np.zeros(4, np.int32),
    "step_type": np.array([MID, MID, LAST, FIRST, MID], np.int32),
    "reward": np.array([0.0, 1.0, 2.0, 50.0, 1.0], np.float32),
    "discount": np.array([1.0, 0.5, 0.5, 1.0, 0.5], np.float32),
  }
  actual = q_learning(stream, n=n)
  np.testing.assert_array_equal(actual.td_error, [2.0, 3.0, 0.0, 3.0])
  np.testing.assert_array_equal(actual.weight, [1.0, 1.0, 0.0, 1.0])


@pytest.fixture
def stream():
  return streams.random_stream(streams.THREE_RESETS, seed=5)


def test_the_error_of_a_reset_is_exactly_0(stream):
  reset = streams.resets(stream)
  for setting in cases.jitted("q_learning")(stream):
    td_error = np.asarray(setting.td_error)
    np.testing.assert_array_equal(td_error[reset], np.zeros(3))
    assert np.count_nonzero(td_error) == 6


def test_n_of_1_is_that_of_rlax():
  stream = streams.random_stream(["step"] * 8 + ["terminate"], seed=6)
  expected = jax.vmap(rlax.q_learning)(
    stream["q_values"][:-1],
    stream["action"],
    stream["reward"][1:],
    stream["discount"][1:],
    stream["target_q_values"][1:],
  )
  actual = q_learning(stream, double=False)
  np.testing.assert_allclose(actual.td_error, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("setting", [{}, {"n": 3}, {"rescale": True}])
def test_double_is_plain_if_the_parameters_are_the_same(stream, setting):
  stream |= {"target_q_values": stream["q_values"]}
  double, plain = (q_learning(stream, double=x, **setting) for x in (1, 0))
  cases.assert_equal(double, plain)


def test_double_is_the_default_and_matters(stream):
  default = q_learning(stream)
  cases.assert_equal(default, q_learning(stream, double=True))
  difference = default.td_error - q_learning(stream, double=False).td_error
  assert np.count_nonzero(difference) >= 2


def test_the_gradient_of_huber_is_clipped(stream):
  def total(q_values):
    loss = q_learning(stream | {"q_values": q_values}, huber_delta=0.5)
    return loss.loss.sum(), loss.td_error

  gradient, td_error = jax.grad(total, has_aux=True)(stream["q_values"])
  expected = np.zeros_like(gradient)
  expected[range(9), stream["action"]] = -np.clip(td_error, -0.5, 0.5)
  np.testing.assert_allclose(gradient[:-1], expected[:-1], rtol=1e-6)
  assert 0 < np.count_nonzero(np.abs(td_error) > 0.5) < 9


def test_an_illegal_action_is_no_matter(stream):
  # As an action mask leaves it: a value of -inf, which 0 does not cancel.
  masked = {
    name: np.concatenate(
      [stream[name], np.full((10, 1), -np.inf, np.float32)], axis=1
    )
    for name in ("q_values", "target_q_values")
  }
  for double in (True, False):
    cases.assert_equal(
      q_learning(stream | masked, double=double),
      q_learning(stream, double=double),
    )
