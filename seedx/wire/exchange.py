"""A stream that is used a request at a time."""

from collections.abc import Mapping
from typing import Any

from seedx import types
from seedx.wire import client as client_lib
from seedx.wire import layout as layout_lib


class Exchange:
  """A stream without an iterator of requests: `send`, then `receive`.

  Attributes:
    welcome: what the server's session said first.
    over: set when the stream has ended.
  """

  def __init__(
    self,
    client: client_lib.Client,
    name: str,
    inputs: layout_lib.Layout,
    outputs: layout_lib.Layout,
    hello: Mapping[str, Any] | None = None,
  ) -> None:
    """Opens the stream; see `Client.stream`.

    Raises:
      WireError: the server refused or is not there.
    """
    self._stream = client.stream(name, None, inputs, outputs, hello)
    self.welcome: Mapping[str, Any] = self._stream.welcome
    self.over = self._stream.over

  def __call__(self, nest: types.Tree) -> types.Tree | None:
    """Sends a request, and waits for its reply; see `receive`."""
    self.send(nest)
    return self.receive()

  def send(self, nest: types.Tree) -> None:
    """Sends a request, to which there will be a reply."""
    self._stream.send(nest)

  def receive(self) -> types.Tree | None:
    """The reply to the oldest request that has had none.

    Returns:
      The reply, its arrays read-only; None where the server's work is over.

    Raises:
      WireError: the stream failed.
      ValueError: the request does not fit its layout.
    """
    return next(self._stream, None)

  @property
  def transferred_bytes(self) -> int:
    """Of the messages sent and received so far."""
    return self._stream.transferred_bytes

  def close(self) -> None:
    """Ends the stream."""
    self._stream.cancel()
