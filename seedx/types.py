"""The types that all of seedx shares.

This module imports only NumPy and dm_env, so that a thin actor can use it. The
containers are NamedTuples, which are pytrees in JAX and in dm-tree.

Letters for axes, unless a docstring gives them another meaning:
  T: transitions of a stream; a stream of T transitions has T + 1 time steps.
  L: length of an unroll in time steps.
  B: environments, unrolls or windows of a batch.
  S: unrolls of a share.
  W: time steps of a window.
  N: slots of an inference device, one per environment.
  A: actions of a discrete action space, or dimensions of a continuous one.
"""

import dataclasses
import decimal
import functools
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import dm_env
import numpy as np

import seedx

# A nest of arrays: array, tuple, NamedTuple, list or dict of these.
Tree = Any
Array = Any
N = TypeVar("N", int, float)
T = TypeVar("T")
# The occasions on which a setting's value may change, see `setting`.
Changes = Literal["never", "run_time", "resume", "process", "start"]

# The upper bounds of ranges that have no other: devices compute in float32, and
# Python's locks raise OverflowError for timeouts above about 2^33 seconds.
MAX_VALUE = float(np.finfo(np.float32).max)
MAX_SECONDS = 2.0**32
# Whole numbers in other notations than plain digits have at most this many.
_MAX_DIGITS = 40


class ConfigError(ValueError):
  """A wrong setting; the message states the expected and the actual value."""


def see(section: str) -> str:
  """Returns the end of a message, a link to a section of docs/trouble.md."""
  repository = f"https://github.com/{seedx.REPOSITORY}"
  return f"; see {repository}/blob/main/docs/trouble.md#{section}"


def printable(message: str) -> str:
  """Replaces the characters of a text that could control a terminal."""
  return "".join(x if x.isprintable() else "?" for x in message)


def number(kind: Callable[[str], N], text: str) -> N:
  """Parses an int or float in ASCII; Python also accepts digits of any script.

  An int may have any notation, such as 2500000, 2_500_000, 2.5e6 or 2500000.0.

  Raises:
    ValueError: the text is not such a number.
  """
  if not text.isascii():
    raise ValueError(text)
  if kind is not int or re.fullmatch(r"\s*[+-]?[\d_]+\s*", text):
    return kind(text)
  try:
    value = decimal.Decimal(text)
    # Without a limit, 1e999999999 would take minutes and gigabytes.
    if not value.is_finite() or value.adjusted() > _MAX_DIGITS:
      raise ValueError(text)
    if value != value.to_integral_value():
      raise ValueError(text)
  except decimal.InvalidOperation:
    raise ValueError(text) from None
  return kind(str(int(value)))


class About(NamedTuple):
  """A setting's properties beside its type and its default; see `setting`."""

  changes: Changes = "never"
  range: tuple[float, float] | None = None
  labels: bool = True
  alike: bool = False


def setting(
  default: T,
  *,
  changes: Changes = "never",
  low: float | None = None,
  high: float | None = None,
  labels: bool = True,
  alike: bool = False,
) -> T:
  """Makes a field of a config that needs more than a default.

  A subclass that redefines the field with another default keeps the rest.

  Args:
    default: default value; of a dict, each config gets a copy.
    changes: occasion on which the value may change. "never": never in a run.
      "run_time": at any time, since it is in the agent's state (see
      `base.hyperparameters`), and checkpoints restore it. "resume": when a run
      resumes; learner hosts may differ, too. "process": in each process, as an
      address does; `--resume` does not take it from `config.json`. "start": at
      each start, such as what is printed; it is not in `config.json`.
    low: minimum, in a tuple of each element; None for `-MAX_VALUE`.
    high: maximum, likewise; None for `MAX_VALUE`. Without `low` and `high`, any
      value is allowed.
    labels: whether runs with different values are different groups in a plot;
      a sweep searches only such settings.
    alike: whether all learner hosts need the same value, even if it may change.
  """
  bounds = None
  if low is not None or high is not None:
    low = -MAX_VALUE if low is None else low
    bounds = low, MAX_VALUE if high is None else high
  about = About(changes, bounds, labels, alike)
  field: Any = functools.partial(dataclasses.field, metadata={About: about})
  if isinstance(default, dict):
    return field(default_factory=default.copy)
  return field(default=default)


def about(config: object) -> Mapping[str, About]:
  """Returns the properties of a config's settings by name."""
  kind: type = type(config)
  return _about(kind)


