"""Bundles: the messages of many calls in the messages of one stream.

A process that relays the calls of its machine opens the stream `BUNDLES`, see
`relay`. `seedx.wire` specifies the frames of a bundle.
"""

import functools
import json
import queue
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

import grpc
import numpy as np

from seedx.wire import array_layout, calls

BUNDLES = "bundles"
# A bundle of this size gets no further frame, so that it is never above the
# server's limit, which is twice that of a single message and 64 KiB.
BUNDLE_BYTES = 1 << 15
# Kinds of frames.
OPEN, ACCEPT, MESSAGE, END = range(4)
# Number of the call, kind of the frame, bytes of its content, reserved.
_FRAME = struct.Struct("<IIII")

Frame = Sequence[array_layout.Buffer]


class _Layout(array_layout.Layout):
  """The layout of bundles, which `encode` joins from parts of frames."""

  def encode(self, nest: Sequence[array_layout.Buffer]) -> bytes:
    size, header = sum(map(len, nest)), array_layout.HEADER
    fields = array_layout.MAGIC, array_layout.PROTOCOL, 0, size
    return b"".join([header.pack(*fields, header.size + size), *nest])


LAYOUT = _Layout(
  (array_layout.Column("", "|u1", ()),),
  array_layout.MAX_MESSAGE_BYTES - (1 << 10),
  structure=0,
)


class Sender:
  """A queue of frames, which one thread takes bundle by bundle."""

  def __init__(self) -> None:
    self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()

  def put(
    self, call: int, kind: int, content: array_layout.Buffer = b""
  ) -> None:
    """Adds a frame; any thread may call this."""
    header = _FRAME.pack(call, kind, len(content), 0)
    padding = bytes(-len(content) % array_layout.ALIGNMENT_BYTES)
    self._frames.put((header, content, padding))

  def end(self) -> None:
    """Ends the bundles, after the frames that were added before."""
    self._frames.put(None)

  def bundles(self) -> Iterator[list[array_layout.Buffer]]:
    """Yields parts of bundles: each time, all frames that wait."""
    for first in iter(self._frames.get, None):
      parts, size = [*first], len(first[1])
      while size < BUNDLE_BYTES and not self._frames.empty():
        frame = self._frames.get()
        if frame is None:
          self.end()
          break
        parts += frame
        size += len(frame[1])
      yield parts


def frames(bundle: np.ndarray) -> Iterator[tuple[int, int, memoryview]]:
  """Yields the number of the call, the kind and the content of each frame.

  Raises:
    MessageError: the bundle is malformed.
  """
  content, offset = bundle.data, 0
  while offset < len(content):
    start = offset + _FRAME.size
    if start > len(content):
      raise array_layout.MessageError("expected a frame, found a part of one")
    call, kind, size, reserved = _FRAME.unpack_from(content, offset)
    if kind > END or reserved or start + size > len(content):
      raise array_layout.MessageError(
        f"expected a frame of a kind up to {END} with 0 in reserved bits and at"
        f" most {len(content) - start} bytes, found kind {kind}, {reserved} and"
        f" {size} bytes"
      )
    yield call, kind, content[start : start + size]
    offset = start + size + -size % array_layout.ALIGNMENT_BYTES


