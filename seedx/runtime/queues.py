"""Between inference devices and learner cores: bounded queues of unrolls."""

import collections
import threading
from collections.abc import Sequence

import jax

from seedx import metrics, types


class UnrollQueues:
  """A bounded queue for each learner core, filled evenly.

  An item is one core's share of a training batch. A full queue blocks whoever
  puts; nothing is ever dropped.
  """

  def __init__(
    self,
    cores: Sequence[jax.Device],
    capacity: int,
    stop: threading.Event,
    waits: metrics.Waits,
  ) -> None:
    """Makes empty queues.

    Args:
      cores: the learner's devices; they may repeat nothing.
      capacity: items of each queue.
      stop: ends every wait, within a tenth of a second.
      waits: counts `inference_wait_queue` and `learner_wait_unrolls`.
    """
    self._cores = list(cores)
    self._capacity = capacity
    self._stop = stop
    self._waits = waits
    self._queues: list[collections.deque[types.Tree]] = [
      collections.deque() for _ in cores
    ]
    self._changed = threading.Condition()

  def put(self, unrolls: types.Tree) -> bool:
    """Moves an item to the core with the shortest queue; False if stopped."""
    with self._waits.timed("inference_wait_queue"), self._changed:
      while min(len(queue) for queue in self._queues) >= self._capacity:
        if self._stop.is_set():
          return False
        self._changed.wait(0.1)
      lengths = [len(queue) for queue in self._queues]
      shortest = lengths.index(min(lengths))
      self._queues[shortest].append(
        jax.device_put(unrolls, self._cores[shortest])
      )
      self._changed.notify_all()
      return True

  def get(self) -> list[types.Tree] | None:
    """Takes an item for every core, in order; None if stopped."""
    with self._waits.timed("learner_wait_unrolls"), self._changed:
      while not all(self._queues):
        if self._stop.is_set():
          return None
        self._changed.wait(0.1)
      items = [queue.popleft() for queue in self._queues]
      self._changed.notify_all()
      return items
