"""Which connection holds which slots, and which seeds."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx import wire

_END_OF_SEEDS = 2**31  # EnvPool's are int32.
_SEEDS_OF_A_RUN = 2**20
_MOST_ENVS = 2**16


class Leases:
  """Places for environments, handed out and taken back.

  Any thread may call it.
  """

  def __init__(self, num_slots: int) -> None:
    """All of `num_slots` are free."""
    self._free = np.arange(num_slots, dtype=np.int32)
    self._lock = threading.Lock()

  @property
  def free(self) -> int:
    """How many slots nobody holds."""
    return len(self._free)

  def take(self, count: int) -> np.ndarray | None:
    """Takes `[count]` int32 slots; None where fewer are free."""
    with self._lock:
      if count > len(self._free):
        return None
      taken, self._free = self._free[:count], self._free[count:]
      return taken

  def give_back(self, slots: np.ndarray) -> None:
    """Frees the slots of an ended lease."""
    with self._lock:
      self._free = np.sort(np.concatenate([self._free, slots]))


class Seeds:
  """Seeds of environments, none of which is handed out twice.

  Any thread may call it.
  """

  def __init__(self, seed: int) -> None:
    """`seed`: of the run; runs with different ones share no environment.

    That holds up to 2^20 seeds a run, the upper half of which is meant for
    evaluation.
    """
    self._next = (seed * _SEEDS_OF_A_RUN) % _END_OF_SEEDS
    self._lock = threading.Lock()

  def take(self, count: int) -> int:
    """The first of `count` seeds in a row."""
    with self._lock:
      first = self._next if self._next + count <= _END_OF_SEEDS else 0
      self._next = first + count
      return first

  def saved(self) -> np.integer:
    """What a checkpoint keeps of it."""
    return np.int64(self._next)

  def restore(self, saved: np.integer) -> None:
    """Goes on from what was saved: a run that is resumed sees new episodes."""
    with self._lock:
      self._next = int(saved)


def evaluation_seed(seed: int, place: int) -> int:
  """A seed of environments that a run with `seed` does not train in.

  That holds as long as it has trained in fewer than 2^19.

  Args:
    seed: of the run.
    place: which of the seeds there are, from 0 to 2^18 or more.
  """
  half = _SEEDS_OF_A_RUN // 2
  # Environments beside it have the seeds that follow.
  place %= half - _MOST_ENVS
  return (seed * _SEEDS_OF_A_RUN + half + place) % _END_OF_SEEDS


def wanted(hello: Mapping[str, Any], most: int) -> int:
  """How many environments an actor's hello `{"num_envs": n}` asks for.

  Raises:
    wire.Refused: it is malformed, or asks for more than `most`.
  """
  num_envs = hello.get("num_envs")
  if type(num_envs) is not int or num_envs < 1:
    raise wire.Refused(
      wire.StatusCode.INVALID_ARGUMENT,
      f"expected num_envs of at least 1 in the hello, found {num_envs!r}",
    )
  if num_envs > most:
    raise wire.Refused(
      wire.StatusCode.FAILED_PRECONDITION,
      f"expected an actor of at most {most} environments, found {num_envs}",
    )
  return num_envs


def no_place(free: int, num_envs: int) -> wire.Refused:
  """What an actor is told where fewer slots are free than it wants."""
  return wire.Refused(
    wire.StatusCode.RESOURCE_EXHAUSTED,
    f"expected at most {free} environments, which is what has a place now,"
    f" found {num_envs}",
  )
