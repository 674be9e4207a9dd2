"""What every kind of environment does with observations and actions.

Adds entries of `info` to observations, applies a transform, finds and checks
the action mask, and checks actions; all of it on batches, in NumPy.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import dm_env
import numpy as np
import tree

from seedx import trees, types
from seedx.envs import config as env_config

# An integer with more values than this is taken for a count, not a choice.
MAX_DISCRETE_VALUES = 2**20
# Smaller arrays of bytes with two axes are boards or tables, not images.
_LEAST_PIXELS = 32


def narrowed(dtype: np.dtype) -> np.dtype:
  """The dtype of 32 bits for one of 64; other dtypes as they are."""
  is_long = dtype in (np.float64, np.int64, np.uint64)
  return np.dtype(f"{dtype.kind}4") if is_long else dtype


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


def environment_spec(
  config: env_config.Config,
  observation: types.Tree,
  action: dm_env.specs.BoundedArray,
  frames_per_step: int = 1,
) -> types.EnvironmentSpec:
  """The spec after the transform, with the action mask.

  Images with channels last, `[H, W, C]` bytes, become `[C, H, W]`; those with
  no channels, `[H, W]`, become `[1, H, W]` if they are large enough. Several
  choices that share one mask of all their combinations become one action, which
  counts these in the order of C.

  Args:
    config: which environment.
    observation: a nest of specs, entries of `info` included.
    action: the environment's, as in `types.EnvironmentSpec`.
    frames_per_step: emulator frames in an env step.

  Raises:
    types.ConfigError: the transform cannot be used, or the mask is not there.
  """
  transform = env_config.load_transform(config)
  if transform is not None:
    observation = _transformed_spec(
      observation, transform, config.observation_transform
    )
  for name, leaf in trees.named_leaves(observation):
    if 0 in leaf.shape:
      raise types.ConfigError(
        f"{config.env}: expected observations of at least one number, found"
        f" {name or 'one'} of shape {leaf.shape}: leave it out, in the"
        " environment or with an observation_transform"
      )
  mask, is_joint = _action_mask(config, observation, action)
  seen = tree.map_structure(_channels_first, observation)
  if mask is not None:  # It is no image.
    seen = seen | {mask: observation[mask]}
  if is_joint:
    count = math.prod(_choices(action))
    action = dm_env.specs.DiscreteArray(count, np.int32, "action")
    flat = dm_env.specs.Array((count,), observation[mask].dtype, mask)
    seen = seen | {mask: flat}
  return types.EnvironmentSpec(
    observation=seen,
    action=action,
    frames_per_step=frames_per_step,
    action_mask=mask,
  )


def leaf_spec(
  name: str,
  shape: tuple[int, ...],
  dtype: np.dtype,
  low: Any,
  high: Any,
) -> dm_env.specs.Array:
  """The spec of an array of an observation, narrowed to 32 bits.

  An integer that is a choice becomes a `DiscreteArray`, other integers keep
  their bounds. Floats lose them, since they are often placeholders.
  """
  dtype = narrowed(dtype)
  if low is None or high is None or not np.issubdtype(dtype, np.integer):
    return dm_env.specs.Array(shape, dtype, name)
  if shape == () and low == 0 and high < MAX_DISCRETE_VALUES:
    return dm_env.specs.DiscreteArray(int(high) + 1, dtype, name)
  range_ = np.iinfo(dtype)
  low, high = (np.clip(x, range_.min, range_.max) for x in (low, high))
  return dm_env.specs.BoundedArray(shape, dtype, low, high, name)


def action_spec(
  dtype: np.dtype, low: np.ndarray, high: np.ndarray, is_discrete: bool = False
) -> dm_env.specs.BoundedArray | None:
  """The spec of the agent's actions, in which integers count from 0.

  Args:
    dtype: of the environment's actions.
    low: the smallest, of the shape of an action.
    high: the largest, of the same shape.
    is_discrete: whether floats are integers too.

  Returns:
    The spec, as in `types.EnvironmentSpec`; None if it is not supported.
  """
  shape = low.shape
  if 0 in shape:
    return None
  if dtype.kind in "iu" or is_discrete:
    # Python's integers, since the difference can overflow others.
    most = np.array(high.astype(object) - low.astype(object), object)
    if len(shape) > 1 or np.any((most < 0) | (most >= MAX_DISCRETE_VALUES)):
      return None
    most = most.astype(np.int32)
    if shape == ():
      return dm_env.specs.DiscreteArray(int(most) + 1, np.int32, "action")
    return dm_env.specs.BoundedArray(shape, np.int32, 0, most, "action")
  # A missing bound is infinite, or the largest number of the dtype.
  finite = np.all(np.abs([low, high]) < np.finfo(np.float32).max)
  if dtype.kind != "f" or len(shape) != 1 or not finite:
    return None
  return dm_env.specs.BoundedArray(shape, np.float32, low, high, "action")


def joined_spec(
  config: env_config.Config,
  observation: types.Tree,
  info: Mapping[str, Any],
  leaf: Callable[[str, Any], Any],
) -> tuple[types.Tree, tuple[str, ...]]:
  """Adds the specs of entries of `info` to the spec of an observation.

  Args:
    config: its `info_keys` are added, and its `action_mask` if that is in
      `info` only.
    observation: a nest of specs.
    info: all entries, or what describes them.
    leaf: makes a spec of a key and its value in `info`.

  Returns:
    The spec, and the keys of the entries that were added.

  Raises:
    types.ConfigError: a key is unknown, or is in the observation already.
  """
  keys, mask = tuple(config.info_keys), config.action_mask
  taken = list(
    observation if isinstance(observation, dict) else ["observation"]
  )
  if mask != env_config.DEFAULT_ACTION_MASK and mask in info:
    keys += () if mask in (*keys, *taken) else (mask,)
  for key in keys:
    if key not in info:
      raise types.ConfigError(
        f"{config.env}: unknown info key {key!r}. "
        + env_config.suggestion(key, sorted(info))
      )
    if key in taken:
      raise types.ConfigError(
        f"{config.env}: info key {key!r} is already in the observation, which"
        f" has {', '.join(taken)}. Leave it out of info_keys."
      )
    taken.append(key)
  added = {key: leaf(key, info[key]) for key in keys}
  return joined(observation, added, keys), keys


def joined(
  observation: types.Tree, info: Mapping[str, Any], keys: Sequence[str]
) -> types.Tree:
  """Adds entries of `info` to an observation, or their specs to its spec."""
  if not keys:
    return observation
  if not isinstance(observation, dict):
    observation = {"observation": observation}
  return observation | {key: info[key] for key in keys}


def failure(name: str, k: int, seed: int, why: str) -> str:
  """What is said where an environment fails.

  Args:
    name: of the environment.
    k: which of them.
    seed: of environment 0.
    why: what has happened.
  """
  return f"environment {k} of {name}, with the seed {seed + k}, failed: {why}"


def check_fits(what: str, array: np.ndarray, dtype: np.dtype) -> None:
  """Checks that integers fit into a dtype; NumPy would wrap them in silence.

  Raises:
    ValueError: they do not; it calls them `what`.
  """
  if array.dtype == dtype or array.dtype.kind not in "iu":
    return
  if (
    dtype.kind not in "iu" or np.can_cast(array.dtype, dtype) or not array.size
  ):
    return
  low, high, range_ = array.min(), array.max(), np.iinfo(dtype)
  if low < range_.min or high > range_.max:
    raise ValueError(
      f"expected {what} to fit into {dtype}, from {range_.min} to {range_.max},"
      f" found {low if low < range_.min else high}: let the environment return"
      " floats, or smaller integers"
    )


@dataclasses.dataclass(frozen=True)
class Finisher:
  """Makes of environments' time steps what the agent sees.

  Attributes:
    config: which environment.
    seed: of environment 0.
    spec: of what the agent sees.
    transform: of observations; None for no change.
    moved: by environment, another `seed` since it was made again.
  """

  config: env_config.Config
  seed: int
  spec: types.EnvironmentSpec
  transform: env_config.Transform | None
  moved: Mapping[int, int] = dataclasses.field(default_factory=dict)

  def __call__(
    self, index: np.ndarray, last: np.ndarray, timestep: dm_env.TimeStep
  ) -> dm_env.TimeStep:
    """Transforms observations, and checks them, their mask and rewards.

    Args:
      index: `[B]`, which environments.
      last: `[B]` bool, whether the episode has ended. There, a mask without a
        legal action becomes one where all are legal.
      timestep: `[B, ...]`, with entries of `info` in the observation.

    Raises:
      RuntimeError: an observation or a reward has NaN or an infinity.
      ValueError: no action is legal, and yet the episode goes on; or an integer
        of the transform does not fit into 32 bits.
    """
    given = observation = timestep.observation
    if self.transform is not None:
      observation = tree.map_structure(
        _as_spec, self.spec.observation, self.transform(given)
      )
    leaves = tree.flatten(observation)
    if _not_finite(timestep.reward) or any(map(_not_finite, leaves)):
      self._refuse(index, timestep, observation)
    if [leaf.shape[1:] for leaf in leaves] != self._shapes:
      observation = tree.map_structure(
        _as_seen, self.spec.observation, observation
      )
    if self.spec.action_mask is not None:
      observation = self._with_legal(observation, index, last)
    return timestep._replace(observation=observation)

  @functools.cached_property
  def _shapes(self) -> list[tuple[int, ...]]:
    return [spec.shape for spec in tree.flatten(self.spec.observation)]

  def _refuse(
    self, index: np.ndarray, given: dm_env.TimeStep, observation: types.Tree
  ) -> NoReturn:
    """Raises RuntimeError: says which number is not finite, and whose it is."""
    named = trees.named_leaves(
      {
        "observation": given.observation,
        "reward": given.reward,
        "transformed observation": observation,
      }
    )
    name, leaf = next(found for found in named if _not_finite(found[1]))
    wrong = ~np.isfinite(leaf.reshape(len(index), -1))
    row = int(wrong.any(axis=1).argmax())
    value = leaf.reshape(len(index), -1)[row][wrong[row]][0]
    why = f"expected finite numbers, found {value} in its {name}"
    if name.startswith("transformed"):
      why += (
        f", which the observation transform {self.config.observation_transform}"
        " has made of finite ones"
      )
    k = int(index[row])
    seed = self.moved.get(k, self.seed)
    raise RuntimeError(
      failure(self.config.env, k, seed, why)
      + types.see("numbers-that-are-not-finite")
    )

  def _with_legal(
    self, observation: types.Tree, index: np.ndarray, last: np.ndarray
  ) -> types.Tree:
    """Makes all actions legal where none is, if the episode has ended."""
    key = self.spec.action_mask
    assert key is not None
    mask = observation[key]
    none_legal = ~np.any(mask, axis=-1)
    # Of several choices, one may have nothing to choose.
    stuck = none_legal.reshape(len(index), -1).all(axis=1) & ~last
    if np.any(stuck):
      raise ValueError(
        f"expected a legal action in {key!r} of every environment, found none"
        f" in {index[stuck].tolist()}: the environment is wrong, or another"
        " entry is the mask"
      )
    if not np.any(none_legal):
      return observation
    mask = mask.copy()
    mask[none_legal] = 1
    return observation | {key: mask}


def checked_action(
  spec: dm_env.specs.BoundedArray,
  own: dm_env.specs.BoundedArray,
  index: np.ndarray,
  action: np.ndarray,
) -> np.ndarray:
  """Checks actions; returns those that the environment takes.

  Args:
    spec: of the agent's actions.
    own: of the environment's, see `environment_spec`.
    index: `[B]`, which environments.
    action: `[B, *action_shape]`.

  Raises:
    ValueError: the shape is wrong, or a discrete action is out of range.
  """
  expected = (len(index), *spec.shape)
  if np.shape(action) != expected:
    raise ValueError(
      f"expected actions of shape {expected}, found {np.shape(action)}"
    )
  action = np.asarray(action, spec.dtype)
  if spec.dtype.kind == "i" and np.any((action < 0) | (action > spec.maximum)):
    raise ValueError(
      f"expected actions from 0 to {spec.maximum}, found "
      f"{action.min()} to {action.max()}"
    )
  if own.shape != spec.shape:
    action = np.stack(np.unravel_index(action, _choices(own)), axis=-1)
  return action


def checked_frame(frame: Any, name: str) -> np.ndarray:
  """Checks a rendered frame `[H, W, 3]`; returns a copy.

  Raises:
    types.ConfigError: it is something else.
  """
  found = type(frame).__name__
  if isinstance(frame, np.ndarray):
    if frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[-1] == 3:
      return frame.copy()
    found = f"{frame.dtype} of shape {frame.shape}"
  raise types.ConfigError(
    f"{name} cannot be rendered: expected a frame [H, W, 3] of uint8, found"
    f" {found}"
  )


def _not_finite(array: np.ndarray) -> bool:
  return array.dtype.kind == "f" and not np.isfinite(array).all()


def _as_spec(spec: dm_env.specs.Array, leaf: Any) -> np.ndarray:
  """What a transform has returned, with the dtype of the spec."""
  array = np.asarray(leaf)
  check_fits("the transformed observation", array, spec.dtype)
  return array.astype(spec.dtype, copy=False)


def _channels_first(spec: dm_env.specs.Array) -> dm_env.specs.Array:
  """The spec of an image with channels last as that of one with them first."""
  if spec.dtype != np.uint8:
    return spec
  if len(spec.shape) == 2 and min(spec.shape) >= _LEAST_PIXELS:
    return dm_env.specs.Array((1, *spec.shape), spec.dtype, spec.name)
  if len(spec.shape) != 3:
    return spec
  first, middle, last = spec.shape
  if (first == middle) != (middle == last):
    channels_last = first == middle  # It is as high as wide.
  else:
    channels_last = last < first
  if not channels_last:
    return spec
  return dm_env.specs.Array((last, first, middle), spec.dtype, spec.name)


def _as_seen(spec: dm_env.specs.Array, leaf: np.ndarray) -> np.ndarray:
  """An array `[B, ...]` as `environment_spec` says."""
  if leaf.shape[1:] == spec.shape:
    return leaf
  if len(spec.shape) == 3 and leaf.ndim == 4:
    leaf = np.ascontiguousarray(np.moveaxis(leaf, -1, 1))
  return leaf.reshape(len(leaf), *spec.shape)  # Of a joint mask.


def _transformed_spec(
  observation: types.Tree, transform: env_config.Transform, name: str
) -> types.Tree:
  """The specs of transformed observations, found by transforming an example.

  Raises:
    types.ConfigError: the transform fails on it, or loses the batch axis.
  """
  example = trees.zeros(observation, (2,))
  try:
    results = tree.map_structure(np.asarray, transform(example))
  except Exception as error:
    raise types.ConfigError(
      f"the observation transform {name} fails on {observation}: {error!r}"
    ) from error
  # Arrays that the transform returns unchanged keep their specs.
  unchanged = {
    id(leaf): spec
    for leaf, spec in zip(
      tree.flatten(example), tree.flatten(observation), strict=True
    )
  }

  def spec(leaf: np.ndarray) -> dm_env.specs.Array:
    if leaf.shape[:1] != (2,):
      raise types.ConfigError(
        f"expected the observation transform {name} to keep the batch axis of"
        f" size 2, found shape {leaf.shape}"
      )
    return unchanged.get(id(leaf)) or dm_env.specs.Array(
      leaf.shape[1:], narrowed(leaf.dtype)
    )

  return tree.map_structure(spec, results)


def _action_mask(
  config: env_config.Config,
  observation: types.Tree,
  action: dm_env.specs.BoundedArray,
) -> tuple[str | None, bool]:
  """The key of the mask, None where there is none; whether it is joint.

  A joint mask has a number for each combination of several choices.
  """
  key = config.action_mask
  found = observation.get(key) if isinstance(observation, dict) else None
  # A nested dict has no shape.
  shape = getattr(found, "shape", None)
  if np.issubdtype(action.dtype, np.integer) and shape is not None:
    choices = _choices(action)
    most = max(choices)
    of_each = (len(choices), most) if action.shape else (most,)
    count = math.prod(choices)
    joint = len(choices) > 1 and count < MAX_DISCRETE_VALUES
    is_joint = joint and shape in (choices, (count,))
    if is_joint and shape == of_each:
      raise types.ConfigError(
        f"{config.env}: expected an action mask of each choice or of both"
        f" together, found shape {shape}, which may be either: let an"
        f" observation_transform make it flat, [{count}], if it is of both"
      )
    if is_joint or shape == of_each:
      return key, is_joint
  if key == env_config.DEFAULT_ACTION_MASK:
    return None, False
  raise types.ConfigError(
    f"{config.env}: expected action_mask to name an entry of the observation"
    f" or of info with a number for each of the actions {action}, found"
    f" {key!r}, which is {found}"
  )


def _choices(action: dm_env.specs.BoundedArray) -> tuple[int, ...]:
  """How many values each of an environment's discrete choices has."""
  most = np.broadcast_to(action.maximum, action.shape)
  return tuple(int(high) + 1 for high in most.flat)
