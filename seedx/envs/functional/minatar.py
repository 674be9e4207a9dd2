"""Two games of MinAtar, Breakout and Asterix, on boards of 10 by 10.

Young and Tian 2019, "MinAtar: An Atari-Inspired Testbed",
https://arxiv.org/abs/1903.03176. Observations are `[4, 10, 10]` uint8, 0 or 1,
with a channel for each kind of object. The actions are those of all MinAtar
games: nothing, left, up, right, down and fire. With `minimal_actions`, only
actions with an effect in the game exist. With probability `sticky`, a step
repeats the episode's last action instead; the first step then does nothing.
"""

from typing import NamedTuple

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.envs.functional.episodic import Episodic, Outcome

_LEFT, _UP, _RIGHT, _DOWN = 1, 2, 3, 4
_OBSERVATION = dm_env.specs.BoundedArray(
  (4, 10, 10), np.uint8, 0, 1, "observation"
)
_ALL_ACTIONS = (0, 1, 2, 3, 4, 5)


class Ball(NamedTuple):
  """The state of `Breakout`; fields are `[]` int32 unless noted.

  Attributes:
    x, y: column and row of the ball.
    direction: 0 for up left, 1 up right, 2 down right, 3 down left.
    last_x, last_y: previous column and row of the ball.
    paddle: column of the paddle.
    bricks: `[10, 10]` bool.
    strike: `[]` bool, whether the ball hit a brick in the last step.
    last_action: last action that was executed.
  """

  x: jax.Array
  y: jax.Array
  direction: jax.Array
  last_x: jax.Array
  last_y: jax.Array
  paddle: jax.Array
  bricks: jax.Array
  strike: jax.Array
  last_action: jax.Array


class Breakout(Episodic):
  """A paddle that keeps a ball in play; the reward of a brick is 1.

  The channels are the paddle, the ball, its previous position, and the bricks.
  An episode ends when the ball falls. When all bricks are broken, three new
  rows appear as soon as the ball reaches the last row.

  Args:
    sticky: probability of repeating the last action.
    minimal_actions: whether the actions are only nothing, left and right.

  Raises:
    types.ConfigError: `sticky` is out of range.
  """

  observation = _OBSERVATION

  def __init__(
    self, sticky: float = 0.1, minimal_actions: bool = False
  ) -> None:
    types.check_range("sticky", sticky, 0.0, 1.0)
    self._sticky = sticky
    self._actions = (0, _LEFT, _RIGHT) if minimal_actions else _ALL_ACTIONS
    self.action = _action_spec(self._actions)

  def reset(self, rng_key: jax.Array) -> Ball:
    """See `Episodic`."""
    right = jax.random.bernoulli(rng_key)
    x, direction = jnp.where(right, 9, 0), jnp.where(right, 3, 2)
    return Ball(
      x=x,
      y=jnp.int32(3),
      direction=direction,
      last_x=x,
      last_y=jnp.int32(3),
      paddle=jnp.int32(4),
      bricks=_new_bricks(),
      strike=jnp.bool_(False),
      last_action=jnp.int32(0),
    )

  def act(self, state: Ball, action: jax.Array, rng_key: jax.Array) -> Outcome:
    """See `Episodic`."""
    action = jnp.array(self._actions)[action]
    action = _sticky(state.last_action, action, rng_key, self._sticky)
    paddle = _moved(state.paddle, action, _LEFT, _RIGHT, 0, 9)
    direction = state.direction
    goes_right = (direction == 1) | (direction == 2)
    x = state.x + jnp.where(goes_right, 1, -1)
    y = state.y + jnp.where(direction >= 2, 1, -1)
    bounced = jnp.array([1, 0, 3, 2])
    direction = jnp.where((x < 0) | (x > 9), bounced[direction], direction)
    x = jnp.clip(x, 0, 9)

    # Each of these cases excludes those above it.
    top = y < 0
    brick = ~top & state.bricks[y, x]
    bottom = ~top & ~brick & (y == 9)
    on_paddle = bottom & (state.x == paddle)
    at_edge = bottom & ~on_paddle & (x == paddle)
    lost = bottom & ~on_paddle & ~at_edge

    broken = brick & ~state.strike
    bricks = state.bricks & ~(broken & _at(y, x))
    bricks = jnp.where(bottom & ~jnp.any(bricks), _new_bricks(), bricks)
    back, around = jnp.array([3, 2, 1, 0]), jnp.array([2, 3, 0, 1])
    turned = jnp.where(at_edge, around[direction], back[direction])
    stays = broken | on_paddle | at_edge
    y = jnp.where(top, 0, jnp.where(stays, state.y, y))
    state = Ball(
      x=x,
      y=y,
      direction=jnp.where(top | stays, turned, direction),
      last_x=state.x,
      last_y=state.y,
      paddle=paddle,
      bricks=bricks,
      strike=brick,
      last_action=action,
    )
    return Outcome(state, broken.astype(jnp.float32), lost)

  def observe(self, state: Ball) -> jax.Array:
    """See `Episodic`."""
    channels = (
      _at(jnp.int32(9), state.paddle),
      _at(state.y, state.x),
      _at(state.last_y, state.last_x),
      state.bricks,
    )
    return jnp.stack(channels).astype(jnp.uint8)


