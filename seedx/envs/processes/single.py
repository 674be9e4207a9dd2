"""The interface of one environment of the user's own, and its checks."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import dm_env
import numpy as np

from seedx import types
from seedx.envs import actions, env_specs
from seedx.envs import config as env_config

# The observation, the reward, the discount (0 if the episode terminates), and
# whether the episode ends. A NamedTuple would be slower.
Step = tuple[types.Tree, float, float, bool]


class WrongStepError(ValueError):
  """An environment returned a wrong value; reported without a traceback."""


@dataclasses.dataclass(frozen=True)
class Leaf:
  """An array of an observation.

  Attributes:
    spec: spec of the array that the agent sees.
    kinds: dtype kinds that the environment's array may have.
    offset: number that is subtracted from the environment's integers; None
      for 0.
    path: keys and indices that lead to the array in nested dicts and tuples.
  """

  spec: dm_env.specs.Array
  kinds: str
  offset: np.ndarray | None
  path: tuple[str | int, ...] = ()

  def read(self, observation: types.Tree) -> np.ndarray:
    """Reads the array from an environment's observation.

    Raises:
      WrongStepError: no array, or one of another shape or kind of dtype.
      ValueError: an integer does not fit into the spec's dtype.
    """
    value = observation
    for key in self.path:
      if isinstance(key, int):
        has_key = isinstance(value, tuple | list) and key < len(value)
      else:
        has_key = isinstance(value, Mapping) and key in value
      if not has_key:
        raise WrongStepError(
          f"expected {key!r} in the observation, found"
          f" {list(value) if isinstance(value, Mapping) else type(value)}"
        )
      value = value[key]
    name = f"the observation{actions.path_text(self.path)}"
    kind = type(value)
    if kind is not np.ndarray:
      value = np.asarray(value)
    if value.shape != self.spec.shape or value.dtype.kind not in self.kinds:
      actual = f"shape {value.shape} and dtype {value.dtype}"
      if value.dtype.kind == "O":
        actual = f"an object of type {kind.__name__}"
      raise WrongStepError(
        f"expected {name} to have shape {self.spec.shape} and dtype"
        f" {self.spec.dtype}, as in the environment's spec, found {actual}"
      )
    if self.offset is not None:
      value = value - self.offset
    env_specs.check_fits(name, value, self.spec.dtype)
    return value


class Single(Protocol):
  """An environment that has been reset with its seed.

  Attributes:
    observation: a `Leaf`, or nested dicts of them.
    action: the environment's actions.
    first_observation: observation of that reset.
    last_info: values of the config's `log_info` in the last `info` of the
      newest ended episode.
    normalizers, render_fps: see `types.EnvironmentSpec`.
  """

  observation: types.Tree
  action: actions.Actions
  first_observation: types.Tree
  last_info: Sequence[float]
  normalizers: tuple[str, ...]
  render_fps: float

  def reset(self) -> types.Tree:
    """Starts an episode without a new seed; returns its first observation."""
    ...

  def step(self, action: Any) -> Step:
    """Takes an action, a nest as in `action.native`."""
    ...

  def render(self) -> Any:
    """Renders a frame, which is not checked."""
    ...

  def close(self) -> None:
    """Closes the environment."""
    ...


def attempt(
  name: str,
  function_name: str,
  function: Callable[..., Any],
  /,  # Keeps all names free for the user's arguments.
  *args: Any,
  **kwargs: Any,
) -> Any:
  """Calls a user's function; raises its errors as `types.ConfigError`."""
  try:
    return function(*args, **kwargs)
  except types.ConfigError:
    raise
  except BaseException as error:  # SystemExit too.
    raise types.ConfigError(
      f"{name}: {function_name} raises {env_config.in_one_line(error)}"
    ) from error


def number(name: str, value: Any) -> float:
  """Converts a number, a bool or an array of one element to a float.

  Raises:
    WrongStepError: the value is something else; the message calls it `name`.
  """
  if isinstance(value, float):  # Includes NumPy's float64.
    return value
  is_text = isinstance(value, str | bytes)
  if value is not None and not is_text and not np.iscomplexobj(value):
    try:
      if isinstance(value, np.ndarray):
        value = value.reshape(()).astype(np.float64, casting="same_kind")
      return float(value)
    except (TypeError, ValueError, OverflowError):
      pass
  raise WrongStepError(
    f"expected a number as {name}, found {value!r:.80} of type"
    f" {type(value).__name__}"
  )


def flag(name: str, value: Any) -> bool:
  """Converts a bool, an integer or an array of one of these to a bool.

  Raises:
    WrongStepError: the value is something else; the message calls it `name`.
  """
  if value is True or value is False:
    return value
  array = np.asarray(value)
  if array.size == 1 and array.dtype.kind in "biu":
    return bool(array.item())
  raise WrongStepError(
    f"expected True or False as {name}, found {value!r:.80} of type"
    f" {type(value).__name__}"
  )


def leaves(
  space: Any,
  leaf: Callable[[tuple[str | int, ...], Any], Leaf],
  path: tuple[str | int, ...] = (),
) -> types.Tree:
  """Maps `leaf`, a function of path and value, over nested dicts and tuples.

  Lists become tuples. A dict without entries, or with other keys than strings,
  counts as a leaf.
  """
  if isinstance(space, Mapping) and space:
    if all(isinstance(key, str) for key in space):
      return {key: leaves(x, leaf, (*path, key)) for key, x in space.items()}
  elif isinstance(space, Sequence) and space:
    return tuple(leaves(x, leaf, (*path, k)) for k, x in enumerate(space))
  return leaf(path, space)


def observation_leaf(
  name: str,
  path: tuple[str | int, ...],
  space: Any,
  low: Any = None,
  high: Any = None,
  offset: Any = 0,
  are_choices: bool = False,
) -> Leaf:
  """Makes a `Leaf` for an array of an observation.

  Args:
    name: name of the factory, for messages.
    path: keys and indices that lead to the array, for messages.
    space: the environment's space or spec of the array, or an example.
    low: smallest integer, after `offset` is subtracted.
    high: largest integer, after `offset` is subtracted.
    offset: smallest integer of a choice, which becomes 0.
    are_choices: whether the integers of an array are choices, not numbers.

  Raises:
    types.ConfigError: the leaf is not an array of numbers.
  """
  shape, dtype = space.shape or (), np.dtype(space.dtype)
  if dtype.kind not in "fiub":
    raise unsupported_observation(name, path, f"dtype {dtype}")
  spec = env_specs.leaf_spec(
    str(path[-1]) if path else "observation",
    shape,
    dtype,
    low,
    high,
    are_choices,
  )
  return Leaf(
    spec,
    kinds="iu" if dtype.kind in "iu" else dtype.kind,
    offset=np.asarray(offset) if np.any(offset) else None,
  )


def unsupported_observation(
  name: str, path: tuple[str | int, ...], actual: object
) -> types.ConfigError:
  """Returns the error for an entry that is not an array of numbers."""
  return types.ConfigError(
    f"{name}: the observation{actions.path_text(path)} is {actual}."
    " Supported are arrays of numbers, and tuples and dicts of these with"
    " strings as keys: leave other entries out, or turn them into arrays, in"
    " the environment or with a wrapper such as"
    " gymnasium.wrappers.TransformObservation"
  )
