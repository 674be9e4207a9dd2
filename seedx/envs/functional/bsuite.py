"""Small tasks with known returns, for credit, memory and exploration.

Osband et al. 2020, "Behaviour Suite for Reinforcement Learning",
https://arxiv.org/abs/1908.03568.
"""

from typing import NamedTuple

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.envs.functional.episodic import Episodic, Outcome


class BallAndPaddle(NamedTuple):
  """The state of `Catch`.

  Attributes:
    row: `[]` int32, of the ball; it starts at the top, 0.
    column: `[]` int32, of the ball.
    paddle: `[]` int32, its column, in the last row.
  """

  row: jax.Array
  column: jax.Array
  paddle: jax.Array


class Catch(Episodic):
  """A ball that falls by a row with each step, and a paddle to catch it.

  Actions are left, stay and right. The reward is 1 or -1 at the last row. An
  observation is the board, `[10, 5]`, with 1 for the ball and for the paddle.
  """

  observation = dm_env.specs.Array((10, 5), np.float32, "observation")
  action = dm_env.specs.DiscreteArray(3, np.int32, "action")

  def reset(self, rng_key: jax.Array) -> BallAndPaddle:
    """See `Episodic`."""
    column = jax.random.randint(rng_key, (), 0, 5)
    return BallAndPaddle(jnp.int32(0), column, jnp.int32(2))

  def act(
    self, state: BallAndPaddle, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """See `Episodic`."""
    del rng_key
    paddle = jnp.clip(state.paddle + action.astype(jnp.int32) - 1, 0, 4)
    state = BallAndPaddle(state.row + 1, state.column, paddle)
    last = state.row == 9
    reward = jnp.where(state.column == paddle, 1, -1) * last
    return Outcome(state, reward, last)

  def observe(self, state: BallAndPaddle) -> jax.Array:
    """See `Episodic`."""
    row, column = jnp.arange(10)[:, None], jnp.arange(5)
    ball = (row == state.row) & (column == state.column)
    paddle = (row == 9) & (column == state.paddle)
    return (ball | paddle).astype(jnp.float32)


class Bit(NamedTuple):
  """The state of `MemoryChain`.

  Attributes:
    time: `[]` int32, steps since the bit was shown.
    bit: `[]` int32, 0 or 1.
  """

  time: jax.Array
  bit: jax.Array


class MemoryChain(Episodic):
  """One bit to remember: bsuite's "memory length".

  An observation is (share of the time that is left, whether this is the
  question, the bit as -1 or 1). The bit is shown at step 0, and is 0 later.
  `length` steps after it comes the question: the action there is rewarded with
  1 if it is the bit, and else with -1, and ends the episode. No other action
  changes anything.

  The best return is 1. Without a memory it is 0: the question looks the same
  for either bit.
  """

  observation = dm_env.specs.Array((3,), np.float32, "observation")
  action = dm_env.specs.DiscreteArray(2, np.int32, "action")

  def __init__(self, length: int = 20) -> None:
    """Checks its option.

    Args:
      length: env steps from the bit to the question.

    Raises:
      types.ConfigError: it is out of its range.
    """
    types.check_range("length", length, 1, 10_000)
    self._length = length

  def reset(self, rng_key: jax.Array) -> Bit:
    """See `Episodic`."""
    return Bit(jnp.int32(0), jax.random.randint(rng_key, (), 0, 2))

  def act(self, state: Bit, action: jax.Array, rng_key: jax.Array) -> Outcome:
    """See `Episodic`."""
    del rng_key
    asked = state.time == self._length
    reward = jnp.where(action == state.bit, 1, -1) * asked
    return Outcome(state._replace(time=state.time + 1), reward, asked)

  def observe(self, state: Bit) -> jax.Array:
    """See `Episodic`."""
    left = 1 - jnp.minimum(state.time, self._length) / self._length
    asked = state.time == self._length
    shown = _shown(state.time, state.bit)
    return jnp.stack([left, asked.astype(jnp.float32), shown])


class Diver(NamedTuple):
  """The state of `DeepSea`.

  Attributes:
    row: `[]` int32.
    column: `[]` int32.
    bit: `[]` int32, the action that goes right, 0 or 1.
  """

  row: jax.Array
  column: jax.Array
  bit: jax.Array


class DeepSea(Episodic):
  """A treasure behind `size` steps that each cost: bsuite's "deep sea".

  A diver starts at the top left of a square of `size` rows, and sinks by a row
  with each step, to the left or the right, which is action 1. A step to the
  right costs 0.01 / size. Only who always goes right finds the treasure, a
  reward of 1, at the last step. An observation is the place, `[size ** 2]`
  one-hot, or zeros where the episode has ended.

  The best return is 0.99; random actions find the treasure in one of 2 ** size
  episodes.

  With `cued`, one half of the episodes have left and right exchanged. A last
  number of the observation tells which, as -1 or 1, at step 0; it is 0 later.
  Without a memory the best return is then 0.495 - 0.005 / size: at the second
  step one has to guess, and on the diagonal a good guess explains itself.
  """

  action = dm_env.specs.DiscreteArray(2, np.int32, "action")

  def __init__(self, size: int = 10, cued: bool = False) -> None:
    """Checks its options.

    Args:
      size: rows, and columns.
      cued: whether what the actions mean differs by episode.

    Raises:
      types.ConfigError: an option is out of its range.
    """
    types.check_range("size", size, 2, 100)
    self._size = size
    self._cued = bool(cued)
    shape = (size**2 + self._cued,)
    self.observation = dm_env.specs.Array(shape, np.float32, "observation")

  def reset(self, rng_key: jax.Array) -> Diver:
    """See `Episodic`."""
    bit = jax.random.randint(rng_key, (), 0, 2) if self._cued else jnp.int32(1)
    return Diver(jnp.int32(0), jnp.int32(0), bit)

  def act(self, state: Diver, action: jax.Array, rng_key: jax.Array) -> Outcome:
    """See `Episodic`."""
    del rng_key
    row, column, bit = state
    right = action == bit
    last = row == self._size - 1
    found = last & right & (column == self._size - 1)
    reward = found - 0.01 / self._size * right
    column = jnp.maximum(column + jnp.where(right, 1, -1), 0)
    return Outcome(Diver(row + 1, column, bit), reward, last)

  def observe(self, state: Diver) -> jax.Array:
    """See `Episodic`."""
    place = state.row * self._size + state.column
    seen = (jnp.arange(self._size**2) == place).astype(jnp.float32)
    if not self._cued:
      return seen
    return jnp.append(seen, _shown(state.row, state.bit))


def _shown(time: jax.Array, bit: jax.Array) -> jax.Array:
  """A bit as -1 or 1 at an episode's start, and 0 later: `[]` float32."""
  return jnp.where(time == 0, 2 * bit - 1, 0).astype(jnp.float32)
