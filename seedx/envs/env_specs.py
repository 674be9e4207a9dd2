"""Specs of the observations and actions that an agent sees."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from seedx import trees, types
from seedx.envs import config as env_config

# An integer with more values than this is a count, not a choice.
MAX_DISCRETE_VALUES = 2**20
# A smaller array of bytes with two axes is a board or a table, not an image.
_MIN_IMAGE_SIZE = 32
# An array of other numbers with smaller sides is not clearly an image.
_MIN_SIDE = 7
# Numbers of channels of an image in a stack of images.
_CHANNELS = (1, 3, 4)
# The largest range of pixels, that of 16 bits.
_MAX_PIXEL = 2**16 - 1


def narrowed(dtype: np.dtype) -> np.dtype:
  """Returns the 32-bit version of a 64-bit dtype, any other dtype unchanged."""
  is_long = dtype in (np.float64, np.int64, np.uint64)
  return np.dtype(f"{dtype.kind}4") if is_long else dtype


def environment_spec(
  config: env_config.Config,
  observation: types.Tree,
  action: dm_env.specs.BoundedArray,
  native: types.Tree,
  frames_per_step: int = 1,
) -> types.EnvironmentSpec:
  """Returns the spec that the agent sees: after the transform, with the mask.

  Images with channels last, `[H, W, C]`, become `[C, H, W]`, and stacks of
  images, `[N, H, W, C]` or `[N, C, H, W]`, become `[N * C, H, W]`. Large images
  of bytes without channels, `[H, W]`, become `[1, H, W]`. An image of other
  numbers becomes a `types.ImageArray` if its bounds are finite and the same for
  all pixels, and its sides have 7 pixels or more. If one mask covers all
  combinations of several choices, the choices become one action: the index of a
  combination in C order.

  Args:
    config: the environment's config.
    observation: a nest of specs, including entries of `info`.
    action: spec of the agent's actions, before a mask joins choices.
    native: nest of specs of the environment's actions.
    frames_per_step: emulator frames in an env step.

  Raises:
    types.ConfigError: the transform or the mask cannot be used, the mask is
      missing, an observation has no numbers, or `log_info` repeats an entry.
  """
  if len({*config.log_info}) < len(config.log_info):
    raise types.ConfigError(
      "expected --log-info with different entries, found"
      f" {','.join(config.log_info)}"
    )
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
  images = tree.map_structure(_image, observation)
  if mask is not None:  # A mask is not an image.
    images = images | {mask: observation[mask]}
  if is_joint:
    count = math.prod(num_values(action))
    action = dm_env.specs.DiscreteArray(count, np.int32, "action")
    flat = dm_env.specs.Array((count,), observation[mask].dtype, mask)
    images = images | {mask: flat}
  return types.EnvironmentSpec(
    observation=images,
    action=action,
    frames_per_step=frames_per_step,
    action_mask=mask,
    log_info=tuple(config.log_info),
    native_action=native,
  )


def check_log_info(config: env_config.Config, numbers: Sequence[str]) -> None:
  """Raises types.ConfigError unless `log_info` names `numbers` of `info`."""
  for name in config.log_info:
    if name not in numbers:
      raise types.ConfigError(
        f"{config.env}: info has no number {name!r} for --log-info. "
        + env_config.suggestion(name, numbers)
      )


def leaf_spec(
  name: str,
  shape: tuple[int, ...],
  dtype: np.dtype,
  low: Any,
  high: Any,
  are_choices: bool = False,
) -> dm_env.specs.Array:
  """Returns the spec of one array of an observation; 64 bits become 32.

  An integer that is a choice becomes a `DiscreteArray`, an array of choices a
  `types.MultiDiscreteArray`. Other integers keep their bounds. Floats lose
  their bounds, which are often placeholders, unless the array is an image.
  """
  dtype = narrowed(dtype)
  if are_choices and np.sum(high) < MAX_DISCRETE_VALUES:
    return types.MultiDiscreteArray(np.asarray(high) + 1, dtype, name)
  if low is None or high is None:
    return dm_env.specs.Array(shape, dtype, name)
  if not np.issubdtype(dtype, np.integer):
    with_bounds = dm_env.specs.BoundedArray(shape, dtype, low, high, name)
    is_image = isinstance(_image(with_bounds), types.ImageArray)
    return with_bounds if is_image else dm_env.specs.Array(shape, dtype, name)
  if shape == () and low == 0 and high < MAX_DISCRETE_VALUES:
    return dm_env.specs.DiscreteArray(int(high) + 1, dtype, name)
  range_ = np.iinfo(dtype)
  low, high = (np.clip(x, range_.min, range_.max) for x in (low, high))
  return dm_env.specs.BoundedArray(shape, dtype, low, high, name)


def joined_spec(
  config: env_config.Config,
  observation: types.Tree,
  action: dm_env.specs.BoundedArray,
  info: Mapping[str, Any],
  leaf: Callable[[str, Any], Any],
) -> tuple[types.Tree, tuple[str, ...]]:
  """Adds the specs of entries of `info` to the spec of an observation.

  Args:
    config: config whose `info_keys` are added, and its `action_mask` if only
      `info` has it. The default mask must fit the actions to be added.
    observation: a nest of specs.
    action: spec of the agent's actions.
    info: all entries of `info`, or their descriptions.
    leaf: function that makes a spec from a key and its value in `info`.

  Returns:
    The spec, and the keys of the added entries.

  Raises:
    types.ConfigError: a key is unknown, or is in the observation already.
  """
  keys, mask = tuple(config.info_keys), config.action_mask
  taken = list(
    observation if isinstance(observation, dict) else ["observation"]
  )
  if mask in info and mask not in (*keys, *taken):
    is_default = mask == env_config.DEFAULT_ACTION_MASK
    if not is_default or _is_mask(leaf, mask, info[mask], action):
      keys += (mask,)
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


def _is_mask(
  leaf: Callable[[str, Any], Any],
  key: str,
  value: Any,
  action: dm_env.specs.BoundedArray,
) -> bool:
  """Returns whether an entry of `info` has the shape of a mask."""
  try:
    made = leaf(key, value)
  except types.ConfigError:  # It may be anything.
    return False
  # A `single.Leaf` has a spec, and other leaves are specs.
  return any(_mask_kinds(action, getattr(made, "spec", made).shape))


def check_fits(name: str, array: np.ndarray, dtype: np.dtype) -> None:
  """Checks that integers fit into a dtype; NumPy would wrap them silently.

  Raises:
    ValueError: an integer does not fit. The message calls the array `name`.
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
      f"expected {name} to fit into {dtype}, from {range_.min} to {range_.max},"
      f" found {low if low < range_.min else high}: let the environment return"
      " floats, or smaller integers"
    )


