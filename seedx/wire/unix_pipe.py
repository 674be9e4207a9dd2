"""Unix sockets that carry a stream's messages on one machine, instead of gRPC.

gRPC still opens and ends the stream. A request of 34 kB and its reply cost less
than a tenth of what they cost over gRPC.
"""

import collections
import contextlib
import os
import select
import socket
import stat

import numpy as np

from seedx.wire import array_layout

SECRET_BYTES = 16
# Paths of unix sockets are limited to about 108 bytes.
_MAX_PATH_BYTES = 100
# The longest name of a server's socket, such as `learner` or `server-12`.
_NAME_BYTES = 16


class Pipe:
  """A connected socket that carries messages; each header has a message's size.

  Attributes:
    cut: whether the other end has closed the pipe within a message.
  """

  def __init__(self, connected: socket.socket, max_bytes: int) -> None:
    """Takes over a socket; a received message may have up to `max_bytes`."""
    self.cut = False
    self._socket = connected
    self._max_bytes = max_bytes
    # The message under way; only its header until that is complete.
    self._message, self._received = _header(), 0
    # Messages that were received while one was sent.
    self._ahead: collections.deque[array_layout.Buffer | None] = (
      collections.deque()
    )

  def send(self, message: bytes) -> bool:
    """Sends a message; False if the other end has closed the pipe."""
    try:
      self._socket.sendall(message)
      return True
    except OSError:
      return False

  def send_and_receive(self, message: bytes) -> bool:
    """Sends a message, and receives meanwhile; False as in `send`.

    Without this, both ends could wait forever while both sockets are full.
    """
    left = memoryview(message)
    try:
      while left:
        try:
          left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
          self._wait_for_room()
      return True
    except OSError:
      return False

  def receive(self) -> array_layout.Buffer | None:
    """Waits for a message; None if there are no more.

    Raises:
      MessageError: the message is too long.
    """
    return self._ahead.popleft() if self._ahead else self._receive()

  def receive_now(self) -> array_layout.Buffer | None:
    """Receives a message without waiting; None if there are no more.

    Raises:
      BlockingIOError: the message is not complete yet.
      MessageError: the message is too long.
    """
    return self._receive(socket.MSG_DONTWAIT)

  def send_now(self, message: memoryview) -> memoryview:
    """Sends the bytes for which there is room; returns the rest.

    Raises:
      OSError: the other end has closed the pipe.
    """
    with contextlib.suppress(BlockingIOError):
      while message:
        message = message[self._socket.send(message, socket.MSG_DONTWAIT) :]
    return message

  def fileno(self) -> int:
    """Returns the socket's descriptor."""
    return self._socket.fileno()

  def _wait_for_room(self) -> None:
    """Waits until the socket can send or receive; receives if it can."""
    waits = select.poll()
    waits.register(self._socket, select.POLLIN | select.POLLOUT)
    ((_, events),) = waits.poll()
    if events & ~select.POLLOUT:
      self._ahead.append(self._receive())

  def _receive(
    self, flags: int = socket.MSG_WAITALL
  ) -> array_layout.Buffer | None:
    """Receives the rest of the message under way."""
    try:
      while self._received < len(self._message):
        size = self._socket.recv_into(
          self._message[self._received :], flags=flags
        )
        if not size:
          raise ConnectionError
        self._received += size
        if self._received == array_layout.HEADER.size == len(self._message):
          self._message = self._with_room(self._message)
    except BlockingIOError:
      raise
    except OSError:
      self.cut |= self._received > 0
      return None
    message = self._message
    self._message, self._received = _header(), 0
    return message.toreadonly()

  def _with_room(self, header: memoryview) -> memoryview:
    """Returns memory for the message that begins with a header."""
    size = array_layout.message_size(header)
    if size > self._max_bytes:
      raise array_layout.MessageError(
        f"expected a message of at most {self._max_bytes} bytes, found one of"
        f" {size}"
      )
    # A bytearray would be set to 0 first.
    message = np.empty(size, np.uint8).data
    message[: len(header)] = header
    return message

  def end(self) -> None:
    """Ends the messages in this direction."""
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_WR)

  def close(self) -> None:
    """Ends both directions and all waits; any thread may call it."""
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)

  def __del__(self) -> None:
    """Closes the descriptor, which no thread can be using any more."""
    self._socket.close()


def _header() -> memoryview:
  return memoryview(bytearray(array_layout.HEADER.size))


def is_at(path: str) -> bool:
  """Returns whether there is a socket for messages beside a server's socket.

  No such socket exists if only the server's socket was forwarded or mounted.
  """
  try:
    return stat.S_ISSOCK(os.stat(beside(path)).st_mode)
  except OSError:
    return False


def connect(path: str, secret: str, max_bytes: int) -> Pipe:
  """Connects to the `Listener` beside a server's socket.

  `secret` comes from the server's handshake, in hexadecimal digits. A message
  from the server may have up to `max_bytes`.

  Raises:
    OSError: the server has gone.
    ValueError: `secret` is not hexadecimal.
  """
  connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
  try:
    connected.connect(beside(path))
    connected.sendall(bytes.fromhex(secret))
  except OSError:
    connected.close()
    raise
  return Pipe(connected, max_bytes)


def has_room(folder: str) -> bool:
  """Returns whether sockets with short names may be in a directory."""
  try:
    return bool(beside(os.path.join(folder, "x" * _NAME_BYTES)))
  except OSError:
    return False


def beside(path: str) -> str:
  """Returns the path of the socket for messages; OSError if it is too long."""
  beside_path = f"{path}-messages"
  if len(os.fsencode(beside_path)) > _MAX_PATH_BYTES:
    raise OSError(f"the path {beside_path} is too long for a socket")
  return beside_path
