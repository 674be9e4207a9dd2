"""Specs of environments as JSON, for files that others may have written."""

import math
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np

from seedx import checkpoint, types

# Limits of a spec in a file: axes, numbers and levels of an observation.
_MAX_AXES = 16
_MAX_SIZE = 2**31
_MAX_LEVELS = 32
_BOUNDS = ("minimum", "maximum")
# The kinds of leaves, and what they have besides shape and dtype.
_KINDS = {
  "array": (dm_env.specs.Array, ()),
  "bounded": (dm_env.specs.BoundedArray, _BOUNDS),
  "image": (types.ImageArray, _BOUNDS),
  "discrete": (dm_env.specs.DiscreteArray, ("num_values",)),
  "multi_discrete": (types.MultiDiscreteArray, ("num_values",)),
  "hybrid": (types.HybridArray, ("num_choices", *_BOUNDS)),
}
_NAMES = {kind: name for name, (kind, _) in _KINDS.items()}


def to_json(spec: types.EnvironmentSpec) -> dict[str, Any]:
  """Returns the parts of a spec that learning needs, as a JSON object.

  The rules of a game and the entries to log are left out.

  Raises:
    types.ConfigError: the observation has another container than dict, list and
      tuple.
  """
  native = spec.native_action
  return {
    "observation": _encoded(spec.observation),
    "action": _encoded(spec.action),
    "native_action": None if native is None else _encoded(native),
    "frames_per_step": spec.frames_per_step,
    "action_mask": spec.action_mask,
    "hidden": list(spec.hidden),
  }


def from_json(content: Any) -> types.EnvironmentSpec:
  """Returns the spec of a JSON object that `to_json` has returned.

  Raises:
    types.ConfigError: it is not such an object.
  """
  try:
    native, mask = content["native_action"], content["action_mask"]
    frames, hidden = content["frames_per_step"], content["hidden"]
    spec = types.EnvironmentSpec(
      observation=_decoded(content["observation"]),
      action=_decoded(content["action"]),
      native_action=None if native is None else _decoded(native),
      frames_per_step=frames,
      action_mask=mask,
      hidden=tuple(hidden),
    )
    keys = spec.observation if isinstance(spec.observation, dict) else {}
    if not {*hidden, *([] if mask is None else [mask])} <= {*keys}:
      raise ValueError("it names an entry that the observation lacks")
    if not (type(frames) is int and 1 <= frames <= _MAX_SIZE):
      raise ValueError(f"expected a number of frames, found {frames!r:.80}")
    if not isinstance(spec.action, dm_env.specs.BoundedArray):
      raise ValueError("its actions have no bounds")
  except Exception as error:  # Constructors of specs raise many kinds.
    raise types.ConfigError(
      f"expected the spec of an environment, found another object"
      f" ({type(error).__name__}: {error})"
    ) from error
  return spec


def _encoded(nest: types.Tree) -> dict[str, Any]:
  if isinstance(nest, dict):
    return {"dict": {key: _encoded(x) for key, x in nest.items()}}
  if type(nest) in (list, tuple):
    return {type(nest).__name__: [_encoded(x) for x in nest]}
  name = _NAMES.get(type(nest))
  if name is None:
    raise types.ConfigError(
      "expected an observation of arrays in dict, list or tuple, found"
      f" {type(nest).__name__}"
    )
  content = {"kind": name, "shape": [*nest.shape], "dtype": str(nest.dtype)}
  return content | {x: _listed(getattr(nest, x)) for x in _KINDS[name][1]}


def _listed(value: Any) -> Any:
  """Returns numbers as JSON; None stands for an infinite one."""
  numbers = np.asarray(value)
  return np.where(
    np.isfinite(numbers), numbers.astype(object), np.array(None)
  ).tolist()


def _decoded(content: Any, level: int = 0) -> Any:
  if level > _MAX_LEVELS:
    raise ValueError("it has too many levels")
  match content:
    case {"dict": dict(inner)} if len(content) == 1:
      return {key: _decoded(x, level + 1) for key, x in inner.items()}
    case {"list": list(inner)} if len(content) == 1:
      return [_decoded(x, level + 1) for x in inner]
    case {"tuple": list(inner)} if len(content) == 1:
      return tuple(_decoded(x, level + 1) for x in inner)
  return _leaf(content)


def _leaf(content: Mapping[str, Any]) -> dm_env.specs.Array:
  (kind, _), shape = _KINDS[content["kind"]], content["shape"]
  dtype = checkpoint.dtype_of(content["dtype"])
  is_shape = isinstance(shape, list) and len(shape) <= _MAX_AXES
  if not is_shape or not all(type(x) is int and x > 0 for x in shape):
    raise ValueError(f"expected a shape, found {shape!r:.80}")
  if math.prod(shape) >= _MAX_SIZE:
    raise ValueError("an array is too large")
  if kind is dm_env.specs.Array:
    return kind(shape, dtype)
  if kind is dm_env.specs.DiscreteArray:
    return kind(content["num_values"], dtype)
  if kind is types.MultiDiscreteArray:
    return kind(np.array(content["num_values"], np.int64), dtype)
  low = _bound(content["minimum"], -np.inf, dtype)
  high = _bound(content["maximum"], np.inf, dtype)
  if kind is types.HybridArray:
    return kind(content["num_choices"], low, high)
  return kind(shape, dtype, low, high)


def _bound(content: Any, infinite: float, dtype: np.dtype) -> np.ndarray:
  """Returns the bound that `_listed` has described."""
  values = np.array(content, np.float64)  # None becomes NaN.
  missing = np.isnan(values)
  if missing.any() and np.issubdtype(dtype, np.integer):
    raise ValueError("integers have no infinite bounds")
  return np.where(missing, infinite, values).astype(dtype)
