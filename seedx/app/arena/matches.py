"""Games of two players in lockstep, and the exam on every line of a game."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.app.arena import players, ratings, tables
from seedx.envs import native_games
from seedx.envs.functional import games

# Largest number of lines of a game for `exam`.
_MAX_LINES = 2**16
_ATTEMPTS = 100


class Board:
  """A batch of games in lockstep.

  Attributes:
    game: the rules.
    rows: number of games.
    state: `[rows, ...]` states, seen by the player to move.
    over: `[rows]` bool.
    result: `[rows]` float32, result of the first player: 1, 0 or -1.
  """

  def __init__(self, game: games.Game, rows: int) -> None:
    self.game, self.rows = game, rows
    self.reset()

  def reset(self) -> None:
    """Begins new games."""
    self.state: Any = jax.tree.map(
      lambda x: jnp.broadcast_to(x, (self.rows, *x.shape)), self.game.start()
    )
    self.over = jnp.zeros(self.rows, bool)
    self.result = jnp.zeros(self.rows)
    self._moves = 0

  def play(self, action: jax.Array, name: str) -> jax.Array:
    """Plays a move in each game that is not over; returns the mover's rewards.

    Raises:
      types.ConfigError: the player of this name made a move that is not legal.
    """
    moved = _moved(self.game, self.state, self.over, action)
    _check_legal(moved, name)
    self.state, self.over = moved.state, moved.over
    self.result += moved.reward * (-1) ** self._moves
    self._moves += 1
    return moved.reward


class NativeBoard(Board):
  """The same on EnvPool's environment, whose games are those of seedx's rules.

  Players see EnvPool's boards. Boards, legal moves, rewards and ends are
  compared with those of the rules after each move.

  Raises:
    types.ConfigError: EnvPool does not have the game.
  """

  def __init__(self, game: games.Game, rows: int) -> None:
    self._native = native_games.NativeGames(game, rows)
    super().__init__(game, rows)

  def reset(self) -> None:
    """See `Board`."""
    super().reset()
    self._see(self._native.reset(), np.ones(self.rows, bool), 0.0)

  def play(self, action: jax.Array, name: str) -> jax.Array:
    """See `Board`.

    Raises:
      types.ConfigError: see `Board`; or EnvPool's games differ.
    """
    playing = ~np.asarray(self.over)
    reward = super().play(action, name)
    step = self._native.step(np.asarray(action))
    self._see(step, playing, np.asarray(reward))
    return reward

  def _see(
    self,
    step: native_games.Step,
    playing: np.ndarray,
    reward: np.ndarray | float,
  ) -> None:
    over = np.asarray(self.over)
    observation = jax.tree.map(np.array, _observed(self.game, self.state))
    pairs = {
      "ends": (step.over, over, playing),
      "rewards": (step.reward, reward, playing),
      "boards": (step.board, observation[games.BOARD], playing),
      # After the end, EnvPool reports all moves as legal.
      "legal moves": (step.legal, observation[games.MASK], playing & ~over),
    }
    for name, (native, own, rows) in pairs.items():
      own = np.broadcast_to(own, native.shape)
      if not np.array_equal(native[rows], own[rows]):
        raise types.ConfigError(
          f"expected the {name} of seedx's rules from EnvPool, found others"
          f" after {self._moves} moves; leave out --native"
        )
    observation[games.BOARD][playing] = step.board[playing]
    self.state = _state(self.game, observation)


def openings(
  board: Board, random: players.Player, number: int, rng_key: jax.Array
) -> np.ndarray:
  """Draws random moves that begin games, `[number, rows]`.

  Raises:
    types.ConfigError: games rarely last longer than this number of moves.
  """
  moves = np.zeros((number, board.rows), np.int32)
  missing = np.ones(board.rows, bool)
  for attempt in range(_ATTEMPTS):
    board.reset()
    key = jax.random.fold_in(rng_key, attempt)
    for k in range(number):
      action, _ = random.act(
        jax.random.fold_in(key, k), board.state, random.start(board.rows), True
      )
      moves[k, missing] = np.asarray(action)[missing]
      board.play(action, random.name)
    missing &= np.asarray(board.over)
    if not missing.any():
      return moves
  raise types.ConfigError(
    f"expected opening moves after which a game continues, found {number};"
    " choose fewer --opening-moves"
  )


def match(
  board: Board,
  first: players.Player,
  second: players.Player,
  opening: np.ndarray,
  rng_key: jax.Array,
) -> ratings.Counts:
  """Plays `board.rows` games; returns the numbers of the first player.

  Args:
    board: the board, which is reset.
    first: player of the games' first moves.
    second: the other player.
    opening: `[moves, rows]`, moves with which the games begin.
    rng_key: random key.

  Raises:
    types.ConfigError: see `Board.play`.
  """
  board.reset()
  for action in opening:
    board.play(jnp.asarray(action), "opening")
  sides = first, second
  memory = [player.start(board.rows) for player in sides]
  for move in range(len(opening), board.game.max_moves):
    side, is_first = move % 2, move < len(opening) + 2
    action, memory[side] = sides[side].act(
      jax.random.fold_in(rng_key, move), board.state, memory[side], is_first
    )
    board.play(action, sides[side].name)
    if board.over.all():
      break
  result = np.asarray(board.result)
  return ratings.Counts(
    int(np.sum(result > 0)), int(np.sum(result == 0)), int(np.sum(result < 0))
  )


def tournament(
  board: Board,
  entered: Sequence[players.Player],
  opening_moves: int,
  seed: int,
  report: Callable[[int, int, str, float], None],
) -> dict[tuple[str, str], tables.Pair]:
  """Plays `2 * board.rows` games of each pair of players.

  Args:
    board: the board.
    entered: the players.
    opening_moves: number of random moves before games of two players whose
      moves are not random. Both sides play each opening.
    seed: seed of the random numbers.
    report: function of a pair's number, the number of pairs, the names and the
      score, called after each pair.

  Returns:
    The results by names of players, in the order in which they entered.

  Raises:
    types.ConfigError: see `openings` and `match`.
  """
  random = players.of_opponent(board.game, "random", 1)
  pairs = list(itertools.combinations(entered, 2))
  results = {}
  for number, (a, b) in enumerate(pairs, 1):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), number), 3)
    drawn = 0 if a.is_random or b.is_random else opening_moves
    opening = openings(board, random, drawn, keys[0])
    pair = tables.Pair(
      match(board, a, b, opening, keys[1]),
      match(board, b, a, opening, keys[2]).reversed(),
    )
    results[a.name, b.name] = pair
    score = ratings.score(pair.both()).value
    report(number, len(pairs), f"{a.name} against {b.name}", score)
  return results


def check_exam(game: games.Game) -> None:
  """Raises types.ConfigError if the game may have too many lines for `exam`."""
  if game.num_actions ** (-(-game.max_moves // 2)) > _MAX_LINES:
    raise types.ConfigError(
      "expected a small game, such as TicTacToe, for --exhaustive, found"
      f" {type(game).__name__}"
    )


def exam(game: games.Game, player: players.Player, rows: int) -> tables.Exam:
  """Plays the player against every line of moves of an opponent.

  Args:
    game: the game, for which `check_exam` has passed.
    player: player whose moves are not random.
    rows: number of positions for one call of the player.
  """
  return tables.Exam(
    *_examined(game, player, rows, side=0),
    *_examined(game, player, rows, side=1),
  )


def _examined(
  game: games.Game, player: players.Player, rows: int, side: int
) -> tuple[int, int]:
  """Returns the numbers of lost lines and lines of a player on a side."""
  state = jax.tree.map(lambda x: np.asarray(x)[None], game.start())
  memory = jax.tree.map(np.asarray, player.start(1))
  lost = lines = 0
  rng_key = jax.random.key(0)
  for number in range(game.max_moves):
    if number % 2 == side:

      def act(state: Any, memory: Any, is_first: bool = number < 2) -> Any:
        return player.act(rng_key, state, memory, is_first)

      action, memory = _by_rows(act, rows, state, memory)
    else:
      observation = _by_rows(lambda x: _observed(game, x), rows, state)
      index, action = np.nonzero(observation[games.MASK])
      state, memory = _rows_at((state, memory), index)
    moved = _by_rows(
      functools.partial(_moved, game),
      rows,
      state,
      np.zeros(len(action), bool),
      action,
    )
    _check_legal(moved, player.name)
    reward = moved.reward if number % 2 == side else -moved.reward
    lines += int(np.sum(moved.over))
    lost += int(np.sum(reward < 0))
    if moved.over.all():
      break
    state, memory = _rows_at((moved.state, memory), ~moved.over)
  return lost, lines


def _by_rows(function: Callable[..., Any], rows: int, *nests: Any) -> Any:
  """Calls a function of `[rows, ...]` on parts of `[n, ...]`, in NumPy.

  The last part is padded by its first row, so that one program serves all n.
  """
  number = len(jax.tree.leaves(nests)[0])
  parts = []
  for start in range(0, number, rows):
    index = np.arange(start, start + rows)
    index[index >= number] = start
    result = function(*_rows_at(nests, index))
    result = jax.tree.map(np.asarray, result)
    parts.append(_rows_at(result, slice(number - start)))
  return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _check_legal(moved: "_Moved", name: str) -> None:
  if moved.is_wrong.any():
    raise types.ConfigError(
      f"expected legal moves, found another one by the player {name}"
    )


def _rows_at(nest: Any, index: np.ndarray | slice) -> Any:
  return jax.tree.map(lambda x: x[index], nest)


class _Moved(NamedTuple):
  state: types.Tree  # `[rows, ...]`.
  over: jax.Array  # `[rows]` bool.
  reward: jax.Array  # `[rows]` float32, 0 where a game was over before.
  is_wrong: jax.Array  # `[rows]` bool, whether the move was not legal.


@functools.partial(jax.jit, static_argnums=0)
def _moved(
  game: games.Game, state: types.Tree, over: jax.Array, action: jax.Array
) -> _Moved:
  legal = jax.vmap(game.legal)(state)
  chosen = jnp.take_along_axis(
    legal, action[:, None], axis=1, mode="fill", fill_value=False
  )[:, 0]
  move = jax.vmap(game.play)(state, action)
  state = jax.tree.map(
    lambda old, new: jnp.where(
      over.reshape(-1, *(1,) * (new.ndim - 1)), old, new
    ),
    state,
    move.state,
  )
  return _Moved(
    state,
    over | move.over,
    jnp.where(over, 0.0, move.reward),
    ~over & ~chosen,
  )


@functools.partial(jax.jit, static_argnums=0)
def _observed(game: games.Game, state: types.Tree) -> dict[str, jax.Array]:
  return jax.vmap(game.observe)(state)


@functools.partial(jax.jit, static_argnums=0)
def _state(game: games.Game, observation: dict[str, jax.Array]) -> types.Tree:
  return jax.vmap(game.state)(observation)
