"""Bundles: the messages of many calls in the messages of one stream.

A process that relays the calls of its machine opens the stream `BUNDLES`, see
`relay`. `seedx.wire` specifies the frames of a bundle.
"""

import contextlib
import dataclasses
import functools
import json
import queue
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

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

LAYOUT = array_layout.Layout(
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

  def bundles(self) -> Iterator[np.ndarray]:
    """Yields bundles: each time, all frames that wait."""
    for first in iter(self._frames.get, None):
      parts, size = [*first], len(first[1])
      while size < BUNDLE_BYTES and not self._frames.empty():
        frame = self._frames.get()
        if frame is None:
          self.end()
          break
        parts += frame
        size += len(frame[1])
      yield np.frombuffer(b"".join(parts), np.uint8)


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


@dataclasses.dataclass(eq=False)
class Machine:
  """The server's session of the stream of one machine; thread-safe.

  Attributes:
    welcome: JSON object for the machine; see `serving.Session`.
    handle: function that serves a call of a path until the iteration's end.
    submit: function that runs another one on a thread.
    max_calls: maximum number of simultaneous calls.
    max_handshake_bytes: maximum number of bytes of a call's handshake.
  """

  welcome: Mapping[str, Any]
  handle: "Callable[[str, Call], Iterable[bytes]]"
  submit: Callable[..., "futures.Future[None]"]
  max_calls: int
  max_handshake_bytes: int
  _peer: str = ""
  _sender: Sender = dataclasses.field(default_factory=Sender)
  _calls: "dict[int, Call]" = dataclasses.field(default_factory=dict)

  def serve(self, requests: Iterable[bytes], peer: str) -> Iterator[bytes]:
    """Serves the calls in bundles; yields bundles until `close`.

    `peer` is the address of the machine.

    Raises:
      MessageError: a bundle is malformed; all calls have ended.
    """
    self._peer = peer
    received = self.submit(self._receive, requests)
    received.add_done_callback(lambda _: self.close())
    yield from map(LAYOUT.encode, self._sender.bundles())
    if received.done():
      received.result()

  def close(self) -> None:
    """Ends the bundles after the frames that wait."""
    self._sender.end()

  def _receive(self, requests: Iterable[bytes]) -> None:
    try:
      with contextlib.suppress(grpc.RpcError):  # The machine has left.
        for bundle in requests:
          for frame in frames(LAYOUT.decode(bundle)):
            self._take(*frame)
    finally:
      for call in list(self._calls.values()):
        call.leave()

  def _take(self, number: int, kind: int, content: memoryview) -> None:
    call = self._calls.get(number)
    if kind == OPEN and call is None:
      self._open(number, bytes(content))
    elif call is not None and kind == MESSAGE:
      call.arrive(content)
    elif call is not None and kind == END:
      call.leave()
    elif kind not in (MESSAGE, END):  # These may cross the end of their call.
      raise array_layout.MessageError(
        f"expected a message of call {number}, found a frame of kind {kind}"
      )

  def _open(self, number: int, content: bytes) -> None:
    path, _, handshake = content.partition(b"\n")
    send = functools.partial(self._sender.put, number)
    is_full = len(self._calls) >= self.max_calls
    if is_full or len(handshake) > self.max_handshake_bytes:
      limits = f"{self.max_calls} calls, each with a handshake of at most"
      reason = f"expected at most {limits} {self.max_handshake_bytes} bytes"
      send(END, end_of(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
      return
    call = self._calls[number] = Call(handshake, self._peer, send)

    def serve() -> None:
      status = grpc.StatusCode.INTERNAL, "the call failed"
      try:
        for _ in self.handle(path.decode(errors="replace"), call):
          pass  # The call sends its replies itself.
        status = grpc.StatusCode.OK, ""
      except calls.Refusal as refused:
        status = refused.code, refused.message
      finally:
        del self._calls[number]
        send(END, end_of(*status))

    self.submit(serve)


class Call:
  """A call of a machine: its context for gRPC, its `Pipe`, and its `Pipes`.

  Attributes:
    cut: see `unix_pipe.Pipe`.
  """

  cut = False

  def __init__(
    self, handshake: bytes, peer: str, send: Callable[..., None]
  ) -> None:
    self._handshake = handshake
    self._peer = peer
    self._send = send
    self._received: queue.SimpleQueue[array_layout.Buffer | None] = (
      queue.SimpleQueue()
    )
    self._is_asked = False
    self._has_left = False
    self._leave: Callable[[], None] = lambda: None
    self._ready: Callable[[], None] = lambda: None

  def arrive(self, message: memoryview) -> None:
    """Adds a message from the machine.

    Raises:
      MessageError: the message before this one is not answered yet.
    """
    if self._is_asked:
      raise array_layout.MessageError(
        "expected one message of a call at a time, found two"
      )
    self._is_asked = True
    self._received.put(message)
    self._ready()

  def leave(self) -> None:
    """Closes the call, because its client has left."""
    self._has_left = True
    self._leave()

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
    # In this order, because `leave` may run at the same time.
    self._leave = callback
    return not self._has_left

  def cancel(self) -> None:
    """Does nothing, because the call ends on its own thread."""

  def receive(self) -> array_layout.Buffer | None:
    """See `unix_pipe.Pipe`, as for the next methods."""
    return self._received.get()

  def receive_now(self) -> array_layout.Buffer | None:
    try:
      return self._received.get_nowait()
    except queue.Empty:
      raise BlockingIOError from None

  def send(self, message: array_layout.Buffer) -> bool:
    self._is_asked = False
    self._send(MESSAGE, message)
    return True

  def send_now(self, message: memoryview) -> memoryview:
    self.send(message)
    return memoryview(b"")

  def fileno(self) -> int:
    return -1

  def close(self) -> None:
    self._received.put(None)

  def add(self, descriptor: int, ready: Callable[[], None]) -> None:
    """See `pipe_thread.Pipes`, as for the next methods."""
    self._ready = ready
    ready()  # A message may have arrived before.

  def wait(self, descriptor: int, *, send: bool = False) -> None:
    """Does nothing, because `arrive` calls the function."""

  def remove(self, descriptor: int) -> None:
    self._ready = lambda: None


def end_of(code: grpc.StatusCode, details: str) -> bytes:
  """Returns the content of an `END` with a status."""
  return json.dumps({"code": code.name, "details": details}).encode()
