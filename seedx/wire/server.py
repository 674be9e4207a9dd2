"""The server: functions and sessions that clients call with nests of arrays."""

import collections
import contextlib
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import grpc

from seedx import types
from seedx.wire import calls, listening, threads
from seedx.wire import layout as layout_lib
from seedx.wire import pipe as pipe_lib
from seedx.wire import security as security_lib

# Of a hello beside four times its layout: JSON may have spaces, and gRPC may
# have base64. A MiB of JSON takes a fifth of a second of Python's lock.
_HELLO_BYTES = 1 << 14
# Calls of a connection at a time. One that was refused or cancelled remains one
# of them for some seconds more, and gRPC resets those beyond the limit before
# Python sees them: so resets in rapid succession take little of its time.
_CALLS_PER_CONNECTION = 100
_SPENT_SECONDS = 10.0
# Of all connections: each has a hello, of `_HELLO_BYTES` or more.
_MOST_SPENT = 4_096

_SERVER_OPTIONS: list[tuple[str, Any]] = [
  *calls.CHANNEL_OPTIONS,
  ("grpc.so_reuseport", 0),
  # Or else the clients' keepalive ends in "too many pings".
  ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
  # Whoever connects and sends nothing keeps no descriptor for long.
  ("grpc.server_handshake_timeout_ms", 10_000),
  ("grpc.max_connection_idle_ms", 60_000),
  ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
]
# A request somewhat over its limit is to be refused in our words, not gRPC's.
_SLACK_BYTES = 1 << 16
_SPARE_CALLS = 16
# Where a silent stream came from, nobody has a place before others have tried.
_YIELD_SECONDS = 5.0
# More take turns at Python's lock: 512 took twice the CPU time of 128 for each
# message, and half a minute to connect.
_MANY_STREAMS = 128
# How long `stop` lets idle streams end of themselves, and threads after all.
_IDLE_SECONDS = 0.2
_JOIN_SECONDS = 1.0
_FLUSH_SECONDS = 0.5
_STOPPING = "the server is stopping"
# Who was told that there is no room asks again within this time.
_ASK_SECONDS = 1.5
_ERROR_CHARACTERS = 2_000
# Between two lines about calls that were refused.
_TELL_SECONDS = 60.0

_log = logging.getLogger("seedx.wire")


class Session(Protocol):
  """The server's side of one stream."""

  @property
  def welcome(self) -> Mapping[str, Any]:
    """Goes to the client before anything else; has to fit into JSON."""

  def __call__(self, inputs: types.Tree) -> types.Tree:
    """Answers a request; may block, on a thread that is the stream's own."""
    ...

  def close(self) -> None:
    """Ends the session; called once, however the stream ends.

    It may come from another thread while `__call__` is blocked, which must then
    return or raise soon. It must not block, as it may hold up other streams.
    """
    ...


class FunctionSession:
  """A session of a function that remembers nothing.

  Attributes:
    welcome: see `Session`.
    close: see `Session`.
  """

  def __init__(
    self,
    function: Callable[[types.Tree], types.Tree],
    welcome: Mapping[str, Any] | None = None,
    close: Callable[[], None] = lambda: None,
  ) -> None:
    """Makes a session.

    Args:
      function: answers the requests.
      welcome: what the client is told first; nothing by default.
      close: called when the session ends.
    """
    self.welcome: Mapping[str, Any] = welcome or {}
    self.close = close
    self._function = function

  def __call__(self, inputs: types.Tree) -> types.Tree:
    """Answers a request."""
    return self._function(inputs)


