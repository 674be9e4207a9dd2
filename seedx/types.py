"""The types that all of seedx shares.

This module imports only NumPy and dm_env, so that a thin actor can use it. The
containers are NamedTuples, which are pytrees in JAX and in dm-tree.

Letters for axes, in all docstrings:
  T: transitions of a stream; a stream of T transitions has T + 1 time steps.
  L: length of an unroll in time steps.
  B: batch, of environments or unrolls.
  S: unrolls in a share of a batch.
  N: slots of an inference device, one per environment.
  A: actions of a discrete action space, or dimensions of a continuous one.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import dm_env
import numpy as np

import seedx

# A nest of arrays: array, tuple, NamedTuple, list or dict of these.
Tree = Any
Array = Any
N = TypeVar("N", int, float)
T = TypeVar("T")
# When the value of a setting may change, see `setting`.
Changes = Literal["never", "run_time", "resume", "process", "start"]

# The upper end of a range without one: of numbers, since devices compute in
# float32; and of seconds, since Python waits no longer.
MOST = float(np.finfo(np.float32).max)
MOST_SECONDS = 2.0**32


class ConfigError(ValueError):
  """A wrong setting; the message says what was expected and what was found."""


def see(section: str) -> str:
  """Returns the end of an error message that links to docs/trouble.md.

  Args:
    section: anchor of a section of that page.
  """
  repository = f"https://github.com/{seedx.REPOSITORY}"
  return f"; see {repository}/blob/main/docs/trouble.md#{section}"


def printable(message: str) -> str:
  """Another's message without characters that control a terminal."""
  return "".join(x if x.isprintable() else "?" for x in message)


def number(kind: Callable[[str], N], text: str) -> N:
  """Reads a number in ASCII; Python itself takes the digits of all scripts.

  Args:
    kind: int or float.
    text: the number.

  Raises:
    ValueError: it is none.
  """
  if not text.isascii():
    raise ValueError(text)
  return kind(text)


