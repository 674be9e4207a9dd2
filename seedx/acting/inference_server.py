"""The learner's server of thin actors: receives time steps, sends actions."""

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from seedx.acting import decoder, inference, leases, protocol
from seedx.runtime import counters, seeding
from seedx.wire import serving


class InferenceServer:
  """Server that opens a session for each thin actor.

  The session is on the inference device with the largest number of free slots.

  Attributes:
    leases: leases of the slots; each device has a pool.
  """

  def __init__(
    self,
    acting: inference.Devices,
    seeds: seeding.Seeds | None,
    acted: counters.ActingCounts,
  ) -> None:
    sizes = [x.sizes.layout.num_slots for x in acting.devices]
    self.leases = leases.Leases(sizes, seeds, acted)
    self._acting = acting

  def bind(self, server: serving.Server) -> None:
    """Binds the stream `protocol.ACT`."""
    server.bind_batched(protocol.ACT, self.open, *self._acting.layouts)

  def open(self, hello: Mapping[str, Any]) -> "Session":
    """Opens a session, see `leases.Leases.grant`."""
    lease = self.leases.grant(hello)
    device = self._acting.devices[lease.pool]
    return Session(device, lease, functools.partial(self.leases.close, lease))


class Session:
  """The session of one thin actor, from the start of its stream to the end.

  Attributes:
    welcome: first message to the actor.
  """

  def __init__(
    self,
    device: inference.Inference,
    lease: leases.Lease,
    free: Callable[[], None],
  ) -> None:
    self.welcome = lease.welcome
    self._inference = device
    self._slots = lease.slots
    self._free = free
    device.env[lease.slots] = lease.envs
    device.received.join(lease.slots)
    self._lock = threading.Lock()
    # Whether a message is unanswered.
    self._busy = False
    self._closed = False

  def receive(self, request: serving.Request) -> None:
    """Takes the rows of a message; the inference device answers it."""
    with self._lock:
      if self._closed:
        request.refuse(decoder.over())
        return
      self._busy = True
    message = decoder.Message(request, self._slots, self._finish)
    if not self._inference.requests.put(message):
      message.end()

  def close(self) -> None:
    """Frees the slots, after a step that is under way has ended.

    The server calls `close` when the stream ends, for whatever reason.
    """
    with self._lock:
      is_open, self._closed = not self._closed, True
      if is_open and not self._busy:
        self._release()

  def _finish(self) -> None:
    with self._lock:
      was_busy, self._busy = self._busy, False
      if was_busy and self._closed:
        self._release()

  def _release(self) -> None:
    self._inference.received.leave(self._slots)
    self._free()
