"""The client: calls and streams of nests of arrays."""

import atexit
import json
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import grpc

from seedx import types
from seedx.wire import calls
from seedx.wire import layout as layout_lib
from seedx.wire import pipe as pipe_lib
from seedx.wire import security as security_lib

_OPTIONS: list[tuple[str, Any]] = [
  *calls.CHANNEL_OPTIONS,
  *calls.metadata_limit(calls.METADATA_BYTES),
  ("grpc.max_receive_message_length", -1),
  # One connection for each client; a stalled one delays no other.
  ("grpc.use_local_subchannel_pool", 1),
  ("grpc.enable_http_proxy", 0),
  ("grpc.initial_reconnect_backoff_ms", 100),
  ("grpc.max_reconnect_backoff_ms", 2_000),
]
# How long a program's end waits for the threads of its streams.
_OVER_SECONDS = 1.0
# How long a server may need to tell that it goes on.
_ASK_SECONDS = 5.0


class Stream:
  """An open stream: its replies come in the order of its requests.

  They come by iteration, or by `receive`. Iteration stops when the requests
  have ended and are all answered, when the server has stopped (its work is
  over), or after `close`; whatever else ends the stream raises `WireError`.

  Attributes:
    welcome: what the server's session said first.
    over: set when the stream has ended.
  """

  def __init__(
    self,
    method: grpc.StreamStreamMultiCallable,
    requests: Iterable[types.Tree] | None,
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    hello: Mapping[str, Any],
    unix_path: str | None,
    failure: Callable[[grpc.RpcError], calls.WireError],
  ) -> None:
    """Opens the stream; see `Client.stream`."""
    self._failure = failure
    self._queue: queue.SimpleQueue[types.Tree] | None = None
    if requests is None:
      self._queue = queue.SimpleQueue()
      requests = _until_none(self._queue)
    self._requests = requests
    self._pipe: pipe_lib.Pipe | None = None
    self._inputs = inputs
    self._outputs = outputs
    self._accepted = threading.Event()
    self._ended = False
    # Whether it has ended since this end closed it.
    self._left = False
    self._request_error: Exception | None = None
    self._sent_bytes = 0
    self._received_bytes = 0
    self.over = threading.Event()
    self._call = method(
      self._encoded(),
      metadata=_metadata(inputs, hello, pipe=unix_path is not None),
    )
    with _streams_lock:
      _streams.add(self)
    if not self._call.add_callback(self.over.set):
      self.over.set()
    try:
      answer = _answer(self._call, outputs)
      self.welcome: Mapping[str, Any] = answer["welcome"]
      if unix_path is not None and isinstance(answer.get("pipe"), str):
        self._connect(unix_path, answer["pipe"])
    except BaseException:
      self.close()
      raise
    self._accepted.set()

  def __iter__(self) -> Iterator[types.Tree]:
    return self

  def __next__(self) -> types.Tree:
    """The next reply, its arrays read-only.

    Raises:
      StopIteration: the stream is over.
      WireError: the stream failed.
      Exception: whatever the iterator of requests raised.
    """
    try:
      message = self._pipe.receive() if self._pipe else None
      if message is None:  # How it ended, or all of them, comes by gRPC.
        message = next(self._call, None)
    except grpc.RpcError as error:
      if self._request_error is not None:
        raise self._request_error from None
      failure = _wire_error(error) if self._left else self._failure(error)
      if failure.code is grpc.StatusCode.CANCELLED:
        raise StopIteration from None
      raise failure from None
    if message is None:
      raise StopIteration
    self._received_bytes += len(message)
    return _decode(self._outputs, message)

  def __call__(self, nest: types.Tree) -> types.Tree | None:
    """Sends a request, and waits for its reply; see `receive`."""
    self.send(nest)
    return self.receive()

  def send(self, nest: types.Tree) -> None:
    """Sends a request of a stream that `Client.exchange` has opened.

    One that does not fit its layout ends the stream; the next reply raises.
    """
    assert self._queue is not None
    if self._pipe is None:
      self._queue.put(nest)
      return
    try:
      self._send(self._pipe.send_and_receive, nest)
    except Exception as error:
      self._fail(error)

  def receive(self) -> types.Tree | None:
    """Waits for the reply to the oldest request that has had none.

    Returns:
      The reply, its arrays read-only; None where the server's work is over.

    Raises:
      WireError: the stream failed.
      ValueError: a request does not fit its layout.
    """
    return next(self, None)

  @property
  def transferred_bytes(self) -> int:
    """Of the messages sent and received so far."""
    return self._sent_bytes + self._received_bytes

  def close(self) -> None:
    """Ends the stream at once; from any thread; harmless when it is over."""
    self._ended = True
    self._left |= not self.over.is_set()
    self._accepted.set()
    if self._queue is not None:
      self._queue.put(None)
    self._call.cancel()
    if self._pipe is not None:
      self._pipe.close()

  def _encoded(self) -> Iterator[bytes]:
    """The requests as messages; gRPC runs this on a thread of its own."""
    with _streams_lock:
      _senders.add(threading.current_thread())
    self._accepted.wait()
    if self._ended or (self._queue and self._pipe):
      return
    try:
      for request in self._requests:
        if self._pipe is not None:
          self._send(self._pipe.send, request)
          continue
        message = self._inputs.encode(request)
        self._sent_bytes += len(message)
        yield message
      if self._pipe is not None:
        self._pipe.end()
    except Exception as error:
      self._fail(error)

  def _send(self, send: Callable[[bytes], bool], nest: types.Tree) -> None:
    message = self._inputs.encode(nest)
    if send(message):
      self._sent_bytes += len(message)

  def _fail(self, error: Exception) -> None:
    """Ends the stream since a request cannot be sent."""
    self._request_error = error
    self._call.cancel()
    if self._pipe is not None:
      self._pipe.close()

  def _connect(self, unix_path: str, secret: str) -> None:
    """Connects to where the messages go.

    Raises:
      WireError: UNAVAILABLE, nobody is there any more.
    """
    try:
      self._pipe = pipe_lib.connect(
        unix_path, secret, layout_lib.MAX_MESSAGE_BYTES
      )
    except (OSError, ValueError) as error:
      raise calls.WireError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
    self._call.add_callback(self._end_pipe)

  def _end_pipe(self) -> None:
    """Where the server cannot end it."""
    if self._call.code() is grpc.StatusCode.UNAVAILABLE:
      assert self._pipe is not None
      self._pipe.close()


