"""A thread that waits for the pipes of many streams at once."""

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable

_log = logging.getLogger("seedx.wire")


class Pipes:
  """A thread that calls a pipe's function when the pipe can receive or send.

  After each call, the thread ignores the pipe until `wait` is called. Thus a
  stream needs no thread of its own that wakes up for each message.
  """

  def __init__(self) -> None:
    self._epoll = select.epoll()
    self._ready: dict[int, Callable[[], None]] = {}
    self._closed = os.eventfd(0)
    self._epoll.register(self._closed, select.EPOLLIN)
    threading.Thread(target=self._run, name="pipes", daemon=True).start()

  def add(self, descriptor: int, ready: Callable[[], None]) -> None:
    """Calls `ready` once, when a pipe has bytes to receive or has ended.

    The function must not block, because it delays the other pipes.
    """
    self._ready[descriptor] = ready
    self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

  def wait(self, descriptor: int, *, send: bool = False) -> None:
    """Calls `ready` again once the pipe can receive, or, if `send`, can send.

    Does nothing for a pipe that was removed.
    """
    event = select.EPOLLOUT if send else select.EPOLLIN
    with contextlib.suppress(OSError, ValueError):
      self._epoll.modify(descriptor, event | select.EPOLLONESHOT)

  def remove(self, descriptor: int) -> None:
    """Removes a pipe; its function may still be running."""
    self._ready.pop(descriptor, None)
    with contextlib.suppress(OSError, ValueError):
      self._epoll.unregister(descriptor)

  def close(self) -> None:
    """Ends the thread."""
    os.eventfd_write(self._closed, 1)

  def _run(self) -> None:
    while True:
      for descriptor, _ in self._epoll.poll():
        if descriptor == self._closed:
          self._epoll.close()
          os.close(self._closed)
          return
        if (ready := self._ready.get(descriptor)) is not None:
          ready()