def choices(maximum: np.ndarray) -> dm_env.specs.BoundedArray:
  """Returns the spec of choices, from 0 to `maximum`, `[]` or `[A]`."""
  if maximum.shape == ():
    return dm_env.specs.DiscreteArray(int(maximum) + 1, np.int32, "action")
  shape = maximum.shape
  return dm_env.specs.BoundedArray(shape, np.int32, 0, maximum, "action")


def numbers(low: np.ndarray, high: np.ndarray) -> dm_env.specs.BoundedArray:
  """Returns the spec of numbers, between bounds `[A]`."""
  return dm_env.specs.BoundedArray(low.shape, np.float32, low, high, "action")


def num_values(spec: dm_env.specs.BoundedArray) -> tuple[int, ...]:
  """Returns the number of values of each choice of an agent's action."""
  maximum = np.broadcast_to(spec.maximum, spec.shape)
  return tuple(int(high) + 1 for high in maximum.flat)


def _image(spec: dm_env.specs.Array) -> dm_env.specs.Array:
  """Returns the spec of an image with its channels first; keeps other specs."""
  shape = _image_shape(spec.shape)
  if isinstance(spec, types.MultiDiscreteArray) or shape is None:
    return spec
  if spec.dtype == np.uint8:
    if shape == spec.shape:
      return spec
    return dm_env.specs.Array(shape, spec.dtype, spec.name)
  bounds = (False, True) if spec.dtype == bool else _bounds_of_pixels(spec)
  if len(spec.shape) < 3 or min(shape[1:]) < _MIN_SIDE or bounds is None:
    return spec
  return types.ImageArray(shape, spec.dtype, *bounds, spec.name)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
  """Returns an image's `[C, H, W]`; None if it cannot be one."""
  match shape:
    case (height, width) if min(shape) >= _MIN_IMAGE_SIZE:
      return 1, height, width
    case (first, middle, last):
      if (first == middle) != (middle == last):
        channels_last = first == middle  # A square image, `[H, W, C]`.
      else:
        channels_last = last < first
      return (last, first, middle) if channels_last else (first, middle, last)
    case (number, height, width, channels) if (
      channels in _CHANNELS and min(height, width) >= _MIN_SIDE
    ):
      return number * channels, height, width
    case (number, channels, height, width) if (
      channels in _CHANNELS and min(height, width) >= _MIN_SIDE
    ):
      return number * channels, height, width
  return None