class About(NamedTuple):
  """What a setting is, beside its type and its default; see `setting`."""

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
    default: its default; each config gets a copy of a dict.
    changes: when the value may change. "never": not in a run. "run_time": it is
      in the agent's state, see `base.hyperparameters`, so a checkpoint restores
      it. "resume": when a run resumes, and from learner host to learner host.
      "process": each process has its own, such as an address or its devices,
      so `--resume` does not take it from `config.json`. "start": it belongs to
      one start, such as what is printed; `config.json` does not have it.
    low: the least value, or least element of a tuple; None for `-MOST` where
      there is a `high`, else for no range.
    high: the largest value; None for `MOST` where there is a `low`.
    labels: whether runs with different values are different groups in a plot;
      a sweep searches only such settings.
    alike: whether all learner hosts need the same value, even if it may change.
  """
  bounds = None
  if low is not None or high is not None:
    bounds = -MOST if low is None else low, MOST if high is None else high
  about = About(changes, bounds, labels, alike)
  field: Any = functools.partial(dataclasses.field, metadata={About: about})
  if isinstance(default, dict):
    return field(default_factory=default.copy)
  return field(default=default)


def about(config: object) -> Mapping[str, About]:
  """Returns what the fields of a config are as settings, by their names."""
  kind: type = type(config)
  return _about(kind)


def check_settings(config: object) -> None:
  """Checks that the fields of a config have values that they may have.

  Those are in the range of a `setting`, and among the choices of a `Literal`.

  Raises:
    ConfigError: a field has another value, such as NaN.
  """
  known = about(config)
  for field in dataclasses.fields(config):  # type: ignore[arg-type]
    name, value = field.name, getattr(config, field.name)
    bounds = known[name].range
    if bounds is not None:
      for element in value if isinstance(value, tuple | list) else (value,):
        check_range(name, element, *bounds)
    choices = typing.get_args(field.type)
    if typing.get_origin(field.type) is Literal and value not in choices:
      raise ConfigError(
        f"expected {name} {' or '.join(choices)}, found {value}"
      )


def check_range(name: str, value: float, low: float, high: float) -> None:
  """Checks that a number is from `low` to `high`, both included.

  Raises:
    ConfigError: it is out of the range, or NaN.
  """
  if not low <= value <= high:
    is_open = high in (MOST, MOST_SECONDS) and not value > high
    bounds = f"of at least {low}" if is_open else f"from {low} to {high}"
    raise ConfigError(f"expected {name} {bounds}, found {value}")


@functools.cache
def _about(kind: type) -> dict[str, About]:
  found: dict[str, About] = {}
  for base in reversed(kind.__mro__):
    for name, field in vars(base).get("__dataclass_fields__", {}).items():
      found[name] = field.metadata.get(About, found.get(name, About()))
  return found


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
  """The observations and actions of one environment, without batch axes.

  Attributes:
    observation: a `dm_env.specs.Array`, or a dict of them.
    action: a `dm_env.specs.DiscreteArray`; or a `dm_env.specs.BoundedArray` of
      rank 1, of integers from 0 (multi-discrete) or of floats between finite
      bounds.
    frames_per_step: emulator frames in an env step (4 for Atari, else 1).
    action_mask: the key of `observation` for the mask, not 0 where a discrete
      action is legal: `[A]`, or `[choices, values]` for a vector of choices;
      None if all actions are always legal.
  """

  observation: Tree
  action: dm_env.specs.BoundedArray
  frames_per_step: int = 1
  action_mask: str | None = None

  def without(self, *keys: str) -> "EnvironmentSpec":
    """Returns the spec without these keys of `observation`.

    A model that is made with it does not see them; `Agent.step` and the loss
    still do.
    """
    kept = {k: v for k, v in self.observation.items() if k not in keys}
    mask = None if self.action_mask in keys else self.action_mask
    return dataclasses.replace(self, observation=kept, action_mask=mask)


class Rows(NamedTuple):
  """The latest time steps of some of an actor's environments.

  Attributes:
    index: `[B]` int32, the actor's environment that each row comes from.
    timestep: `[B, ...]`; `step_type` is uint8, `reward` and `discount` are
      float32.
    episode_return: `[B]` float32, the sum of raw rewards of the game that
      ends with this step; NaN if none does.
  """

  index: np.ndarray  # type: ignore[assignment]
  timestep: dm_env.TimeStep
  episode_return: np.ndarray


class Inputs(NamedTuple):
  """A network's inputs for a step.

  Attributes:
    timestep: `[..., B, ...]`.
    action_tm1: `[..., B, *action_shape]`, the previous action; 0 where
      `step_type` is FIRST.
    exploration: `[..., B]` float32, how much the environment explores, its
      element of `Agent.exploration`.
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
    extras: `[L, B, ...]`, `AgentOutput.extras`; () where nothing needs them any
      more.
    version: `[L, B]` int32, the version of the parameters that acted.
    core_state: `[B, ...]`, before the first step.
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
    importance_weight: `[B]` float32, factor of each window's loss.
  """

  unroll: Unroll
  importance_weight: Array


class Share(NamedTuple):
  """One learner core's share of new experience.

  Attributes:
    data: a `types.Unroll` of `[L, S, ...]`, or whatever else an agent learns
      from, see `agents.base.Needs`.
    priorities: `[S, windows]` float32, of each unroll's windows; () without
      priorities.
  """

  data: Tree
  priorities: Tree = ()


class LossOutput(NamedTuple):
  """The outputs of a loss besides its gradients.

  Attributes:
    weight: `[]`, the env steps that the loss is a mean over: the weight with
      which gradients of micro-batches are averaged.
    metrics: scalars by name, to log.
    priorities: `[B]`, the new priority of each window; or None.
  """

  weight: Array
  metrics: dict[str, Array]
  priorities: Array | None = None