class Server:
  """Serves functions and sessions; threads never keep the process alive.

  Use: construct, `bind`, `start`, and `stop`; or `with server:` for the last
  two. Leaving the block with an exception stops without grace.
  """

  def __init__(
    self,
    address: str,
    max_streams: int,
    silent_seconds: float = calls.SILENT_SECONDS,
    security: security_lib.Security = security_lib.LOCAL,
  ) -> None:
    """Binds nothing yet.

    Args:
      address: `host:port`, where port 0 picks a free one, or `unix:/path`.
      max_streams: calls and streams that each name serves at a time. One more
        is refused with RESOURCE_EXHAUSTED.
      silent_seconds: how long a stream may wait for its client. Then it ends,
        and the client tries again. If it was of a session, its host gets no
        other while others may take the place.
      security: what clients have to show.

    Raises:
      types.ConfigError: `max_streams` is less than 1, or the address would be
        open to other machines.
    """
    if max_streams < 1:
      raise types.ConfigError(
        f"max_streams must be at least 1, found {max_streams}."
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
    self._door = security.of_server(address)
    self._handlers = _Handlers(self._methods, self._stopping, self._door)

  @property
  def address(self) -> str:
    """Where the server is reached, with the real port; once started."""
    if self._address is None:
      raise RuntimeError("The address is known once the server has started.")
    return self._address

  @property
  def transferred_bytes(self) -> int:
    """Of all messages received and sent so far, by all streams."""
    return sum(method.transferred_bytes for method in self._methods.values())

  def bind(
    self,
    name: str,
    function: Callable[[types.Tree], types.Tree],
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    cancel: Callable[[], None] | None = None,
  ) -> None:
    """Serves a function, for single calls and for streams of them.

    Args:
      name: of the method, unique in this server.
      function: from a nest of `inputs` to one of `outputs`; called from many
        threads at a time; may block and may raise `Refused`.
      inputs: layout of the requests.
      outputs: layout of the replies.
      cancel: called once by `stop` where calls are still blocked after the
        grace; it must make them return or raise.
    """

    def open_session(hello: Mapping[str, Any]) -> Session:
      del hello
      return FunctionSession(function)

    limit = self._max_streams
    method = _Method(name, open_session, inputs, outputs, limit, cancel)
    method.is_stream = False
    self._bind(method)

  def bind_stream(
    self,
    name: str,
    open_session: Callable[[Mapping[str, Any]], Session],
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    max_streams: int | None = None,
  ) -> None:
    """Serves streams, each with a session of its own.

    Args:
      name: of the method, unique in this server.
      open_session: makes a session from the client's hello; may raise
        `Refused`.
      inputs: layout of the requests.
      outputs: layout of the replies.
      max_streams: of this name, if another number than the server's.
    """
    limit = max_streams or self._max_streams
    self._bind(_Method(name, open_session, inputs, outputs, limit))

  def measure(self) -> dict[str, int]:
    """What it adds to a line of metrics."""
    return {"wire_bytes": self.transferred_bytes}

  def start(self) -> None:
    """Binds the address and serves.

    Raises:
      types.ConfigError: the address is in use, or is none.
    """
    if self._grpc is not None:
      raise RuntimeError("A server starts only once.")
    limit = max(
      (
        method.inputs.message_bytes(method.inputs.max_rows)
        for method in self._methods.values()
      ),
      default=0,
    )
    limit = min(2 * limit + _SLACK_BYTES, layout_lib.MAX_MESSAGE_BYTES)
    listening.check_free(self._wanted_address)
    server = grpc.server(
      self._threads,
      [self._handlers],
      options=[
        *_SERVER_OPTIONS,
        ("grpc.max_receive_message_length", limit),
        *_hello_limit(self._methods.values()),
        ("grpc.max_allowed_incoming_connections", listening.most_connections()),
      ],
      maximum_concurrent_rpcs=(
        sum(method.max_streams for method in self._methods.values())
        + _SPARE_CALLS
      ),
    )
    self._address = listening.listen(
      server, self._wanted_address, self._door.credentials
    )
    if path := security_lib.unix_path(self._wanted_address):
      with contextlib.suppress(OSError):  # Then gRPC carries all messages.
        self._handlers.listener = listening.Listener(path)
    server.start()
    self._grpc = server
    for warning in (self._door.warning, self._crowded()):
      if warning:
        print(warning, file=sys.stderr, flush=True)
    threading.Thread(target=self._watch, name="wire", daemon=True).start()

  def _crowded(self) -> str:
    """What is said where more streams are wanted than are served well."""
    if self._max_streams <= _MANY_STREAMS:
      return ""
    return (
      f"warning: {self._max_streams} processes may connect; beyond"
      f" {_MANY_STREAMS} each message costs more. Fewer with more environments"
      " each, or several learner hosts, are faster"
    )

  def stop(self, grace_seconds: float = 1.0) -> None:
    """Ends all streams and stops serving; does nothing the second time.

    A stream ends with OK once its current request is answered. One that waits
    for a request, or is still blocked after the grace, ends with CANCELLED,
    its session closed. To a client both mean that the server has finished.

    Args:
      grace_seconds: for requests that are being answered. A call that blocks
        on after its session is closed is left behind, on a daemon thread.
    """
    with self._stop_lock:
      self._stopping.set()
      if self._grpc is None:
        return
      told_seconds = time.monotonic() + _ASK_SECONDS
      methods = self._methods.values()
      _wait_for_end(methods, min(grace_seconds, _IDLE_SECONDS))
      for method in methods:
        method.cancel_streams(only_idle=True)
      _wait_for_end(methods, grace_seconds)
      for method in methods:
        method.cancel_streams(only_idle=False)
      if left := _wait_for_end(methods, _JOIN_SECONDS):
        _log.error("Calls that close() or cancel() did not end: %s.", left)
      if self._handlers.full_seconds > told_seconds - 2 * _ASK_SECONDS:
        # Those for whom there was no room are to know that it is over, too.
        time.sleep(max(0.0, told_seconds - time.monotonic()))
      # Not 0: gRPC may not have sent the last statuses yet, and would send
      # UNAVAILABLE, for which clients try again.
      self._grpc.stop(_FLUSH_SECONDS).wait(2 * _FLUSH_SECONDS)
      self._threads.shutdown()
      self._grpc = None
      if self._handlers.listener is not None:
        self._handlers.listener.close()
      if path := security_lib.unix_path(self._wanted_address):
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
    """Ends streams that are silent, and lets spent calls go."""
    while not self._stopping.wait(min(1.0, self._silent_seconds / 4)):
      for method in self._methods.values():
        method.end_silent(self._silent_seconds)
      self._handlers.let_go()

  def _bind(self, method: "_Method") -> None:
    if self._grpc is not None:
      raise RuntimeError(f"bind {method.name!r} before the server starts.")
    if method.name in self._methods:
      raise types.ConfigError(f"two methods are called {method.name!r}.")
    self._methods[method.name] = method


class _Method:
  """A name that is served, and its open streams."""

  def __init__(
    self,
    name: str,
    open_session: Callable[[Mapping[str, Any]], Session],
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    max_streams: int,
    cancel: Callable[[], None] | None = None,
  ) -> None:
    self.name = name
    self.is_stream = True
    self.open_session = open_session
    self.inputs = inputs
    self.outputs = outputs
    self.max_streams = max_streams
    self._cancel = cancel
    self._lock = threading.Lock()
    self._streams: set[_Stream] = set()
    # Until when a host has no place.
    self._yields: dict[str, float] = {}
    self.transferred_bytes = 0

  def count_bytes(self, more: int) -> None:
    """Counts messages; any stream may."""
    with self._lock:
      self.transferred_bytes += more

  def count(self) -> int:
    """Streams that are open."""
    return len(self._streams)

  def add(self, stream: "_Stream") -> str | None:
    """Takes in a stream, or says why there is no place for it."""
    with self._lock:
      if self._yields.get(stream.host, 0.0) > time.monotonic():
        return (
          "expected others than a host that was silent, for"
          f" {_YIELD_SECONDS:g} seconds, found it again"
        )
      if len(self._streams) >= self.max_streams:
        return (
          f"expected at most {self.max_streams} connections, found one more."
        )
      self._streams.add(stream)
      return None

  def remove(self, stream: "_Stream") -> None:
    """Takes note that a stream has ended."""
    with self._lock:
      self._streams.discard(stream)

  def end_silent(self, seconds: float) -> None:
    """Ends the streams whose clients have been silent for so long."""
    now = time.monotonic()
    with self._lock:
      silent = [
        stream
        for stream in self._streams
        if (since := stream.silent_since) is not None and now > since + seconds
      ]
      self._yields = {
        **{host: end for host, end in self._yields.items() if end > now},
        # Who calls functions has no place, and loses nothing but time.
        **{x.host: now + _YIELD_SECONDS for x in silent if self.is_stream},
      }
    for stream in silent:
      stream.end_silent(seconds)

  def cancel_streams(self, only_idle: bool) -> None:
    """Ends the streams that wait for a request, or all of them."""
    with self._lock:
      streams = list(self._streams)
    if streams and not only_idle and self._cancel is not None:
      self._cancel()
    for stream in streams:
      if not (only_idle and stream.busy):
        stream.cancel()


class _Stream:
  """One call from its first to its last byte, on a thread of its own."""

  def __init__(
    self,
    method: _Method,
    context: grpc.ServicerContext,
    stopping: threading.Event,
    listener: listening.Listener | None,
  ) -> None:
    self._method = method
    self._context = context
    self._stopping = stopping
    self._listener = listener
    self._lock = threading.Lock()
    self._session: Session | None = None
    # Of a client on this machine that wants one.
    self._pipe: pipe_lib.Pipe | None = None
    self._closed = False
    # Why another thread has ended the call.
    self._ended: calls.Refused | None = None
    self.busy = True
    self.host = context.peer().rpartition(":")[0]
    # Since when the client has owed a message, or has not taken a reply.
    self.silent_since: float | None = None

  def serve(self, requests: Iterator[bytes]) -> Iterator[bytes]:
    """Answers each request in turn, and ends with the status that fits."""
    try:
      session = self._open()
      self.silent_since = time.monotonic()
      while (request := self._next(requests)) is not None:
        reply = self._answer(session, request)
        self.silent_since = time.monotonic()
        if self._pipe is None:
          yield reply
        elif not self._pipe.send(reply):
          self._check_ended()
          return
    except calls.Refused as refused:
      # A session that was closed from another thread cannot know why.
      why = self._ended or refused
      self._abort(why.code, why.message)
    except Exception as error:
      if self._closed:  # By `stop` or because the client has gone.
        self._abort(grpc.StatusCode.CANCELLED, _STOPPING)
      _log.exception("%s: a call raised.", self._method.name)
      message = f"{type(error).__name__}: {error}"
      self._abort(grpc.StatusCode.INTERNAL, message)
    finally:
      self.close()

  def end_silent(self, seconds: float) -> None:
    """Ends the call from another thread; its client is to try again."""
    code = grpc.StatusCode.UNAVAILABLE
    why = f"expected a message within {seconds:g} seconds, found none"
    self._ended = calls.Refused(code, why)
    self.close()
    if self._pipe is None:  # Else the call ends by itself, with that status.
      self._context.cancel()

  def cancel(self) -> None:
    """Ends the call from another thread."""
    self._ended = calls.Refused(grpc.StatusCode.CANCELLED, _STOPPING)
    self.close()
    self._context.cancel()

  def close(self) -> None:
    """Closes the session unless that has been done."""
    with self._lock:
      session, self._session = self._session, None
      self._closed, pipe = True, self._pipe
    if pipe is not None:
      pipe.close()
    if session is not None:
      try:
        session.close()
      except Exception:
        _log.exception("%s: close() raised.", self._method.name)

  def _open(self) -> Session:
    hello, wants_pipe = _hello(self._context, self._method.inputs)
    session = self._method.open_session(hello)
    with self._lock:
      self._session = session
      closed, self._closed = self._closed, False
    # Closes a session that is blocked when its client goes away.
    if closed or not self._context.add_callback(self.close):
      self.close()
      raise calls.Refused(grpc.StatusCode.CANCELLED, _STOPPING)
    answer = {
      **self._method.outputs.to_json(),
      "welcome": dict(session.welcome),
    }
    listener = self._listener if wants_pipe else None
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
      if pipe is None or closed:  # The client has gone.
        raise calls.Refused(
          grpc.StatusCode.UNAVAILABLE, "expected a pipe, found none"
        )
    return session

  def _next(self, requests: Iterator[bytes]) -> bytes | None:
    """The next request, or None where the stream is to end with OK."""
    self.busy = False
    if self._stopping.is_set():
      return None
    try:
      request = self._pipe.receive() if self._pipe else next(requests, None)
    except grpc.RpcError as error:  # The client has gone.
      # gRPC keeps the error: with its frames, the call would refer to itself.
      error.__traceback__ = None
      return None
    except layout_lib.MessageError as error:
      raise calls.Refused(
        grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
      ) from error
    if request is None:
      self._check_ended()
      if self._pipe and self._pipe.cut:
        raise calls.Refused(
          grpc.StatusCode.INVALID_ARGUMENT, "the stream ended within a message"
        )
      return None
    self.busy, self.silent_since = True, None
    return request

  def _check_ended(self) -> None:
    """Raises Refused where another thread has ended the call.

    Its pipe is closed before gRPC knows: the call must not end with OK.
    """
    if self._ended is not None:
      raise self._ended

  def _answer(self, session: Session, request: bytes) -> bytes:
    try:
      inputs = self._method.inputs.decode(request)
    except layout_lib.MessageError as error:
      raise calls.Refused(
        grpc.StatusCode.INVALID_ARGUMENT, str(error)
      ) from error
    reply = self._method.outputs.encode(session(inputs))
    self._method.count_bytes(len(request) + len(reply))
    return reply

  def _abort(self, code: grpc.StatusCode, message: str) -> None:
    message = f"{self._method.name}: {message}"[:_ERROR_CHARACTERS]
    # What JSON says may be no UTF-8, which gRPC needs.
    self._context.abort(code, message.encode(errors="replace").decode())


class _Handlers(grpc.GenericRpcHandler):
  """Finds the method that a path names.

  A single call is, on the network, a stream of one message, so that one kind of
  handler serves both.

  Attributes:
    full_seconds: when a method last had no room for a call.
    listener: for the messages of clients on this machine.
  """

  def __init__(
    self,
    methods: Mapping[str, _Method],
    stopping: threading.Event,
    door: security_lib.Door,
  ) -> None:
    self.full_seconds = -math.inf
    self.listener: listening.Listener | None = None
    self._methods = methods
    self._stopping = stopping
    self._door = door
    self._lock = threading.Lock()
    # Calls that were refused or cancelled, and when, for `let_go`.
    self._spent: collections.deque[tuple[float, object]] = collections.deque(
      maxlen=_MOST_SPENT
    )
    self._strangers = 0
    self._told_seconds = -math.inf

  def _count_stranger(self, peer: str) -> None:
    """Prints, at most once a minute, how many calls had no token."""
    with self._lock:
      self._strangers += 1
      now = time.monotonic()
      if now < self._told_seconds + _TELL_SECONDS:
        return
      self._told_seconds = now
      count, self._strangers = self._strangers, 0
    print(
      f"warning: refused {count} call(s) without the run's token, the last from"
      f" {types.printable(peer)}",
      file=sys.stderr,
      flush=True,
    )

  def let_go(self) -> None:
    """Lets old spent calls go.

    gRPC counts a call as one of its connection until nothing refers to it.
    """
    old = time.monotonic() - _SPENT_SECONDS
    while self._spent and self._spent[0][0] < old:
      self._spent.popleft()

  def service(
    self, handler_call_details: grpc.HandlerCallDetails
  ) -> grpc.RpcMethodHandler | None:
    """The handler of a path; see gRPC's `GenericRpcHandler`."""
    path, newest = handler_call_details.method, _Newest()

    def handle(
      requests: Iterator[_Newest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
      try:
        yield from self._handle(path, map(_Newest.take, requests), context)
      finally:
        newest.close()
        if context.code() is not None or not context.is_active():
          self._spent.append((time.monotonic(), context))

    return grpc.stream_stream_rpc_method_handler(handle, newest.receive)

  def _handle(
    self, path: str, requests: Iterator[bytes], context: grpc.ServicerContext
  ) -> Iterator[bytes]:
    """Serves a call, or refuses it."""
    if not self._door.admits(context.invocation_metadata() or ()):
      self._count_stranger(context.peer())
      # Before it learns anything, even whether there is such a method.
      context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected the run's token")
    method = self._methods.get(path.removeprefix(calls.PATH_PREFIX))
    if self._stopping.is_set():
      is_stream = method is not None and method.is_stream
      code = grpc.StatusCode.UNAVAILABLE
      context.abort(grpc.StatusCode.CANCELLED if is_stream else code, _STOPPING)
    if method is None:
      names = [calls.PATH_PREFIX + name for name in self._methods]
      context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        f"expected a method of {names}, found {path}.",
      )
      return
    stream = _Stream(method, context, self._stopping, self.listener)
    if (reason := method.add(stream)) is not None:
      self.full_seconds = time.monotonic()
      context.abort(
        grpc.StatusCode.RESOURCE_EXHAUSTED, f"{method.name}: {reason}"
      )
    try:
      yield from stream.serve(requests)
    finally:
      method.remove(stream)


class _Newest:
  """The newest request of a call, which is freed with the call's thread.

  gRPC itself would keep one that came as the call ended, with a spent call.
  """

  def __init__(self) -> None:
    self._is_open, self._message = True, b""

  def receive(self, message: bytes) -> "_Newest":
    """Deserializes a request, as gRPC calls it."""
    if self._is_open:
      self._message = message
    return self

  def take(self) -> bytes:
    """Returns the request."""
    message, self._message = self._message, b""
    return message

  def close(self) -> None:
    """Frees it, and those to come."""
    self._is_open, self._message = False, b""


def _hello(
  context: grpc.ServicerContext, inputs: layout_lib.Layout
) -> tuple[Mapping[str, Any], bool]:
  """The client's hello, and whether it wants a pipe.

  Raises:
    Refused: its layout is not `inputs`.
  """
  metadata = dict(context.invocation_metadata() or ())
  difference: str | None
  found: Any = None
  try:
    found = layout_lib.from_json(metadata[calls.METADATA_KEY])
    difference = inputs.difference(found)
  except KeyError:
    difference = f"expected metadata {calls.METADATA_KEY}, found none"
  except layout_lib.MessageError as error:
    difference = f"{calls.METADATA_KEY}: {error}"
  if difference is None:
    rows = found.get("max_rows", 1)
    hello = found.get("hello", {})
    if not isinstance(rows, int) or not 1 <= rows <= inputs.max_rows:
      difference = (
        f"expected max_rows from 1 to {inputs.max_rows}, found {rows!r:.80}"
      )
    elif not isinstance(hello, dict):
      difference = f"expected an object as hello, found {hello!r:.80}"
    else:
      return hello, found.get("pipe") is True
  raise calls.Refused(
    grpc.StatusCode.FAILED_PRECONDITION,
    f"request layout: {difference}. Start both ends with the same "
    "configuration and version.",
  )


def _hello_limit(methods: Iterable[_Method]) -> list[tuple[str, int]]:
  """Options of gRPC that refuse a hello larger than an honest one."""
  layouts = (len(json.dumps(x.inputs.to_json())) for x in methods)
  limit = min(4 * max(layouts, default=0) + _HELLO_BYTES, calls.METADATA_BYTES)
  return calls.metadata_limit(limit)


def _wait_for_end(methods: Iterable[_Method], seconds: float) -> list[str]:
  """Waits until no stream is open; the names of those that have some left."""
  deadline = time.monotonic() + seconds
  while True:
    left = [method.name for method in methods if method.count()]
    if not left or time.monotonic() > deadline:
      return left
    time.sleep(0.005)
