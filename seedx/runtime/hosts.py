"""Learner hosts that make the same updates, and what they agree on.

Each host learns from its own experience. Whatever all of them must know, such
as how many env steps there were, or that one of them wants to stop, is summed
over the hosts in the update itself. Every host reads the sums when it reads the
metrics of that update, one update later. So all hosts act on them after the
same update, and none waits for another in between.
"""

import dataclasses
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from seedx import metrics, types, wire
from seedx.runtime import counters


@dataclasses.dataclass(frozen=True)
class Config:
  """The learner hosts of a run.

  Attributes:
    hosts: number of learner hosts, processes that learn together; each needs
      the same options.
    host_index: which of them this is, from 0; -1 for what SLURM, Kubernetes or
      Cloud TPU says. Host 0 has the run's directory.
    coordinator: HOST:PORT at which host 0 listens for the others; empty for
      what SLURM, Kubernetes or Cloud TPU says.
    starved_seconds: seconds without a batch after which a host leaves updates
      to the others until it has one.
    meet_seconds: seconds to wait at the start until all hosts are there.
  """

  hosts: int = types.setting(
    1, changes="process", alike=True, low=1, high=2**16
  )
  host_index: int = types.setting(-1, changes="process", labels=False)
  coordinator: str = types.setting("", changes="process", labels=False)
  starved_seconds: float = types.setting(
    5.0, changes="resume", low=0.0, high=types.MAX_SECONDS
  )
  meet_seconds: float = types.setting(
    600.0, changes="resume", low=0.0, high=10**6
  )

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be."""
    types.check_settings(self)
    types.check_range("host_index", self.host_index, -1, self.hosts - 1)
    if self.hosts > 1 and (self.host_index < 0) != (not self.coordinator):
      raise types.ConfigError(
        "expected both a host_index and a coordinator, or neither where SLURM,"
        " Kubernetes or Cloud TPU says them; found host_index"
        f" {self.host_index} and coordinator {self.coordinator!r}"
      )
    if self.coordinator:
      wire.check_address(self.coordinator)


class Said(NamedTuple):
  """What a host says with an update, or what all of them together say.

  It is all float32, and so one vector in the exchange; counts are exact up to
  2^24.

  Attributes:
    counts: `[6]`, since it said something last, see `_Counts`.
    totals: `[2]`, returns and lengths of the episodes that have ended since.
    stops: `[256]`, hosts that want to stop, by the exit status that they want.
  """

  counts: types.Array
  totals: types.Array
  stops: types.Array

  @property
  def batches(self) -> types.Array:
    """`[]`, how many hosts had a batch for the update."""
    return self.counts[0]


class _Counts(NamedTuple):
  """The `Said.counts`."""

  batches: int = 0
  env_steps: int = 0
  episodes: int = 0
  unrolls_discarded: int = 0
  seeds: int = 0
  # Not a count but whether, on this host, some environment has ended none yet.
  waits_for_episodes: int = 0


def nothing() -> Said:
  """What a host says that has nothing to say."""
  sizes = len(_Counts._fields), 2, 256
  return Said(*(np.zeros(size, np.float32) for size in sizes))


class Seeds(Protocol):
  """Seeds that a host has handed out.

  Attributes:
    taken: how many.
    taken_together: how many all hosts have, as far as they have said it.
  """

  taken: int
  taken_together: int


S = TypeVar("S", bound=Seeds)


class Hosts:
  """The learner hosts of a run, as one of them sees them.

  Attributes:
    index: of this host.
    count: of all hosts.
    starved_seconds: see `Config`.
    over: set when all hosts have agreed to stop, after the same update.
    status: exit status that they have agreed on.
    failed: whether something here has failed, so that all must stop.
    rescue: saves what can be saved, before this process ends for want of
      another.
  """

  def __init__(
    self,
    index: int = 0,
    count: int = 1,
    *,
    starved_seconds: float = 0.0,
    stop: threading.Event | None = None,
    ending: Callable[[], int] = lambda: 0,
    meet: Callable[[str], None] = lambda name: None,
  ) -> None:
    """Nothing has been said yet.

    Args:
      index: of this host.
      count: of all hosts.
      starved_seconds: see `Config`.
      stop: set when this host wants to stop.
      ending: says the exit status that it then wants.
      meet: waits for all hosts at a point with a name.
    """
    self.index = index
    self.count = count
    self.starved_seconds = starved_seconds
    self.over = threading.Event()
    self.status = 0
    self.failed = False
    self.rescue: Callable[[], None] = lambda: None
    self.meet = meet
    self._stop = stop or threading.Event()
    self._ending = ending
    self._acted: _Acted | None = None
    self._seeds: Seeds | None = None
    self._seeds_said = 0
    self._batches = count

  @property
  def learn(self) -> bool:
    """Whether the newest update that was read had a batch of any host."""
    return self._batches > 0

  def own_key(self, rng_key: jax.Array) -> jax.Array:
    """The key that this host derives from one that all have."""
    if self.count == 1:
      return rng_key
    return jax.random.fold_in(rng_key, self.index)

  def acted(self, frames_per_step: int, total_steps: int) -> counters.Acted:
    """Counts of experience, over all hosts.

    Args:
      frames_per_step: emulator frames in an env step.
      total_steps: env steps after which all stop.
    """
    if self.count == 1:
      return counters.Acted(frames_per_step, total_steps)
    self._acted = _Acted(frames_per_step, total_steps)
    return self._acted

  def counted(self, seeds: S) -> S:
    """Seeds that also count those of other hosts; no resumed run takes them."""
    self._seeds = seeds
    return seeds

  def say(self, has_batch: bool) -> Said:
    """What this host says with its next update.

    Args:
      has_batch: whether the update learns from a batch of it.
    """
    assert self._acted is not None
    taken = self._seeds.taken if self._seeds else 0
    counts, totals = self._acted.take()
    counts = counts._replace(
      batches=int(has_batch),
      seeds=taken - self._seeds_said,
      waits_for_episodes=int(not self._acted.are_of_own),
    )
    self._seeds_said = taken
    said = nothing()
    said.counts[:], said.totals[:] = counts, totals
    if self._stop.is_set():
      said.stops[self._ending() or int(self.failed)] = 1
    return said

  def hear(self, said: Said) -> None:
    """Takes in what all hosts have said with an update."""
    assert self._acted is not None
    counts = _Counts(*(round(x) for x in said.counts.tolist()))
    self._acted.add_all(counts, said.totals)
    self._batches = counts.batches
    if self._seeds is not None:
      self._seeds.taken_together += counts.seeds
    wanted = np.flatnonzero(said.stops)
    if wanted.size:
      self.status = int(wanted[-1])
    if wanted.size or self._acted.is_done:
      self.over.set()

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics."""
    return {"hosts_starved": self.count - self._batches}


