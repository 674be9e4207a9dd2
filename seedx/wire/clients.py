"""A client that makes calls and streams of nests of arrays."""

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
from seedx.wire import array_layout, authentication, calls, unix_pipe

_OPTIONS: list[tuple[str, Any]] = [
  *calls.CHANNEL_OPTIONS,
  *calls.metadata_limit(calls.METADATA_BYTES),
  ("grpc.max_receive_message_length", -1),
  # Each client has its own connection, so a stalled client delays no other.
  ("grpc.use_local_subchannel_pool", 1),
  ("grpc.enable_http_proxy", 0),
  ("grpc.initial_reconnect_backoff_ms", 100),
  ("grpc.max_reconnect_backoff_ms", 2_000),
]
# Time for which the program's exit waits for each stream to end, and then for
# all threads that send requests.
_EXIT_SECONDS = 1.0
# Time to wait for an answer that shows whether a server is stopping.
_PROBE_SECONDS = 5.0


class Stream:
  """An open stream, whose replies come in the order of the requests.

  Iteration or `receive` returns replies. Iteration stops when all requests are
  answered, when the server has stopped (its work is over), or after `close`.
  Any other end raises `WireError`.

  Attributes:
    welcome: JSON object from the server's session.
    over: event that is set when the stream has ended.
  """

  def __init__(
    self,
    method: grpc.StreamStreamMultiCallable,
    requests: Iterable[types.Tree] | None,
    inputs: array_layout.Layout,
    outputs: array_layout.Layout,
    hello: Mapping[str, Any],
    unix_path: str | None,
    failure: Callable[[grpc.RpcError], calls.WireError],
  ) -> None:
    self._failure = failure
    self._queue: queue.SimpleQueue[types.Tree] | None = None
    if requests is None:
      self._queue = queue.SimpleQueue()
      requests = _until_none(self._queue)
    self._requests = requests
    self._pipe: unix_pipe.Pipe | None = None
    self._inputs = inputs
    self._outputs = outputs
    self._accepted = threading.Event()
    self._ended = False
    # Whether `close` has ended the stream, rather than the server.
    self._closed_here = False
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
    """Returns the next reply, with read-only arrays.

    Raises:
      StopIteration: the stream is over.
      WireError: the stream failed.
      Exception: the iterator of requests raised it.
    """
    try:
      message = self._pipe.receive() if self._pipe else None
      if message is None:  # There is no pipe, or it has ended.
        message = next(self._call, None)
    except grpc.RpcError as error:
      if self._request_error is not None:
        raise self._request_error from None
      failure = (
        _wire_error(error) if self._closed_here else self._failure(error)
      )
      if failure.code is grpc.StatusCode.CANCELLED:
        raise StopIteration from None
      raise failure from None
    if message is None:
      raise StopIteration
    self._received_bytes += len(message)
    return _decode(self._outputs, message)

  def __call__(self, nest: types.Tree) -> types.Tree | None:
    """Sends a request and returns the next reply; see `receive`."""
    self.send(nest)
    return self.receive()

  def send(self, nest: types.Tree, receives: bool = True) -> None:
    """Sends a request; the stream must be one that `Client.exchange` opened.

    With `receives`, replies that arrive meanwhile are kept for `receive`, which
    no other thread may call at the same time. If the request does not fit the
    layout, the stream ends, and the next `receive` raises ValueError.
    """
    assert self._queue is not None
    if self._pipe is None:
      self._queue.put(nest)
      return
    try:
      pipe = self._pipe
      self._send(pipe.send_and_receive if receives else pipe.send, nest)
    except Exception as error:
      self._fail(error)

  def receive(self) -> types.Tree | None:
    """Waits for the next reply; None if the server's work is over.

    Raises:
      WireError: the stream failed.
      ValueError: a request does not fit its layout.
    """
    return next(self, None)

  @property
  def transferred_bytes(self) -> int:
    """Number of bytes of the messages sent and received so far."""
    return self._sent_bytes + self._received_bytes

  def close(self) -> None:
    """Ends the stream at once, if it is not over; any thread may call it."""
    self._ended = True
    self._closed_here |= not self.over.is_set()
    self._accepted.set()
    if self._queue is not None:
      self._queue.put(None)
    self._call.cancel()
    if self._pipe is not None:
      self._pipe.close()

  def _encoded(self) -> Iterator[bytes]:
    """Yields the requests, or sends them through the pipe, on gRPC's thread."""
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
    self._request_error = error
    self._call.cancel()
    if self._pipe is not None:
      self._pipe.close()

  def _connect(self, unix_path: str, secret: str) -> None:
    try:
      self._pipe = unix_pipe.connect(
        unix_path, secret, array_layout.MAX_MESSAGE_BYTES
      )
    except (OSError, ValueError) as error:
      raise calls.WireError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
    self._call.add_callback(self._end_pipe)

  def _end_pipe(self) -> None:
    """Closes the pipe if the server has gone and cannot close it."""
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
  """Ends the open streams before Python stops their threads.

  Otherwise, gRPC may wait forever for a call's lock that a stopped thread
  holds. A thread that is stopped within gRPC's C++ may abort the program.
  """
  with _streams_lock:
    streams, senders = list(_streams), list(_senders)
  for stream in streams:
    stream.close()
  for stream in streams:
    stream.over.wait(_EXIT_SECONDS)
  deadline = time.monotonic() + _EXIT_SECONDS
  for sender in senders:
    sender.join(max(0.0, deadline - time.monotonic()))


