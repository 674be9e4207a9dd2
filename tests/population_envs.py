"""An environment in which a return depends on nothing but the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from seedx.envs import functional


class Constant(functional.Episodic):
  """Two constant numbers are seen, and the action is the reward.

  An episode has `length` steps, or 1 to `length` if it is `random`.
  """

  def __init__(self, length: int = 4, random: bool = False) -> None:
    self.observation = specs.Array((2,), np.float32)
    self.action = specs.BoundedArray((1,), np.float32, -100.0, 100.0)
    self._length, self._random = length, random

  def reset(self, rng_key):
    drawn = jnp.int32(self._length)
    if self._random:
      drawn = jax.random.randint(rng_key, (), 1, self._length + 1)
    return drawn

  def act(self, state, action, rng_key):
    del rng_key
    return functional.Outcome(state - 1, action[0], state <= 1)

  def observe(self, state):
    del state
    return jnp.float32([1.0, 0.5])
