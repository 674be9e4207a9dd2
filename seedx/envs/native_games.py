"""Games of EnvPool that are games of `envs.functional`, too.

EnvPool's environments of two players take the move of the player to move, and
return an observation and a reward for each of the two.
"""

from typing import NamedTuple

import numpy as np

from seedx import types
from seedx.envs import envpool_spec
from seedx.envs.functional import games

# The name of EnvPool's environment of a game.
_NAMES: dict[type, str] = {
  games.TicTacToe: "TicTacToe-v1",
  games.ConnectFour: "ConnectFour-v1",
}


class Step(NamedTuple):
  """The result of a step of EnvPool.

  Attributes:
    board: `[B, C, H, W]`, as in `games.Game.observation`, seen by the player to
      move; after the end, by the one that did not move last.
    legal: `[B, A]` bool; all True after the end.
    reward: `[B]` float32, reward of the player that moved; 0 after a reset.
    over: `[B]` bool.
  """

  board: np.ndarray
  legal: np.ndarray
  reward: np.ndarray
  over: np.ndarray


class NativeGames:
  """A batch of a game's native environments.

  EnvPool begins a new game with the step after a game's end.
  """

  def __init__(self, game: games.Game, num_envs: int) -> None:
    """Makes the environments.

    Raises:
      types.ConfigError: EnvPool does not have the game.
    """
    if type(game) not in _NAMES:
      raise types.ConfigError(
        f"expected a game that EnvPool has, {', '.join(_NAMES.values())}, found"
        f" {type(game).__name__}; leave out --native"
      )
    self._pool = envpool_spec.make_pool(_NAMES[type(game)], num_envs=num_envs)
    self._to_move = np.zeros(num_envs, np.int32)
    self._legal = np.ones((num_envs, game.num_actions), bool)

  def reset(self) -> Step:
    """Begins new games."""
    observation, info = self._pool.reset()
    size = len(self._to_move)
    reward, over = np.zeros(2 * size, np.float32), np.zeros(size, bool)
    return self._step(observation, reward, over, info)

  def step(self, action: np.ndarray) -> Step:
    """Plays a move `[B]` in each game.

    A move that is not legal, as in a game that has begun again, is replaced.
    """
    rows = np.arange(len(action))
    legal = self._legal[rows, action]
    action = np.where(legal, action, np.argmax(self._legal, axis=1))
    observation, reward, over, _, info = self._pool.step(
      action.astype(np.int32)
    )
    return self._step(observation, reward, over, info)

  def _step(
    self,
    observation: np.ndarray,
    reward: np.ndarray,
    over: np.ndarray,
    info: types.Tree,
  ) -> Step:
    # EnvPool's threads return environments and players in any order.
    order, players = np.argsort(info["env_id"]), info["players"]
    of_players = np.lexsort((players["id"], players["env_id"])).reshape(-1, 2)
    rows = np.arange(len(over))
    mover, self._to_move = self._to_move, info["current_player"][order]
    self._legal = info["legal_action_mask"][order]
    board = observation[of_players[rows, self._to_move]]
    return Step(
      board=board.transpose(0, 3, 1, 2).astype(np.int8),
      legal=self._legal,
      reward=reward[of_players[rows, mover]],
      over=over[order],
    )
