"""Learner hosts that make the same updates, and what they exchange.

Each host learns from its own experience. What all hosts need, such as the
number of env steps, or whether one of them wants to stop, is summed over the
hosts in the update itself. Every host reads the sums with the metrics of that
update, one update later. So all hosts act on the sums after the same update,
and no host waits for another in between.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from seedx import metrics, types, wire
from seedx.runtime import clocks, counters, seeding


@dataclasses.dataclass(frozen=True)
class Config:
  """The learner hosts of a run.

  Attributes:
    hosts: number of learner hosts, processes that learn together; each needs
      the same options, except its own host_index.
    host_index: index of this host, from 0; -1 to take it from SLURM, Kubernetes
      or Cloud TPU. Host 0 writes the run directory.
    coordinator: HOST:PORT at which host 0 listens for the others; empty to take
      it from SLURM, Kubernetes or Cloud TPU.
    starved_seconds: seconds without a batch after which a host leaves updates
      to the other hosts until it has a batch.
    meet_seconds: seconds to wait for all hosts at the start.
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
    types.check_settings(self)
    types.check_range("host_index", self.host_index, -1, self.hosts - 1)
    if self.hosts > 1 and (self.host_index < 0) != (not self.coordinator):
      raise types.ConfigError(
        "expected both a host_index and a coordinator, or neither if SLURM,"
        " Kubernetes or Cloud TPU provides them; found host_index"
        f" {self.host_index} and coordinator {self.coordinator!r}"
      )
    if self.coordinator:
      wire.check_address(self.coordinator)


class Report(NamedTuple):
  """One host's counts for the exchange of an update, or the sums of all hosts.

  All arrays are float32, so that they are exchanged as one vector; counts are
  exact up to 2^24.

  Attributes:
    counts: `[6]`, counts since the previous exchange, see `_Counts`.
    totals: `[2 + 2 E]`, sums of the returns and the lengths of ended episodes;
      and for each entry of their last `info` the sum and the number of values.
    stops: `[256]`, number of hosts that want to stop, by their exit status.
  """

  counts: types.Array
  totals: types.Array
  stops: types.Array

  @property
  def batches(self) -> types.Array:
    """The number of hosts that had a batch for the update, `[]`."""
    return self.counts[0]


class _Counts(NamedTuple):
  """The entries of `Report.counts`."""

  batches: int = 0
  env_steps: int = 0
  episodes: int = 0
  unrolls_discarded: int = 0
  seeds: int = 0
  # 1 on a host where some environment has not ended an episode yet.
  waits_for_episodes: int = 0


