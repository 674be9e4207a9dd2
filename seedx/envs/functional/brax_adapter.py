"""Environments of Brax (extra `brax`).

Freeman et al. 2021, "Brax - A Differentiable Physics Engine for Large Scale
Rigid Body Simulation", https://arxiv.org/abs/2106.13281.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from brax import envs
from gymnasium import spaces

from seedx.envs import config as env_config
from seedx.envs.functional import libraries

# Brax has no other list of its environments.
NAMES: Sequence[str] = tuple(envs._envs)


class Adapter(libraries.LibraryEnvironment):
  """An environment of Brax.

  Args:
    name: one of `NAMES`.
    options: arguments of the environment's class, such as `backend`, and the
      number of actions of an episode, `episode_length`, 1000 by default.

  Raises:
    types.ConfigError: an option is unknown.
  """

  slow_reset = True

  def __init__(self, name: str, options: Mapping[str, Any]) -> None:
    defaults = libraries.keywords(envs._envs[name])
    defaults |= {"backend": "generalized", "episode_length": 1000}
    options = env_config.checked_options(
      options, {x: type(value) for x, value in defaults.items()}
    )
    limit = options.pop("episode_length", defaults["episode_length"])
    env = envs.get_environment(name, **options)
    super().__init__(_Functions(env), None, limit)


class _Functions:
  """Functions like gymnax's; a state is Brax's `State`."""

  def __init__(self, env: envs.Env) -> None:
    self._env = env

  def observation_space(self, params: None) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (self._env.observation_size,))

  def action_space(self, params: None) -> spaces.Box:
    return spaces.Box(-1, 1, (self._env.action_size,))

  def reset_env(self, key: jax.Array, params: None) -> tuple[Any, envs.State]:
    state = self._env.reset(key)
    return state.obs, state

  def step_env(
    self, key: jax.Array, state: envs.State, action: jax.Array, params: None
  ) -> tuple[Any, ...]:
    state = self._env.step(state, action)
    return state.obs, state, state.reward, state.done > 0, {}
