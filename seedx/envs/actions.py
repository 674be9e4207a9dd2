"""The actions of environments, and the agent's arrays that stand for them.

An agent's action is one array. A nest of spaces, a matrix and a number are
packed into a vector: first all choices, which are integers from 0, and then all
numbers. Both are in the order of `tree.flatten`, where keys are sorted.
"""

from typing import Any, NamedTuple

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import env_specs, finishing


class _Part(NamedTuple):
  """An array of the environment's actions, and its place in the vector.

  Attributes:
    spec: the array's spec.
    offset: the environment's smallest integers; None for 0, and for floats.
    begin, end: indices in the vector.
  """

  spec: dm_env.specs.BoundedArray
  offset: np.ndarray | None
  begin: int
  end: int


class Actions:
  """The conversion from an agent's actions to an environment's.

  Attributes:
    native: nest of specs of the environment's actions.
    spec: spec of the agent's actions; see `types.EnvironmentSpec`.
  """

  def __init__(self, name: str, native: types.Tree) -> None:
    """Packs the specs of an environment, which messages call `name`.

    Raises:
      types.ConfigError: an action is not an array of numbers, an integer has
        too many values, a float has equal bounds, or there is no number at all.
    """
    named = tree.flatten_with_path(native)
    leaves = [_checked(name, path, leaf) for path, leaf in named]
    if not leaves:
      raise unsupported(name, (), native)
    self.native = tree.unflatten_as(native, leaves)
    self._parts = _places(leaves)
    self.spec = _packed(self.native, leaves)
    # Whether the agent's array has the shape of the environment's.
    self._is_plain = (
      not tree.is_nested(native) and leaves[0].shape == self.spec.shape
    )

  def __call__(self, action: Any, numpy: Any = np) -> types.Tree:
    """Converts the agent's actions, `[B, ...]`, to the environment's.

    Floats are clipped to their bounds. The arguments are those of
    `finishing.unravelled`; with JAX's arrays, 64 bits become 32.
    """
    action = finishing.unravelled(self.spec, action, numpy)
    if self._is_plain:
      return _converted(self._parts[0], action, numpy)
    rows = action.shape[: action.ndim - len(self.spec.shape)]
    vector = action.reshape(*rows, -1)
    leaves = [
      _converted(
        part,
        vector[..., part.begin : part.end].reshape(*rows, *part.spec.shape),
        numpy,
      )
      for part in self._parts
    ]
    return tree.unflatten_as(self.native, leaves)

  def rows(self, action: np.ndarray) -> list[types.Tree]:
    """Converts the agent's actions, `[B, ...]`, to a list of one for each."""
    converted = self(action)
    if self._is_plain:
      return list(converted)
    return [
      # The row of a vector is an array, that of integers a NumPy scalar.
      tree.map_structure(
        lambda x, k=k: x[k] if x.dtype.kind in "iu" else x[k, ...], converted
      )
      for k in range(len(action))
    ]


def unsupported(
  name: str, path: tuple[Any, ...], actual: object
) -> types.ConfigError:
  """Returns the error for an action that is not an array of numbers."""
  return types.ConfigError(
    f"{name} takes the action{path_text(path)} {_in_one_line(actual)}."
    " Supported are Discrete, MultiDiscrete, MultiBinary, Box, arrays of"
    " dm_env with a number of values, and Dicts and Tuples of these: let the"
    " environment, or a wrapper such as gymnasium.ActionWrapper, take one of"
    " these"
  )