class Machine:
  """The server's end of the stream of one machine; thread-safe.

  Attributes:
    sender: queue of the frames for the machine.
  """

  def __init__(
    self,
    peer: str,
    handle: "Callable[[str, Call], None]",
    submit: Callable[[Callable[[], None]], object],
    max_calls: int,
    max_handshake_bytes: int,
  ) -> None:
    """Starts without calls.

    Args:
      peer: address of the machine.
      handle: function that serves a call of a path until its end.
      submit: function that runs another one on a thread.
      max_calls: maximum number of simultaneous calls.
      max_handshake_bytes: maximum number of bytes of a call's handshake.
    """
    self.sender = Sender()
    self._peer = peer
    self._handle = handle
    self._submit = submit
    self._max_calls = max_calls
    self._max_handshake_bytes = max_handshake_bytes
    self._calls: dict[int, Call] = {}
    self._failure: array_layout.MessageError | None = None

  def serve(self, requests: Iterable[bytes]) -> Iterator[bytes]:
    """Serves the calls in bundles; yields bundles until the machine leaves.

    Raises:
      MessageError: a bundle is malformed; all calls have ended.
    """
    self._submit(lambda: self._receive(requests))
    yield from map(LAYOUT.encode, self.sender.bundles())
    if self._failure is not None:
      raise self._failure

  def _receive(self, requests: Iterable[bytes]) -> None:
    try:
      for bundle in requests:
        for number, kind, content in frames(LAYOUT.decode(bundle)):
          self._take(number, kind, content)
    except grpc.RpcError:
      pass  # The machine has left.
    except array_layout.MessageError as error:
      self._failure = error
    finally:
      for call in list(self._calls.values()):
        call.leave()
      self.sender.end()

  def _take(self, number: int, kind: int, content: memoryview) -> None:
    call = self._calls.get(number)
    if kind == OPEN and call is None:
      self._open(number, bytes(content))
    elif call is not None and kind == MESSAGE:
      call.messages.arrive(content)
    elif call is not None and kind == END:
      call.leave()
    elif kind not in (MESSAGE, END):  # These may cross the end of their call.
      raise array_layout.MessageError(
        f"expected a message of call {number}, found a frame of kind {kind}"
      )

  def _open(self, number: int, content: bytes) -> None:
    path, _, handshake = content.partition(b"\n")
    is_full = len(self._calls) >= self._max_calls
    if is_full or len(handshake) > self._max_handshake_bytes:
      limits = f"{self._max_calls} calls, each with a handshake of at most"
      reason = f"expected at most {limits} {self._max_handshake_bytes} bytes"
      status = end_of(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
      self.sender.put(number, END, status)
      return
    call = Call(number, handshake, self._peer, self.sender)
    self._calls[number] = call

    def serve() -> None:
      try:
        call.serve(lambda: self._handle(path.decode(errors="replace"), call))
      finally:
        del self._calls[number]

    self._submit(serve)


class _AbortedError(Exception):
  """An error that unwinds a call that has ended with a status."""


class Call:
  """A call of a machine, in place of gRPC's context and of a `Listener`.

  Attributes:
    messages: the messages of the call.
  """

  def __init__(
    self, number: int, handshake: bytes, peer: str, sender: Sender
  ) -> None:
    self.messages = Messages(number, sender)
    self._handshake = handshake
    self._peer = peer
    self._send = functools.partial(sender.put, number)
    self._status = end_of(grpc.StatusCode.INTERNAL, "the call failed")
    self._lock = threading.Lock()
    self._close: Callable[[], None] | None = None
    self._has_left = False

  def serve(self, handle: Callable[[], None]) -> None:
    """Serves the call, then sends its status."""
    try:
      handle()
      self._status = end_of(grpc.StatusCode.OK, "")
    except _AbortedError:
      pass
    finally:
      self._send(END, self._status)

  def leave(self) -> None:
    """Closes the call, because its client has left."""
    with self._lock:
      self._has_left, close = True, self._close
    if close is not None:
      close()

  def peer(self) -> str:
    """See `grpc.ServicerContext`, as for the next methods."""
    return self._peer

  def invocation_metadata(self) -> Sequence[tuple[str, bytes]]:
    return ((calls.METADATA_KEY, self._handshake),)

  def send_initial_metadata(
    self, metadata: Sequence[tuple[str, bytes]]
  ) -> None:
    self._send(ACCEPT, metadata[0][1])

  def add_callback(self, callback: Callable[[], None]) -> bool:
    with self._lock:
      self._close = callback
      return not self._has_left

  def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
    self._status = end_of(code, details)
    raise _AbortedError

  def cancel(self) -> None:
    """Does nothing, because the call ends on its own thread."""

  def expect(self) -> str:
    """Returns no secret, because the call needs no socket."""
    return ""

  def wait(self, digits: str, max_bytes: int) -> "Messages":
    """Returns the messages at once; see `listening.Listener`."""
    return self.messages


class Messages:
  """The messages of a call, in place of a `Pipe` and of `Pipes`.

  Attributes:
    cut: see `unix_pipe.Pipe`.
  """

  cut = False

  def __init__(self, number: int, sender: Sender) -> None:
    self._number = number
    self._send = functools.partial(sender.put, number, MESSAGE)
    self._received: queue.SimpleQueue[array_layout.Buffer | None] = (
      queue.SimpleQueue()
    )
    self._lock = threading.Lock()
    self._ready: Callable[[], None] = lambda: None
    self._is_waiting = False

  def arrive(self, message: memoryview) -> None:
    """Adds a message from the machine.

    Raises:
      MessageError: the message before this one is not answered yet.
    """
    if not self._received.empty():
      raise array_layout.MessageError(
        f"expected one message of call {self._number} at a time, found two"
      )
    self._received.put(message)
    with self._lock:
      is_waiting, self._is_waiting = self._is_waiting, False
    if is_waiting:
      self._ready()

  def receive(self) -> array_layout.Buffer | None:
    """See `unix_pipe.Pipe`, as for the next methods."""
    return self._received.get()

  def receive_now(self) -> array_layout.Buffer | None:
    return self._received.get_nowait()

  def send(self, message: bytes) -> bool:
    self._send(message)
    return True

  def send_now(self, message: memoryview) -> memoryview:
    self._send(message)
    return memoryview(b"")

  def fileno(self) -> int:
    return self._number

  def close(self) -> None:
    self._received.put(None)

  def add(self, descriptor: int, ready: Callable[[], None]) -> None:
    """See `pipe_thread.Pipes`, as for the next methods."""
    self._ready = ready
    self.wait(descriptor)

  def wait(self, descriptor: int, *, send: bool = False) -> None:
    with self._lock:
      self._is_waiting = self._received.empty()
      is_waiting = self._is_waiting
    if not is_waiting:
      self._ready()

  def remove(self, descriptor: int) -> None:
    self._ready = lambda: None


def end_of(code: grpc.StatusCode, details: str) -> bytes:
  """Returns the content of an `END` with a status."""
  return json.dumps({"code": code.name, "details": details}).encode()
