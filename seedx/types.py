"""The vocabulary that every part of seedx shares.

This module needs NumPy and dm_env only, so that a thin actor can import it.
The containers are NamedTuples, and so pytrees of JAX and of dm-tree alike.

Axes, by the letter that docstrings use for them:
  T: transitions of a stream; a stream of T transitions has T + 1 time steps.
  L: `length` of an unroll in time steps.
  B: batch, environments or unrolls.
  N: slots, the environments that an inference device has a place for.
  A: actions of a discrete action space, or dimensions of a continuous one.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np

# A nest of arrays: array, tuple, NamedTuple, list or dict of these.
Tree = Any
Array = Any

# The end of a range that has none.
MOST = sys.float_info.max


class ConfigError(ValueError):
  """What a user asked for cannot be done; the message says what can."""


def check_ranges(config: object, **ranges: tuple[float, float]) -> None:
  """Checks that fields of a config are from their lowest to highest value.

  Raises:
    ConfigError: one is not, or is not a number.
  """
  for name, (low, high) in ranges.items():
    check_range(name, getattr(config, name), low, high)


def check_choices(config: object, **choices: Sequence[Any]) -> None:
  """Checks that fields of a config are one of the values there are.

  Raises:
    ConfigError: one is not.
  """
  for name, known in choices.items():
    if getattr(config, name) not in known:
      raise ConfigError(
        f"expected {name} {' or '.join(known)}, found {getattr(config, name)}"
      )


def check_range(name: str, value: float, low: float, high: float) -> None:
  """Checks that a number is from `low` to `high`.

  Raises:
    ConfigError: it is not, or is not a number.
  """
  if not low <= value <= high:
    bounds = f"from {low} to {high}" if high < MOST else f"of at least {low}"
    raise ConfigError(f"expected {name} {bounds}, found {value}")


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
  """What one environment takes and gives, without batch axes.

  Attributes:
    observation: a `dm_env.specs.Array`, or a dict of them.
    action: a `dm_env.specs.DiscreteArray`; or a `dm_env.specs.BoundedArray` of
      rank 1, of integers from 0 (several choices at once) or of floats between
      finite bounds.
    frames_per_step: emulator frames in an env step (4 for Atari, else 1).
    action_mask: the key of `observation` that says, not 0 for yes, which of the
      discrete actions are legal; None where all of them always are.
  """

  observation: Tree
  action: dm_env.specs.BoundedArray
  frames_per_step: int = 1
  action_mask: str | None = None


class Rows(NamedTuple):
  """Some environments' latest time steps, as an actor sends them.

  Attributes:
    index: `[B]` int32, which environment of the actor each row comes from.
    timestep: `[B, ...]` the time steps; `step_type` is uint8, `reward` and
      `discount` are float32.
    episode_return: `[B]` float32, the sum of raw rewards of the game that
      ends with this step, NaN where none does.
  """

  index: np.ndarray  # type: ignore[assignment]
  timestep: dm_env.TimeStep
  episode_return: np.ndarray


class Inputs(NamedTuple):
  """What a network sees of a step.

  Attributes:
    timestep: `[..., B]`.
    action_tm1: `[..., B, *action_shape]`, the action before this time step; 0
      where `step_type` is FIRST.
    exploration: `[..., B]` float32, how much this environment explores, as
      `Agent.exploration` says for its place among all.
  """

  timestep: dm_env.TimeStep
  action_tm1: Array
  exploration: Array


class AgentOutput(NamedTuple):
  """What an agent returns for a step.

  Attributes:
    action: `[B, *action_shape]`.
    extras: any nest of `[B, ...]` that learning needs again, such as the
      log-probability of the action.
  """

  action: Array
  extras: Tree


class Unroll(NamedTuple):
  """A batch of consecutive steps, time-major.

  Attributes:
    inputs: `[L, B, ...]` time steps and the actions before them.
    action: `[L, B, ...]` the actions taken on them.
    extras: `[L, B, ...]`, `AgentOutput.extras` of them.
    version: `[L, B]` int32, the parameter version that acted.
    core_state: `[B, ...]`, the core state before the first step.
  """

  inputs: Inputs
  action: Array
  extras: Tree
  version: Array
  core_state: Tree


class Sample(NamedTuple):
  """A batch that was drawn from a replay.

  Attributes:
    unroll: `[L, B, ...]` windows of the unrolls that were put in.
    importance_weight: `[B]` float32, what the loss of each is multiplied by.
  """

  unroll: Unroll
  importance_weight: Array


class Share(NamedTuple):
  """Finished unrolls on their way to one learner core: its share of a batch.

  Attributes:
    unroll: `[L, S, ...]`.
    priorities: `[S, windows]` float32, of each of their windows; () where
      nothing is known of them.
  """

  unroll: Unroll
  priorities: Tree = ()


class LossOutput(NamedTuple):
  """What a loss says besides its gradients.

  Attributes:
    weight: `[]`, how much experience the loss is a mean over; to add up two
      gradients, weigh them with it.
    metrics: scalars by name, for a person to read.
    priorities: `[B]` of each entry of the batch, or None.
  """

  weight: Array
  metrics: dict[str, Array]
  priorities: Array | None = None
