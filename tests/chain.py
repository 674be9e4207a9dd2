"""A chain of states whose only reward, of any size, is at its end."""

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx.envs import functional

LENGTH = 10


class Chain(functional.Episodic):
  """Ten states in a row; actions are left and right, and the last state pays.

  An observation is the state, one-hot. The state's number is its place.

  Args:
    reward: the reward for reaching the last state, which ends the episode.
  """

  observation = dm_env.specs.Array((LENGTH,), np.float32, "observation")
  action = dm_env.specs.DiscreteArray(2, np.int32, "action")
  time_limit = 100

  def __init__(self, reward: float = 1.0) -> None:
    self._reward = reward

  def reset(self, rng_key: jax.Array) -> jax.Array:
    """See `Episodic`."""
    del rng_key
    return jnp.int32(0)

  def act(
    self, state: jax.Array, action: jax.Array, rng_key: jax.Array
  ) -> functional.Outcome:
    """See `Episodic`."""
    del rng_key
    place = jnp.clip(state + 2 * action.astype(jnp.int32) - 1, 0, LENGTH - 1)
    last = place == LENGTH - 1
    return functional.Outcome(place, self._reward * last, last)

  def observe(self, state: jax.Array) -> jax.Array:
    """See `Episodic`."""
    return jax.nn.one_hot(state, LENGTH)
