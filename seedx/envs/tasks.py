"""Small tasks with known returns, for memory and for exploration.

Each is many environments in NumPy. Their random numbers are those of
environment k alone, from its seed.
"""

import abc
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import dm_env.specs
import numpy as np

from seedx import types
from seedx.envs import config as env_config


class Outcome(NamedTuple):
  """What actions lead to.

  Attributes:
    reward: `[B]` float32.
    terminated: `[B]` bool, whether the episode ends.
  """

  reward: np.ndarray
  terminated: np.ndarray


class Task(abc.ABC):
  """Environments of one kind; a subclass adds their state.

  Attributes:
    observation: the spec of an observation, without batch axes.
    action: the spec of an action.
  """

  observation: dm_env.specs.Array
  action = dm_env.specs.DiscreteArray(2, np.int32, "action")

  def start(self, num_envs: int, seed: int) -> None:
    """Makes the environments; environment k has the seed `seed + k`."""
    self._random = [np.random.default_rng(seed + k) for k in range(num_envs)]
    self._time = np.zeros(num_envs, np.int32)
    self._bit = np.zeros(num_envs, np.int32)

  def reset(self, index: np.ndarray) -> None:
    """Begins new episodes, each with a random bit of its own."""
    self._time[index] = 0
    self._bit[index] = [self._random[k].integers(2) for k in index]

  @abc.abstractmethod
  def step(self, index: np.ndarray, action: np.ndarray) -> Outcome:
    """Takes an action `[B]` in each environment of `index`, `[B]`."""

  @abc.abstractmethod
  def observe(self, index: np.ndarray) -> np.ndarray:
    """The observations `[B, ...]` of environments."""

  def _shown(self, index: np.ndarray) -> np.ndarray:
    """The bit as -1 or 1 at an episode's start, and 0 later: `[B]` float32."""
    sign = 2 * self._bit[index] - 1
    return np.where(self._time[index] == 0, sign, 0).astype(np.float32)


class MemoryChain(Task):
  """One bit to remember: bsuite's "memory length".

  An observation is (share of the time that is left, whether this is the
  question, the bit as -1 or 1). The bit is shown at step 0, and is 0 later.
  `length` steps after it comes the question: the action there is rewarded with
  1 if it is the bit, and else with -1, and ends the episode. No other action
  changes anything. Osband et al. 2020, https://arxiv.org/abs/1908.03568.

  The best return is 1. Without a memory it is 0: the question looks the same
  for either bit.
  """

  def __init__(self, length: int = 20) -> None:
    """Checks its option.

    Args:
      length: env steps from the bit to the question.

    Raises:
      types.ConfigError: it is out of its range.
    """
    types.check_range("length", length, 1, 10_000)
    self._length = length
    self.observation = dm_env.specs.Array((3,), np.float32, "observation")

  def step(self, index: np.ndarray, action: np.ndarray) -> Outcome:
    """See `Task`."""
    asked = self._time[index] == self._length
    reward = np.where(action == self._bit[index], 1, -1) * asked
    self._time[index] += 1
    return Outcome(reward.astype(np.float32), asked)

  def observe(self, index: np.ndarray) -> np.ndarray:
    """See `Task`."""
    time = self._time[index]
    left = 1 - np.minimum(time, self._length) / self._length
    parts = left, time == self._length, self._shown(index)
    return np.stack(parts, axis=-1).astype(np.float32)


class DeepSea(Task):
  """A treasure behind `size` steps that each cost: bsuite's "deep sea".

  A diver starts at the top left of a square of `size` rows, and sinks by a row
  with each step, to the left or the right, which is action 1. A step to the
  right costs 0.01 / size. Only who always goes right finds the treasure, a
  reward of 1, at the last step. An observation is the place, `[size ** 2]`
  one-hot, or zeros where the episode has ended. Osband et al. 2020,
  https://arxiv.org/abs/1908.03568.

  The best return is 0.99; random actions find the treasure in one of 2 ** size
  episodes.

  With `cued`, one half of the episodes have left and right exchanged. A last
  number of the observation tells which, as -1 or 1, at step 0; it is 0 later.
  Without a memory the best return is then 0.495 - 0.005 / size: at the second
  step one has to guess, and on the diagonal a good guess explains itself.
  """

  def __init__(self, size: int = 10, cued: bool = False) -> None:
    """Checks its options.

    Args:
      size: rows, and columns.
      cued: whether what the actions mean differs by episode.

    Raises:
      types.ConfigError: an option is out of its range.
    """
    types.check_range("size", size, 2, 100)
    self._size = size
    self._cued = bool(cued)
    shape = (size**2 + self._cued,)
    self.observation = dm_env.specs.Array(shape, np.float32, "observation")

  def start(self, num_envs: int, seed: int) -> None:
    """See `Task`."""
    super().start(num_envs, seed)
    self._column = np.zeros(num_envs, np.int32)

  def reset(self, index: np.ndarray) -> None:
    """See `Task`."""
    super().reset(index)
    self._column[index] = 0

  def step(self, index: np.ndarray, action: np.ndarray) -> Outcome:
    """See `Task`."""
    row, column = self._time[index], self._column[index]
    goes_right = action == (self._bit[index] if self._cued else 1)
    last = row == self._size - 1
    found = last & goes_right & (column == self._size - 1)
    self._column[index] = np.maximum(column + np.where(goes_right, 1, -1), 0)
    self._time[index] += 1
    reward = found - 0.01 / self._size * goes_right
    return Outcome(reward.astype(np.float32), last)

  def observe(self, index: np.ndarray) -> np.ndarray:
    """See `Task`."""
    places = np.arange(self._size**2)
    place = self._time[index] * self._size + self._column[index]
    seen = (places == place[:, None]).astype(np.float32)
    if not self._cued:
      return seen
    return np.concatenate([seen, self._shown(index)[:, None]], axis=-1)


TASKS: Mapping[str, type[Task]] = {
  "MemoryChain": MemoryChain,
  "DeepSea": DeepSea,
}


def make(config: env_config.Config) -> Task:
  """The task of a name such as `seedx:DeepSea`.

  Raises:
    types.ConfigError: it does not exist, or an option is unknown or out of its
      range.
  """
  name = config.env.removeprefix(env_config.TASK_PREFIX)
  if name not in TASKS:
    known = [f"{env_config.TASK_PREFIX}{name}" for name in TASKS]
    raise types.ConfigError(
      f"seedx has no environment {config.env!r}."
      f" {env_config.suggestion(config.env, known)}"
    )
  signature = inspect.signature(TASKS[name])
  options: dict[str, Any] = dict(config.env_options)
  for option in options:
    if option not in signature.parameters:
      raise types.ConfigError(
        f"{config.env}: unknown option {option!r}. "
        + env_config.suggestion(option, signature.parameters)
      )
    wanted = signature.parameters[option].annotation
    if type(options[option]) is not wanted:
      raise types.ConfigError(
        f"{config.env}: expected {option} of type {wanted.__name__}, found"
        f" {options[option]!r}"
      )
  return TASKS[name](**options)
