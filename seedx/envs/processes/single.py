"""One environment of the user's own, whichever interface it has."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import dm_env
import numpy as np

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import observations

# What a step returns: the observation, the reward, the discount (0 where the
# episode terminates), and whether the episode ends. A NamedTuple is slower.
Step = tuple[types.Tree, float, float, bool]


class WrongStepError(ValueError):
  """An environment returned what it must not; the message has no traceback."""


@dataclasses.dataclass(frozen=True)
class Leaf:
  """An array of an observation.

  Attributes:
    spec: the array that the agent sees.
    kinds: the kinds of dtype that the environment's array may have.
    offset: the smallest of the environment's integers, which is 0 for the
      agent; None if it is 0 for both.
    path: the keys of the nested dicts that the array is in.
  """

  spec: dm_env.specs.Array
  kinds: str
  offset: np.ndarray | None
  path: tuple[str, ...] = ()

  def read(self, observation: types.Tree) -> np.ndarray:
    """The array in an environment's observation.

    Raises:
      WrongStepError: it is missing, or has another shape or kind of dtype.
      ValueError: an integer does not fit.
    """
    value = observation
    for key in self.path:
      if not isinstance(value, Mapping) or key not in value:
        raise WrongStepError(
          f"expected {key!r} in the observation, found"
          f" {list(value) if isinstance(value, Mapping) else type(value)}"
        )
      value = value[key]
    if type(value) is not np.ndarray:
      value = np.asarray(value)
    if value.shape != self.spec.shape or value.dtype.kind not in self.kinds:
      raise WrongStepError(
        f"expected the observation{_path_text(self.path)} to have shape"
        f" {self.spec.shape} and dtype {self.spec.dtype}, as the environment"
        f" says, found shape {value.shape} and dtype {value.dtype}"
      )
    if self.offset is not None:
      value = value - self.offset
    what = f"the observation{_path_text(self.path)}"
    observations.check_fits(what, value, self.spec.dtype)
    return value


class Action(NamedTuple):
  """The actions of an environment.

  Attributes:
    spec: of the agent's actions.
    dtype: of the environment's actions.
    low: the environment's smallest; for integers, it is 0 for the agent.
    high: the environment's largest.
  """

  spec: dm_env.specs.BoundedArray
  dtype: np.dtype
  low: np.ndarray
  high: np.ndarray

  def translated(self, action: np.ndarray) -> np.ndarray:
    """Converts actions `[B, ...]` of the agent to the environment's."""
    action = action.astype(self.dtype)
    if self.dtype.kind in "iu":
      return action + self.low.astype(self.dtype)
    return np.clip(action, self.low, self.high)


class Single(Protocol):
  """An environment that has been reset with its seed.

  Attributes:
    observation: a nest of dicts of `Leaf`.
    action: its actions.
    first_observation: what that reset returned.
  """

  observation: types.Tree
  action: Action
  first_observation: types.Tree

  def reset(self) -> types.Tree:
    """Starts an episode without a new seed; returns the observation."""
    ...

  def step(self, action: Any) -> Step:
    """Takes an action of the environment's dtype."""
    ...

  def render(self) -> Any:
    """A frame, not checked."""
    ...

  def close(self) -> None:
    """Closes the environment."""
    ...


def attempt(
  name: str,
  what: str,
  function: Callable[..., Any],
  /,  # The user's arguments may have any name.
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
      f"{name}: {what} raises {env_config.in_one_line(error)}"
    ) from error


def number(what: str, value: Any) -> float:
  """Returns a reward or a discount as a float.

  Args:
    what: its name, for the error.
    value: a number, a bool, or an array of one of them.

  Raises:
    WrongStepError: it is something else.
  """
  if isinstance(value, float):  # NumPy's float64 is one, too.
    return value
  is_text = isinstance(value, str | bytes)
  if value is not None and not is_text and not np.iscomplexobj(value):
    try:
      if isinstance(value, np.ndarray):  # Of one number.
        value = value.reshape(()).astype(np.float64, casting="same_kind")
      return float(value)
    except (TypeError, ValueError, OverflowError):
      pass
  raise WrongStepError(
    f"expected a number as {what}, found {value!r:.80} of type"
    f" {type(value).__name__}"
  )


def leaves(
  part: Any,
  leaf: Callable[[tuple[str, ...], Any], Leaf],
  path: tuple[str, ...] = (),
) -> types.Tree:
  """Makes leaves of nested dicts.

  Args:
    part: an environment's spec or space, or a part of it.
    leaf: makes the leaf of a path and what is there.
    path: of the part.
  """
  is_dict = isinstance(part, Mapping) and len(part) > 0
  if not is_dict or not all(isinstance(key, str) for key in part):
    return leaf(path, part)
  return {key: leaves(x, leaf, (*path, key)) for key, x in part.items()}


def observation_leaf(
  name: str,
  path: tuple[str, ...],
  part: Any,
  low: Any = None,
  high: Any = None,
  offset: Any = 0,
) -> Leaf:
  """The leaf of an array.

  Args:
    name: of the factory.
    path: keys of the dicts that it is in, for messages.
    part: the environment's space or spec of the array, or an example.
    low: the smallest of integers, after `offset` is subtracted.
    high: the largest of integers, after that.
    offset: what is subtracted from integers, so that they count from 0.

  Raises:
    types.ConfigError: it is not an array of numbers.
  """
  shape, dtype = part.shape or (), np.dtype(part.dtype)
  if dtype.kind not in "fiub":
    raise unsupported_observation(name, path, f"dtype {dtype}")
  spec = observations.leaf_spec(
    path[-1] if path else "observation", shape, dtype, low, high
  )
  return Leaf(
    spec,
    kinds="iu" if dtype.kind in "iu" else dtype.kind,
    offset=np.asarray(offset) if np.any(offset) else None,
  )


def unsupported_observation(
  name: str, path: tuple[str, ...], found: object
) -> types.ConfigError:
  """The error for a part of an observation that is not an array of numbers."""
  return types.ConfigError(
    f"{name}: the observation{_path_text(path)} is {found}."
    " Supported are arrays of numbers, and dicts of these with strings as keys."
  )


def array_action(
  name: str, space: Any, bounds: tuple[Any, Any] | None
) -> Action:
  """The actions that are arrays between bounds.

  Args:
    name: of the factory.
    space: the environment's space or spec of actions.
    bounds: the smallest and the largest; None if actions are not arrays.

  Raises:
    types.ConfigError: they are not supported.
  """
  if bounds is not None:
    dtype = np.dtype(space.dtype)
    low, high = (np.broadcast_to(x, space.shape) for x in bounds)
    spec = observations.action_spec(dtype, low, high)
    if spec is not None:
      return Action(spec, dtype, low, high)
  raise types.ConfigError(
    f"{name} takes the action {' '.join(str(space).split())}. Supported are"
    " discrete actions, one or a vector of them, and continuous actions of"
    " rank 1 with finite bounds."
  )


def _path_text(path: tuple[str, ...]) -> str:
  return f" {'/'.join(path)}" if path else ""
