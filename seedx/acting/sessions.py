"""The connected actors: slots and seeds of each, and counts of its steps.

Nothing here imports JAX: a thin actor reads its `Config`.
"""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx import metrics, types, wire
from seedx.acting import episodes
from seedx.runtime import counters

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
  """Slots for environments, of which each session holds some.

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
    """Frees the slots of an ended session."""
    with self._lock:
      self._free = np.sort(np.concatenate([self._free, slots]))


class Seeds:
  """Seeds of environments, none of which is handed out twice.

  Any thread may call it.

  Attributes:
    taken: how many have been handed out.
    taken_together: how many all learner hosts have handed out, as far as this
      one knows.
  """

  def __init__(self, seed: int, host: int = 0) -> None:
    """Starts where no run of another `seed` does, from 0 to 2^30 - 1.

    Runs with seeds below 2^k start at least 2^(30 - k) environments apart, and
    the learner hosts of a run 2^20.
    """
    self.taken = self.taken_together = 0
    self._host = host
    self._lock = threading.Lock()
    self._next = self._place(_place(seed))

  def take(self, count: int) -> int:
    """The first of `count` seeds in a row."""
    with self._lock:
      self.taken += count
      first = self._next if self._next + count <= _NUM_SEEDS else 0
      self._next = first + count
      return first

  def saved(self) -> np.integer:
    """Its state in a checkpoint, the same for all hosts."""
    with self._lock:
      elsewhere = max(0, self.taken_together - self.taken)
      own = self._next - self._host * _SEEDS_OF_HOST
      return np.int64((own + elsewhere) % _NUM_SEEDS)

  def restore(self, saved: np.integer) -> None:
    """Continues with seeds that the saved run has not used."""
    with self._lock:
      self._next = self._place(int(saved))

  def _place(self, of_first: int) -> int:
    """Where this host goes on where the first one does at `of_first`."""
    return (of_first + self._host * _SEEDS_OF_HOST) % _NUM_SEEDS


def evaluation_seed(seed: int, number: int) -> int:
  """An environment seed for evaluation, which training does not use.

  Args:
    seed: of the run.
    number: index of the seed, from 0.
  """
  # Environments beside it have the seeds that follow.
  place = (_place(seed) + number) % (_NUM_SEEDS - _MOST_ENVS)
  return _NUM_SEEDS + place


@dataclasses.dataclass(eq=False)
class Session:
  """A connected actor that computes actions by itself.

  Attributes:
    slots: `[N]` int32, of its environments, among those of all actors.
    first_seed: of its environments; environment k has `first_seed + k`.
    exploration: `[N]`, epsilon of each environment.
    episodes: of its environments.
    environments: counts what they do.
    waits: shares of time that the actor waits for its environments, and for
      the learner.
  """

  slots: np.ndarray
  first_seed: int
  exploration: np.ndarray
  episodes: episodes.Episodes
  environments: counters.Environments
  waits: tuple[float, float] = (0.0, 0.0)

  @property
  def welcome(self) -> dict[str, Any]:
    """What the actor is told."""
    return {
      "first_seed": self.first_seed,
      "exploration": self.exploration.tolist(),
    }


class Sessions:
  """The connected actors that compute actions by themselves.

  Any thread may call it.
  """

  def __init__(
    self,
    exploration: np.ndarray,
    acted: counters.Acted,
    seeds: Seeds,
    returns_are_sums: bool = True,
  ) -> None:
    """Nobody is connected yet.

    Args:
      exploration: `[slots]`, epsilon of each slot, see `base.Agent`.
      acted: counts the steps of all actors.
      seeds: of the actors' environments.
      returns_are_sums: see `envs.returns_are_sums`.
    """
    self._acted = acted
    self._exploration = exploration
    self._reported = counters.explores_least(exploration)
    self._returns_are_sums = returns_are_sums
    self._slots = Slots(len(exploration))
    self._seeds = seeds
    self._lock = threading.Lock()
    self._open: set[Session] = set()
    self._waits: list[tuple[float, float]] = [(0.0, 0.0)]

  def open(self, hello: Mapping[str, Any]) -> Session:
    """Takes in an actor with a hello of `{"num_envs": n}`.

    Raises:
      wire.Refused: the hello is malformed, or too few slots are free.
    """
    num_envs = wanted(hello, len(self._exploration))
    slots = self._slots.take(num_envs)
    if slots is None:
      raise too_few(self._slots.free, num_envs)
    self._acted.start()
    first_seed = self._seeds.take(num_envs)
    session = Session(
      slots,
      first_seed,
      self._exploration[slots],
      episodes.Episodes(num_envs, self._returns_are_sums),
      self._acted.join(self._reported[slots]),
    )
    with self._lock:
      self._open.add(session)
    return session

  def close(self, session: Session) -> None:
    """Frees an actor's slots."""
    with self._lock:
      self._open.discard(session)
    self._slots.give_back(session.slots)
    session.environments.leave()

  def count(
    self,
    session: Session,
    steps: episodes.Steps,
    waits: tuple[float, float],
  ) -> None:
    """Counts what an actor did since its last message.

    Args:
      session: of the actor.
      steps: `[N, K]`, its environments' K steps since then.
      waits: see `Session`.

    Raises:
      wire.Refused: it is not of all of the actor's environments, a number is
        out of its range, or steps are not in order; nothing is counted.
    """
    check_rows(session, len(steps.step_type))
    wire.check_range("shares of time that are waited", waits, 0, 1)
    ended = session.episodes.add(steps, slice(None))
    session.waits = waits
    session.environments.add(
      ended.env_steps, slice(None), ended.returns, ended.lengths
    )

  def measure(self) -> dict[str, float]:
    """The share of time that actors wait, on average, by name."""
    with self._lock:
      # At the end all have left.
      self._waits = [session.waits for session in self._open] or self._waits
      environments, others = np.mean(self._waits, axis=0).tolist()
    return {
      metrics.WAIT_ENVIRONMENTS: environments,
      metrics.WAIT_LEARNER: others,
    }


def check_rows(session: Session, rows: int) -> None:
  """Raises wire.Refused where a message is not of all its environments."""
  num_envs = len(session.slots)
  if rows != num_envs:
    raise wire.invalid(
      f"a message of all {num_envs} environments", f"one of {rows}"
    )


def wanted(hello: Mapping[str, Any], most: int) -> int:
  """How many environments an actor's hello `{"num_envs": n}` asks for.

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


def too_few(free: int, num_envs: int) -> wire.Refused:
  """What an actor is told where fewer slots are free than it wants."""
  return wire.Refused(
    wire.StatusCode.RESOURCE_EXHAUSTED,
    f"expected at most {free} environments, which is how many slots are free"
    f" now, found {num_envs}",
  )


def _place(seed: int) -> int:
  """Where a run starts: its seed's bits reversed, which sets runs far apart."""
  return int(f"{seed % _NUM_SEEDS:0{_SEED_BITS}b}"[::-1], 2)
