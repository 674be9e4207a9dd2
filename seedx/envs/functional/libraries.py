"""The common part of environments of other libraries of JAX functions."""

import inspect
from collections.abc import Callable
from typing import Any

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.envs import env_specs
from seedx.envs.functional.episodic import Episodic, Outcome


class LibraryEnvironment(Episodic):
  """An environment with the functions that gymnax's have.

  The library's resets, which hide an episode's last observation, and its time
  limit, which may be reported as a termination, are not used. A state is the
  library's state, and the observation that came with it.

  Args:
    env: object with `reset_env`, `step_env`, `observation_space` and
      `action_space`. Spaces have `low` and `high`, or a number `n`.
    params: last argument of these functions.
    time_limit: number of actions after which an episode is truncated.

  Raises:
    types.ConfigError: the time limit is not positive.
  """

  def __init__(self, env: Any, params: Any, time_limit: int) -> None:
    types.check_range("the time limit", time_limit, 1, 2**30)
    self._env, self._params, self.time_limit = env, params, time_limit
    space, action = env.observation_space(params), env.action_space(params)
    discrete = hasattr(space, "n")
    bounds = (0, space.n - 1) if discrete else (space.low, space.high)
    _, seen = jax.eval_shape(self.reset, jax.random.key(0))
    # A space's type is not always that of the observations.
    self.observation = env_specs.leaf_spec(
      "observation", seen.shape, seen.dtype, *bounds
    )
    self.action = (
      dm_env.specs.DiscreteArray(int(action.n), np.int32, "action")
      if hasattr(action, "n")
      else dm_env.specs.BoundedArray(
        action.shape, np.float32, action.low, action.high, "action"
      )
    )

  def reset(self, rng_key: jax.Array) -> tuple[types.Tree, jax.Array]:
    """See `Episodic`."""
    key = jax.random.key_data(rng_key)
    seen, state = self._env.reset_env(key, self._params)
    # A state may have numbers of Python, which are not arrays.
    return jax.tree.map(
      lambda x: jnp.asarray(x, jnp.result_type(x)), (state, seen)
    )

  def act(
    self, state: types.Tree, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """See `Episodic`."""
    seen, inner, reward, terminated, _ = self._env.step_env(
      jax.random.key_data(rng_key), state[0], action, self._params
    )
    return Outcome((inner, seen), reward, terminated)

  def observe(self, state: types.Tree) -> jax.Array:
    """See `Episodic`."""
    return jnp.asarray(state[1])


def kinds(function: Callable[..., Any]) -> dict[str, type]:
  """Returns the types of a function's parameters with a simple default."""
  parameters = inspect.signature(function).parameters
  defaults = {name: type(x.default) for name, x in parameters.items()}
  return {k: x for k, x in defaults.items() if x in (bool, int, float, str)}