def _until_none(
  requests: queue.SimpleQueue[types.Tree],
) -> Iterator[types.Tree]:
  while (request := requests.get()) is not None:
    yield request


_streams: "weakref.WeakSet[Stream]" = weakref.WeakSet()
_senders: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
_streams_lock = threading.Lock()


@atexit.register
def _end_streams() -> None:
  """Ends what is open before Python ends the threads of it, wherever they are.

  One of them may hold the call's lock. gRPC takes it once more when Python
  deletes the call, and the program would never end. And where Python ends a
  thread below gRPC's C++, the program may be aborted.
  """
  with _streams_lock:
    streams, senders = list(_streams), list(_senders)
  for stream in streams:
    stream.close()
  for stream in streams:
    stream.over.wait(_OVER_SECONDS)
  deadline = time.monotonic() + _OVER_SECONDS
  for sender in senders:
    sender.join(max(0.0, deadline - time.monotonic()))


class Client:
  """A connection to a server; it is made at the first call, and remade.

  Attributes:
    was_accepted: whether the server has taken a stream of this client's.
  """

  def __init__(
    self,
    address: str,
    security: security_lib.Security = security_lib.LOCAL,
  ) -> None:
    """Connects to nothing yet.

    Args:
      address: `Server.address`.
      security: what the server has to show, and what it is shown.

    Raises:
      types.ConfigError: the address is of another machine, which would not have
        to show anything; or a file cannot be used.
    """
    self.was_accepted = False
    self._unix_path = security_lib.unix_path(address)
    credentials = security.of_client(address).credentials
    if credentials is None:
      self._channel = grpc.insecure_channel(address, options=_OPTIONS)
    else:
      self._channel = grpc.secure_channel(address, credentials, _OPTIONS)

  def call(
    self,
    name: str,
    nest: types.Tree,
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    timeout_seconds: float | None = None,
  ) -> types.Tree:
    """Calls a method once.

    Args:
      name: of the method.
      nest: of `[rows, ...]` arrays.
      inputs: layout of `nest`.
      outputs: layout of the reply.
      timeout_seconds: until DEADLINE_EXCEEDED; None waits for ever.

    Returns:
      The reply, its arrays read-only.

    Raises:
      WireError: the call failed.
      ValueError: `nest` does not fit `inputs`.
    """
    method = self._channel.unary_unary(calls.PATH_PREFIX + name)
    try:
      message, call = method.with_call(
        inputs.encode(nest),
        timeout=timeout_seconds,
        metadata=_metadata(inputs, {}, pipe=False),
      )
    except grpc.RpcError as error:
      raise self._failure(error) from None
    _answer(call, outputs)
    return _decode(outputs, message)

  def stream(
    self,
    name: str,
    requests: Iterable[types.Tree],
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    hello: Mapping[str, Any] | None = None,
  ) -> Stream:
    """Opens a stream and waits until the server has accepted it.

    Args:
      name: of the method.
      requests: nests of `[rows, ...]` arrays, iterated on another thread from
        the acceptance on. gRPC takes a few before they are answered. One that
        blocks for ever leaves that thread, a daemon, behind.
      inputs: layout of the requests.
      outputs: layout of the replies.
      hello: for the server's session; has to fit into JSON.

    Returns:
      The stream.

    Raises:
      WireError: the server refused or is not there.
    """
    return self._open(name, requests, inputs, outputs, hello)

  def exchange(
    self,
    name: str,
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    hello: Mapping[str, Any] | None = None,
  ) -> Stream:
    """Opens a stream whose requests go by `Stream.send`; see `stream`."""
    return self._open(name, None, inputs, outputs, hello)

  def close(self) -> None:
    """Cancels what is open and disconnects."""
    self._channel.close()

  def __enter__(self) -> "Client":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def _open(
    self,
    name: str,
    requests: Iterable[types.Tree] | None,
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    hello: Mapping[str, Any] | None,
  ) -> Stream:
    method = self._channel.stream_stream(calls.PATH_PREFIX + name)
    path = self._unix_path
    if path is not None and not pipe_lib.is_at(path):
      path = None
    stream = Stream(
      method, requests, inputs, outputs, hello or {}, path, self._failure
    )
    self.was_accepted = True
    return stream

  def _failure(self, error: grpc.RpcError) -> calls.WireError:
    """How a call failed; CANCELLED only where the server is done.

    Its functions and sessions give a reason, `name: message`. gRPC gives none
    for calls that were silent, or idle as the server stopped.
    """
    failure = _wire_error(error)
    is_cancelled = failure.code is grpc.StatusCode.CANCELLED
    if is_cancelled and ": " not in failure.message and self._serves():
      return calls.WireError(
        grpc.StatusCode.UNAVAILABLE,
        "the server has ended a call that was silent for too long",
      )
    return failure

  def _serves(self) -> bool:
    """Whether the server is there and does not stop: it has no such method."""
    try:
      self._channel.unary_unary(calls.PATH_PREFIX)(b"", timeout=_ASK_SECONDS)
    except grpc.RpcError as error:
      # One that is busy for so long has not stopped: its connection is there.
      return error.code() in (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
      )
    except ValueError:  # This client is closed.
      return False
    return True


