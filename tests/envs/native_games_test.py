"""EnvPool's native games, compared move by move with seedx's rules."""

import jax
import numpy as np
import pytest

from seedx import types
from seedx.envs import functional, native_games
from seedx.envs.functional import games

GAMES = [functional.TicTacToe(), functional.ConnectFour()]


def played_alone(game, moves):
  """Plays `[M, B]` moves by the rules; returns boards, masks, rewards, ends."""

  def step(carry, action):
    state, over = carry
    move = jax.vmap(game.play)(state, action)
    observed = jax.vmap(game.observe)(move.state)
    return (move.state, over | move.over), (
      observed[games.BOARD],
      observed[games.MASK],
      move.reward,
      move.over,
    )

  size = moves.shape[1]
  start = np.broadcast_to(game.start(), (size, *game.start().shape))
  carry = start, np.zeros(size, bool)
  return jax.tree.map(
    np.asarray, jax.jit(jax.lax.scan, static_argnums=0)(step, carry, moves)[1]
  )


@pytest.mark.parametrize("game", GAMES, ids=lambda x: type(x).__name__)
def test_native_games_follow_the_same_rules(game):
  size, rng = 300, np.random.default_rng(0)
  native = native_games.NativeGames(game, size)
  for _ in range(2):  # EnvPool chooses its player 0 or 1 for the first move.
    steps, moves = [native.reset()], []
    assert not steps[0].board.any() and steps[0].legal.all()
    for _ in range(game.max_moves):
      weights = rng.random((size, game.num_actions)) * steps[-1].legal
      moves.append(np.argmax(weights, axis=1).astype(np.int32))
      steps.append(native.step(moves[-1]))
    boards, masks, rewards, ends = played_alone(game, np.stack(moves))
    # EnvPool begins a new game after an end, so a game counts up to its end.
    playing, winners = np.ones(size, bool), 0
    for k, step in enumerate(steps[1:]):
      np.testing.assert_array_equal(step.over[playing], ends[k][playing])
      np.testing.assert_array_equal(step.reward[playing], rewards[k][playing])
      np.testing.assert_array_equal(step.board[playing], boards[k][playing])
      winners += np.sum(step.reward[playing] == 1)
      playing &= ~step.over
      np.testing.assert_array_equal(step.legal[playing], masks[k][playing])
    assert not playing.any() and 200 < winners < size


def test_a_game_that_envpool_lacks_is_refused():
  class Other(functional.TicTacToe):
    pass

  with pytest.raises(types.ConfigError, match="leave out --native"):
    native_games.NativeGames(Other(), 2)
