"""AlphaZero's loss, compared with the results of games."""

import jax
import numpy as np

from tests.losses import cases
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


def test_targets_are_the_results_of_the_games_for_the_player_to_move():
  values = np.random.default_rng(1).normal(size=8)
  loss = alphazero(game([1, -1], values))
  np.testing.assert_array_equal(loss.target, [1, -1, 1, 0, -1, 1, -1])
  np.testing.assert_array_equal(loss.weight, [1, 1, 1, 0, 1, 1, 1])
  np.testing.assert_array_equal(loss.policy > 0, loss.weight > 0)
  # With one player, the sign never changes.
  loss = alphazero(game([1, -1], values, discount=1.0))
  np.testing.assert_array_equal(loss.target, [1, 1, 1, 0, -1, -1, -1])