class _Acted(counters.Acted):
  """Counts what all hosts have said, not what only this one knows."""

  def __init__(self, frames_per_step: int, total_steps: int) -> None:
    super().__init__(frames_per_step, total_steps)
    self._unsaid_lock = threading.Lock()
    self._counts, self._totals = _Counts(), np.zeros(2)
    self._hosts_waiting = 0

  @property
  def are_of_all(self) -> bool:
    """See `counters.Acted`: of all hosts."""
    return self._hosts_waiting == 0

  @property
  def are_of_own(self) -> bool:
    """As `are_of_all`, of this host."""
    return super().are_of_all

  def add(
    self, env_steps: int, returns: np.ndarray, lengths: np.ndarray
  ) -> None:
    """Keeps experience of this host until it is said."""
    self.start()
    ended = ~np.isnan(returns)
    episodes = int(np.count_nonzero(ended))
    with self._unsaid_lock:
      counts = self._counts
      self._counts = counts._replace(
        env_steps=counts.env_steps + env_steps,
        episodes=counts.episodes + episodes,
      )
      if episodes:
        self._totals += returns[ended].sum(), lengths[ended].sum()

  def add_discarded(self, unrolls: int) -> None:
    """Keeps a count of this host until it is said."""
    with self._unsaid_lock:
      counts = self._counts
      discarded = counts.unrolls_discarded + unrolls
      self._counts = counts._replace(unrolls_discarded=discarded)

  def take(self) -> tuple[_Counts, np.ndarray]:
    """What is to be said; it is kept no longer."""
    with self._unsaid_lock:
      taken = self._counts, self._totals
      self._counts, self._totals = _Counts(), np.zeros(2)
    return taken

  def add_all(self, counts: _Counts, totals: np.ndarray) -> None:
    """Counts what all hosts have said; of their episodes only the mean."""
    episodes = max(1, counts.episodes)
    means = np.full((2, counts.episodes), (totals / episodes)[:, None])
    super().add(counts.env_steps, *means)
    super().add_discarded(counts.unrolls_discarded)
    self._hosts_waiting = counts.waits_for_episodes