def _metadata(
  inputs: layout_lib.Layout, hello: Mapping[str, Any], *, pipe: bool
) -> tuple[tuple[str, bytes]]:
  said = {**inputs.to_json(), "hello": dict(hello)}
  text = json.dumps({**said, "pipe": True} if pipe else said)
  return ((calls.METADATA_KEY, text.encode()),)


def _answer(call: Any, outputs: layout_lib.Layout) -> Mapping[str, Any]:
  """What the server says first; raises unless its replies follow `outputs`."""
  metadata = dict(call.initial_metadata() or ())
  text = metadata.get(calls.METADATA_KEY)
  if text is None:
    # Refused before the answer, or the server is not one of seedx.
    if call.code() is not grpc.StatusCode.OK:
      raise calls.WireError(call.code(), call.details() or "")
    text = b"null"
  try:
    found = layout_lib.from_json(text)
    difference = outputs.difference(found)
  except layout_lib.MessageError as error:
    difference = str(error)
  if difference is not None:
    raise calls.WireError(
      grpc.StatusCode.FAILED_PRECONDITION,
      f"reply layout: {difference}. Start both ends with the same "
      "configuration and version.",
    )
  found.setdefault("welcome", {})
  if not isinstance(found["welcome"], dict):
    raise calls.unwelcome("an object", found["welcome"])
  return found


def _decode(outputs: layout_lib.Layout, message: bytes) -> types.Tree:
  try:
    return outputs.decode(message)
  except layout_lib.MessageError as error:
    raise calls.WireError(
      grpc.StatusCode.INTERNAL, f"reply: {error}"
    ) from error


def _wire_error(error: grpc.RpcError) -> calls.WireError:
  return calls.WireError(error.code(), error.details() or "")