def _bounds_of_pixels(spec: dm_env.specs.Array) -> tuple[Any, Any] | None:
  if not isinstance(spec, dm_env.specs.BoundedArray):
    return None
  (low, *lows), (high, *highs) = (
    np.unique(x).tolist() for x in (spec.minimum, spec.maximum)
  )
  if lows or highs or not 0 < high - low <= _MAX_PIXEL:
    return None
  return low, high


def seen(spec: dm_env.specs.Array, leaf: Any) -> Any:
  """Gives an array `[B, ...]` the shape that `environment_spec` chose.

  The array may be NumPy's or JAX's.
  """
  shape = leaf.shape[1:]
  if shape == spec.shape:
    return leaf
  if len(spec.shape) == 3 and shape[-3:-1] == spec.shape[1:]:
    axes = range(leaf.ndim)  # The channels are last.
    leaf = leaf.transpose(*axes[:-3], axes[-1], axes[-3], axes[-2])
  return leaf.reshape(len(leaf), *spec.shape)  # Also flattens a joint mask.


def _transformed_spec(
  observation: types.Tree, transform: env_config.Transform, name: str
) -> types.Tree:
  """Derives specs by transforming an example; raises only ConfigErrors."""
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


def _mask_kinds(
  action: dm_env.specs.BoundedArray, shape: tuple[int, ...] | None
) -> tuple[bool, bool]:
  """Returns whether a mask of this shape may be separate, and joint.

  A separate mask has a row for each choice, a joint one a number for each
  combination of several choices.
  """
  is_hybrid = isinstance(action, types.HybridArray)
  choices = action.choices if is_hybrid else action
  if shape is None or not np.issubdtype(choices.dtype, np.integer):
    return False, False
  sizes = num_values(choices)
  size, count = max(sizes), math.prod(sizes)
  is_joint = (
    len(sizes) > 1
    and count < MAX_DISCRETE_VALUES
    and not is_hybrid
    and shape in (sizes, (count,))
  )
  return shape == ((len(sizes), size) if choices.shape else (size,)), is_joint


def _action_mask(
  config: env_config.Config,
  observation: types.Tree,
  action: dm_env.specs.BoundedArray,
) -> tuple[str | None, bool]:
  """Returns the mask's key, or None; and whether the mask is joint."""
  key = config.action_mask
  mask = observation.get(key) if isinstance(observation, dict) else None
  # A nested dict has no shape.
  shape = getattr(mask, "shape", None)
  is_separate, is_joint = _mask_kinds(action, shape)
  if is_separate and is_joint:
    count = math.prod(num_values(action))
    raise types.ConfigError(
      f"{config.env}: expected an action mask for each choice or for both"
      f" together, found shape {shape}, which may be either: let an"
      f" observation_transform make it flat, [{count}], if it is for both"
    )
  if is_separate or is_joint:
    return key, is_joint
  is_nest = isinstance(mask, dict | tuple)
  if key == env_config.DEFAULT_ACTION_MASK and not is_nest:
    return None, False
  raise types.ConfigError(
    f"{config.env}: expected action_mask to name an entry of the observation"
    f" or of info with a number for each of the actions {action}, found"
    f" {key!r}, which is {mask}; several choices, also those of a nest, have"
    " one mask [choices, values], which an observation_transform can make"
  )
