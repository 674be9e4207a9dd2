"""A server of functions and sessions that take and return nests of arrays."""

import collections
import contextlib
import functools
import json
import logging
import math
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, Protocol, runtime_checkable

import grpc

from seedx import types
from seedx.wire import (
  array_layout,
  authentication,
  bundles,
  calls,
  listening,
  pipe_thread,
  threads,
  unix_pipe,
)

# A handshake may have this many bytes plus four times those of its layout,
# since JSON may have spaces, and gRPC may add base64. The size has a limit
# because decoding 1 MiB of JSON holds Python's lock for 0.2 s.
_HELLO_BYTES = 1 << 14
# gRPC resets a connection's calls beyond this limit before Python sees them.
# Refused and cancelled calls count until `_SPENT_SECONDS` after their end, so
# that a client that resets calls in rapid succession costs little.
_CALLS_PER_CONNECTION = 100
_SPENT_SECONDS = 10.0
# Bounds memory: each spent call keeps its handshake.
_MAX_SPENT_CALLS = 4_096

_SERVER_OPTIONS: list[tuple[str, Any]] = [
  *calls.CHANNEL_OPTIONS,
  ("grpc.so_reuseport", 0),
  # gRPC's default would answer the clients' keepalive with "too many pings".
  ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
  # Connections without a handshake, and later without calls, are closed after
  # these times, which frees their descriptors.
  ("grpc.server_handshake_timeout_ms", 10_000),
  ("grpc.max_connection_idle_ms", 60_000),
  ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
]
# A request slightly above its limit gets seedx's message, not gRPC's.
_SLACK_BYTES = 1 << 16
# Number of calls that are refused with a reason when all streams are taken, and
# number of idle threads that are kept.
_SPARE_CALLS = 16
# After a silent stream, its host is refused for this time, so that other hosts
# can connect.
_YIELD_SECONDS = 5.0
# With more streams, threads wait for Python's lock: with 512, a message took
# twice the CPU time that it took with 128, and connecting took half a minute.
_MANY_STREAMS = 128
# Times in `stop`: before idle streams are cancelled, for cancelled streams to
# end, and for gRPC to send their statuses.
_IDLE_SECONDS = 0.2
_JOIN_SECONDS = 1.0
_FLUSH_SECONDS = 0.5
_STOPPING = "the server is stopping"
# A client that was refused for lack of room tries again within this time.
_RETRY_SECONDS = 1.5
_ERROR_CHARACTERS = 2_000
# Time between two warnings about refused calls.
_WARNING_SECONDS = 60.0

_log = logging.getLogger("seedx.wire")


class Session(Protocol):
  """The server's side of one stream."""

  @property
  def welcome(self) -> Mapping[str, Any]:
    """JSON object that is sent to the client before anything else."""

  def __call__(self, inputs: types.Tree) -> types.Tree:
    """Answers a request; may block, since each stream has its own thread.

    The arrays of `inputs` are read-only. `Refusal` ends the stream with its
    status, any other error with INTERNAL.
    """

  def close(self) -> None:
    """Ends the session; called once, however the stream ends.

    Another thread may call `close` during a `__call__`, which must then return
    or raise soon. `close` must not block, since other streams would wait.
    """


class Request:
  """A message that waits for its answer; only the first answer counts.

  Attributes:
    message: the bytes; their header and size have been checked.
    rows: number of rows.
    arrived_seconds: time at which the message arrived, by `time.monotonic`.
  """

  def __init__(
    self,
    message: array_layout.Buffer,
    rows: int,
    answer: Callable[[bytes | calls.Refusal], None],
  ) -> None:
    self.message = message
    self.rows = rows
    self.arrived_seconds = time.monotonic()
    self._answer = answer
    self._is_answered = threading.Lock()

  def reply(self, message: bytes) -> None:
    """Sends the reply; does not block, and any thread may call it."""
    if self._is_answered.acquire(blocking=False):
      self._answer(message)

  def refuse(self, reason: calls.Refusal) -> None:
    """Ends the stream with a status; any thread may call it."""
    if self._is_answered.acquire(blocking=False):
      self._answer(reason)