def _checked(
  name: str, path: tuple[Any, ...], spec: Any
) -> dm_env.specs.BoundedArray:
  kind = spec.dtype.kind if isinstance(spec, dm_env.specs.Array) else "O"
  if kind == "f" and not isinstance(spec, dm_env.specs.BoundedArray):
    spec = dm_env.specs.BoundedArray(spec.shape, spec.dtype, -np.inf, np.inf)
  is_bounded = isinstance(spec, dm_env.specs.BoundedArray)
  if kind not in "iubf" or not is_bounded or 0 in spec.shape:
    raise unsupported(name, path, spec)
  taken = f"{name} takes the action{path_text(path)} {_in_one_line(spec)}"
  if kind == "f":
    if np.any(spec.minimum >= spec.maximum):
      raise types.ConfigError(
        f"{taken}: expected different bounds, found equal ones; leave such"
        " elements out, in the environment or with a gymnasium.ActionWrapper"
      )
  elif np.any(_maximum(spec) >= env_specs.MAX_DISCRETE_VALUES):
    raise types.ConfigError(
      f"{taken}: expected integers with at most"
      f" {env_specs.MAX_DISCRETE_VALUES} values, each of which is an output"
      " of the policy; let the environment, or a gymnasium.ActionWrapper, take"
      " floats instead, and round them"
    )
  return spec


def _maximum(spec: dm_env.specs.BoundedArray) -> np.ndarray:
  """Returns the largest integers, counted from the smallest ones."""
  # Python integers, since the difference can overflow NumPy's.
  low, high = (x.astype(object) for x in (spec.minimum, spec.maximum))
  return np.array(np.broadcast_to(high - low, spec.shape), object)


def _places(leaves: list[dm_env.specs.BoundedArray]) -> list[_Part]:
  parts, begin = {}, 0
  for k in sorted(range(len(leaves)), key=lambda k: _is_float(leaves[k])):
    end = begin + int(np.prod(leaves[k].shape))
    low = leaves[k].minimum
    offset = None if _is_float(leaves[k]) or not np.any(low) else low
    parts[k] = _Part(leaves[k], offset, begin, end)
    begin = end
  return [parts[k] for k in range(len(leaves))]


def _packed(
  native: types.Tree, leaves: list[dm_env.specs.BoundedArray]
) -> dm_env.specs.BoundedArray:
  """Returns the spec of the agent's actions, for a nest and its leaves."""
  choices = [_maximum(x).ravel() for x in leaves if not _is_float(x)]
  floats = list(filter(_is_float, leaves))
  low, high = (
    np.concatenate([np.empty(0), *(_bound(x, b) for x in floats)])
    for b in ("minimum", "maximum")
  )
  maximum = np.concatenate([np.empty(0), *choices]).astype(np.int32)
  if not floats:
    is_scalar = leaves[0].shape == () or tree.is_nested(native)
    is_one = len(maximum) == 1 and is_scalar
    return env_specs.choices(maximum[0] if is_one else maximum)
  if not choices:
    return env_specs.numbers(low, high)
  return types.HybridArray(
    len(maximum),
    np.concatenate([np.zeros(len(maximum)), low]),
    np.concatenate([maximum, high]),
    "action",
  )


def _bound(spec: dm_env.specs.BoundedArray, name: str) -> np.ndarray:
  """Returns a bound of each float; infinity where there is none."""
  bound = np.broadcast_to(getattr(spec, name), spec.shape).ravel()
  bound = bound.astype(np.float64)
  # No bound: infinity, or the largest number of the dtype.
  limit = min(np.finfo(spec.dtype).max, np.finfo(np.float32).max)
  return np.where(np.abs(bound) < limit, bound, np.copysign(np.inf, bound))


def _converted(part: _Part, action: Any, numpy: Any) -> Any:
  spec, dtype = part.spec, part.spec.dtype
  if numpy is not np and dtype.itemsize == 8:
    dtype = np.dtype(f"{dtype.kind}4")
  if action.dtype != dtype:
    action = action.astype(dtype)
  if _is_float(spec):
    return numpy.clip(action, spec.minimum, spec.maximum)
  if part.offset is None:
    return action
  return action + part.offset.astype(dtype)


def _is_float(spec: dm_env.specs.BoundedArray) -> bool:
  return spec.dtype.kind == "f"


def path_text(path: tuple[Any, ...]) -> str:
  """Returns the place of an array in a nest, for messages."""
  return f" {'/'.join(map(str, path))}" if path else ""


def _in_one_line(value: object) -> str:
  return " ".join(str(value).split())