def check_settings(config: object) -> None:
  """Checks that fields are in their range, or among a `Literal`'s choices.

  Raises:
    ConfigError: a field has another value, such as NaN, or a float in place of
      an int.
  """
  config_class: type = type(config)
  settings, kinds = about(config), _kinds(config_class)
  for field in dataclasses.fields(config):  # type: ignore[arg-type]
    name, value = field.name, getattr(config, field.name)
    bounds = settings[name].range
    if bounds is not None:
      for element in value if isinstance(value, tuple | list) else (value,):
        check_range(name, element, *bounds)
    kind = kinds.get(name)
    if kind is int and isinstance(value, float):
      remedy = f"; write {int(value):_}" if value.is_integer() else ""
      raise ConfigError(
        f"expected {name} as a whole number, found {value!r}{remedy}"
      )
    choices = typing.get_args(kind)
    if typing.get_origin(kind) is Literal and value not in choices:
      raise ConfigError(
        f"expected {name} {' or '.join(choices)}, found {value}"
      )


@functools.cache
def _kinds(config_class: type) -> Mapping[str, object]:
  """Returns the types of settings, also where annotations are text.

  It is empty if an annotation names a type that is not imported at run time.
  """
  try:
    return typing.get_type_hints(config_class)
  except NameError:
    return {}


def check_range(name: str, value: float, low: float, high: float) -> None:
  """Checks that a number is from `low` to `high`, both included.

  Raises:
    ConfigError: the number is out of the range, or NaN.
  """
  if not low <= value <= high:
    is_open = high in (MAX_VALUE, MAX_SECONDS) and not value > high
    bounds = f"of at least {low}" if is_open else f"from {low} to {high}"
    raise ConfigError(f"expected {name} {bounds}, found {value}")


@functools.cache
def _about(kind: type) -> dict[str, About]:
  settings: dict[str, About] = {}
  for base in reversed(kind.__mro__):
    for name, field in vars(base).get("__dataclass_fields__", {}).items():
      inherited = settings.get(name, About())
      settings[name] = field.metadata.get(About, inherited)
  return settings


class MultiDiscreteArray(dm_env.specs.BoundedArray):
  """Spec of an array of choices, which are integers from 0.

  Attributes:
    num_values: `[*shape]`, number of values of each choice.
  """

  __slots__ = ()
  __hash__ = None  # type: ignore[assignment]

  def __init__(
    self, num_values: np.ndarray, dtype: Any, name: str | None = None
  ) -> None:
    maximum = np.asarray(num_values) - 1
    super().__init__(maximum.shape, dtype, 0, maximum, name)

  @property
  def num_values(self) -> np.ndarray:
    """Number of values of each choice."""
    return self.maximum + 1

  def __reduce__(self) -> tuple[Any, ...]:
    return MultiDiscreteArray, (self.num_values, self.dtype, self.name)


class ImageArray(dm_env.specs.BoundedArray):
  """Spec of an image `[C, H, W]` of other numbers than bytes.

  The bounds are the numbers of black and white pixels.
  """

  __slots__ = ()
  __hash__ = None  # type: ignore[assignment]

  def __reduce__(self) -> tuple[Any, ...]:
    return ImageArray, super().__reduce__()[1]


def is_image(spec: dm_env.specs.Array) -> bool:
  """Returns whether a spec describes an image, `[C, H, W]`.

  An image consists of bytes, or has an `ImageArray` as its spec.
  """
  is_bytes = spec.dtype == np.uint8 and len(spec.shape) == 3
  return is_bytes or isinstance(spec, ImageArray)


class HybridArray(dm_env.specs.BoundedArray):
  """Spec of a float32 vector of choices, followed by numbers.

  Attributes:
    num_choices: number of choices, which are integers from 0.
    minimum, maximum: bounds of all elements; numbers may be unbounded.
  """

  __slots__ = ("_num_choices",)
  __hash__ = None  # type: ignore[assignment]

  def __init__(
    self,
    num_choices: int,
    minimum: np.ndarray,
    maximum: np.ndarray,
    name: str | None = None,
  ) -> None:
    super().__init__(np.shape(maximum), np.float32, minimum, maximum, name)
    self._num_choices = num_choices

  @property
  def num_choices(self) -> int:
    """Number of choices."""
    return self._num_choices

  @property
  def choices(self) -> dm_env.specs.BoundedArray:
    """Spec of the choices alone, as integers."""
    maximum = self.maximum[: self.num_choices]
    return dm_env.specs.BoundedArray(maximum.shape, np.int32, 0, maximum)

  @property
  def numbers(self) -> dm_env.specs.BoundedArray:
    """Spec of the numbers alone."""
    low, high = (x[self.num_choices :] for x in (self.minimum, self.maximum))
    return dm_env.specs.BoundedArray(high.shape, np.float32, low, high)

  def __eq__(self, other: object) -> bool:
    return (
      isinstance(other, HybridArray)
      and self.num_choices == other.num_choices
      and super().__eq__(other)
    )

  def __reduce__(self) -> tuple[Any, ...]:
    arguments = self.num_choices, self.minimum, self.maximum, self.name
    return HybridArray, arguments


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
  """The observations and actions of one environment, without batch axes.

  Attributes:
    observation: a `dm_env.specs.Array`, or a nest of them.
    action: spec of the agent's actions: a `dm_env.specs.DiscreteArray`; a
      `dm_env.specs.BoundedArray` of rank 1, of integers from 0 (multi-discrete)
      or of floats, whose bounds may be infinite; or a `HybridArray`.
    frames_per_step: number of emulator frames in an env step (4 for Atari).
    action_mask: key of the mask in `observation`. The mask is not 0 where a
      discrete action is legal: `[A]`, or `[choices, values]` for a vector of
      choices; None if all actions are always legal.
    log_info: names of the E entries of `Rows.info`.
    native_action: nest of `dm_env.specs.BoundedArray` that the environment
      takes, see `envs.actions`; None if it takes `action`.
    game: rules for a search, an `envs.functional.Game` whose state is in each
      observation; None if the environment is not such a game, or its
      observations are transformed.
    players: 2 if two players alternate: each reward is that of the player that
      moved, and the next observation is seen by the other. Otherwise 1.
    hidden: keys of `observation` that networks do not see.
    normalizers: names of Gymnasium's normalizing wrappers in the environment.
    render_fps: rendered frames per second of the environment's time; 0 if it is
      unknown.
  """

  observation: Tree
  action: dm_env.specs.BoundedArray
  frames_per_step: int = 1
  action_mask: str | None = None
  log_info: Sequence[str] = ()
  native_action: Tree = None
  game: Any = None
  players: int = 1
  hidden: Sequence[str] = ()
  normalizers: Sequence[str] = ()
  render_fps: float = 0.0

  def without(self, *keys: str) -> "EnvironmentSpec":
    """Returns the spec without some keys of `observation`.

    A model made with the result does not see them; `Agent.step` and losses do.
    """
    kept = {k: v for k, v in self.observation.items() if k not in keys}
    mask = None if self.action_mask in keys else self.action_mask
    return dataclasses.replace(self, observation=kept, action_mask=mask)


