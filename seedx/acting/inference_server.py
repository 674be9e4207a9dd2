"""The learner's server of thin actors: receives time steps, sends actions."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx.acting import decoder, inference, protocol, slot_table
from seedx.runtime import counters, seeding
from seedx.wire import serving


class InferenceServer:
  """Server that opens a session for each thin actor.

  The session is on the inference device with the largest number of free slots.
  """

  def __init__(
    self,
    acting: inference.Devices,
    seeds: seeding.Seeds,
    acted: counters.ActingCounts,
  ) -> None:
    self._acting = acting
    self._seeds = seeds
    self._acted = acted
    self._lock = threading.Lock()

  def bind(self, server: serving.Server) -> None:
    """Binds the stream `protocol.ACT`."""
    server.bind_batched(protocol.ACT, self.open, *self._acting.layouts)

  def open(self, hello: Mapping[str, Any]) -> "Session":
    """Leases n slots to an actor whose hello is `{"num_envs": n}`.

    Raises:
      wire.Refusal: the hello is malformed, or no device has n free slots.
    """
    devices = self._acting.devices
    num_envs = slot_table.wanted(hello, devices[0].sizes.layout.num_slots)
    with self._lock:
      device = max(devices, key=lambda x: x.slots.free)
      slots = device.slots.take(num_envs)
    first_seed = self._seeds.take(num_envs)
    return Session(device, slots, first_seed, self._acted.env_steps)


class Session:
  """The session of one thin actor, from the start of its stream to the end.

  Attributes:
    welcome: first message to the actor.
  """

  def __init__(
    self,
    device: inference.Inference,
    slots: np.ndarray,
    first_seed: int,
    env_steps: int,
  ) -> None:
    self.welcome = {"first_seed": first_seed, "env_steps": env_steps}
    self._inference = device
    self._slots = slots
    device.env[slots] = first_seed + np.arange(len(slots))
    device.received.join(slots)
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
    self._inference.slots.give_back(self._slots)