@runtime_checkable
class BatchedSession(Protocol):
  """The server's side of a stream whose requests are answered in batches."""

  @property
  def welcome(self) -> Mapping[str, Any]:
    """JSON object that is sent to the client before anything else."""

  def receive(self, request: Request) -> None:
    """Takes a request, which any thread may answer later; must not block.

    The next request comes after the answer to this one. `Refusal` ends the
    stream with its status, any other error with INTERNAL.
    """

  def close(self) -> None:
    """Ends the session, as in `Session`; a request may be unanswered."""


AnySession = Session | BatchedSession | bundles.Machine


class FunctionSession:
  """A session without state, which answers each request by a function."""

  def __init__(
    self,
    function: Callable[[types.Tree], types.Tree],
    welcome: Mapping[str, Any] | None = None,
    close: Callable[[], None] = lambda: None,
  ) -> None:
    self.welcome: Mapping[str, Any] = welcome or {}
    self.close = close
    self._function = function

  def __call__(self, inputs: types.Tree) -> types.Tree:
    return self._function(inputs)


class Server:
  """A server of functions and sessions.

  Usage: add methods by `bind` and `bind_stream`, then `start`, and `stop` in
  the end. `with server:` starts and stops it, without grace after an exception.
  The server's threads never keep the process alive.
  """

  def __init__(
    self,
    address: str,
    max_streams: int,
    silent_seconds: float = calls.SILENT_SECONDS,
    security: authentication.Security = authentication.LOCAL,
  ) -> None:
    """Makes a server that does not listen yet.

    Args:
      address: `host:port`, where port 0 picks a free one, or `unix:/path`.
      max_streams: maximum number of simultaneous calls and streams of each
        method; further ones are refused with RESOURCE_EXHAUSTED.
      silent_seconds: seconds that a stream waits for its client before it ends.
        If the stream had a session, the client's host is then refused for 5 s,
        so that a waiting host can take its place.
      security: TLS and token that clients need.

    Raises:
      types.ConfigError: `max_streams` is less than 1, other machines could
        reach the address without TLS and a token, or a file of `security`
        cannot be used.
    """
    if max_streams < 1:
      raise types.ConfigError(
        f"expected max_streams of at least 1, found {max_streams}"
      )
    self._wanted_address = address
    self._max_streams = max_streams
    self._silent_seconds = silent_seconds
    self._methods: dict[str, _Method] = {}
    self._grpc: grpc.Server | None = None
    self._threads = threads.DaemonThreads(keep=_SPARE_CALLS)
    self._address: str | None = None
    self._stop_lock = threading.Lock()
    self._stopping = threading.Event()
    self._security = security.of_server(address)
    self._handlers = _Handlers(
      self._methods, self._stopping, self._security, self._threads.submit
    )

  @property
  def address(self) -> str:
    """Address of the started server, with the actual port."""
    if self._address is None:
      raise RuntimeError("the server has no address before it is started")
    return self._address

  @property
  def transferred_bytes(self) -> int:
    """Number of bytes of all messages received and sent so far."""
    return sum(method.transferred_bytes for method in self._methods.values())

  def bind(
    self,
    name: str,
    function: Callable[[types.Tree], types.Tree],
    inputs: array_layout.Layout,
    outputs: array_layout.Layout,
    cancel: Callable[[], None] | None = None,
  ) -> None:
    """Adds a method that answers requests by a function.

    The function takes a nest of `inputs`, with read-only arrays, and returns
    one of `outputs`. Several threads call the function at the same time; it may
    block, and may raise `Refusal`. If calls are still blocked after the grace
    of `stop`, `stop` calls `cancel` once, which must make them return or raise.
    """
    session, limit = FunctionSession(function), self._max_streams
    method = _Method(name, lambda _: session, inputs, outputs, limit, cancel)
    method.is_stream = False
    self._bind(method)

  def bind_stream(
    self,
    name: str,
    open_session: Callable[[Mapping[str, Any]], Session],
    inputs: array_layout.Layout,
    outputs: array_layout.Layout,
    max_streams: int | None = None,
  ) -> None:
    """Adds a method whose streams each have a session.

    `open_session` makes a session from the client's hello, and may raise
    `Refusal`. `max_streams` replaces the server's maximum for this method.
    """
    limit = max_streams or self._max_streams
    self._bind(_Method(name, open_session, inputs, outputs, limit))

  def bind_batched(
    self,
    name: str,
    open_session: Callable[[Mapping[str, Any]], BatchedSession],
    inputs: array_layout.Layout,
    outputs: array_layout.Layout,
  ) -> None:
    """Adds a method whose requests are answered in batches.

    Unlike in `bind_stream`, sessions decode the requests, which have no `once`
    columns, and encode the replies. One thread receives the messages of all
    pipes.
    """
    method = _Method(name, open_session, inputs, outputs, self._max_streams)
    method.is_batched = True
    self._bind(method)

  def measure(self) -> dict[str, int]:
    """Returns the server's metrics."""
    return {"wire_bytes": self.transferred_bytes}

  def start(self) -> None:
    """Binds the address and serves.

    Raises:
      types.ConfigError: the address is in use or not valid.
    """
    if self._grpc is not None:
      raise RuntimeError("the server has been started already")
    limit = max(
      (
        method.inputs.message_bytes(method.inputs.max_rows)
        for method in self._methods.values()
      ),
      default=0,
    )
    limit = min(2 * limit + _SLACK_BYTES, array_layout.MAX_MESSAGE_BYTES)
    listening.check_free(self._wanted_address)
    server = grpc.server(
      self._threads,
      [self._handlers],
      options=[
        *_SERVER_OPTIONS,
        ("grpc.max_receive_message_length", limit),
        *calls.metadata_limit(_hello_limit(self._methods.values())),
        ("grpc.max_allowed_incoming_connections", listening.max_connections()),
      ],
      maximum_concurrent_rpcs=_max_calls(self._methods.values()),
    )
    self._address = listening.listen(
      server, self._wanted_address, self._security.credentials
    )
    if path := authentication.unix_path(self._wanted_address):
      with contextlib.suppress(OSError):  # Else gRPC carries all messages.
        self._handlers.listener = listening.Listener(path)
      is_batched = any(method.is_batched for method in self._methods.values())
      # Without epoll, as on macOS, each stream's thread waits.
      if is_batched and hasattr(select, "epoll"):
        self._handlers.pipes = pipe_thread.Pipes()
    server.start()
    self._grpc = server
    for warning in (self._security.warning, self._many_streams_warning()):
      if warning:
        print(warning, file=sys.stderr, flush=True)
    threading.Thread(target=self._watch, name="wire", daemon=True).start()

  def _many_streams_warning(self) -> str:
    if self._max_streams <= _MANY_STREAMS:
      return ""
    return (
      f"warning: up to {self._max_streams} processes may connect, and messages"
      f" cost more if more than {_MANY_STREAMS} do; fewer processes with more"
      " environments each, or several learner hosts, are faster"
    )

  def stop(self, grace_seconds: float = 1.0) -> None:
    """Ends all streams and stops serving; does nothing the second time.

    A stream that is answering a request ends with OK after the reply. A stream
    that waits for a request, or is still blocked after `grace_seconds`, ends
    with CANCELLED, and its session is closed. Both statuses mean to a client
    that the server's work is over. A call that stays blocked is left on a
    daemon thread.
    """
    with self._stop_lock:
      self._stopping.set()
      if self._grpc is None:
        return
      all_retried_seconds = time.monotonic() + _RETRY_SECONDS
      methods = self._methods.values()
      _wait_for_end(methods, min(grace_seconds, _IDLE_SECONDS))
      for method in methods:
        method.cancel_streams(only_idle=True)
      _wait_for_end(methods, grace_seconds)
      for method in methods:
        method.cancel_streams(only_idle=False)
      if blocked := _wait_for_end(methods, _JOIN_SECONDS):
        _log.error(
          "calls remain blocked after close() or cancel(): %s", blocked
        )
      if (
        self._handlers.last_full_seconds
        > all_retried_seconds - 2 * _RETRY_SECONDS
      ):
        # Clients that found no room try again, and so receive CANCELLED, too.
        time.sleep(max(0.0, all_retried_seconds - time.monotonic()))
      self._handlers.machines.close_streams()
      # With 0 seconds, gRPC might send UNAVAILABLE in place of the statuses
      # that it has not sent yet, and the clients would try again.
      self._grpc.stop(_FLUSH_SECONDS).wait(2 * _FLUSH_SECONDS)
      self._threads.shutdown()
      self._grpc = None
      if self._handlers.listener is not None:
        self._handlers.listener.close()
      if self._handlers.pipes is not None:
        self._handlers.pipes.close()
      if path := authentication.unix_path(self._wanted_address):
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)

  def __enter__(self) -> "Server":
    self.start()
    return self

  def __exit__(self, kind: type | None, *_: object) -> None:
    if kind is None:
      self.stop()
    else:
      self.stop(0)

  def _watch(self) -> None:
    while not self._stopping.wait(min(1.0, self._silent_seconds / 4)):
      for method in self._methods.values():
        method.end_silent(self._silent_seconds)
      self._handlers.forget_spent_calls()

  def _bind(self, method: "_Method") -> None:
    if self._grpc is not None:
      raise RuntimeError(f"bind {method.name!r} before the server starts")
    if method.name in self._methods:
      raise types.ConfigError(f"two methods have the name {method.name!r}")
    self._methods[method.name] = method


