"""The learner's book of an iteration: pairs to play, and their results."""

import collections
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from seedx import types, wire
from seedx.acting import parameters, perturbed
from seedx.agents import evolution
from seedx.runtime import counters, seeding
from seedx.wire import serving

# Time after which a wait looks whether leases or the run have ended.
_WAIT_SECONDS = 0.5


class Iterations:
  """The pairs of each iteration, leased to workers; thread-safe.

  A pair is played by one worker, whose death gives it to another one.
  """

  def __init__(
    self,
    pairs: int,
    first_pair: int,
    totals: types.Tree,
    acted: counters.ActingCounts,
    stop: threading.Event,
  ) -> None:
    """Makes a book without an iteration; `begin` opens one.

    Args:
      pairs: number of pairs in an iteration.
      first_pair: number of the run's first pair.
      totals: nest with the shapes of `evolution.Fitness.totals`.
      acted: counts of all experience.
      stop: event after which workers are refused.
    """
    self._pairs, self._first_pair = pairs, first_pair
    self._acted, self._stop = acted, stop
    self._changed = threading.Condition()
    self._last = self._next = perturbed.no_results(totals, pairs)
    # The missing pairs and the times from which they may be leased, in order.
    self._due = collections.OrderedDict[int, float]()
    self._episodes = self._old = self._up = self._down = 0
    self._sources: list[parameters.Source] = []

  def bind(
    self,
    server: serving.Server,
    newest: Callable[[], tuple[types.Tree, int]],
    config: perturbed.Config,
    seeds: seeding.Seeds,
  ) -> None:
    """Binds the streams of workers.

    Args:
      server: the learner's server.
      newest: returns the leaves of the agent's state, and its version.
      config: settings of the workers.
      seeds: seeds for the workers' environments.
    """
    state = parameters.Source(newest)
    state.bind(server)
    fitness = parameters.Source(self._newest)
    fitness.bind(server, perturbed.FITNESS)
    self._sources = [state, fitness]
    self._config, self._seeds = config, seeds
    self._layouts = perturbed.layouts(self._next.totals, config)

    def open_session(hello: Mapping[str, Any]) -> Any:
      return _Session(self)

    server.bind_stream(perturbed.RESULTS, open_session, *self._layouts)

  def begin(self, version: int) -> np.ndarray:
    """Begins an iteration; returns its pairs."""
    numbers = self._first_pair + version * self._pairs + np.arange(self._pairs)
    pair = (numbers % seeding.NUM_SEEDS).astype(np.int32)
    empty = perturbed.no_results(self._next.totals, self._pairs)
    with self._changed:
      self._last = self._next
      self._next = empty._replace(version=np.int32(version), pair=pair)
      self._due = collections.OrderedDict.fromkeys(pair.tolist(), 0.0)
      self._changed.notify_all()
    return pair

  def add(self, results: evolution.Fitness) -> None:
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
      totals = jax.tree.map(np.add, self._next.totals, results.totals)
      self._next = self._next._replace(totals=totals)
      if not self._due:
        self._changed.notify_all()

  def collect(self) -> evolution.Fitness | None:
    """Waits for all results of the iteration; None if some are missing yet."""
    with self._changed:
      self._changed.wait_for(lambda: not self._due, _WAIT_SECONDS)
      return None if self._due else self._next

  def take(self) -> perturbed.Lease:
    """Waits for pairs to play, and returns them, if there are any soon."""
    with self._changed:
      self._changed.wait_for(self._free, _WAIT_SECONDS)
      if self._stop.is_set():
        raise wire.Refusal(wire.StatusCode.CANCELLED, "this run is over")
      pair, until = self._free(), time.monotonic() + self._config.lease_seconds
      for x in pair:
        self._due[x] = until
        self._due.move_to_end(x)
      return perturbed.Lease(
        self._next.version, np.array(pair or [perturbed.NO_PAIR], np.int32)
      )

  def give_back(self, lease: perturbed.Lease) -> None:
    """Frees the pairs of a worker that has not played them."""
    with self._changed:
      for pair in [x for x in lease.pair.tolist() if x in self._due]:
        self._due[pair] = 0.0
        self._due.move_to_end(pair, last=False)
        self._changed.notify_all()

  def measure(self) -> dict[str, float | None]:
    """Returns the metrics of results and, with workers, of their bytes."""
    line: dict[str, float | None] = {"episodes_old": self._old}
    if self._sources:
      episodes = max(1, self._episodes)
      down = self._down + sum(x.sent_bytes for x in self._sources)
      line["bytes_up_per_episode"] = self._up / episodes
      line["bytes_down_per_episode"] = down / episodes
    return line

  def _free(self) -> list[int]:
    """Returns free pairs, or those that a worker has had for too long."""
    first = itertools.islice(self._due.items(), self._config.pairs_per_worker)
    return [x for x, due in first if due <= time.monotonic()]

  def _newest(self) -> tuple[evolution.Fitness, int]:
    with self._changed:
      return self._last, int(self._last.version)


class _Session:
  """The session of one worker."""

  def __init__(self, book: Iterations) -> None:
    size = 2 * book._config.pairs_per_worker
    self.welcome: Mapping[str, Any] = {"first_seed": book._seeds.take(size)}
    self._book = book
    self._held = perturbed.Lease(np.int32(-1), np.zeros(0, np.int32))

  def __call__(self, results: evolution.Fitness) -> perturbed.Lease:
    """Takes results of the pairs held, and leases others."""
    book, held = self._book, self._held
    book._up += book._layouts[0].message_bytes(len(results.pair))
    if results.version >= 0:
      if results.version != held.version or not np.array_equal(
        results.pair, held.pair
      ):
        raise wire.invalid("results of the leased pairs", "others")
      wire.check_range("lengths", results.lengths, 0, 2**31 - 1)
      book.add(results)
    book.give_back(held)  # Those without results.
    self._held = lease = book.take()
    book._down += book._layouts[1].message_bytes(len(lease.pair))
    return lease

  def close(self) -> None:
    """Gives the pairs to another worker."""
    self._book.give_back(self._held)
