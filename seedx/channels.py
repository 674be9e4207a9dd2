"""Queues between threads, whose waits end when the queue is closed."""

import collections
import math
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
  """A first-in, first-out queue, which any thread may fill, empty or close.

  After the queue is closed, no call waits, and the items that are left can
  still be taken.
  """

  def __init__(self, capacity: int | None = None) -> None:
    """Makes a channel for up to `capacity` items; None for no limit."""
    self._capacity = math.inf if capacity is None else capacity
    self._items: collections.deque[T] = collections.deque()
    self._closed = False
    self._lock = threading.Lock()
    self._item_put = threading.Condition(self._lock)
    self._item_taken = threading.Condition(self._lock)
    # Number of threads that wait for items; it is mostly 0.
    self._waiting = 0

  def __len__(self) -> int:
    """Returns the number of waiting items."""
    return len(self._items)

  @property
  def closed(self) -> bool:
    """Whether the channel has been closed."""
    return self._closed

  def put(self, item: T, timeout_seconds: float | None = None) -> bool:
    """Appends an item when there is room for it.

    It waits up to `timeout_seconds`; None for no limit, 0 to return at once.

    Returns:
      True if the item was appended; False if the channel is closed, or was full
      all the time.
    """
    with self._lock:
      if len(self._items) >= self._capacity and not self._item_taken.wait_for(
        lambda: self._closed or len(self._items) < self._capacity,
        timeout_seconds,
      ):
        return False
      if self._closed:
        return False
      self._items.append(item)
      if self._waiting:  # Wakes all: each has its own `count`.
        self._item_put.notify_all()
      return True

  def get(
    self, count: int = 1, timeout_seconds: float | None = None
  ) -> list[T]:
    """Takes the oldest `count` items (at least 1) when there are that many.

    It waits up to `timeout_seconds`; None for no limit, 0 to return at once.

    Returns:
      The items; [] if the channel is closed and has fewer, or had fewer all the
      time.
    """
    with self._lock:
      if len(self._items) < count:
        self._waiting += 1
        self._item_put.wait_for(
          lambda: self._closed or len(self._items) >= count, timeout_seconds
        )
        self._waiting -= 1
        if len(self._items) < count:
          return []
      items = [self._items.popleft() for _ in range(count)]
      # Without a limit, no thread waits for room.
      if self._capacity < math.inf:
        self._item_taken.notify(count)
      return items

  def close(self) -> None:
    """Ends all waits; a second call does nothing."""
    with self._lock:
      self._closed = True
      self._item_put.notify_all()
      self._item_taken.notify_all()