class Rows(NamedTuple):
  """The latest time steps of some of an actor's environments.

  Attributes:
    index: `[B]` int32, index of each row's environment in the actor.
    timestep: `[B, ...]`; `step_type` is uint8, `reward` and `discount` are
      float32.
    episode_return: `[B]` float32, the sum of raw rewards of the game that
      ends with this step; NaN if none does.
    info: `[B, E]` float32, entries of the last `info` of that game, see
      `EnvironmentSpec.log_info`; NaN if none ends, or an entry has no value; ()
      if no entry is logged.
  """

  index: np.ndarray  # type: ignore[assignment]
  timestep: dm_env.TimeStep
  episode_return: np.ndarray
  info: Tree = ()


class Inputs(NamedTuple):
  """A network's inputs for a step.

  Attributes:
    timestep: `[..., B, ...]`.
    action_tm1: `[..., B, *action_shape]`, the previous action; 0 where
      `step_type` is FIRST.
    exploration: `[..., B]` float32, each environment's element of
      `base.Agent.exploration`, such as its minimum epsilon.
  """

  timestep: dm_env.TimeStep
  action_tm1: Array
  exploration: Array


class AgentOutput(NamedTuple):
  """An agent's output for a step.

  Attributes:
    action: `[B, *action_shape]`.
    extras: any nest of `[B, ...]` that learning or priorities need, such as
      the log-probability of the action.
  """

  action: Array
  extras: Tree


class Unroll(NamedTuple):
  """A batch of consecutive steps, time-major.

  Attributes:
    inputs: `[L, B, ...]`, the network's inputs.
    action: `[L, B, ...]`, the actions taken.
    extras: `[L, B, ...]`, `AgentOutput.extras`; () when no longer needed.
    version: `[L, B]` int32, the version of the parameters that acted.
    core_state: `[B, ...]`, core state before the first step.
  """

  inputs: Inputs
  action: Array
  extras: Tree
  version: Array
  core_state: Tree


class Sample(NamedTuple):
  """A batch sampled from a replay.

  Attributes:
    unroll: `[W, B, ...]`, windows of W time steps.
    importance_weight: `[B]` float32, the factor of each window's loss.
  """

  unroll: Unroll
  importance_weight: Array


class Share(NamedTuple):
  """One learner core's share of new experience.

  Attributes:
    data: a `types.Unroll` of `[L, S, ...]`, or other data that an agent learns
      from, see `agents.base.Needs`.
    priorities: `[S, windows]` float32, priorities of each unroll's windows; ()
      without priorities.
    origin: `[S, 2]` int32, the environment's number, which no other environment
      has, and the number of its unroll, from 0; () if it is unknown, or not
      needed.
  """

  data: Tree
  priorities: Tree = ()
  origin: Tree = ()


class LossOutput(NamedTuple):
  """The outputs of a loss besides its gradients.

  Attributes:
    weight: `[]`, number of env steps that the loss is a mean over; it weights
      the gradients of a micro-batch in their average.
    metrics: scalars to log, by name.
    priorities: `[B]`, the new priority of each window; or None.
  """

  weight: Array
  metrics: dict[str, Array]
  priorities: Array | None = None
