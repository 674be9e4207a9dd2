"""Queues between threads that can be closed, so that no wait needs a clock."""

import collections
import math
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
# Maps the items that wait, oldest first, to the number of them to take now and,
# where that is 0, the seconds to wait for more; None for no limit.
Rule = Callable[[Sequence[T]], tuple[int, float | None]]


class Channel(Generic[T]):
  """A queue, first in, first out, which any thread may fill, empty or close.

  Closing it ends every wait at once, and those that would begin later. What is
  in it then can still be taken: a consumer that wants to lose nothing takes
  until it gets nothing, another one stops at `closed`.
  """

  def __init__(self, capacity: int | None = None) -> None:
    """Makes an empty channel.

    Args:
      capacity: most items that wait in it; None for no limit.
    """
    self._capacity = math.inf if capacity is None else capacity
    self._items: collections.deque[T] = collections.deque()
    self._closed = False
    self._lock = threading.Lock()
    self._came = threading.Condition(self._lock)
    self._left = threading.Condition(self._lock)
    # Threads that wait for items: most are put while none does.
    self._waiting = 0

  def __len__(self) -> int:
    """Number of items that wait in it."""
    return len(self._items)

  @property
  def closed(self) -> bool:
    """Whether it has been closed."""
    return self._closed

  def put(self, item: T, timeout_seconds: float | None = None) -> bool:
    """Appends an item, once there is room for it.

    Args:
      item: what is appended.
      timeout_seconds: longest time to wait; None for no limit, 0 for no wait.

    Returns:
      Whether it was appended: not if the channel is closed, or full for all of
      the time.
    """
    with self._lock:
      if len(self._items) >= self._capacity and not self._left.wait_for(
        lambda: self._closed or len(self._items) < self._capacity,
        timeout_seconds,
      ):
        return False
      if self._closed:
        return False
      self._items.append(item)
      if self._waiting:  # All of them, since they may want different numbers.
        self._came.notify_all()
      return True

  def get(
    self, count: int = 1, timeout_seconds: float | None = None
  ) -> list[T]:
    """Takes the oldest items, once there are as many.

    Args:
      count: number of items, at least 1.
      timeout_seconds: longest time to wait; None for no limit, 0 for no wait.

    Returns:
      The items; [] if the channel is closed and has fewer, or has had fewer for
      all of the time.
    """
    with self._lock:
      if len(self._items) < count:
        self._waiting += 1
        self._came.wait_for(
          lambda: self._closed or len(self._items) >= count, timeout_seconds
        )
        self._waiting -= 1
        if len(self._items) < count:
          return []
      return self._take(count)

  def take(self, rule: Rule[T]) -> list[T]:
    """Takes as many of the oldest items as a rule wants, once it wants some.

    Args:
      rule: called at once, when items have come, and when the seconds are over
        that it returned. It may not use the channel.

    Returns:
      The items; [] if the channel is closed and the rule wants none.
    """
    with self._lock:
      while True:
        count, patience_seconds = rule(self._items)
        if count or self._closed:
          return self._take(count)
        self._waiting += 1
        self._came.wait(patience_seconds)
        self._waiting -= 1

  def close(self) -> None:
    """Ends every wait; a second call does nothing."""
    with self._lock:
      self._closed = True
      self._came.notify_all()
      self._left.notify_all()

  def _take(self, count: int) -> list[T]:
    taken = [self._items.popleft() for _ in range(count)]
    if self._capacity < math.inf:  # Else none waits for room.
      self._left.notify(count)
    return taken
