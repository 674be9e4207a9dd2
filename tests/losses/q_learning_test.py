"""Each option of Q-learning, compared with worked examples."""

import functools

import chex
import jax
import numpy as np

from seedx import losses
from tests.losses import cases, streams
from tests.losses.streams import FIRST, LAST, MID

ARGUMENTS = cases.CASES["q_learning"].arguments[:-1]


def q_learning(stream, **setting):
  """Computes the loss, by default without an importance weight."""
  return losses.q_learning(*(stream[name] for name in ARGUMENTS), **setting)


def test_every_option_matches_a_worked_example():
  stream = {
    "q_values": np.array([[1.0, 0.0], [2.0, 5.0], [4.0, 3.0]], np.float32),
    "target_q_values": np.array([[0, 0], [6, 4], [8, 10]], np.float32),
    "action": np.array([0, 1], np.int32),
    "step_type": np.array([FIRST, MID, MID], np.int32),
    "reward": np.array([9.0, 1.0, 2.0], np.float32),
    "discount": np.array([1.0, 0.5, 0.5], np.float32),
  }
  weighted = {"importance_weight": np.float32(3)}
  settings, td_errors, losses_ = zip(
    # Q chooses actions 1 and 0, with values 4 and 8 by Q':
    # 1 + 0.5 * 4 - 1, 2 + 0.5 * 8 - 5
    ({}, [2.0, 1.0], [2.0, 0.5]),
    # The maxima of Q' are 6 and 10: 1 + 0.5 * 6 - 1, 2 + 0.5 * 10 - 5
    ({"double": False}, [3.0, 2.0], [4.5, 2.0]),
    # 1 + 0.5 (2 + 0.5 * 8) - 1; the second return ends with the stream.
    ({"n": 2}, [3.0, 1.0], [4.5, 0.5]),
    ({"n": 5}, [3.0, 1.0], [4.5, 0.5]),
    # 1 + 0.5 (2 + 0.5 * 10) - 1
    ({"n": 2, "double": False}, [3.5, 2.0], [6.125, 2.0]),
    # 1.5 (2 - 0.5 * 1.5); the error 1 is below 1.5.
    ({"huber_delta": 1.5}, [2.0, 1.0], [1.875, 0.5]),
    # The importance weight multiplies the loss, but not the priority.
    (weighted, [2.0, 1.0], [6.0, 1.5]),
    (weighted | {"huber_delta": 1.5}, [2.0, 1.0], [5.625, 1.5]),
    strict=True,
  )

  @jax.jit
  def evaluate(stream):
    return [q_learning(stream, **setting) for setting in settings]

  for actual, td_error, loss in zip(
    evaluate(stream), td_errors, losses_, strict=True
  ):
    np.testing.assert_array_equal(actual.td_error, td_error)
    np.testing.assert_array_equal(actual.loss, loss)
    np.testing.assert_array_equal(actual.weight, [1.0, 1.0])


def test_rescaling_matches_a_worked_example():
  # h(3) = sqrt(4) - 1 + 0.003 = 1.003 and h(8) = sqrt(9) - 1 + 0.008 = 2.008,
  # and h(-x) = -h(x). The 1.003 of Q' stands for a value of 3:
  # h(6.5 + 0.5 * 3) - 1 = 2.008 - 1.
  evaluate = jax.jit(functools.partial(q_learning, rescale=True))
  for sign in (1, -1):
    stream = {
      "q_values": np.array([[sign, 0.0], [0.0, 0.0]], np.float32),
      "target_q_values": np.array([[0, 0], [sign * 1.003, 0]], np.float32),
      "action": np.array([0], np.int32),
      "step_type": np.array([FIRST, MID], np.int32),
      "reward": np.array([0.0, sign * 6.5], np.float32),
      "discount": np.array([1.0, 0.5], np.float32),
    }
    actual = evaluate(stream)
    np.testing.assert_allclose(actual.td_error, [sign * 1.008], rtol=1e-3)
    np.testing.assert_allclose(actual.loss, [0.5 * 1.008**2], rtol=2e-3)


def test_an_illegal_action_does_not_change_the_loss():
  stream = streams.random_stream(streams.THREE_RESETS, seed=5)
  # Illegal actions have a value of -inf, which a weight of 0 does not cancel.
  masked = {
    name: np.concatenate(
      [stream[name], np.full((10, 1), -np.inf, np.float32)], axis=1
    )
    for name in ("q_values", "target_q_values")
  }

  @jax.jit
  def evaluate(stream):
    return [q_learning(stream, double=double) for double in (True, False)]

  chex.assert_trees_all_equal(evaluate(stream | masked), evaluate(stream))


def test_a_return_does_not_cross_the_end_of_an_episode_without_a_last_step():
  """Such a stream breaks off where a faulty environment was reset."""
  step_type = np.array([MID, MID, FIRST, FIRST, MID], np.int32)
  ends = losses.n_step_bootstraps(step_type, np.ones(5), np.full(5, 0.5), n=3)
  np.testing.assert_array_equal(ends.step[::3], [1, 4])
  np.testing.assert_array_equal(ends.reward[::3], [1.0, 1.0])
  np.testing.assert_array_equal(ends.discount[::3], [0.5, 0.5])
  np.testing.assert_array_equal(ends.weight, [1.0, 0.0, 0.0, 1.0])


def test_returns_of_the_first_steps_alone_are_the_same():
  """A sampled window has one learned step, but n steps in its return."""
  rng = np.random.default_rng(0)
  step_type = np.array([MID, MID, LAST, FIRST, MID], np.int32)
  reward, discount = rng.normal(size=(2, 5)).astype(np.float32)
  bootstraps = functools.partial(
    losses.n_step_bootstraps, step_type, reward, discount, n=4
  )
  for starts in (1, 3):
    first = jax.tree.map(lambda x, n=starts: x[:n], bootstraps())
    chex.assert_trees_all_equal(bootstraps(starts=starts), first)
