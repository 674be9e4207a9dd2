"""Small tasks with known returns: credit assignment, memory, exploration.

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
    row: `[]` int32 row of the ball, 0 at the top.
    column: `[]` int32 column of the ball.
    paddle: `[]` int32 column of the paddle, which is in the last row.
  """

  row: jax.Array
  column: jax.Array
  paddle: jax.Array


class Catch(Episodic):
  """A ball that falls by one row in each step, and a paddle to catch it.

  The actions are left, stay and right. The reward in the last row is 1 or -1.
  An observation is the board, `[10, 5]`, with 1 for the ball and the paddle.
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
    time: `[]` int32 number of steps since the bit was shown.
    bit: `[]` int32, 0 or 1.
  """

  time: jax.Array
  bit: jax.Array


class MemoryChain(Episodic):
  """One bit to remember: bsuite's "memory length".

  An observation is (fraction of time left, whether this step is the question,
  the bit as -1 or 1). The bit is shown in step 0 and is 0 later. Step `length`
  is the question. The action there ends the episode, with reward 1 if it equals
  the bit and -1 otherwise. Other actions have no effect.

  The best return is 1. Without a memory, the best return is 0, since the
  question is the same for both bits.

  Args:
    length: number of env steps from the bit to the question.

  Raises:
    types.ConfigError: `length` is out of range.
  """

  observation = dm_env.specs.Array((3,), np.float32, "observation")
  action = dm_env.specs.DiscreteArray(2, np.int32, "action")

  def __init__(self, length: int = 20) -> None:
    types.check_range("length", length, 1, 10_000)
    self._length = length

  def reset(self, rng_key: jax.Array) -> Bit:
    """See `Episodic`."""
    return Bit(jnp.int32(0), jax.random.randint(rng_key, (), 0, 2))

  def act(self, state: Bit, action: jax.Array, rng_key: jax.Array) -> Outcome:
    """See `Episodic`."""
    del rng_key
    is_question = state.time == self._length
    reward = jnp.where(action == state.bit, 1, -1) * is_question
    return Outcome(state._replace(time=state.time + 1), reward, is_question)

  def observe(self, state: Bit) -> jax.Array:
    """See `Episodic`."""
    time_left = 1 - jnp.minimum(state.time, self._length) / self._length
    is_question = state.time == self._length
    cue = _cue(state.time, state.bit)
    return jnp.stack([time_left, is_question.astype(jnp.float32), cue])


class Diver(NamedTuple):
  """The state of `DeepSea`: `[]` int32 numbers.

  Attributes:
    row, column: position of the diver.
    bit: action that moves right, 0 or 1.
  """

  row: jax.Array
  column: jax.Array
  bit: jax.Array


class DeepSea(Episodic):
  """A treasure at the end of `size` costly steps: bsuite's "deep sea".

  A diver starts at the top left of a square of `size` rows. Each step moves the
  diver down by one row, to the right with action 1 and to the left with action
  0. A step to the right costs 0.01 / size. Only a diver that always moves right
  finds the treasure, a reward of 1 in the last step. An observation is the
  position, `[size ** 2]` one-hot, or zeros after the last step.

  The best return is 0.99. Random actions find the treasure in one of 2 ** size
  episodes.

  With `cued`, left and right are exchanged in half of the episodes. The
  observation's last number is then -1 in step 0 if left and right are
  exchanged, 1 if not, and 0 later. The best return without a memory is then
  0.495 - 0.005 / size: the second action is a guess, and a wrong one leads off
  the diagonal.

  Args:
    size: number of rows and of columns.
    cued: whether left and right are exchanged in half of the episodes.

  Raises:
    types.ConfigError: `size` is out of range.
  """

  action = dm_env.specs.DiscreteArray(2, np.int32, "action")

  def __init__(self, size: int = 10, cued: bool = False) -> None:
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
    treasure = last & right & (column == self._size - 1)
    reward = treasure - 0.01 / self._size * right
    column = jnp.maximum(column + jnp.where(right, 1, -1), 0)
    return Outcome(Diver(row + 1, column, bit), reward, last)

  def observe(self, state: Diver) -> jax.Array:
    """See `Episodic`."""
    index = state.row * self._size + state.column
    position = (jnp.arange(self._size**2) == index).astype(jnp.float32)
    if not self._cued:
      return position
    return jnp.append(position, _cue(state.row, state.bit))


def _cue(time: jax.Array, bit: jax.Array) -> jax.Array:
  """Returns a bit as -1 or 1 in step 0, and 0 later, `[]` float32."""
  return jnp.where(time == 0, 2 * bit - 1, 0).astype(jnp.float32)
