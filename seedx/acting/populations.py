"""The learner's book of an iteration: pairs to play, and their results."""

import collections
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tree

from seedx import types, wire
from seedx.acting import parameters, perturbed
from seedx.runtime import counters, seeding
from seedx.wire import serving

# Seconds that a worker waits for pairs before it asks again.
_WAIT_SECONDS = wire.SILENT_SECONDS / 4


class Iterations:
  """The pairs of each iteration, leased to workers; thread-safe.

  A pair is played by one worker, whose death gives it to another one.
  """

  def __init__(
    self,
    config: perturbed.Config,
    first_pair: int,
    totals: types.Tree,
    acted: counters.ActingCounts,
    seeds: seeding.Seeds,
  ) -> None:
    """Makes a book without an iteration; `begin` opens one.

    Args:
      config: settings of playing.
      first_pair: number of the run's first pair.
      totals: nest with the shapes of `perturbed.Results.totals`.
      acted: counts of all experience.
      seeds: seeds for the workers' environments.
    """
    self._config, self._first_pair = config, first_pair
    self._acted, self._seeds = acted, seeds
    self._totals = perturbed.no_results(totals).totals
    self._changed, self._closed = threading.Condition(), False
    self._version = -1
    self._last = self._next = perturbed.no_results(totals)
    # The missing pairs and the times from which they may be leased, in order.
    self._due = collections.OrderedDict[int, float]()
    self._episodes = self._old = self._up = self._down = 0

  def bind(
    self,
    server: serving.Server,
    newest: Callable[[], tuple[types.Tree, int]],
  ) -> None:
    """Binds the streams; `newest` returns the leaves of the agent's state."""
    self._source = parameters.Source(newest)
    self._source.bind(server)
    self._layouts = perturbed.layouts(self._totals, self._config)
    results, lease, version, fitness = self._layouts
    server.bind(perturbed.FITNESS, self._fitness, version, fitness)

    def open_session(hello: Mapping[str, Any]) -> Any:
      return _Session(self)

    server.bind_stream(perturbed.RESULTS, open_session, results, lease)

  def begin(self, version: int) -> list[np.ndarray]:
    """Begins an iteration; returns its pairs, in parts for one player."""
    count = self._config.pairs
    numbers = self._first_pair + version * count + np.arange(count)
    pair = (numbers % seeding.NUM_SEEDS).astype(np.int32)
    with self._changed:
      self._last = self._next
      self._version = version
      zeros = np.zeros((count, 2), np.float32)
      self._next = perturbed.Results(
        np.int32(version), pair, zeros, zeros.astype(np.int32), self._totals
      )
      self._due = collections.OrderedDict.fromkeys(pair.tolist(), 0.0)
      self._changed.notify_all()
    size = self._config.pairs_per_worker
    return np.split(pair, range(size, count, size))

  def add(self, results: perturbed.Results) -> None:
    """Counts results, and keeps those that the iteration still needs."""
    returns = np.asarray(results.returns, np.float64)
    returns = np.where(np.isfinite(returns), returns, np.nan)
    lengths = np.asarray(results.lengths)
    self._acted.add(int(lengths.sum()), returns.ravel(), lengths.ravel())
    with self._changed:
      self._episodes += lengths.size
      # Pairs of older iterations are not missing.
      used = np.array([x in self._due for x in results.pair.tolist()])
      self._old += lengths.size - 2 * used.sum()
      if not used.any():
        return
      for pair in results.pair[used].tolist():
        del self._due[pair]
      rows = (results.pair[used] - self._next.pair[0]) % seeding.NUM_SEEDS
      self._next.returns[rows] = results.returns[used]
      self._next.lengths[rows] = lengths[used]
      totals = tree.map_structure(np.add, self._next.totals, results.totals)
      self._next = self._next._replace(totals=totals)
      self._changed.notify_all()

  def collect(self) -> perturbed.Results | None:
    """Waits for all results of the iteration; None if closed."""
    with self._changed:
      self._changed.wait_for(lambda: self._closed or not self._due)
      return None if self._due else self._next

  def take(self) -> perturbed.Lease:
    """Waits for pairs to play, and returns them, if there are any soon."""
    until = time.monotonic() + _WAIT_SECONDS
    with self._changed:
      while not (self._closed or (pair := self._lease())):
        now = time.monotonic()
        if now >= until:
          pair = [perturbed.NO_PAIR]
          break
        wake = min([until, *itertools.islice(self._due.values(), 1)])
        self._changed.wait(max(0.0, wake - now))
      if self._closed:
        raise wire.Refusal(wire.StatusCode.CANCELLED, "this run is over")
      return perturbed.Lease(np.int32(self._version), np.array(pair, np.int32))

  def give_back(self, lease: perturbed.Lease) -> None:
    """Frees the pairs of a worker that has not played them."""
    with self._changed:
      if lease.version == self._version:
        for pair in lease.pair.tolist():
          if pair in self._due:
            self._due[pair] = 0.0
            self._due.move_to_end(pair, last=False)
        self._changed.notify_all()

  def close(self) -> None:
    """Ends all waits."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()

  def measure(self) -> dict[str, float | None]:
    """Returns the metrics of results and, with workers, of their bytes."""
    line: dict[str, float | None] = {"episodes_old": self._old}
    if self._config.num_workers:
      episodes = max(1, self._episodes)
      down = self._down + self._source.sent_bytes
      line["bytes_up_per_episode"] = self._up / episodes
      line["bytes_down_per_episode"] = down / episodes
    return line

  def _lease(self) -> list[int]:
    """Takes free pairs, or those that another worker has had for too long."""
    now, count = time.monotonic(), self._config.pairs_per_worker
    first = itertools.islice(self._due.items(), count)
    pair = [x for x, due in first if due <= now]
    for x in pair:
      self._due[x] = now + self._config.lease_seconds
      self._due.move_to_end(x)
    return pair

  def _fitness(self, version: np.ndarray) -> perturbed.Results:
    with self._changed:
      reply = self._last
      if reply.version != version:  # Too old: the worker fetches the state.
        reply = perturbed.no_results(self._totals)
      self._up += self._layouts[2].message_bytes(1)
      self._down += self._layouts[3].message_bytes(len(reply.pair))
      return reply


class _Session:
  """The session of one worker."""

  def __init__(self, book: Iterations) -> None:
    size = 2 * book._config.pairs_per_worker
    self.welcome: Mapping[str, Any] = {"first_seed": book._seeds.take(size)}
    self._book = book
    self._held: perturbed.Lease | None = None

  def __call__(self, results: perturbed.Results) -> perturbed.Lease:
    """Takes results of the pairs held, and leases others."""
    book, held = self._book, self._held
    book._up += book._layouts[0].message_bytes(len(results.pair))
    if results.version >= 0:
      expected = () if held is None else (held.version, *held.pair.tolist())
      if (results.version, *results.pair.tolist()) != expected:
        raise wire.invalid("results of the leased pairs", "others")
      wire.check_range("lengths", results.lengths, 0, 2**31 - 1)
      self._held = None
      book.add(results)
    elif held is not None:
      book.give_back(held)
    self._held = lease = book.take()
    book._down += book._layouts[1].message_bytes(len(lease.pair))
    return lease

  def close(self) -> None:
    """Gives the pairs to another worker."""
    if self._held is not None:
      self._book.give_back(self._held)
