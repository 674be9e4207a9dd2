"""What every kind of environment does with observations and actions.

Observations get entries of `info` and go through a transform; an action mask is
found and checked; actions are checked. All of it on batches, in NumPy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import config as env_config

# An integer below a larger bound is a count, not a choice.
MAX_DISCRETE_VALUES = 2**20


def environment_spec(
  config: env_config.Config,
  observation: types.Tree,
  action: dm_env.specs.BoundedArray,
  frames_per_step: int = 1,
) -> types.EnvironmentSpec:
  """The spec after the transform, with the action mask.

  Args:
    config: which environment.
    observation: a nest of specs, entries of `info` included.
    action: what an environment takes.
    frames_per_step: emulator frames in an env step.

  Raises:
    types.ConfigError: the transform cannot be used, or a mask is not there.
  """
  if config.observation_transform:
    transform = env_config.load_transform(config.observation_transform)
    observation = env_config.transformed(
      observation, transform, config.observation_transform
    )
  return types.EnvironmentSpec(
    observation=observation,
    action=action,
    frames_per_step=frames_per_step,
    action_mask=_action_mask(config, observation, action),
  )


def leaf_spec(
  name: str,
  shape: tuple[int, ...],
  dtype: np.dtype,
  low: np.ndarray | None,
  high: np.ndarray | None,
) -> dm_env.specs.Array:
  """The spec of an array that may be of 64 bits, and have bounds.

  Integers that are choices become a `DiscreteArray`, others keep their bounds;
  floats lose them, which are often placeholders.
  """
  dtype = env_config.narrowed(dtype)
  if low is None or high is None or not np.issubdtype(dtype, np.integer):
    return dm_env.specs.Array(shape, dtype, name)
  if shape == () and low == 0 and high < MAX_DISCRETE_VALUES:
    return dm_env.specs.DiscreteArray(int(high) + 1, dtype, name)
  range_ = np.iinfo(dtype)
  low, high = (np.clip(x, range_.min, range_.max) for x in (low, high))
  return dm_env.specs.BoundedArray(shape, dtype, low, high, name)


def joined_info_keys(
  config: env_config.Config, mask_in_info: bool
) -> tuple[str, ...]:
  """The info keys that join the observation, a mask named there included.

  Args:
    config: which environment.
    mask_in_info: whether `info` has an entry of the mask's name.
  """
  keys, mask = tuple(config.info_keys), config.action_mask
  named = mask != env_config.DEFAULT_ACTION_MASK
  return (*keys, mask) if named and mask_in_info and mask not in keys else keys


def with_info(
  env_id: str,
  observation: types.Tree,
  info: Mapping[str, Any],
  keys: Sequence[str],
) -> types.Tree:
  """The spec of the observation that entries of `info` have joined.

  Args:
    env_id: for messages.
    observation: a nest of specs.
    info: specs of what there is.
    keys: what joins.

  Raises:
    types.ConfigError: a key is not there, or is in the observation already.
  """
  taken = list(
    observation if isinstance(observation, dict) else ["observation"]
  )
  for key in keys:
    if key not in info:
      raise types.ConfigError(
        f"{env_id}: unknown info key {key!r}. "
        + env_config.suggestion(key, sorted(info))
      )
    if key in taken:
      raise types.ConfigError(
        f"{env_id}: info key {key!r} is already in the observation, which has"
        f" {', '.join(taken)}. Leave it out of info_keys."
      )
    taken.append(key)
  return joined(observation, info, keys)


def joined(
  observation: types.Tree, info: Mapping[str, Any], keys: Sequence[str]
) -> types.Tree:
  """An observation, or its spec, that entries of `info` have joined."""
  if not keys:
    return observation
  if not isinstance(observation, dict):
    observation = {"observation": observation}
  return observation | {key: info[key] for key in keys}


def seen(
  spec: types.EnvironmentSpec,
  transform: env_config.Transform | None,
  observation: types.Tree,
) -> types.Tree:
  """What the agent sees of observations `[B, ...]`, as `spec` says."""
  if transform is None:
    return observation
  return tree.map_structure(
    lambda leaf_spec, leaf: np.asarray(leaf, leaf_spec.dtype),
    spec.observation,
    transform(observation),
  )


def with_legal_actions(
  spec: types.EnvironmentSpec,
  observation: types.Tree,
  index: np.ndarray,
  last: np.ndarray,
) -> types.Tree:
  """The observation, after its action mask has been checked.

  Args:
    spec: of the environments.
    observation: `[B, ...]`.
    index: `[B]`, which environments.
    last: `[B]` bool, where an episode has ended; an action mask of no legal
      action becomes one of all there.

  Raises:
    ValueError: an environment goes on, and yet no action is legal in it.
  """
  key = spec.action_mask
  if key is None:
    return observation
  none_legal = ~np.any(observation[key], axis=-1)
  if np.any(none_legal & ~last):
    raise ValueError(
      f"expected a legal action in {key!r} of every environment, found none"
      f" in {index[none_legal & ~last].tolist()}: the environment is wrong,"
      " or another entry is the mask"
    )
  if not np.any(none_legal):
    return observation
  # The action after LAST is ignored.
  mask = observation[key].copy()
  mask[none_legal] = 1
  return observation | {key: mask}


def checked_action(
  spec: dm_env.specs.BoundedArray,
  index: np.ndarray,
  action: np.ndarray,
  dtype: np.dtype,
  high: np.ndarray,
) -> np.ndarray:
  """Actions of environments, as an array of `dtype`.

  Args:
    spec: of an action.
    index: `[B]`, which environments.
    action: `[B]` or `[B, A]`.
    dtype: of the result.
    high: the largest of each integer.

  Raises:
    ValueError: the shape is another, or a discrete action is out of range.
  """
  expected = (len(index), *spec.shape)
  if np.shape(action) != expected:
    raise ValueError(
      f"expected actions of shape {expected}, found {np.shape(action)}"
    )
  action = np.asarray(action, dtype)
  if np.issubdtype(spec.dtype, np.integer) and np.any(
    (action < 0) | (action > high)
  ):
    raise ValueError(
      f"expected actions from 0 to {high}, found "
      f"{action.min()} to {action.max()}"
    )
  return action


def check_numbers(
  num_envs: int, batch_size: int | None, num_threads: int, seed: int
) -> int:
  """Checks the arguments of `make`; returns the batch size.

  Raises:
    types.ConfigError: a number is out of range.
  """
  batch_size = num_envs if batch_size is None else batch_size
  types.check_range("num_envs", num_envs, 1, 2**31 - 1)
  types.check_range("batch_size", batch_size, 1, num_envs)
  types.check_range("num_threads", num_threads, 1, 2**31 - 1)
  types.check_range("seed", seed, 0, 2**31 - num_envs)
  return batch_size


def checked_frame(frame: Any, name: str) -> np.ndarray:
  """A rendered frame `[H, W, 3]`, as an array of the caller's own.

  Raises:
    types.ConfigError: it is something else.
  """
  if (
    not isinstance(frame, np.ndarray)
    or frame.dtype != np.uint8
    or frame.ndim != 3
    or frame.shape[-1] != 3
  ):
    found = (
      f"{frame.dtype} of shape {frame.shape}"
      if isinstance(frame, np.ndarray)
      else type(frame).__name__
    )
    raise types.ConfigError(
      f"{name} cannot be rendered: expected a frame [H, W, 3] of uint8, found"
      f" {found}"
    )
  return frame.copy()


def _action_mask(
  config: env_config.Config,
  observation: types.Tree,
  action: dm_env.specs.BoundedArray,
) -> str | None:
  """The key of the mask in the observation; None where there is none."""
  key = config.action_mask
  found = observation.get(key) if isinstance(observation, dict) else None
  discrete = isinstance(action, dm_env.specs.DiscreteArray)
  # A dict of that name is not a mask.
  shape = getattr(found, "shape", None)
  if discrete and shape == (action.num_values,):
    return key
  if key == env_config.DEFAULT_ACTION_MASK:
    return None
  raise types.ConfigError(
    f"{config.env}: expected action_mask to name an entry of the observation"
    f" or of info with a number for each of the actions {action}, found"
    f" {key!r}, which is {found}"
  )