class _Method:
  """A method of the server, and its open streams."""

  def __init__(
    self,
    name: str,
    open_session: Callable[[Mapping[str, Any]], AnySession],
    inputs: array_layout.Layout,
    outputs: array_layout.Layout,
    max_streams: int,
    cancel: Callable[[], None] | None = None,
  ) -> None:
    self.name = name
    self.is_stream = True
    self.is_batched = False
    self.open_session = open_session
    self.inputs = inputs
    self.outputs = outputs
    self.max_streams = max_streams
    self._cancel = cancel
    self._lock = threading.Lock()
    self._streams: set[_Stream] = set()
    # The times until which hosts are refused.
    self._refused_until: dict[str, float] = {}
    self.transferred_bytes = 0

  def count_bytes(self, size: int) -> None:
    """Adds to the number of transferred bytes."""
    with self._lock:
      self.transferred_bytes += size

  def num_streams(self) -> int:
    """Returns the number of open streams."""
    return len(self._streams)

  def add(self, stream: "_Stream") -> str | None:
    """Adds a stream, or returns the reason why it is refused."""
    with self._lock:
      if self._refused_until.get(stream.host, 0.0) > time.monotonic():
        return (
          "a stream from this host was silent, so other hosts have"
          f" {_YIELD_SECONDS:g} seconds to take its place"
        )
      if len(self._streams) >= self.max_streams:
        return (
          f"expected at most {self.max_streams} connections, found one more"
        )
      self._streams.add(stream)
      return None

  def remove(self, stream: "_Stream") -> None:
    """Removes a stream that has ended."""
    with self._lock:
      self._streams.discard(stream)

  def end_silent(self, seconds: float) -> None:
    """Ends the streams whose clients have been silent for this long."""
    now = time.monotonic()
    with self._lock:
      silent = [
        stream
        for stream in self._streams
        if (since := stream.silent_since) is not None and now > since + seconds
      ]
      self._refused_until = {
        **{host: end for host, end in self._refused_until.items() if end > now},
        # Without sessions, no host waits for a place.
        **{x.host: now + _YIELD_SECONDS for x in silent if self.is_stream},
      }
    for stream in silent:
      stream.end(
        calls.Refusal(
          grpc.StatusCode.UNAVAILABLE,
          f"the client sent or received nothing within {seconds:g} seconds",
        )
      )

  def close_streams(self) -> None:
    """Ends all streams after what they have sent."""
    for stream in list(self._streams):
      stream.close()

  def cancel_streams(self, only_idle: bool) -> None:
    """Ends all streams; if `only_idle`, those that wait for a request."""
    with self._lock:
      streams = list(self._streams)
    if streams and not only_idle and self._cancel is not None:
      self._cancel()
    for stream in streams:
      if not (only_idle and stream.busy):
        stream.cancel()