class Client:
  """A connection to a server.

  The first call connects, and so does the next call after the connection is
  lost.

  Attributes:
    was_accepted: whether the server has accepted a stream of this client.
  """

  def __init__(
    self,
    address: str,
    security: authentication.Security = authentication.LOCAL,
  ) -> None:
    """Makes a client without connecting it.

    Raises:
      types.ConfigError: `security` does not authenticate a server on another
        machine, or a file cannot be used.
    """
    self.was_accepted = False
    self._unix_path = authentication.unix_path(address)
    credentials = security.of_client(address).credentials
    if credentials is None:
      self._channel = grpc.insecure_channel(address, options=_OPTIONS)
    else:
      self._channel = grpc.secure_channel(address, credentials, _OPTIONS)

  def call(
    self,
    name: str,
    nest: types.Tree,
    inputs: array_layout.Layout,
    outputs: array_layout.Layout,
    timeout_seconds: float | None = None,
  ) -> types.Tree:
    """Calls a method with `[rows, ...]` arrays.

    A `timeout_seconds` of None is no limit.

    Returns:
      The reply, with read-only arrays.

    Raises:
      WireError: the call failed; DEADLINE_EXCEEDED after `timeout_seconds`.
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
    requests: Iterable[types.Tree] | None,
    inputs: array_layout.Layout,
    outputs: array_layout.Layout,
    hello: Mapping[str, Any] | None = None,
  ) -> Stream:
    """Opens a stream and waits until the server has accepted it.

    Then a daemon thread iterates `requests`, nests of `[rows, ...]` arrays. The
    thread does not wait for replies, only for room in the buffers of the
    connection. If `requests` is None, `Stream.send` sends the requests. `hello`
    is a JSON object for the session.

    Raises:
      WireError: the server refused the stream, or there is no server.
    """
    method = self._channel.stream_stream(calls.PATH_PREFIX + name)
    path = self._unix_path
    if path is not None and not unix_pipe.is_at(path):
      path = None
    stream = Stream(
      method, requests, inputs, outputs, hello or {}, path, self._failure
    )
    self.was_accepted = True
    return stream

  def exchange(
    self,
    name: str,
    inputs: array_layout.Layout,
    outputs: array_layout.Layout,
    hello: Mapping[str, Any] | None = None,
  ) -> Stream:
    """Opens a stream whose requests `Stream.send` sends; see `stream`."""
    return self.stream(name, None, inputs, outputs, hello)

  def close(self) -> None:
    """Cancels all calls and streams, and disconnects."""
    self._channel.close()

  def __enter__(self) -> "Client":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def _failure(self, error: grpc.RpcError) -> calls.WireError:
    """Returns a call's error; CANCELLED only if the server's work is over.

    A CANCELLED without a reason, `name: message`, is ambiguous: gRPC sends it
    for silent calls, and for calls that were idle when the server stopped.
    """
    failure = _wire_error(error)
    is_cancelled = failure.code is grpc.StatusCode.CANCELLED
    if is_cancelled and ": " not in failure.message and self._serves():
      return calls.WireError(
        grpc.StatusCode.UNAVAILABLE,
        "the server ended a call that was silent for too long",
      )
    return failure

  def _serves(self) -> bool:
    """Returns whether the server is running and not stopping.

    A running server answers that it has no method with an empty name.
    """
    try:
      self._channel.unary_unary(calls.PATH_PREFIX)(b"", timeout=_PROBE_SECONDS)
    except grpc.RpcError as error:
      # At DEADLINE_EXCEEDED, the server is connected, but too busy to answer.
      return error.code() in (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
      )
    except ValueError:  # This client is closed.
      return False
    return True


def _metadata(
  inputs: array_layout.Layout, hello: Mapping[str, Any], *, pipe: bool
) -> tuple[tuple[str, bytes]]:
  handshake = {**inputs.to_json(), "hello": dict(hello)}
  text = json.dumps({**handshake, "pipe": True} if pipe else handshake)
  return ((calls.METADATA_KEY, text.encode()),)


def _answer(call: Any, outputs: array_layout.Layout) -> Mapping[str, Any]:
  """Returns the server's half of the handshake; checks its layout."""
  metadata = dict(call.initial_metadata() or ())
  text = metadata.get(calls.METADATA_KEY)
  if text is None:
    # The call was refused, or this is not a server of seedx.
    if call.code() is not grpc.StatusCode.OK:
      raise calls.WireError(call.code(), call.details() or "")
    text = b"null"
  try:
    handshake = array_layout.from_json(text)
    difference = outputs.difference(handshake)
  except array_layout.MessageError as error:
    difference = str(error)
  if difference is not None:
    raise calls.WireError(
      grpc.StatusCode.FAILED_PRECONDITION,
      f"reply layout: {difference}; start both ends with the same"
      " configuration and version",
    )
  handshake.setdefault("welcome", {})
  if not isinstance(handshake["welcome"], dict):
    raise calls.bad_welcome("an object", handshake["welcome"])
  return handshake


def _decode(
  outputs: array_layout.Layout, message: array_layout.Buffer
) -> types.Tree:
  try:
    return outputs.decode(message)
  except array_layout.MessageError as error:
    raise calls.WireError(
      grpc.StatusCode.INTERNAL, f"reply: {error}"
    ) from error


def _wire_error(error: grpc.RpcError) -> calls.WireError:
  return calls.WireError(error.code(), error.details() or "")
