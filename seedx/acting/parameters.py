"""Acting parameters over the wire: a source sends them, clients fetch them.

`unroll_messages` describes the messages. A client need not be an actor.
"""

import threading
import time
from collections.abc import Callable

import jax
import numpy as np

from seedx import types, wire
from seedx.acting import unroll_messages
from seedx.wire import serving


class Source:
  """Server of the newest acting parameters.

  Each version is copied from the device once, for all clients.

  Attributes:
    sent_bytes: number of bytes of parameters sent so far.
  """

  def __init__(self, newest: Callable[[], tuple[types.Tree, int]]) -> None:
    """Makes a source of what `newest` returns: parameters and their version."""
    self.sent_bytes = 0
    self._newest = newest
    self._copying = threading.Lock()
    self._copy: unroll_messages.Snapshot | None = None

  def bind(
    self, server: serving.Server, method: str = unroll_messages.PARAMETERS
  ) -> None:
    """Binds a method that clients fetch from."""
    acting, _ = self._newest()
    outputs = unroll_messages.parameters_layout(acting)
    self._bytes = outputs.message_bytes(1)
    server.bind(method, self._versioned, wire.NOTHING, outputs)

  def _versioned(self, nothing: types.Tree) -> unroll_messages.Snapshot:
    del nothing
    with self._copying:
      acting, version = self._newest()
      if self._copy is None or self._copy.version != version:
        host = jax.tree.map(np.asarray, acting)
        self._copy = unroll_messages.Snapshot(np.int32(version), host)
      self.sent_bytes += self._bytes
      return self._copy


class Copy:
  """A client's copy of a source's acting parameters.

  Attributes:
    device: the device that holds the copy.
  """

  def __init__(
    self,
    client: wire.Client,
    form: types.Tree,
    device: jax.Device,
    method: str = unroll_messages.PARAMETERS,
  ) -> None:
    """Opens a stream, on which `newest` fetches.

    Args:
      client: client of the source's server.
      form: nest with the shapes and dtypes of the acting parameters.
      device: device that holds the copy.
      method: method that the source has bound.

    Raises:
      wire.WireError: the server's parameters have another layout, it refuses
        the stream, or it cannot be reached.
    """
    self.device = device
    self._asked_seconds = 0.0
    self._held: unroll_messages.Snapshot | None = None
    # The end of a stream shows whether the server is done or has died.
    self._exchange = client.exchange(
      method,
      inputs=wire.NOTHING,
      outputs=unroll_messages.parameters_layout(form),
    )

  def newest(
    self, version: int | None = None
  ) -> unroll_messages.Snapshot | None:
    """Returns the newest acting parameters.

    Args:
      version: newest version that the caller has seen, as in the reply to
        `unroll_messages.Experience`. A copy that is not older is fetched again
        only if the server may soon end the stream for its silence. None always
        fetches.

    Returns:
      The copy, the same object until it is fetched again; None when the run is
      over.

    Raises:
      wire.WireError: the stream failed.
    """
    held = self._held
    if held is None or version is None or version > held.version:
      return self._fetch()
    silent_seconds = self._asked_seconds + wire.SILENT_SECONDS / 4
    return self._fetch() if time.monotonic() > silent_seconds else held

  def close(self) -> None:
    """Ends the stream."""
    self._exchange.close()

  def _fetch(self) -> unroll_messages.Snapshot | None:
    self._asked_seconds = time.monotonic()
    reply = self._exchange(())
    if reply is None:
      return None
    acting = jax.device_put(reply.acting, self.device)
    self._held = unroll_messages.Snapshot(np.int32(reply.version), acting)
    return self._held
