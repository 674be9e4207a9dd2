"""A server for the clients of one machine, which sends their calls in bundles.

The relay listens on a unix socket, like a learner on this machine, and passes
all calls to the learner, over one stream. Its clients need neither TLS nor a
token, because the relay has them.
"""

import dataclasses
import functools
import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import grpc

from seedx.wire import (
  array_layout,
  authentication,
  bundles,
  calls,
  clients,
  reconnect,
  serving,
)


@dataclasses.dataclass(frozen=True)
class Config:
  """The work of a process that is a relay.

  Attributes:
    address: address of the learner.
    path: path of the socket for the clients; its directory is made.
    max_streams: maximum number of simultaneous calls of each method.
    security: TLS and token of the run.
  """

  address: str
  path: str
  max_streams: int
  security: authentication.Security = authentication.LOCAL


def run(config: Config, stop: threading.Event) -> None:
  """Relays calls until the learner's work is over; waits while it is away.

  Raises:
    WireError: the learner refuses the relay.
    types.ConfigError: the address or `security` cannot be used.
  """
  os.makedirs(os.path.dirname(config.path), 0o700, exist_ok=True)
  relay = Relay(f"unix:{config.path}", config.max_streams)
  reconnect.until_done(
    config.address,
    lambda client: relay.run(client, stop),
    stop,
    "relay",
    security=config.security,
  )
  relay.close()


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
    # The queue of frames for the learner, once it is there.
    self._learner: futures.Future[bundles.Sender] = futures.Future()

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
      self._listen(stream.welcome["methods"])
      self._learner.set_result(sender)
      for bundle in stream:
        for number, kind, content in bundles.frames(bundle):
          find = self._calls.pop if kind == bundles.END else self._calls.get
          if (call := find(number, None)) is not None:
            call.take(kind, content)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
      raise calls.WireError(
        grpc.StatusCode.INTERNAL, f"{bundles.BUNDLES}: {error!r:.200}"
      ) from error
    finally:
      stream.close()
      sender.end()
      if self._learner.done():  # New calls may wait for it, if not.
        self._learner = futures.Future()
      while self._calls:
        self._calls.popitem()[1].end(_away())
    if not leave.is_set():
      self.close()

  def close(self) -> None:
    """Ends all calls like a server whose work is over."""
    if not self._learner.done():
      self._learner.set_exception(_away())
    if self._server is not None:
      self._server.stop()

  def _listen(self, methods: Mapping[str, Any]) -> None:
    """Serves the learner's methods."""
    if methods == self._methods:
      return
    server = serving.Server(self._address, self._max_streams)
    for name, layouts in methods.items():
      inputs, outputs = map(_layout, layouts)
      open_call = functools.partial(self._open, name, inputs)
      server.bind_batched(name, open_call, inputs, outputs)
    if self._server is not None:
      self._server.stop()
    server.start()
    self._methods, self._server = methods, server

  def _open(
    self, name: str, inputs: array_layout.Layout, hello: Mapping[str, Any]
  ) -> "_Call":
    learner = self._learner
    # Clients do not try in vain, nor print that the learner is away.
    sender, number = learner.result(), next(self._numbers)
    send = functools.partial(sender.put, number)
    call = self._calls[number] = _Call(name, send)
    if learner is not self._learner:  # `run` may not have found the call.
      raise _away()
    handshake = {**inputs.to_json(), "hello": dict(hello), "pipe": True}
    text = f"{calls.PATH_PREFIX}{name}\n{json.dumps(handshake)}"
    send(bundles.OPEN, text.encode())
    call.welcome = call.accepted.result()
    return call


@dataclasses.dataclass(eq=False)
class _Call:
  """A call of a client, as a session of the relay's server.

  Attributes:
    name: name of the method.
    send: function of a kind and a content, which sends a frame.
    welcome: see `serving.Session`.
    accepted: the learner's welcome, or its refusal.
    ended: the reason for which the learner has ended the call; None is OK.
  """

  name: str
  send: Callable[..., None]
  welcome: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  accepted: "futures.Future[Mapping[str, Any]]" = dataclasses.field(
    default_factory=futures.Future
  )
  ended: "futures.Future[calls.Refusal | None]" = dataclasses.field(
    default_factory=futures.Future
  )
  _request: serving.Request | None = None
  _is_closed: bool = False

  def attach(self, end: Callable[[calls.Refusal | None], None]) -> None:
    """Takes the function that ends the client's stream."""

    def end_if_open(ended: futures.Future[calls.Refusal | None]) -> None:
      if not self._is_closed:
        end(ended.result())

    self.ended.add_done_callback(end_if_open)

  def receive(self, request: serving.Request) -> None:
    """Sends a request to the learner."""
    self._request = request
    if self._is_closed:
      request.refuse(_away())
    self.send(bundles.MESSAGE, request.message)

  def take(self, kind: int, content: memoryview) -> None:
    """Takes a frame from the learner."""
    if kind == bundles.MESSAGE:
      request, self._request = self._request, None
      if request is not None:
        request.reply(bytes(content))
    elif kind == bundles.ACCEPT:
      self.accepted.set_result(json.loads(bytes(content))["welcome"])
    elif kind == bundles.END:
      status = json.loads(bytes(content))
      code = grpc.StatusCode[status["code"]]
      details = status["details"].removeprefix(f"{self.name}: ")
      is_ok = code is grpc.StatusCode.OK
      self.end(None if is_ok else calls.Refusal(code, details))

  def end(self, reason: calls.Refusal | None) -> None:
    """Ends the client's call; a reason of None is OK."""
    if not self.accepted.done():
      self.accepted.set_exception(reason or _away())
    self.ended.set_result(reason)

  def close(self) -> None:
    """Ends the call at the learner, because the client's stream has ended."""
    self._is_closed = True
    self.send(bundles.END)
    if (request := self._request) is not None:
      request.refuse(_away())


def _layout(json_layout: Mapping[str, Any]) -> array_layout.Layout:
  """Returns a layout that has only the columns of another process's layout."""
  columns = tuple(
    array_layout.Column(**{**column, "shape": tuple(column["shape"])})
    for column in json_layout["columns"]
  )
  return array_layout.Layout(columns, json_layout["max_rows"], structure=())


def _away() -> calls.Refusal:
  return calls.Refusal(grpc.StatusCode.UNAVAILABLE, calls.AWAY)
