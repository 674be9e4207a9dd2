"""One environment of a user's, whichever interface it has."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import dm_env
import numpy as np

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import observations

# What an action brought: the observation, the reward, the discount (0 where the
# episode terminates), and whether the episode ends. A NamedTuple takes longer.
Step = tuple[types.Tree, float, float, bool]

_SUPPORTED_ACTIONS = (
  "Supported are discrete actions, one or a vector of them, and continuous"
  " actions of rank 1 with finite bounds."
)
_SUPPORTED_OBSERVATIONS = (
  "Supported are arrays of numbers, and dicts of these by strings."
)


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A part of an observation.

  Attributes:
    spec: what leaves this package.
    offset: what the environment counts it from.
  """

  spec: dm_env.specs.Array
  offset: np.ndarray | None = None


class Action(NamedTuple):
  """What an environment takes for an action.

  Attributes:
    spec: what the agent sees of it.
    dtype: the environment's.
    low: the environment's smallest, which integers are counted from.
    high: the environment's largest.
  """

  spec: dm_env.specs.BoundedArray
  dtype: np.dtype
  low: np.ndarray
  high: np.ndarray

  def translated(self, action: np.ndarray) -> np.ndarray:
    """Actions `[B, ...]` of the agent's as the environment's."""
    action = action.astype(self.dtype)
    if self.dtype.kind in "iu":
      return action + self.low.astype(self.dtype)
    return np.clip(action, self.low, self.high)


class Single(Protocol):
  """An environment that has been reset with its seed.

  Attributes:
    observation: a nest of dicts of `Leaf`.
    action: what it takes.
    started: the observation of that reset.
  """

  observation: types.Tree
  action: Action
  started: types.Tree

  def reset(self) -> types.Tree:
    """Starts an episode, with a seed of the environment's choice."""
    ...

  def step(self, action: Any) -> Step:
    """Acts; `action` is of the environment's dtype."""
    ...

  def render(self) -> Any:
    """A frame `[H, W, 3]` of uint8, if all is well."""
    ...

  def close(self) -> None:
    """Ends it."""
    ...


def make(config: env_config.Config, seed: int, render: bool = False) -> Single:
  """Calls the factory, and resets what it returns.

  Args:
    config: which environment.
    seed: its own.
    render: whether there will be frames to render.

  Raises:
    types.ConfigError: any of it goes wrong; one line says what.
  """
  name = config.env
  factory = env_config.load_factory(name)
  takes = _parameters(factory)
  arguments = _arguments(config, takes, seed, render)
  env = attempt(name, "the factory", factory, **arguments)
  # Who has made one has imported it.
  gymnasium = sys.modules.get("gymnasium")
  if isinstance(env, dm_env.Environment):
    from seedx.envs import single_dm_env

    if "seed" not in takes:
      raise types.ConfigError(
        f"{name}: expected a factory with a parameter named seed, without which"
        " a dm_env.Environment cannot be seeded, found the parameters"
        f" ({', '.join(takes)})"
      )
    return single_dm_env.Single(config, env)
  if gymnasium is not None and isinstance(env, gymnasium.Env):
    from seedx.envs import single_gymnasium

    return single_gymnasium.Single(config, env, seed)
  kind = type(env)
  raise types.ConfigError(
    f"{name}: expected the factory to return a gymnasium.Env or a"
    f" dm_env.Environment, found {kind.__module__}.{kind.__qualname__}"
  )