class Hosts:
  """The learner hosts of a run, as seen by one of them.

  Attributes:
    index: index of this host.
    count: number of hosts.
    starved_seconds: see `Config`.
    over: event that is set after the same update on all hosts, when a host
      wants to stop, or all env steps are made.
    status: exit status that the hosts have agreed on.
    failed: whether this host has failed, so that all must stop.
    rescue: saves what can be saved, before this process ends because another
      host is lost.
    meet: waits for all hosts at the barrier of a given name.
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
    """Makes a host that has exchanged nothing yet.

    Once `stop` is set, the host wants to stop with the exit status that
    `ending` returns.
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
    self._acted: _ActingCounts | None = None
    self._seeds: seeding.Seeds | None = None
    self._seeds_sent = 0
    self._batches = count

  @property
  def has_batch(self) -> bool:
    """Whether any host had a batch for the newest update that was read."""
    return self._batches > 0

  def own_key(self, rng_key: jax.Array) -> jax.Array:
    """Returns this host's key, derived from a key that all hosts share."""
    if self.count == 1:
      return rng_key
    return jax.random.fold_in(rng_key, self.index)

  def acted(
    self,
    frames_per_step: int,
    total_steps: int,
    wall_clock: clocks.WallClock | None = None,
    log_info: Sequence[str] = (),
  ) -> counters.ActingCounts:
    """Makes the counts of experience over all hosts."""
    options = frames_per_step, total_steps, wall_clock, log_info
    if self.count == 1:
      return counters.ActingCounts(*options)
    self._acted = _ActingCounts(*options)
    return self._acted

  def counted(self, seeds: seeding.Seeds) -> seeding.Seeds:
    """Exchanges the counts of `seeds` from now on; returns `seeds`.

    A resumed run thus skips the seeds that any host has handed out.
    """
    self._seeds = seeds
    return seeds

  def empty_report(self) -> Report:
    """Returns a report of zeros with the shapes of this run's reports."""
    assert self._acted is not None
    sizes = len(_Counts._fields), 2 + 2 * len(self._acted.info), 256
    return Report(*(np.zeros(size, np.float32) for size in sizes))

  def report(self, has_batch: bool) -> Report:
    """Returns this host's report for an update, and resets its counts."""
    assert self._acted is not None
    taken = self._seeds.taken if self._seeds else 0
    counts, totals = self._acted.take()
    counts = counts._replace(
      batches=int(has_batch),
      seeds=taken - self._seeds_sent,
      waits_for_episodes=int(not self._acted.all_here_have_ended),
    )
    self._seeds_sent = taken
    report = self.empty_report()
    report.counts[:], report.totals[:] = counts, totals
    if self._stop.is_set():
      report.stops[self._ending() or int(self.failed)] = 1
    return report

  def add_reports(self, sums: Report) -> None:
    """Adds the sum of all hosts' reports for an update."""
    assert self._acted is not None
    counts = _Counts(*(round(x) for x in sums.counts.tolist()))
    self._acted.add_all(counts, sums.totals)
    self._batches = counts.batches
    if self._seeds is not None:
      self._seeds.taken_together += counts.seeds
    statuses = np.flatnonzero(sums.stops)
    if statuses.size:
      self.status = int(statuses[-1])
    if statuses.size or self._acted.is_done:
      self.over.set()

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the metrics of the hosts."""
    return {"hosts_starved": self.count - self._batches}


class _ActingCounts(counters.ActingCounts):
  """Counts over all hosts, which include only what they have exchanged."""

  def __init__(
    self,
    frames_per_step: int,
    total_steps: int,
    wall_clock: clocks.WallClock | None,
    log_info: Sequence[str],
  ) -> None:
    super().__init__(frames_per_step, total_steps, wall_clock, log_info)
    self._pending_lock = threading.Lock()
    self._counts, self._totals = _Counts(), np.zeros(2 + 2 * len(log_info))
    self._hosts_waiting = 0

  @property
  def all_have_ended(self) -> bool:
    return self._hosts_waiting == 0

  @property
  def all_here_have_ended(self) -> bool:
    return super().all_have_ended

  def add(
    self,
    env_steps: int,
    returns: np.ndarray,
    lengths: np.ndarray,
    info: types.Tree = (),
  ) -> None:
    ended = ~np.isnan(returns)
    episodes = int(np.count_nonzero(ended))
    with self._pending_lock:
      counts = self._counts
      self._counts = counts._replace(
        env_steps=counts.env_steps + env_steps,
        episodes=counts.episodes + episodes,
      )
      if episodes:
        sums = [returns[ended].sum(), lengths[ended].sum()]
        for k in range(len(self.info)):
          values = info[ended][:, k]
          sums += [np.nansum(values), np.count_nonzero(~np.isnan(values))]
        self._totals += sums

  def add_discarded(self, unrolls: int) -> None:
    with self._pending_lock:
      counts = self._counts
      discarded = counts.unrolls_discarded + unrolls
      self._counts = counts._replace(unrolls_discarded=discarded)

  def take(self) -> tuple[_Counts, np.ndarray]:
    with self._pending_lock:
      taken = self._counts, self._totals
      self._counts, self._totals = _Counts(), np.zeros_like(self._totals)
    return taken

  def add_all(self, counts: _Counts, totals: np.ndarray) -> None:
    """Adds all hosts' sums; each episode gets the means over all episodes."""
    episodes = max(1, counts.episodes)
    means = np.full((2, counts.episodes), (totals[:2] / episodes)[:, None])
    info = np.full((counts.episodes, len(self.info)), np.nan)
    sums, numbers = totals[2::2], np.rint(totals[3::2]).astype(int)
    for k, number in enumerate(numbers):
      info[:number, k] = sums[k] / max(1, number)
    super().add(counts.env_steps, means[0], means[1], info)
    super().add_discarded(counts.unrolls_discarded)
    self._hosts_waiting = counts.waits_for_episodes