class _Stream:
  """One call, from its first byte to its last, on its own thread."""

  def __init__(
    self,
    method: _Method,
    context: grpc.ServicerContext | bundles.Call,
    stopping: threading.Event,
    listener: listening.Listener | None,
    pipes: pipe_thread.Pipes | None = None,
  ) -> None:
    call = context if isinstance(context, bundles.Call) else None
    self._method = method
    self._context = context
    self._stopping = stopping
    self._listener = listener
    self._pipes = call or pipes
    self._lock = threading.Lock()
    self._session: AnySession | None = None
    # Only a client on this machine may ask for a pipe.
    self._pipe: unix_pipe.Pipe | bundles.Call | None = call
    self._closed = False
    # The status with which another thread has ended the call.
    self._ended: calls.Refusal | None = None
    # For a stream that `Pipes` serves: whether it is over, the error that ended
    # it, and the part of a reply for which the pipe had no room yet.
    self._over = threading.Event()
    self._failure: Exception | None = None
    self._unsent = memoryview(b"")
    self.busy = True
    self.host = context.peer().rpartition(":")[0]
    # The time since which the client has not sent its next request or has not
    # received a reply; None while a request is answered.
    self.silent_since: float | None = None

  def serve(self, requests: Iterator[bytes]) -> Iterator[bytes]:
    """Answers the requests in turn, then ends the call with its status."""
    try:
      session = self._open()
      if isinstance(session, bundles.Machine):
        with _invalid_if_malformed():
          yield from session.serve(requests, self._context.peer())
        return
      self.silent_since = time.monotonic()
      if not isinstance(session, BatchedSession):
        answer = functools.partial(self._answer, session)
      elif self._pipe is not None and self._pipes is not None:
        self._wait_for_end(session, self._pipe, self._pipes)
        return
      else:
        answer = functools.partial(self._ask, session)
      while (request := self._next(requests)) is not None:
        reply = answer(request)
        self.silent_since = time.monotonic()
        if self._pipe is None:
          yield reply
        elif not self._pipe.send(reply):
          self._check_ended()
          return
    except calls.Refusal as refused:
      # If another thread has ended the call, the refusal is only an effect of
      # that, so the other thread's reason is sent.
      raise self._named(self._ended or refused) from refused
    except Exception as error:
      reason = calls.Refusal(grpc.StatusCode.CANCELLED, _STOPPING)
      if not self._closed:  # Else the server stops, or the client has left.
        _log.exception("%s: a call raised an error", self._method.name)
        message = f"{type(error).__name__}: {error}"
        reason = calls.Refusal(grpc.StatusCode.INTERNAL, message)
      raise self._named(reason) from error
    finally:
      self.close()

  def end(self, reason: calls.Refusal | None) -> None:
    """Ends the call from another thread; OK if the reason is None."""
    self._ended = reason
    self.close()
    if self._pipe is None:  # A closed pipe ends the call itself.
      self._context.cancel()

  def cancel(self) -> None:
    """Ends the call from another thread."""
    self._ended = calls.Refusal(grpc.StatusCode.CANCELLED, _STOPPING)
    self.close()
    self._context.cancel()

  def close(self) -> None:
    """Closes the session and the pipe; a second call does nothing."""
    with self._lock:
      session, self._session = self._session, None
      self._closed, pipe = True, self._pipe
    self._over.set()
    if pipe is not None:
      pipe.close()
    if session is not None:
      try:
        session.close()
      except Exception:
        _log.exception("%s: close() raised an error", self._method.name)

  def _wait_for_end(
    self,
    session: BatchedSession,
    pipe: unix_pipe.Pipe | bundles.Call,
    pipes: pipe_thread.Pipes | bundles.Call,
  ) -> None:
    """Waits while other threads receive and answer the requests of a pipe."""
    self.busy = False
    pipes.add(pipe.fileno(), functools.partial(self._ready, session))
    try:
      if not self._stopping.is_set():
        self._over.wait()
    finally:
      pipes.remove(pipe.fileno())
    if self._failure is not None:
      raise self._failure
    self._check_ended()

  def _ready(self, session: BatchedSession) -> None:
    """Receives or sends what the pipe can; runs on the thread of `Pipes`."""
    assert self._pipe is not None and self._pipes is not None
    try:
      if self._unsent:
        self._send(self._unsent)
      elif (message := self._received(self._pipe.receive_now)) is not None:
        session.receive(self._request(message, self._answered))
      else:
        self._over.set()
    except BlockingIOError:
      self._pipes.wait(self._pipe.fileno())
    except Exception as error:
      self._end(error)

  def _answered(self, answer: bytes | calls.Refusal) -> None:
    """Sends a reply or ends the stream, on the thread that has answered."""
    if isinstance(answer, calls.Refusal):
      self._end(answer)
    else:
      self._method.count_bytes(len(answer))
      self.silent_since = time.monotonic()
      self._send(memoryview(answer))

  def _send(self, reply: memoryview) -> None:
    """Sends what the pipe has room for; `_ready` continues with the rest."""
    assert self._pipe is not None and self._pipes is not None
    try:
      self._unsent = self._pipe.send_now(reply)
    except OSError:  # The client has left.
      self._over.set()
      return
    self.busy = bool(self._unsent)
    if self._stopping.is_set() and not self.busy:
      self._over.set()
    else:
      self._pipes.wait(self._pipe.fileno(), send=self.busy)

  def _end(self, failure: Exception) -> None:
    """Ends the call with a failure's status, from another thread."""
    self._failure = failure
    self._over.set()

  def _open(self) -> AnySession:
    hello, wants_pipe = _hello(self._context, self._method.inputs)
    session = self._method.open_session(hello)
    with self._lock:
      self._session = session
      closed, self._closed = self._closed, False
    # The callback closes a blocked session when its client leaves.
    if closed or not self._context.add_callback(self.close):
      self.close()
      raise calls.Refusal(grpc.StatusCode.CANCELLED, _STOPPING)
    # A relay's session ends its stream also while no request waits.
    if (attach := getattr(session, "attach", None)) is not None:
      attach(self.end)
    answer = {
      **self._method.outputs.to_json(),
      "welcome": dict(session.welcome),
    }
    has_own_messages = isinstance(session, bundles.Machine) or self._pipe
    listener = self._listener if wants_pipe and not has_own_messages else None
    if listener is not None:
      answer["pipe"] = secret = listener.expect()
    text = json.dumps(answer).encode()
    with contextlib.suppress(grpc.RpcError):
      self._context.send_initial_metadata(((calls.METADATA_KEY, text),))
    if listener is not None:
      inputs = self._method.inputs
      pipe = listener.wait(secret, inputs.message_bytes(inputs.max_rows))
      with self._lock:
        self._pipe, closed = pipe, self._closed
      if pipe is None or closed:  # The client has left.
        raise calls.Refusal(
          grpc.StatusCode.UNAVAILABLE,
          "the client did not connect to the socket for messages",
        )
    return session

  def _next(self, requests: Iterator[bytes]) -> array_layout.Buffer | None:
    """Returns the next request, or None if the stream is to end with OK."""
    self.busy = False
    if self._stopping.is_set():
      return None
    if self._pipe is not None:
      return self._received(self._pipe.receive)
    return self._received(lambda: next(requests, None))

  def _received(
    self, receive: Callable[[], array_layout.Buffer | None]
  ) -> array_layout.Buffer | None:
    """Returns what `receive` returns, or None if its stream is to end with OK.

    Raises:
      Refusal: the stream is to end with this status.
    """
    try:
      request = receive()
    except grpc.RpcError as error:  # The client has left.
      # gRPC keeps the error, whose frames would keep the call alive.
      error.__traceback__ = None
      return None
    except array_layout.MessageError as error:
      raise calls.Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
      ) from error
    if request is None:
      self._check_ended()
      if self._pipe and self._pipe.cut:
        raise calls.Refusal(
          grpc.StatusCode.INVALID_ARGUMENT, "the stream ended within a message"
        )
      return None
    self.busy, self.silent_since = True, None
    return request

  def _check_ended(self) -> None:
    """Raises Refusal if another thread has ended the call.

    That thread closes the pipe first, and a closed pipe looks like the end of
    the requests, after which the call would end with OK.
    """
    if self._ended is not None:
      raise self._ended

  def _answer(self, session: Session, message: array_layout.Buffer) -> bytes:
    with _invalid_if_malformed():
      inputs = self._method.inputs.decode(message)
    reply = self._method.outputs.encode(session(inputs))
    self._method.count_bytes(len(message) + len(reply))
    return reply

  def _ask(
    self, session: BatchedSession, message: array_layout.Buffer
  ) -> bytes:
    """Waits for the reply to a message, and returns it."""
    answers: queue.SimpleQueue[bytes | calls.Refusal] = queue.SimpleQueue()
    session.receive(self._request(message, answers.put))
    answer = answers.get()
    if isinstance(answer, calls.Refusal):
      raise answer
    self._method.count_bytes(len(answer))
    return answer

  def _request(
    self,
    message: array_layout.Buffer,
    answer: Callable[[bytes | calls.Refusal], None],
  ) -> Request:
    with _invalid_if_malformed():
      rows = self._method.inputs.rows(message)
    self._method.count_bytes(len(message))
    return Request(message, rows, answer)

  def _named(self, reason: calls.Refusal) -> calls.Refusal:
    message = f"{self._method.name}: {reason.message}"[:_ERROR_CHARACTERS]
    # Text from JSON may have surrogates, which UTF-8 cannot encode.
    return calls.Refusal(reason.code, message.encode(errors="replace").decode())