def attempt(
  name: str, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
  """Calls a user's function; repeats what it raises as `types.ConfigError`."""
  try:
    return function(*args, **kwargs)
  except types.ConfigError:
    raise  # It says what is wrong itself.
  except BaseException as error:  # SystemExit too.
    raise types.ConfigError(
      f"{name}: {what} raises {env_config.in_one_line(error)}"
    ) from error


def observation_leaf(
  name: str,
  path: tuple[str, ...],
  shape: tuple[int, ...],
  dtype: np.dtype,
  low: Any = None,
  high: Any = None,
  offset: Any = None,
) -> Leaf:
  """The leaf of an array.

  Args:
    name: of the factory.
    path: keys of the dicts that it is in.
    shape: of the array.
    dtype: what the environment says.
    low: of integers, the smallest after `offset` is subtracted.
    high: of integers, the largest after that.
    offset: what integers are counted from.

  Raises:
    types.ConfigError: it is not of numbers.
  """
  if dtype.kind not in "fiub":
    raise unsupported_observation(name, path, f"dtype {dtype}")
  bounds = (None if x is None else np.asarray(x) for x in (low, high))
  spec = observations.leaf_spec(
    path[-1] if path else "observation", shape, dtype, *bounds
  )
  offset = None if offset is None or not np.any(offset) else np.asarray(offset)
  return Leaf(spec, offset)


def unsupported_observation(
  name: str, path: tuple[str, ...], found: object
) -> types.ConfigError:
  """The error for a part of an observation that is no array of numbers."""
  return types.ConfigError(
    f"{name}: the observation{_place(path)} is {found}."
    f" {_SUPPORTED_OBSERVATIONS}"
  )


def unsupported_action(name: str, found: object) -> types.ConfigError:
  """The error for actions of another kind."""
  said = " ".join(str(found).split())
  return types.ConfigError(
    f"{name} takes the action {said}. {_SUPPORTED_ACTIONS}"
  )


def array_action(
  name: str, found: object, dtype: np.dtype, low: np.ndarray, high: np.ndarray
) -> Action:
  """The action that is an array between bounds.

  Args:
    name: of the factory.
    found: what the environment says of it, for messages.
    dtype: what the environment says.
    low: the smallest, of the shape of an action.
    high: the largest, of the same shape.

  Raises:
    types.ConfigError: it is of no kind that is supported.
  """
  shape = low.shape
  if np.issubdtype(dtype, np.integer) and len(shape) <= 1:
    # As Python's numbers: the difference can overflow.
    most = np.array(high.astype(object) - low.astype(object), object)
    if np.all((most >= 0) & (most < observations.MAX_DISCRETE_VALUES)):
      most = most.astype(np.int32)
      spec = (
        dm_env.specs.DiscreteArray(int(most) + 1, np.int32, "action")
        if shape == ()
        else dm_env.specs.BoundedArray(shape, np.int32, 0, most, "action")
      )
      return Action(spec, dtype, low, high)
  largest = np.finfo(np.float32).max
  finite = np.all(np.abs(low) < largest) and np.all(np.abs(high) < largest)
  if np.issubdtype(dtype, np.floating) and len(shape) == 1 and finite:
    spec = dm_env.specs.BoundedArray(shape, np.float32, low, high, "action")
    return Action(spec, dtype, low, high)
  raise unsupported_action(name, found)


def _place(path: tuple[str, ...]) -> str:
  return f" {'/'.join(map(str, path))}" if path else ""


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
  try:
    return inspect.signature(factory).parameters
  except (TypeError, ValueError):  # Some that are written in C.
    return {}


def _arguments(
  config: env_config.Config,
  takes: Mapping[str, inspect.Parameter],
  seed: int,
  render: bool,
) -> dict[str, Any]:
  """The keyword arguments of the factory."""
  name = config.env
  arguments = dict(config.env_options)
  if "seed" in arguments:
    raise types.ConfigError(
      f"{name}: option 'seed' is not supported: pass the argument seed;"
      " environment k gets seed + k."
    )
  any_name = any(x.kind is x.VAR_KEYWORD for x in takes.values())
  known = [
    key
    for key, x in takes.items()
    if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)
  ]
  for key in arguments:
    if takes and key not in known and not any_name:
      raise types.ConfigError(
        f"{name}: unknown option {key!r}. "
        + env_config.suggestion(key, sorted({*known} - {"seed"}))
      )
  if "seed" in known:
    arguments["seed"] = seed
  if render and ("render_mode" in known or any_name):
    arguments["render_mode"] = "rgb_array"
  return arguments
