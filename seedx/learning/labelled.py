"""Experience whose targets other processes compute."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedx import channels, metrics, types
from seedx.agents import base
from seedx.learning import experience
from seedx.runtime import process_parts

# Seconds after which a waiting learner looks whether the run is over.
_POLL_SECONDS = 0.1


class Work(NamedTuple):
  """Windows without targets.

  Attributes:
    core: index of the learner core whose batches they come from.
    sample: `[L, B, ...]` windows, in NumPy.
  """

  core: int
  sample: types.Sample


class LabelledSource(experience.Experience):
  """Batches of a log whose targets are stored, see `base.Agent.label`.

  A batch of the log waits until a labeller takes it. Labelled batches are in a
  ring on each core, the train buffer, from which an update draws every element
  of its batch: with targets that were computed with older parameters.

  Attributes:
    log: experience without targets.
    unlabelled: work that labellers have not taken yet.
  """

  def __init__(
    self,
    log: experience.Experience,
    cores: Sequence[jax.Device],
    capacity: int,
    ahead: int,
    rng_key: jax.Array,
    stop: threading.Event,
  ) -> None:
    """Makes an empty train buffer.

    Args:
      log: experience without targets.
      cores: the learner devices.
      capacity: number of batches in the train buffer.
      ahead: number of batches that may wait for their targets.
      rng_key: random key of the draws.
      stop: event that ends all waits.
    """
    self.log = log
    self.unlabelled = channels.Channel[Work]()
    self._labelled = channels.Channel[tuple[Work, np.ndarray]]()
    self._cores, self._stop = list(cores), stop
    self._capacity, self._ahead = capacity, ahead * len(self._cores)
    self._in_flight, self._drawn = 0, 0
    self._sizes = [0] * len(self._cores)
    self._rings: list[types.Tree] = []
    self._keys = [
      jax.device_put(jax.random.fold_in(rng_key, i), core)
      for i, core in enumerate(self._cores)
    ]
    self._add = jax.jit(_add, donate_argnums=0)
    self._draw = jax.jit(_draw)
    self._lock = threading.Lock()
    # The lag and the share of the run's own experience of labelled batches.
    self._labels: list[tuple[int, float]] = []

  def __call__(
    self, shares: Sequence[types.Share]
  ) -> Iterator[experience.Batch]:
    """Sends the log's batches to labellers, and yields labelled ones."""
    for batch in self.log(shares):
      for core, part in enumerate(batch.parts):
        self.unlabelled.put(Work(core, jax.tree.map(np.asarray, part)))
        self._in_flight += 1
      while self._in_flight > self._ahead or not all(self._sizes):
        if not self._receive():
          return
      yield experience.Batch(self._parts())

  def example(self, shares: Sequence[types.Share]) -> experience.Batch:
    """Returns a batch of the log, with targets of 0."""
    batch = self.log.example(shares)
    parts = [
      _with_labels(x, jnp.zeros_like(x.unroll.inputs.timestep.reward))
      for x in batch.parts
    ]

    def empty(leaf: jax.Array) -> jax.Array:
      shape = self._capacity, *leaf.shape
      return jnp.zeros(shape, leaf.dtype, device=leaf.device)

    self._rings = self._rings or [jax.tree.map(empty, part) for part in parts]
    return experience.Batch(parts)

  def give(self, work: Work, labels: np.ndarray, lag: int) -> None:
    """Takes the targets `[L, B]` of some work; any thread may call it.

    `lag` is the age in updates of the oldest parameters that computed them.
    """
    is_own = work.sample.unroll.version[0] != base.UNKNOWN_VERSION
    with self._lock:
      self._labels.append((lag, float(np.mean(is_own))))
    self._labelled.put((work, labels))

  def close(self) -> None:
    """Ends the waits of labellers."""
    self.unlabelled.close()

  def counted(self, env_steps: float, batches: int = 1) -> None:
    """See `experience.Experience`."""
    self.log.counted(env_steps, batches)

  def resume(self, updates: int, resets: float) -> None:
    """See `experience.Experience`; the train buffer starts empty."""
    self._drawn = updates
    self.log.resume(updates, resets)

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the log's metrics, and those of targets since the last call."""
    with self._lock:
      measured, self._labels = self._labels, []
    means = np.mean(measured, axis=0).tolist() if measured else (None, None)
    names = "target_lag", "on_policy_share"
    return self.log.measure() | dict(zip(names, means, strict=True))

  @property
  def kept(self) -> process_parts.Replay | None:
    """The part of the log that a checkpoint stores."""
    return self.log.kept

  def _receive(self) -> bool:
    """Moves labelled batches to the train buffer; False if the run is over."""
    while not (arrived := self._labelled.get(1, _POLL_SECONDS)):
      if self._stop.is_set():
        return False
    while arrived:
      ((work, labels),) = arrived
      core = work.core
      sample = jax.device_put(
        _with_labels(work.sample, labels), self._cores[core]
      )
      index = self._sizes[core] % self._capacity
      self._rings[core] = self._add(self._rings[core], sample, np.int32(index))
      self._sizes[core] += 1
      self._in_flight -= 1
      arrived = self._labelled.get(1, 0)
    return True

  def _parts(self) -> list[types.Sample]:
    self._drawn += 1
    return [
      self._draw(
        ring, key, np.int32(self._drawn), np.int32(min(size, self._capacity))
      )
      for ring, key, size in zip(
        self._rings, self._keys, self._sizes, strict=True
      )
    ]


def _with_labels(sample: types.Sample, labels: Any) -> types.Sample:
  return sample._replace(unroll=sample.unroll._replace(extras=labels))


def _add(ring: types.Tree, sample: types.Tree, index: jax.Array) -> types.Tree:
  return jax.tree.map(lambda x, y: x.at[index].set(y), ring, sample)


def _draw(
  ring: types.Sample, rng_key: jax.Array, number: jax.Array, size: jax.Array
) -> types.Sample:
  """Draws each column of a batch from one of the first `size` batches."""
  count = ring.importance_weight.shape[1]
  key = jax.random.fold_in(rng_key, number)
  batch = jax.random.randint(key, (count,), 0, size)
  column = jnp.arange(count)

  def of_steps(leaf: jax.Array) -> jax.Array:
    return jnp.moveaxis(leaf[batch, :, column], 0, 1)

  steps = jax.tree.map(of_steps, ring.unroll)
  return types.Sample(steps, ring.importance_weight[batch, column])
