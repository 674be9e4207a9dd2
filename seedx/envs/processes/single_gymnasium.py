"""A Gymnasium environment as a `single.Single`."""

import functools
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import dm_env
import gymnasium
import numpy as np
from gymnasium import spaces

from seedx import types
from seedx.envs import actions, env_specs
from seedx.envs import config as env_config
from seedx.envs.processes import last_info, single


class Single:
  """See `single.Single`."""

  def __init__(
    self, config: env_config.Config, env: gymnasium.Env, seed: int
  ) -> None:
    """Resets the environment with its seed.

    Raises:
      types.ConfigError: a space or an info key is not supported, or `reset`
        fails.
    """
    name = config.env
    observation_space, action_space = (
      single.attempt(name, x, getattr, env, x)
      for x in ("observation_space", "action_space")
    )
    native = action(name, action_space)
    self.action = actions.Actions(name, native)
    leaves = single.leaves(
      without_text(name, observation_space),
      functools.partial(leaf, name),
    )
    returned = single.attempt(name, "reset", env.reset, seed=seed)
    if not isinstance(returned, tuple) or len(returned) != 2:
      raise types.ConfigError(
        f"{name}: expected reset to return (observation, info), found"
        f" {type(returned).__name__}"
      )
    observation, info = returned
    self.observation, self._info_keys = env_specs.joined_spec(
      config,
      leaves,
      self.action.spec,
      info,
      lambda key, x: single.observation_leaf(name, (key,), np.asarray(x)),
    )
    self._env, self._name = env, name
    self.normalizers = _normalizers(env)
    rate = (getattr(env, "metadata", None) or {}).get("render_fps", 0)
    self.render_fps = float(rate) if isinstance(rate, int | float) else 0.0
    self._last_info = last_info.LastInfo(config) if config.log_info else None
    self.last_info: Sequence[float] = ()
    self.first_observation = env_specs.joined(
      observation, info, self._info_keys
    )

  def reset(self) -> types.Tree:
    """See `single.Single`."""
    return self._joined(*self._env.reset())

  def step(self, action: Any) -> single.Step:
    """See `single.Single`."""
    returned = self._env.step(action)
    if not isinstance(returned, tuple | list) or len(returned) != 5:
      _refuse(returned)
    observation, reward, terminated, truncated, info = returned
    observation = self._joined(observation, info)
    reward = single.number("reward", reward)
    terminated = single.flag("terminated", terminated)
    truncated = single.flag("truncated", truncated)
    if self._last_info is not None and (terminated or truncated):
      self.last_info = self._last_info.read(info)
    if terminated:
      return observation, reward, 0.0, True
    return observation, reward, 1.0, truncated

  def _joined(self, observation: Any, info: Any) -> Any:
    try:
      return env_specs.joined(observation, info, self._info_keys)
    except KeyError as error:
      raise single.WrongStepError(
        f"expected info to have {error} at each step, as at the first reset,"
        f" found {', '.join(map(str, info)) or 'nothing'}"
      ) from None

  def render(self) -> Any:
    """See `single.Single`."""
    if type(self._env.unwrapped).render is gymnasium.Env.render:
      raise types.ConfigError(
        f"{self._name} cannot be rendered: its environment has no render"
      )
    frame = self._env.render()
    if frame is None:
      raise types.ConfigError(
        f"{self._name} cannot be rendered: its render() returns None; give the"
        " factory an argument render_mode, which gymnasium.make receives"
      )
    return frame

  def close(self) -> None:
    """See `single.Single`."""
    self._env.close()


def _normalizers(env: Any) -> tuple[str, ...]:
  """Returns the names of normalizing wrappers, also around inner vectors."""
  by_id: dict[int, Any] = {}
  left = [env]
  while left:
    env = left.pop()
    is_env = isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv)
    if is_env and id(env) not in by_id:
      by_id[id(env)] = env
      left += [*vars(env).values(), *(vars(env).get("envs") or ())]
  names = {x.__name__ for env in by_id.values() for x in type(env).__mro__}
  return tuple(
    x for x in ("NormalizeObservation", "NormalizeReward") if x in names
  )


def _refuse(returned: Any) -> NoReturn:
  actual = type(returned).__name__
  if isinstance(returned, Sequence):
    actual = f"{actual} of {len(returned)}"
    if len(returned) == 4:
      actual += ", as in old Gym: done is terminated, or truncated at a limit"
  raise single.WrongStepError(
    "expected step to return a tuple of 5 (observation, reward, terminated,"
    f" truncated, info), found {actual}"
  )


@functools.cache
def _print_once(note: str) -> None:
  print(note, file=sys.stderr, flush=True)


def without_text(name: str, space: spaces.Space) -> Any:
  """Returns a space's entries without texts, which no network reads."""
  if isinstance(space, spaces.Tuple):
    return tuple(without_text(name, x) for x in space)
  if not isinstance(space, spaces.Dict):
    return space
  texts = [k for k, x in space.items() if isinstance(x, spaces.Text)]
  if len(texts) == len(space):
    return space  # `leaf` refuses it.
  if texts:
    _print_once(f"{name}: the observation is used without its text, {texts}")
  return {k: without_text(name, x) for k, x in space.items() if k not in texts}


def leaf(
  name: str, path: tuple[str | int, ...], space: spaces.Space
) -> single.Leaf:
  bounds: tuple[Any, ...]
  match space:
    case spaces.Box():
      bounds = (space.low, space.high)
    case spaces.Discrete():
      bounds = (0, space.n - 1, space.start)
    case spaces.MultiDiscrete():
      bounds = (0, space.nvec - 1, space.start, True)
    case spaces.MultiBinary():
      bounds = (0, 1)
    case _:
      raise single.unsupported_observation(name, path, space)
  return single.observation_leaf(name, path, space, *bounds)


def action(name: str, space: spaces.Space, path: tuple[Any, ...] = ()) -> Any:
  spec = dm_env.specs.BoundedArray
  match space:
    case spaces.Dict():
      return {k: action(name, x, (*path, k)) for k, x in space.items()}
    case spaces.Tuple():
      return tuple(action(name, x, (*path, k)) for k, x in enumerate(space))
    case spaces.Discrete(start=0):
      return dm_env.specs.DiscreteArray(int(space.n), space.dtype)
    case spaces.Discrete():
      first, last = space.start, space.start + space.n - 1
      return spec((), space.dtype, first, last)
    case spaces.MultiDiscrete():
      first, last = space.start, space.start + space.nvec - 1
      return spec(space.shape, space.dtype, first, last)
    case spaces.MultiBinary():
      return spec(space.shape, space.dtype, 0, 1)
    case spaces.Box():
      return spec(space.shape, space.dtype, space.low, space.high)
  raise actions.unsupported(name, path, space)
