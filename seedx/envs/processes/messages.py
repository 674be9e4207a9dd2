"""The messages between a `ProcessEnvironment` and its workers.

Rows and actions are in shared memory, at the index of their environment; a
message only has the indices. No lock is needed: a worker writes rows before it
sends their indices, and does not write them again before the environment's next
action.

A worker receives a pickled `Job` and then any number of RESET, STEP and RENDER
through one pipe. Through another pipe it answers the `Job` with READY for each
environment that it has made and reset, and then with SIGNATURE; and it answers
RESET with FIRST_ROWS, STEP with ROWS, and RENDER with FRAME. REFUSAL may
replace any answer, and is the last message unless it replaces FRAME. FAILURE
may replace any answer, and is the last message. The first byte of a message is
its kind; the others are its payload.
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
STEP = b"A"  # Followed by int32 indices.
RENDER = b"V"

READY = b"E"
SIGNATURE = b"D"  # Followed by a pickled `Signature`.
FIRST_ROWS = b"0"  # Followed by int32 indices.
ROWS = b"R"  # Followed by int32 indices.
FRAME = b"I"  # Followed by a pickled array.
REFUSAL = b"C"  # Followed by the text of a ConfigError.
FAILURE = b"F"  # Followed by the text of a RuntimeError.

_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Job:
  """The environments that a worker makes.

  Attributes:
    config: the environments' config.
    first: index of the worker's first environment.
    count: number of the worker's environments.
    num_envs: number of environments of all workers.
    seed: seed of environment 0.
    render: whether RENDER will be sent.
  """

  config: env_config.Config
  first: int
  count: int
  num_envs: int
  seed: int
  render: bool


class Signature(NamedTuple):
  """An environment's specs before any transform, with entries of `info`.

  Attributes:
    observation, action: the specs.
    normalizers, render_fps: see `types.EnvironmentSpec`.
  """

  observation: types.Tree
  action: types.Tree
  normalizers: tuple[str, ...] = ()
  render_fps: float = 0.0


class SharedRows(NamedTuple):
  """Rows and actions of N environments, in shared memory.

  Attributes:
    step_type: `[N]` uint8.
    reward, discount: `[N]` float32.
    episode_return: `[N]` float32, NaN if no game ends.
    info: `[N, E]` float32, see `types.Rows`; valid where a game ends.
    action: `[N, ...]`.
    observation: `[N, ...]` leaves, in the order of `tree.flatten`.
  """

  step_type: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  episode_return: np.ndarray
  info: np.ndarray
  action: np.ndarray
  observation: list[np.ndarray]


def check_same(name: str, expected: Signature, actual: Signature) -> None:
  """Checks that an environment has the specs of the first one.

  Raises:
    types.ConfigError: the specs differ.
  """
  if actual != expected:
    raise types.ConfigError(
      f"{name}: expected every environment to be like the first one,"
      f" {expected}, found {actual}"
    )


def indices(payload: bytes, job: Job) -> np.ndarray:
  """Reads the indices, `[B]` int32, in the payload of a message.

  Raises:
    ValueError: the numbers are not indices of the worker's environments.
  """
  index = np.frombuffer(payload[: len(payload) // 4 * 4], np.int32)
  last = job.first + job.count - 1
  in_range = np.all((index >= job.first) & (index <= last))
  if len(payload) % 4 or not in_range or len(np.unique(index)) != len(index):
    raise ValueError(
      f"expected indices from {job.first} to {last}, found {payload[:20]!r} of"
      f" {len(payload)} bytes"
    )
  return index


def shared_rows(
  signature: Signature,
  action: dm_env.specs.BoundedArray,
  num_envs: int,
  num_infos: int,
  memory: int,
) -> SharedRows:
  """Resizes the file with the descriptor `memory`, and maps rows into it.

  `action` is the spec of the agent's actions, see `actions.Actions`.
  """
  number = dm_env.specs.Array((), np.float32)
  specs = [
    dm_env.specs.Array((), np.uint8),
    number,
    number,
    number,
    dm_env.specs.Array((num_infos,), np.float32),
    action,
    *tree.flatten(signature.observation),
  ]
  offsets = [0]
  for spec in specs:
    size = num_envs * int(np.prod(spec.shape)) * spec.dtype.itemsize
    offsets.append(offsets[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
  os.ftruncate(memory, offsets[-1])
  shared = mmap.mmap(memory, offsets.pop())
  step_type, reward, discount, episode_return, info, action, *observation = (
    np.ndarray((num_envs, *spec.shape), spec.dtype, shared, offset)
    for spec, offset in zip(specs, offsets, strict=True)
  )
  return SharedRows(
    step_type, reward, discount, episode_return, info, action, observation
  )
