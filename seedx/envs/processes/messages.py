"""What a `ProcessEnvironment` and its workers send each other.

Rows and actions are in memory that they share, at the index of their
environment; a message only says which environments it is about. A worker writes
rows before it sends the message that they are there, and does not write them
again before the environment's next action: no lock is needed.

Through one pipe a worker receives a pickled `Job` and then any number of RESET,
STEP and RENDER. Through another it answers the `Job` with SIGNATURE, each RESET
with FIRST_ROWS, STEP with ROWS and RENDER with FRAME. REFUSAL replaces
SIGNATURE or FRAME where there is none. After FAILURE a worker sends nothing
more. The first byte of a message says which of these it is.
"""

import dataclasses
import mmap
import os
from typing import NamedTuple

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import config as env_config

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
  """Which environments a worker makes.

  Attributes:
    config: which environment.
    first: the index of its first environment.
    count: how many it makes.
    num_envs: how many environments all workers make.
    seed: of environment 0.
    render: whether RENDER will be sent.
  """

  config: env_config.Config
  first: int
  count: int
  num_envs: int
  seed: int
  render: bool


class Signature(NamedTuple):
  """The specs of an environment, before any transform.

  Attributes:
    observation: a nest of specs, entries of `info` included.
    action: as in `types.EnvironmentSpec`.
  """

  observation: types.Tree
  action: dm_env.specs.BoundedArray


class SharedRows(NamedTuple):
  """Rows and actions of N environments, in shared memory.

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
  """Checks that an environment has the specs of the first one.

  Raises:
    types.ConfigError: it has others.
  """
  if found != expected:
    raise types.ConfigError(
      f"{name}: expected every environment to be like the first one,"
      f" {expected}, found {found}"
    )


def indices(message: bytes, job: Job) -> np.ndarray:
  """The environments of a worker whose rows a message says are there.

  Args:
    message: what follows its first byte.
    job: the worker's.

  Returns:
    Their indices, `[B]` int32.

  Raises:
    ValueError: they are not indices of the worker's environments.
  """
  found = np.frombuffer(message[: len(message) // 4 * 4], np.int32)
  last = job.first + job.count - 1
  in_range = np.all((found >= job.first) & (found <= last))
  if len(message) % 4 or not in_range or len(np.unique(found)) != len(found):
    raise ValueError(
      f"expected indices from {job.first} to {last}, found {message[:20]!r} of"
      f" {len(message)} bytes"
    )
  return found


def shared_rows(signature: Signature, num_envs: int, memory: int) -> SharedRows:
  """The arrays in shared memory.

  Args:
    signature: of the environments.
    num_envs: N.
    memory: the descriptor of a file, which is given the size that it needs.
  """
  number = dm_env.specs.Array((), np.float32)
  specs = [
    dm_env.specs.Array((), np.uint8),
    number,
    number,
    number,
    signature.action,
    *tree.flatten(signature.observation),
  ]
  offsets = [0]
  for spec in specs:
    size = num_envs * int(np.prod(spec.shape)) * spec.dtype.itemsize
    offsets.append(offsets[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
  os.ftruncate(memory, offsets[-1])
  shared = mmap.mmap(memory, offsets.pop())
  step_type, reward, discount, episode_return, action, *observation = (
    np.ndarray((num_envs, *spec.shape), spec.dtype, shared, offset)
    for spec, offset in zip(specs, offsets, strict=True)
  )
  return SharedRows(
    step_type, reward, discount, episode_return, action, observation
  )
