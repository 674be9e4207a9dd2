"""A meter of the time for which acting waits behind updates on its device."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import jax

from seedx import metrics


class Blocking:
  """A meter of the waits for actions, with and without a running update.

  An accelerator computes one program after another, so that acting waits until
  an update, or one of its micro-batches, has ended. On CPU, both compute at the
  same time, and nothing is measured.

  Attributes:
    divisible: number of unrolls or windows in each core's part of a batch, to
      be divided by `micro_batches`; 1 for an agent that needs whole batches.
  """

  def __init__(
    self,
    cores: Sequence[jax.Device],
    acting_on: Sequence[jax.Device],
    micro_batches: int,
    is_updating: Callable[[], bool],
    clock: Callable[[], float] = time.perf_counter,
  ) -> None:
    """Starts with no waits counted.

    Args:
      cores: the learner devices.
      acting_on: devices that act.
      micro_batches: number of micro-batches of an update.
      is_updating: thread-safe function that returns whether an update runs.
      clock: function that returns a time in seconds, from any fixed start.
    """
    self.divisible = 1
    self._devices = {x for x in acting_on if x in cores and x.platform != "cpu"}
    self._micro_batches = micro_batches
    self._is_updating = is_updating
    self._clock = clock
    threads = {metrics.WAIT_UPDATE: len(set(acting_on))}
    self._waits = metrics.Waits(threads, clock)
    self._lock = threading.Lock()
    # Number and seconds of all waits, without and with a running update.
    self._alone = 0, 0.0
    self._behind = 0, 0.0

  def waiting(
    self, device: jax.Device
  ) -> contextlib.AbstractContextManager[None]:
    """Measures a wait for actions on a device; any thread may use it."""
    is_shared = device in self._devices
    return self._measured() if is_shared else contextlib.nullcontext()

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the share of time that acting waited behind updates.

    Also returns a larger number of micro-batches if that would shorten the
    waits; None if not. Both are missing if no accelerator both acts and learns.
    """
    if not self._devices:
      return {}
    return {**self._waits.measure(), metrics.MICRO_BATCHES: self._advised()}

  @contextlib.contextmanager
  def _measured(self) -> Iterator[None]:
    behind, begun = self._is_updating(), self._clock()
    with contextlib.ExitStack() as stack:
      if behind:
        stack.enter_context(self._waits.timed(metrics.WAIT_UPDATE))
      yield
    seconds = self._clock() - begun
    with self._lock:
      if behind:
        self._behind = self._behind[0] + 1, self._behind[1] + seconds
      else:
        self._alone = self._alone[0] + 1, self._alone[1] + seconds

  def _advised(self) -> int | None:
    """Returns the least number of micro-batches that at most doubles a wait.

    It is advised, not set: sums in another order would make runs with the same
    seed differ, and the update would be compiled again.
    """
    with self._lock:
      alone, alone_seconds = self._alone
      behind, behind_seconds = self._behind
    if not alone_seconds or not behind:
      return None
    ratio = (behind_seconds / behind) / (alone_seconds / alone)
    if ratio <= 2.0:
      return None
    needed = min(self._micro_batches * (ratio - 1.0), self.divisible)
    larger = range(self._micro_batches + 1, self.divisible + 1)
    return next(
      (n for n in larger if n >= needed and self.divisible % n == 0), None
    )
