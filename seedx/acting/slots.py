"""The actors of a run: slots and seeds for their environments.

Nothing here imports JAX: a thin actor reads the `Config`.
"""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx import types, wire

# Seeds of environments are int32 in EnvPool: those below are for training, as
# many above for evaluation.
_SEED_BITS = 30
_NUM_SEEDS = 2**_SEED_BITS
_MOST_ENVS = 2**16
_SEEDS_OF_HOST = 2**20


@dataclasses.dataclass(frozen=True)
class Config:
  """The actors of a run.

  Attributes:
    num_actors: number of actor processes.
    envs_per_actor: environments of each actor.
  """

  num_actors: int = 2
  envs_per_actor: int = 128

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(self, num_actors=(1, 2**20), envs_per_actor=(1, 2**20))

  @property
  def num_envs(self) -> int:
    """Environments of all actors together."""
    return self.num_actors * self.envs_per_actor


class Slots:
  """Slots for environments, each leased to at most one session at a time.

  Any thread may call it.
  """

  def __init__(self, num_slots: int) -> None:
    """Makes slots from 0 to `num_slots - 1`, all of them free."""
    self._free = np.arange(num_slots, dtype=np.int32)
    self._lock = threading.Lock()

  @property
  def free(self) -> int:
    """Number of slots that no session holds."""
    return len(self._free)

  def take(self, count: int) -> np.ndarray:
    """Leases `[count]` int32 slots.

    Raises:
      wire.Refused: RESOURCE_EXHAUSTED, fewer are free.
    """
    with self._lock:
      if count > len(self._free):
        raise wire.Refused(
          wire.StatusCode.RESOURCE_EXHAUSTED,
          f"expected at most {len(self._free)} environments, the number of"
          f" slots that are free now, found {count}",
        )
      taken, self._free = self._free[:count], self._free[count:]
      return taken

  def give_back(self, slots: np.ndarray) -> None:
    """Frees the slots of an ended session."""
    with self._lock:
      self._free = np.sort(np.concatenate([self._free, slots]))


class Seeds:
  """Seeds of environments, none of which is handed out twice.

  Any thread may call it.

  Attributes:
    taken: number of seeds handed out.
    taken_together: number handed out by all learner hosts, as far as they have
      reported it here.
  """

  def __init__(self, seed: int, host: int = 0) -> None:
    """Starts at a place from 0 to 2^30 - 1 that depends on the run's `seed`.

    Runs with seeds below 2^k start at least 2^(30 - k) environments apart, and
    the learner hosts of a run 2^20.
    """
    self.taken = self.taken_together = 0
    self._host = host
    self._lock = threading.Lock()
    self._next = self._place(_place(seed))

  def take(self, count: int) -> int:
    """Hands out `count` seeds in a row; returns the first."""
    with self._lock:
      self.taken += count
      first = self._next if self._next + count <= _NUM_SEEDS else 0
      self._next = first + count
      return first

  def saved(self) -> np.integer:
    """Returns its state for a checkpoint, the same on all hosts."""
    with self._lock:
      elsewhere = max(0, self.taken_together - self.taken)
      own = self._next - self._host * _SEEDS_OF_HOST
      return np.int64((own + elsewhere) % _NUM_SEEDS)

  def restore(self, saved: np.integer) -> None:
    """Continues with seeds that the saved run has not used."""
    with self._lock:
      self._next = self._place(int(saved))

  def _place(self, of_first: int) -> int:
    """This host's place where the first host's is `of_first`."""
    return (of_first + self._host * _SEEDS_OF_HOST) % _NUM_SEEDS


def evaluation_seed(seed: int, number: int) -> int:
  """Returns an environment seed for evaluation, which training does not use.

  Args:
    seed: the run's.
    number: index of the seed, from 0.
  """
  # Environments beside it have the seeds that follow.
  place = (_place(seed) + number) % (_NUM_SEEDS - _MOST_ENVS)
  return _NUM_SEEDS + place


def wanted(hello: Mapping[str, Any], most: int) -> int:
  """Number of environments that an actor's hello `{"num_envs": n}` asks for.

  Raises:
    wire.Refused: it is malformed, or asks for more than `most`.
  """
  num_envs = hello.get("num_envs")
  if type(num_envs) is not int or num_envs < 1:
    raise wire.invalid(
      "num_envs of at least 1 in the hello", f"{num_envs!r:.80}"
    )
  if num_envs > most:
    raise wire.Refused(
      wire.StatusCode.FAILED_PRECONDITION,
      f"expected an actor of at most {most} environments, found {num_envs}",
    )
  return num_envs


def _place(seed: int) -> int:
  """Where a run starts: its seed's bits reversed, which sets runs far apart."""
  return int(f"{seed % _NUM_SEEDS:0{_SEED_BITS}b}"[::-1], 2)