class Crossing(NamedTuple):
  """The state of `Asterix`; fields are `[]` int32 unless noted.

  Attributes:
    x, y: column and row of the player.
    there: `[8]` bool, whether rows 1 to 8 have an object.
    column: `[8]` int32 column of the object.
    goes_right: `[8]` bool, whether the object moves right.
    gold: `[8]` bool, whether the object is gold; otherwise it is an enemy.
    spawn_timer, spawn_speed: steps until the next object, and between objects.
    move_timer, move_speed: steps until all objects move, and between two moves.
    ramp_timer: steps until the game becomes harder.
    ramp_index: number of times that the game has become harder.
    last_action: last action that was executed.
  """

  x: jax.Array
  y: jax.Array
  there: jax.Array
  column: jax.Array
  goes_right: jax.Array
  gold: jax.Array
  spawn_timer: jax.Array
  spawn_speed: jax.Array
  move_timer: jax.Array
  move_speed: jax.Array
  ramp_timer: jax.Array
  ramp_index: jax.Array
  last_action: jax.Array


class Spawn(NamedTuple):
  """The random draws of `Asterix` for a new object.

  Attributes:
    goes_right: `[]` bool, whether the object moves right.
    gold: `[]` bool, whether it is gold.
    rank: `[8]` number of each row; the free row with the largest is taken.
  """

  goes_right: jax.Array
  gold: jax.Array
  rank: jax.Array


