"""AlphaZero's loss, compared with worked examples and with games."""

import jax
import numpy as np

from tests.losses import cases, streams
from tests.losses.streams import FIRST, LAST, MID

alphazero = jax.jit(cases.CASES["alphazero"])


def game(results, values, discount=-1.0):
  """Returns a stream of games of two players, each of three moves.

  Args:
    results: reward of the last move's player, one for each game.
    values: `[T + 1]`.
    discount: discount of the time steps within a game.
  """
  length = 4 * len(results)
  kinds = np.array([FIRST, MID, MID, LAST] * len(results), np.int32)
  reward = np.zeros(length, np.float32)
  reward[3::4] = results
  policy = np.random.default_rng(0).dirichlet(np.ones(3), (2, length - 1))
  return {
    "values": np.asarray(values, np.float32),
    "log_policy": np.log(policy[0]).astype(np.float32),
    "search_policy": policy[1].astype(np.float32),
    "step_type": kinds,
    "reward": reward,
    "discount": np.where(kinds == LAST, 0, discount).astype(np.float32),
  }


def test_losses_match_a_worked_example():
  stream = {
    "values": np.array([0.25, -0.5, 9.0], np.float32),
    "log_policy": np.array([[-1, -2], [-0.5, -4]], np.float32),
    "search_policy": np.array([[0.75, 0.25], [0, 1]], np.float32),
    "step_type": np.array([MID, MID, LAST], np.int32),
    "reward": np.array([9.0, 0.5, 1.0], np.float32),
    "discount": np.array([1.0, -0.5, 0.0], np.float32),
  }
  loss = alphazero(stream)
  # 0.75 * 1 + 0.25 * 2 and 4; G_1 = 1, G_0 = 0.5 - 0.5 * 1 = 0.
  np.testing.assert_array_equal(loss.policy, [1.25, 4.0])
  np.testing.assert_array_equal(loss.target, [0.0, 1.0])
  np.testing.assert_array_equal(loss.value, [0.25**2, 1.5**2])
  np.testing.assert_array_equal(loss.weight, [1.0, 1.0])
  # G_0 = 0.5 - 0.5 * -0.5
  loss = alphazero(stream, lambda_=0.0)
  np.testing.assert_array_equal(loss.target, [0.75, 1.0])


def test_targets_are_the_results_of_the_games_for_the_player_to_move():
  values = np.random.default_rng(1).normal(size=8)
  loss = alphazero(game([1, -1], values))
  np.testing.assert_array_equal(loss.target, [1, -1, 1, 0, -1, 1, -1])
  np.testing.assert_array_equal(loss.weight, [1, 1, 1, 0, 1, 1, 1])
  # With one player, the sign never changes.
  loss = alphazero(game([1, -1], values, discount=1.0))
  np.testing.assert_array_equal(loss.target, [1, 1, 1, 0, -1, -1, -1])


def test_the_loss_is_the_least_if_policy_and_values_are_the_targets():
  def total(stream, part):
    return float(np.sum(getattr(alphazero(stream), part)))

  stream = game([1], [1, -1, 1, 5])
  assert total(stream, "value") == 0
  stream["log_policy"] = np.log(stream["search_policy"])
  best = total(stream, "policy")
  rng = np.random.default_rng(2)
  for _ in range(20):
    other = rng.dirichlet(np.ones(3), 3).astype(np.float32)
    worse = total(stream | {"log_policy": np.log(other)}, "policy")
    assert worse > best + 0.01


def test_a_truncated_game_bootstraps_from_its_own_last_value():
  # Steps 0 and 1 are of one game, and steps 2 and 3 of the next.
  stream = {
    "values": np.array([0.5, 0.75, 0.0, -0.25], np.float32),
    "log_policy": np.full((3, 2), -0.5, np.float32),
    "search_policy": np.full((3, 2), 0.5, np.float32),
    "step_type": np.array([MID, LAST, FIRST, MID], np.int32),
    "reward": np.array([0.0, 0.0, 50.0, 0.0], np.float32),
    "discount": np.full(4, -1.0, np.float32),
  }
  whole = alphazero(stream)
  np.testing.assert_array_equal(whole.target, [-0.75, 0.0, 0.25])
  for start, stop in ((0, 2), (2, 4)):
    half = alphazero(streams.cut(stream, start, stop))
    for part, expected in zip(half, whole, strict=True):
      np.testing.assert_array_equal(part, expected[start : stop - 1])
