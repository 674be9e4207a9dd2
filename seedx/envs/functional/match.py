"""An environment of a game: self-play, or play against an opponent."""

from typing import Any, NamedTuple

import dm_env
import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.envs.functional import games, opponents

_SEATS = ("both", "first", "second")


class State(NamedTuple):
  """The state of a `Match`.

  Attributes:
    position: state of the game, seen by the player that acts next.
    over: `[]` bool, whether the next step is a FIRST.
    chosen: `[]` uint32, seed that is drawn for each game, by which an opponent
      of several policies chooses one.
    result: `[]` float32, reward of the last step.
    moves: `[]` int32 number of moves of both players so far.
  """

  position: types.Tree
  over: jax.Array
  chosen: jax.Array
  result: jax.Array
  moves: jax.Array


class Match:
  """A game as an environment, whose observation has its state.

  Without an opponent, the agent plays both sides: each reward is that of the
  player that moved, and the next observation is seen by the other player. With
  an opponent, the opponent's moves are part of the environment, and rewards are
  the agent's: 1 for a won game, -1 for a lost one, 0 for a draw.

  Args:
    game: the game.
    opponent: the opponent, see `opponents.make`; "" for self-play.
    opponent_simulations: number of simulations of each search of an opponent
      "search".
    seat: "first" or "second" for the side of the agent; "both" for a random one
      in each game. It has no effect in self-play.
    opening_moves: largest number of random moves, of both players, with which a
      game begins; each number from 0 is as frequent. Self-play meets more
      different positions with them.

  Raises:
    types.ConfigError: an option is out of its range.
  """

  def __init__(
    self,
    game: games.Game,
    opponent: str = "",
    opponent_simulations: int = 32,
    seat: str = "both",
    opening_moves: int = 0,
  ) -> None:
    types.check_range("opening_moves", opening_moves, 0, game.max_moves)
    if seat not in _SEATS:
      raise types.ConfigError(
        f"expected seat {', '.join(_SEATS)}, found {seat!r}"
      )
    self.game = game
    self.players = 1 if opponent else 2
    self.observation = game.observation
    self.action = dm_env.specs.DiscreteArray(
      game.num_actions, np.int32, "action"
    )
    self._seat, self._opening_moves = seat, opening_moves
    self._random = opponents.make(game, "random")
    self._opponent: opponents.Opponent | None = None
    if opponent:
      self._opponent = opponents.make(game, opponent, opponent_simulations)

  def init(self, rng_key: jax.Array) -> State:
    """See `Environment`."""
    del rng_key
    return State(
      position=self.game.start(),
      over=jnp.bool_(True),
      chosen=jnp.uint32(0),
      result=jnp.float32(0),
      moves=jnp.int32(0),
    )

  def step(
    self, state: State, action: jax.Array, rng_key: jax.Array
  ) -> tuple[State, dm_env.TimeStep]:
    """See `Environment`."""
    first = state.over
    chosen_key, seat_key, reply_key = jax.random.split(rng_key, 3)
    start, opening = self._opened(jax.random.fold_in(rng_key, 3))
    moved = self.game.play(state.position, action)
    move = games.Move(
      _where(first, start, moved.state),
      jnp.where(first, 0.0, moved.reward),
      ~first & moved.over,
    )
    chosen = jnp.where(first, jax.random.bits(chosen_key), state.chosen)
    moves = jnp.where(first, opening, state.moves + 1)
    if self._opponent is not None:
      second = self._is_second(seat_key)
      move, moves = self._with_reply(
        first, move, moves, second, chosen, reply_key
      )
    kinds = dm_env.StepType
    step_type = jnp.where(first, int(kinds.FIRST), int(kinds.MID))
    timestep = dm_env.TimeStep(
      step_type=jnp.where(move.over, int(kinds.LAST), step_type).astype(
        jnp.uint8
      ),
      reward=move.reward,
      discount=1.0 - move.over.astype(jnp.float32),
      observation=self.game.observe(move.state),
    )
    state = State(move.state, move.over, chosen, move.reward, moves)
    return state, timestep

  def info(self, state: State) -> dict[str, jax.Array]:
    """Returns the result of a game after its last step, and its length.

    With an opponent, the result is the agent's. In self-play, it is that of the
    player that moved last.
    """
    return {
      "won": (state.result > 0).astype(jnp.float32),
      "drawn": (state.result == 0).astype(jnp.float32),
      "lost": (state.result < 0).astype(jnp.float32),
      "moves": state.moves.astype(jnp.float32),
    }

  def _opened(self, rng_key: jax.Array) -> tuple[types.Tree, jax.Array]:
    """Returns a game after random moves, and their number, `[]` int32.

    A random move that would end the game is not made, nor are more.
    """
    start, none = self.game.start(), jnp.int32(0)
    if not self._opening_moves:
      return start, none
    number_key, rng_key = jax.random.split(rng_key)
    number = jax.random.randint(number_key, (), 0, self._opening_moves + 1)

    def move(k: jax.Array, opened: tuple[types.Tree, jax.Array]) -> Any:
      position, moves = opened
      key = jax.random.fold_in(rng_key, k)
      moved = self.game.play(position, self._random(key, moves, position))
      goes_on = (k < number) & (k == moves) & ~moved.over
      return _where(goes_on, moved.state, position), moves + goes_on

    return jax.lax.fori_loop(0, self._opening_moves, move, (start, none))

  def _with_reply(
    self,
    first: jax.Array,
    move: games.Move,
    moves: jax.Array,
    second: jax.Array,
    chosen: jax.Array,
    rng_key: jax.Array,
  ) -> tuple[games.Move, jax.Array]:
    """Returns a move with the opponent's reply, and the number of moves.

    A first observation is never terminal: where the reply to the opening would
    end the game, the game begins without an opening; and where the opponent's
    first move would end any game, the agent moves first.
    """
    opponent, none = self._opponent, jnp.int32(0)
    assert opponent is not None
    start = games.Move(
      self.game.start(), jnp.zeros_like(move.reward), jnp.zeros_like(first)
    )
    tries = 2 if self._opening_moves else 1

    def attempt(carry: Any) -> Any:
      k, move, moves, _, _ = carry
      move, moves = _where(k == 0, (move, moves), (start, none))
      replies = jnp.where(first, (moves % 2 == 1) ^ second, ~move.over)
      reply = opponent(rng_key, chosen, move.state)
      replied = _replied(move, self.game.play(move.state, reply), replies)
      return k + 1, move, moves, replied, moves + replies

    def fails(carry: Any) -> jax.Array:
      k, _, _, replied, _ = carry
      return (k == 0) | (first & replied.over & (k < tries))

    carry = none, move, moves, move, moves
    _, _, _, move, moves = jax.lax.while_loop(fails, attempt, carry)
    return _where(first & move.over, (start, none), (move, moves))

  def _is_second(self, rng_key: jax.Array) -> jax.Array:
    if self._seat == "both":
      return jax.random.bernoulli(rng_key)
    return jnp.bool_(self._seat == "second")


def _replied(
  move: games.Move, reply: games.Move, replies: jax.Array
) -> games.Move:
  return games.Move(
    _where(replies, reply.state, move.state),
    move.reward - jnp.where(replies, reply.reward, 0.0),
    move.over | (replies & reply.over),
  )


def _where(condition: jax.Array, yes: types.Tree, no: types.Tree) -> Any:
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