class _Handlers(grpc.GenericRpcHandler):
  """The handlers of all methods, by path.

  On the network, a single call is a stream of one message, so one kind of
  handler serves both.
  """

  def __init__(
    self,
    methods: Mapping[str, _Method],
    stopping: threading.Event,
    security: authentication.ServerSecurity,
    submit: Callable[..., futures.Future[None]],
  ) -> None:
    # The time at which a method last had no room for a call.
    self.last_full_seconds = -math.inf
    self.listener: listening.Listener | None = None
    self.pipes: pipe_thread.Pipes | None = None
    self._methods = methods
    self._stopping = stopping
    self._security = security
    self._submit = submit
    # The streams of machines; gRPC limits their number.
    self.machines = _Method(
      bundles.BUNDLES,
      self._machine,
      bundles.LAYOUT,
      bundles.LAYOUT,
      sys.maxsize,
    )
    self._lock = threading.Lock()
    # Refused and cancelled calls, each with the time of its end.
    self._spent: collections.deque[tuple[float, object]] = collections.deque(
      maxlen=_MAX_SPENT_CALLS
    )
    self._without_token = 0
    self._warned_seconds = -math.inf

  def _count_without_token(self, peer: str) -> None:
    """Prints, at most once a minute, the number of calls without a token."""
    with self._lock:
      self._without_token += 1
      now = time.monotonic()
      if now < self._warned_seconds + _WARNING_SECONDS:
        return
      self._warned_seconds = now
      count, self._without_token = self._without_token, 0
    print(
      f"warning: refused {count} call(s) without the run's token, the last from"
      f" {types.printable(peer)}",
      file=sys.stderr,
      flush=True,
    )

  def forget_spent_calls(self) -> None:
    """Drops the references to old spent calls.

    gRPC counts a call among the 100 of its connection until nothing refers to
    the call any more.
    """
    old = time.monotonic() - _SPENT_SECONDS
    while self._spent and self._spent[0][0] < old:
      self._spent.popleft()

  def service(
    self, handler_call_details: grpc.HandlerCallDetails
  ) -> grpc.RpcMethodHandler | None:
    """Returns gRPC's handler of a call."""
    path, newest = handler_call_details.method, _Newest()

    def handle(
      requests: Iterator[_Newest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
      try:
        yield from self._handle(path, map(_Newest.take, requests), context)
      except calls.Refusal as refused:
        context.abort(refused.code, refused.message)
      finally:
        newest.close()
        if context.code() is not None or not context.is_active():
          self._spent.append((time.monotonic(), context))

    return grpc.stream_stream_rpc_method_handler(handle, newest.receive)

  def _handle(
    self, path: str, requests: Iterator[bytes], context: grpc.ServicerContext
  ) -> Iterator[bytes]:
    if not self._security.admits(context.invocation_metadata() or ()):
      self._count_without_token(context.peer())
      # Checked first, so that the answer does not even reveal the methods.
      raise calls.Refusal(
        grpc.StatusCode.UNAUTHENTICATED, "expected the run's token"
      )
    yield from self._serve(path, requests, context)

  def _machine(self, hello: Mapping[str, Any]) -> bundles.Machine:
    methods = self._methods.values()
    layouts = {
      x.name: (x.inputs.to_json(), x.outputs.to_json()) for x in methods
    }
    return bundles.Machine(
      {"methods": layouts},
      lambda path, call: self._serve(path, iter(()), call),
      self._submit,
      _max_calls(methods),
      _hello_limit(methods),
    )

  def _serve(
    self,
    path: str,
    requests: Iterator[bytes],
    context: grpc.ServicerContext | bundles.Call,
  ) -> Iterator[bytes]:
    name = path.removeprefix(calls.PATH_PREFIX)
    method = self._methods.get(name)
    if name == bundles.BUNDLES and not isinstance(context, bundles.Call):
      method = self.machines
    if self._stopping.is_set():
      is_stream = method is not None and method.is_stream
      codes = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED
      raise calls.Refusal(codes[is_stream], _STOPPING)
    if method is None:
      names = [calls.PATH_PREFIX + name for name in self._methods]
      raise calls.Refusal(
        grpc.StatusCode.UNIMPLEMENTED,
        f"expected a method of {names}, found {path}",
      )
    stream = _Stream(method, context, self._stopping, self.listener, self.pipes)
    if (reason := method.add(stream)) is not None:
      self.last_full_seconds = time.monotonic()
      raise calls.Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED, f"{method.name}: {reason}"
      )
    try:
      yield from stream.serve(requests)
    finally:
      method.remove(stream)


class _Newest:
  """The newest request of a call, which is freed when the call ends.

  Otherwise, a spent call would keep a request that arrived at its end.
  """

  def __init__(self) -> None:
    self._is_open, self._message = True, b""

  def receive(self, message: bytes) -> "_Newest":
    """Stores a request; gRPC calls this as the deserializer."""
    if self._is_open:
      self._message = message
    return self

  def take(self) -> bytes:
    """Returns the message and forgets it."""
    message, self._message = self._message, b""
    return message

  def close(self) -> None:
    """Frees the request, and later ones as they arrive."""
    self._is_open, self._message = False, b""


@contextlib.contextmanager
def _invalid_if_malformed() -> Iterator[None]:
  try:
    yield
  except array_layout.MessageError as error:
    raise calls.Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error


def _hello(
  context: grpc.ServicerContext | bundles.Call, inputs: array_layout.Layout
) -> tuple[Mapping[str, Any], bool]:
  """Returns the client's hello, and whether the client asks for a pipe.

  Raises:
    Refusal: FAILED_PRECONDITION, the client's handshake is not valid, or its
      layout is not `inputs`.
  """
  metadata = dict(context.invocation_metadata() or ())
  difference: str | None
  handshake: Any = None
  try:
    handshake = array_layout.from_json(metadata[calls.METADATA_KEY])
    difference = inputs.difference(handshake)
  except KeyError:
    difference = f"expected metadata {calls.METADATA_KEY}, found none"
  except array_layout.MessageError as error:
    difference = f"{calls.METADATA_KEY}: {error}"
  if difference is None:
    rows = handshake.get("max_rows", 1)
    hello = handshake.get("hello", {})
    if not isinstance(rows, int) or not 1 <= rows <= inputs.max_rows:
      difference = (
        f"expected max_rows from 1 to {inputs.max_rows}, found {rows!r:.80}"
      )
    elif not isinstance(hello, dict):
      difference = f"expected an object as hello, found {hello!r:.80}"
    else:
      return hello, handshake.get("pipe") is True
  raise calls.Refusal(
    grpc.StatusCode.FAILED_PRECONDITION,
    f"request layout: {difference}; start both ends with the same"
    " configuration and version",
  )


def _hello_limit(methods: Iterable[_Method]) -> int:
  """Returns the maximum number of bytes of a handshake."""
  layouts = (len(json.dumps(x.inputs.to_json())) for x in methods)
  return min(4 * max(layouts, default=0) + _HELLO_BYTES, calls.METADATA_BYTES)


def _max_calls(methods: Iterable[_Method]) -> int:
  """Returns the maximum number of calls that are served or refused at once."""
  return sum(method.max_streams for method in methods) + _SPARE_CALLS


def _wait_for_end(methods: Iterable[_Method], seconds: float) -> list[str]:
  """Waits for streams to end; returns the names of methods that have some."""
  deadline = time.monotonic() + seconds
  while True:
    names = [method.name for method in methods if method.num_streams()]
    if not names or time.monotonic() > deadline:
      return names
    time.sleep(0.005)
