"""A dm_env environment as a `single.Single`."""

import functools
from collections.abc import Sequence
from typing import Any

import dm_env

from seedx import types
from seedx.envs import actions
from seedx.envs import config as env_config
from seedx.envs.processes import single


class Single:
  """See `single.Single`."""

  last_info: Sequence[float] = ()
  normalizers: tuple[str, ...] = ()
  render_fps = 0.0

  def __init__(
    self, config: env_config.Config, env: dm_env.Environment
  ) -> None:
    """Resets the environment, which was made with its seed.

    Raises:
      types.ConfigError: a spec is not supported, `reset` fails, or the config
        names entries of `info`.
    """
    name = config.env
    if config.info_keys:
      raise types.ConfigError(
        f"{name}: expected no info_keys for a dm_env.Environment, which has no"
        f" info, found {', '.join(config.info_keys)}"
      )
    if config.log_info:
      raise types.ConfigError(
        f"{name}: expected no log_info for a dm_env.Environment, which has no"
        f" info, found {', '.join(config.log_info)}: let the factory return a"
        " gymnasium.Env whose info has these entries"
      )
    action = single.attempt(name, "action_spec", env.action_spec)
    self.action = actions.Actions(name, action)
    observation = single.attempt(name, "observation_spec", env.observation_spec)
    self.observation = single.leaves(
      observation, functools.partial(_leaf, name)
    )
    self._env, self._name = env, name
    timestep = single.attempt(name, "reset", env.reset)
    if not isinstance(timestep, dm_env.TimeStep):
      raise types.ConfigError(
        f"{name}: expected reset to return a dm_env.TimeStep, found"
        f" {type(timestep).__name__}"
      )
    self.first_observation = timestep.observation

  def reset(self) -> types.Tree:
    """See `single.Single`."""
    return self._env.reset().observation

  def step(self, action: Any) -> single.Step:
    """See `single.Single`."""
    step_type, reward, discount, observation = self._env.step(action)
    if step_type == dm_env.StepType.FIRST:
      raise single.WrongStepError(
        "expected step type MID or LAST until the episode has ended, found"
        " FIRST"
      )
    discount = single.number("discount", discount)
    if not 0 <= discount <= 1:
      raise single.WrongStepError(
        f"expected a discount from 0 to 1, found {discount}"
      )
    last = step_type == dm_env.StepType.LAST
    return observation, single.number("reward", reward), discount, last

  def render(self) -> Any:
    """Renders a frame, by the environment or by its physics."""
    if hasattr(self._env, "render"):
      return self._env.render()
    if hasattr(self._env, "physics"):
      return self._env.physics.render()
    raise types.ConfigError(
      f"{self._name} cannot be rendered: its environment has neither render()"
      " nor physics.render()"
    )

  def close(self) -> None:
    """See `single.Single`."""
    self._env.close()


def _leaf(name: str, path: tuple[str | int, ...], spec: Any) -> single.Leaf:
  if not isinstance(spec, dm_env.specs.Array):
    raise single.unsupported_observation(name, path, spec)
  is_bounded = isinstance(spec, dm_env.specs.BoundedArray)
  bounds = (spec.minimum, spec.maximum) if is_bounded else ()
  return single.observation_leaf(name, path, spec, *bounds)
