"""A server for the clients of one machine, which sends their calls in bundles.

The relay listens on a unix socket, like a learner on this machine, and passes
all calls to the learner, over one stream. Its clients need neither TLS nor a
token, because the relay has them.
"""

import functools
import itertools
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from seedx.wire import array_layout, bundles, calls, clients, serving


class Relay:
  """A relay, whose clients wait while the learner is away.

  A request waits for the reply to the previous one of its call, so the relay
  and the learner hold at most one message of each call.
  """

  def __init__(self, address: str, max_streams: int) -> None:
    """Makes a relay, which listens from the first connection on.

    Args:
      address: `unix:/path` for the clients.
      max_streams: maximum number of simultaneous calls of each method.
    """
    self._address = address
    self._max_streams = max_streams
    self._methods: Mapping[str, Any] = {}
    self._server: serving.Server | None = None
    self._numbers = itertools.count()
    self._calls: dict[int, _Call] = {}
    self._changed = threading.Condition()
    # Queue of the frames for the learner; None while it is away.
    self._sender: bundles.Sender | None = None
    self._is_over = False

  def run(self, client: clients.Client, leave: threading.Event) -> None:
    """Relays calls to a server until its work is over; then clients see that.

    If `leave` is set when the stream ends, the server's work is not over, as if
    the stream had failed. Another `run` may follow, for which clients wait.

    Raises:
      WireError: the stream failed.
    """
    sender = bundles.Sender()
    stream = client.stream(
      bundles.BUNDLES, sender.bundles(), bundles.LAYOUT, bundles.LAYOUT
    )
    try:
      self._listen(stream.welcome)
      with self._changed:
        self._sender = sender
        self._changed.notify_all()
      for bundle in stream:
        for number, kind, content in bundles.frames(bundle):
          if (call := self._calls.get(number)) is not None:
            call.take(kind, content)
    except array_layout.MessageError as error:
      raise calls.WireError(
        grpc.StatusCode.INTERNAL, f"bundle: {error}"
      ) from error
    else:
      if not leave.is_set():
        self.close()
    finally:
      stream.close()
      sender.end()
      with self._changed:
        self._sender, left = None, [*self._calls.values()]
      for call in left:
        call.end(_away())

  def close(self) -> None:
    """Ends all calls like a server whose work is over."""
    with self._changed:
      self._is_over = True
      self._changed.notify_all()
    if self._server is not None:
      self._server.stop()

  def _listen(self, welcome: Mapping[str, Any]) -> None:
    """Serves the learner's methods."""
    try:
      methods = {
        name: (_layout(inputs), _layout(outputs))
        for name, (inputs, outputs) in welcome["methods"].items()
      }
    except (AttributeError, KeyError, TypeError, ValueError):
      raise calls.bad_welcome("the layouts of methods", welcome) from None
    if methods == self._methods:
      return
    if self._server is not None:
      self._server.stop()
    self._methods = methods
    self._server = serving.Server(self._address, self._max_streams)
    for name, layouts in methods.items():
      open_call = functools.partial(self._open, name, layouts[0])
      self._server.bind_batched(name, open_call, *layouts)
    self._server.start()

  def _open(
    self, name: str, inputs: array_layout.Layout, hello: Mapping[str, Any]
  ) -> "_Call":
    with self._changed:
      # Clients do not try in vain, nor print that the learner is away.
      self._changed.wait_for(lambda: self._sender is not None or self._is_over)
      if self._sender is None:
        raise _away()
      number = next(self._numbers)
      call = self._calls[number] = _Call(
        name,
        functools.partial(self._sender.put, number),
        functools.partial(self._calls.pop, number, None),
      )
    return call.opened({**inputs.to_json(), "hello": dict(hello), "pipe": True})


class _Call:
  """A call of a client, as a session of the relay's server."""

  def __init__(
    self,
    name: str,
    send: Callable[[int, array_layout.Buffer], None],
    forget: Callable[[], object],
  ) -> None:
    self.welcome: Mapping[str, Any] = {}
    self._name = name
    self._send = send
    self._forget = forget
    self._answered = threading.Event()
    self._lock = threading.Lock()
    self._request: serving.Request | None = None
    self._end: Callable[[calls.Refusal | None], None] | None = None
    self._is_over = False
    self._reason: calls.Refusal | None = None

  def opened(self, handshake: Mapping[str, Any]) -> "_Call":
    """Opens the call at the learner; raises Refusal as the learner does."""
    text = f"{calls.PATH_PREFIX}{self._name}\n{json.dumps(handshake)}"
    self._send(bundles.OPEN, text.encode())
    self._answered.wait()
    if self._is_over:
      raise self._reason or _away()
    return self

  def attach(self, end: Callable[[calls.Refusal | None], None]) -> None:
    """Takes the function that ends the client's stream."""
    with self._lock:
      self._end, is_over = end, self._is_over
    if is_over:
      end(self._reason)

  def receive(self, request: serving.Request) -> None:
    """Sends a request to the learner."""
    with self._lock:
      self._request, is_over = request, self._is_over
    if is_over:
      request.refuse(self._reason or _away())
    else:
      self._send(bundles.MESSAGE, request.message)

  def take(self, kind: int, content: memoryview) -> None:
    """Takes a frame from the learner."""
    if kind == bundles.MESSAGE:
      request, self._request = self._request, None
      if request is not None:
        request.reply(bytes(content))
    elif kind == bundles.ACCEPT:
      self.welcome = json.loads(bytes(content))["welcome"]
      self._answered.set()
    elif kind == bundles.END:
      status = json.loads(bytes(content))
      reason = calls.Refusal(
        grpc.StatusCode[status["code"]],
        status["details"].removeprefix(f"{self._name}: "),
      )
      self.end(None if reason.code is grpc.StatusCode.OK else reason)

  def end(self, reason: calls.Refusal | None) -> None:
    """Ends the client's call; a reason of None is OK."""
    self._forget()
    with self._lock:
      self._is_over, self._reason = True, reason
      request, self._request, end = self._request, None, self._end
    self._answered.set()
    if request is not None and reason is not None:
      request.refuse(reason)
    elif end is not None:
      end(reason)

  def close(self) -> None:
    """Ends the call at the learner, because the client's stream has ended."""
    self._forget()
    self._send(bundles.END, b"")


def _layout(json_layout: Mapping[str, Any]) -> array_layout.Layout:
  """Returns a layout that has only the columns of another process's layout."""
  columns = tuple(
    array_layout.Column(**{**column, "shape": tuple(column["shape"])})
    for column in json_layout["columns"]
  )
  return array_layout.Layout(columns, json_layout["max_rows"], structure=())


def _away() -> calls.Refusal:
  return calls.Refusal(grpc.StatusCode.UNAVAILABLE, calls.AWAY)
