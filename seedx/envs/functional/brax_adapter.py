"""Environments of Brax (extra `brax`).

Freeman et al. 2021, "Brax - A Differentiable Physics Engine for Large Scale
Rigid Body Simulation", https://arxiv.org/abs/2106.13281.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env.specs
import jax
import numpy as np
from brax import envs

from seedx import types
from seedx.envs import config as env_config
from seedx.envs.functional import libraries
from seedx.envs.functional.episodic import Episodic, Outcome

# Brax has no other list of its environments.
NAMES: Sequence[str] = tuple(envs._envs)


class Adapter(Episodic):
  """An environment of Brax; a state is Brax's `State`.

  Args:
    name: one of `NAMES`.
    options: arguments of the environment's class, such as `backend`, and the
      number of actions of an episode, `episode_length`, 1000 by default.

  Raises:
    types.ConfigError: an option is unknown, or the length is not positive.
  """

  slow_reset = True

  def __init__(self, name: str, options: Mapping[str, Any]) -> None:
    kinds = libraries.kinds(envs._envs[name])
    kinds |= {"backend": str, "episode_length": int}
    options = env_config.checked_options(options, kinds)
    self.time_limit = options.pop("episode_length", 1000)
    types.check_range("the time limit", self.time_limit, 1, 2**30)
    self._env = env = envs.get_environment(name, **options)
    self.observation = dm_env.specs.Array((env.observation_size,), np.float32)
    shape = (env.action_size,)
    self.action = dm_env.specs.BoundedArray(shape, np.float32, -1, 1, "action")

  def reset(self, rng_key: jax.Array) -> envs.State:
    return self._env.reset(jax.random.key_data(rng_key))

  def act(
    self, state: envs.State, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    state = self._env.step(state, action)
    return Outcome(state, state.reward, state.done > 0)

  def observe(self, state: envs.State) -> jax.Array:
    return state.obs
