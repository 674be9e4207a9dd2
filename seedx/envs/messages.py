"""What a `ProcessEnvironment` and its workers say to each other.

Rows and actions stand in memory that all of them share, in the place of their
environment; a message only names environments. A place is written by its worker
before the message that says so, and then by nobody until the environment has
its next action: there is nothing to lock.

A worker is sent, through a pipe, a pickled `Job`, MEMORY, and then any number
of RESET, STEP and RENDER. It answers, through another, SIGNATURE, and then each
RESET with FIRST_ROWS, STEP with ROWS and RENDER with FRAME. REFUSAL takes the
place of SIGNATURE or FRAME where there is none; FAILURE is the last that it
says. The first byte of a message says which it is.
"""

import dataclasses
import mmap
from typing import NamedTuple

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import config as env_config

MEMORY = b"M"  # Then how many environments there are, in decimals.
RESET = b"S"
STEP = b"A"  # Then int32 indices.
RENDER = b"V"

SIGNATURE = b"D"  # Then a pickle.
FIRST_ROWS = b"0"  # Then int32 indices, of rows after RESET.
ROWS = b"R"  # Then int32 indices.
FRAME = b"I"  # Then a pickled array.
REFUSAL = b"C"  # Then the text of a ConfigError.
FAILURE = b"F"  # Then the text of a RuntimeError.

_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Job:
  """What a worker is there for.

  Attributes:
    config: which environment.
    first: the index of its first environment.
    count: how many it has.
    seed: of environment 0.
    render: whether RENDER will be asked of it.
  """

  config: env_config.Config
  first: int
  count: int
  seed: int
  render: bool


class Signature(NamedTuple):
  """What an environment takes and gives, before any transform.

  Attributes:
    observation: a nest of specs, entries of `info` included.
    action: as in `types.EnvironmentSpec`.
  """

  observation: types.Tree
  action: dm_env.specs.BoundedArray


class Places(NamedTuple):
  """The shared memory of N environments.

  Attributes:
    step_type: `[N]` uint8.
    reward: `[N]` float32.
    discount: `[N]` float32.
    episode_return: `[N]` float32, NaN where no game ends.
    action: `[N, ...]`.
    observation: leaves `[N, ...]`, in the order of `tree.flatten`.
  """

  step_type: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  episode_return: np.ndarray
  action: np.ndarray
  observation: list[np.ndarray]


def check_same(name: str, expected: Signature, found: Signature) -> None:
  """Checks that an environment is like the others.

  Raises:
    types.ConfigError: it is not.
  """
  if found != expected:
    raise types.ConfigError(
      f"{name}: expected every environment to be like the first one,"
      f" {expected}, found {found}"
    )


def memory_size(signature: Signature, num_envs: int) -> int:
  """Bytes of the `Places` of `num_envs` environments."""
  return sum(_sizes(signature, num_envs))


def places(signature: Signature, num_envs: int, memory: int) -> Places:
  """The arrays in shared memory.

  Args:
    signature: of the environments.
    num_envs: N.
    memory: a file descriptor, of `memory_size` bytes.
  """
  sizes = _sizes(signature, num_envs)
  shared = mmap.mmap(memory, sum(sizes))
  offsets = np.cumsum([0, *sizes]).tolist()
  step_type, reward, discount, episode_return, action, *observation = (
    np.ndarray((num_envs, *spec.shape), spec.dtype, shared, offset)
    for spec, offset in zip(_specs(signature), offsets, strict=False)
  )
  return Places(
    step_type, reward, discount, episode_return, action, observation
  )


def _specs(signature: Signature) -> list[dm_env.specs.Array]:
  number = dm_env.specs.Array((), np.float32)
  return [
    dm_env.specs.Array((), np.uint8),
    number,
    number,
    number,
    signature.action,
    *tree.flatten(signature.observation),
  ]


def _sizes(signature: Signature, num_envs: int) -> list[int]:
  sizes = [
    num_envs * int(np.prod(spec.shape)) * spec.dtype.itemsize
    for spec in _specs(signature)
  ]
  return [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