class Asterix(Episodic):
  """Gold to collect, for a reward of 1, and enemies, which end the episode.

  Gold and enemies come from the left and the right, each in its own row, and
  ever faster. The channels are the player, the enemies, the previous positions
  of enemies and gold, and the gold.

  Args:
    sticky: probability of repeating the last action.
    ramping: whether the game becomes harder with time.
    minimal_actions: whether the actions exclude fire.

  Raises:
    types.ConfigError: `sticky` is out of range.
  """

  observation = _OBSERVATION

  def __init__(
    self,
    sticky: float = 0.1,
    ramping: bool = True,
    minimal_actions: bool = False,
  ) -> None:
    types.check_range("sticky", sticky, 0.0, 1.0)
    self._sticky = sticky
    self._ramping = ramping
    self._actions = _ALL_ACTIONS[:-1] if minimal_actions else _ALL_ACTIONS
    self.action = _action_spec(self._actions)

  def reset(self, rng_key: jax.Array) -> Crossing:
    """See `Episodic`."""
    del rng_key
    none = jnp.zeros(8, jnp.bool_)
    return Crossing(
      x=jnp.int32(5),
      y=jnp.int32(5),
      there=none,
      column=jnp.zeros(8, jnp.int32),
      goes_right=none,
      gold=none,
      spawn_timer=jnp.int32(10),
      spawn_speed=jnp.int32(10),
      move_timer=jnp.int32(5),
      move_speed=jnp.int32(5),
      ramp_timer=jnp.int32(100),
      ramp_index=jnp.int32(0),
      last_action=jnp.int32(0),
    )

  def act(
    self, state: Crossing, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """See `Episodic`."""
    sticky_key, side_key, kind_key, row_key = jax.random.split(rng_key, 4)
    action = jnp.array(self._actions)[action]
    action = _sticky(state.last_action, action, sticky_key, self._sticky)
    drawn = Spawn(
      jax.random.bernoulli(side_key),
      jax.random.bernoulli(kind_key, 1 / 3),
      jax.random.uniform(row_key, (8,)),
    )
    return self.advance(state._replace(last_action=action), action, drawn)

  def advance(
    self, state: Crossing, action: jax.Array, drawn: Spawn
  ) -> Outcome:
    """Returns the outcome of an action, `[]`, given the random draws."""
    state = _spawned(state, drawn)
    state = state._replace(
      x=_moved(state.x, action, _LEFT, _RIGHT, 0, 9),
      y=_moved(state.y, action, _UP, _DOWN, 1, 8),
    )
    state, gold, caught = _collide(state)
    moves = state.move_timer == 0
    column = state.column + jnp.where(state.goes_right, 1, -1) * moves
    state = state._replace(
      column=column,
      there=state.there & (column >= 0) & (column <= 9),
      move_timer=jnp.where(moves, state.move_speed, state.move_timer),
    )
    state, more_gold, caught_after_move = _collide(state)
    state = state._replace(
      spawn_timer=state.spawn_timer - 1, move_timer=state.move_timer - 1
    )
    if self._ramping:
      state = _ramped(state)
    reward = gold.astype(jnp.float32) + more_gold
    return Outcome(state, reward, caught | caught_after_move)

  def observe(self, state: Crossing) -> jax.Array:
    """See `Episodic`."""
    columns = jnp.arange(10)

    def rows(column: jax.Array, shown: jax.Array) -> jax.Array:
      places = (columns == column[:, None]) & shown[:, None]
      return jnp.pad(places, ((1, 1), (0, 0)))

    behind = state.column - jnp.where(state.goes_right, 1, -1)
    channels = (
      _at(state.y, state.x),
      rows(state.column, state.there & ~state.gold),
      rows(behind, state.there),
      rows(state.column, state.there & state.gold),
    )
    return jnp.stack(channels).astype(jnp.uint8)


def _action_spec(actions: tuple[int, ...]) -> dm_env.specs.DiscreteArray:
  return dm_env.specs.DiscreteArray(len(actions), np.int32, "action")


def _new_bricks() -> jax.Array:
  rows = jnp.arange(10)[:, None]
  return jnp.broadcast_to((rows >= 1) & (rows <= 3), (10, 10))


def _at(y: jax.Array, x: jax.Array) -> jax.Array:
  # A board, `[10, 10]` bool, that is True at one place.
  places = jnp.arange(10)
  return (places[:, None] == y) & (places == x)


def _sticky(
  last: jax.Array, action: jax.Array, rng_key: jax.Array, probability: float
) -> jax.Array:
  repeats = jax.random.bernoulli(rng_key, probability)
  return jnp.where(repeats, last, action.astype(jnp.int32))


def _moved(
  place: jax.Array,
  action: jax.Array,
  back: int,
  forth: int,
  low: int,
  high: int,
) -> jax.Array:
  step = (action == forth).astype(jnp.int32) - (action == back)
  return jnp.clip(place + step, low, high)


def _spawned(state: Crossing, drawn: Spawn) -> Crossing:
  is_due = state.spawn_timer == 0
  row = jnp.argmax(jnp.where(state.there, -1.0, drawn.rank))
  new = is_due & ~jnp.all(state.there) & (jnp.arange(8) == row)
  first = jnp.where(drawn.goes_right, 0, 9)
  return state._replace(
    there=state.there | new,
    column=jnp.where(new, first, state.column),
    goes_right=jnp.where(new, drawn.goes_right, state.goes_right),
    gold=jnp.where(new, drawn.gold, state.gold),
    spawn_timer=jnp.where(is_due, state.spawn_speed, state.spawn_timer),
  )


def _collide(state: Crossing) -> tuple[Crossing, jax.Array, jax.Array]:
  """Removes touched gold; returns flags, too: gold touched, enemy touched."""
  touched = state.there & (state.column == state.x)
  touched &= jnp.arange(1, 9) == state.y
  there = state.there & ~(touched & state.gold)
  gold, enemy = jnp.any(touched & state.gold), jnp.any(touched & ~state.gold)
  return state._replace(there=there), gold, enemy


def _ramped(state: Crossing) -> Crossing:
  """Speeds the game up about every 100 steps, until it is at full speed."""
  can = (state.spawn_speed > 1) | (state.move_speed > 1)
  is_due = can & (state.ramp_timer < 0)
  moves = is_due & (state.move_speed > 1) & (state.ramp_index % 2 == 1)
  spawns = is_due & (state.spawn_speed > 1)
  timer = state.ramp_timer - can.astype(jnp.int32)
  return state._replace(
    move_speed=state.move_speed - moves,
    spawn_speed=state.spawn_speed - spawns,
    ramp_index=state.ramp_index + is_due,
    ramp_timer=jnp.where(is_due, 100, timer),
  )
