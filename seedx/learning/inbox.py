"""The learner's inbox, in which acting leaves unrolls."""

import itertools
import threading
from collections.abc import Sequence

import jax

from seedx import channels, metrics, sharding, types


class Inbox:
  """A bounded queue of shares for each learner core, filled evenly.

  The cores get shares in turn, and one of each leaves at a time, so that all
  queues are one channel: at any time the next share is for the core with the
  shortest queue. Nothing is dropped.
  """

  def __init__(self, cores: Sequence[jax.Device], capacity: int) -> None:
    """Makes empty queues.

    Args:
      cores: the learner devices, all different.
      capacity: shares in each queue.
    """
    self._shares = channels.Channel[types.Share](capacity * len(cores))
    self._num_cores = len(cores)
    self._next_core = itertools.cycle(cores)
    # Else a share could come to its place later than to its core.
    self._putting = threading.Lock()
    self._waits = metrics.Waits({metrics.WAIT_EXPERIENCE: 1})

  def put(self, share: types.Share) -> bool:
    """Moves a share to its core; waits while all queues are full.

    Returns:
      Whether it was taken: not if the inbox is closed.
    """
    with self._putting:
      return self._shares.put(sharding.put(share, next(self._next_core)))

  def get(
    self, timeout_seconds: float | None = None
  ) -> list[types.Share] | None:
    """Takes one share of each core, in order, once there are as many.

    Args:
      timeout_seconds: longest time to wait; None for no limit.

    Returns:
      The shares; None if the inbox is closed and has fewer, or it is too late.
    """
    with self._waits.timed(metrics.WAIT_EXPERIENCE):
      return self._shares.get(self._num_cores, timeout_seconds) or None

  def close(self) -> None:
    """Ends every wait; a second call does nothing."""
    self._shares.close()

  def measure(self) -> dict[str, float]:
    """Its field in a line of metrics: the share of time that `get` waits."""
    return self._waits.measure()
