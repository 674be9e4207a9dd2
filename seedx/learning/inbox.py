"""The learner's inbox, a bounded queue of shares."""

import itertools
import threading
from collections.abc import Sequence

import jax

from seedx import channels, metrics, sharding, types


class Inbox:
  """A bounded queue of shares for each learner core.

  Shares go to the cores in turn, and leave in groups of one for each core, so
  one channel holds all queues. No share is dropped.
  """

  def __init__(self, cores: Sequence[jax.Device], capacity: int) -> None:
    """Makes an empty queue of up to `capacity` shares for each core."""
    self._shares = channels.Channel[types.Share](capacity * len(cores))
    self._num_cores = len(cores)
    self._next_core = itertools.cycle(cores)
    # Keeps the shares in the channel in the order of their cores.
    self._putting = threading.Lock()
    self._waits = metrics.Waits({metrics.WAIT_EXPERIENCE: 1})

  def put(self, share: types.Share) -> bool:
    """Moves a share to the next core; waits while all queues are full.

    Returns False if the inbox is closed.
    """
    with self._putting:
      return self._shares.put(sharding.put(share, next(self._next_core)))

  def get(
    self, timeout_seconds: float | None = None
  ) -> list[types.Share] | None:
    """Waits for one share for each core, and returns them in order.

    Returns None after the timeout, or if the inbox was closed first.
    """
    with self._waits.timed(metrics.WAIT_EXPERIENCE):
      return self._shares.get(self._num_cores, timeout_seconds) or None

  def close(self) -> None:
    """Ends all waits; a second call does nothing."""
    self._shares.close()

  def measure(self) -> dict[str, float]:
    """Returns the share of time that `get` waited since the last call."""
    return self._waits.measure()
