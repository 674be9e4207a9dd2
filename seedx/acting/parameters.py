"""Acting parameters over the wire: a source has the newest, clients fetch them.

A client needs no other role: it may send unrolls, returns of episodes, labels,
or nothing at all. See `protocol` for the messages.
"""

import threading
import time
from collections.abc import Callable

import jax
import numpy as np

from seedx import types, wire
from seedx.acting import unroll_messages
from seedx.wire import server as server_lib


class Source:
  """Sends the newest acting parameters to each client that asks.

  They are copied from the device once per version, not once per client.
  """

  def __init__(self, newest: Callable[[], tuple[types.Tree, int]]) -> None:
    """Serves nothing before `bind`.

    Args:
      newest: returns the newest acting parameters and their version.
    """
    self._newest = newest
    self._copying = threading.Lock()
    self._copy: unroll_messages.Versioned | None = None

  def bind(self, server: server_lib.Server) -> None:
    """Binds the method that clients call."""
    acting, _ = self._newest()
    server.bind(
      unroll_messages.PARAMETERS,
      self._versioned,
      inputs=wire.NOTHING,
      outputs=unroll_messages.parameters_layout(acting),
    )

  def _versioned(self, nothing: types.Tree) -> unroll_messages.Versioned:
    del nothing
    with self._copying:
      acting, version = self._newest()
      if self._copy is None or self._copy.version != version:
        host = jax.tree.map(np.asarray, acting)
        self._copy = unroll_messages.Versioned(np.int32(version), host)
      return self._copy


class Fetched:
  """A client's copy of a source's acting parameters.

  Attributes:
    device: the device that holds the copy.
  """

  def __init__(
    self, client: wire.Client, form: types.Tree, device: jax.Device
  ) -> None:
    """Opens the stream; `newest` fetches.

    Args:
      client: a client of the source's server.
      form: anything with the shapes and dtypes of the acting parameters.
      device: the device that holds the copy.

    Raises:
      wire.WireError: the server has other parameters, refuses or is not there.
    """
    self.device = device
    self._asked_seconds = 0.0
    self._held: unroll_messages.Versioned | None = None
    # A stream: its end distinguishes a server that is done from one that died.
    self._exchange = client.exchange(
      unroll_messages.PARAMETERS,
      inputs=wire.NOTHING,
      outputs=unroll_messages.parameters_layout(form),
    )

  def newest(
    self, version: int | None = None
  ) -> unroll_messages.Versioned | None:
    """Returns the newest acting parameters.

    Args:
      version: newest version that the caller has heard of, as in the reply to
        `unroll_messages.Experience`. Without a newer one than that of the
        copy, the copy is returned and nothing is sent, unless the server would
        soon regard this stream as dead. None asks in any case.

    Returns:
      The copy, the same object until it is fetched again; None where the
      server's work is over.

    Raises:
      wire.WireError: the stream failed.
    """
    held = self._held
    if held is None or version is None or version > held.version:
      return self._fetch()
    return self._fetch() if self._is_silent() else held

  def close(self) -> None:
    """Ends the stream."""
    self._exchange.close()

  def _is_silent(self) -> bool:
    limit = self._asked_seconds + wire.SILENT_SECONDS / 4
    return time.monotonic() > limit

  def _fetch(self) -> unroll_messages.Versioned | None:
    self._asked_seconds = time.monotonic()
    reply = self._exchange(())
    if reply is None:
      return None
    acting = jax.device_put(reply.acting, self.device)
    self._held = unroll_messages.Versioned(np.int32(reply.version), acting)
    return self._held
