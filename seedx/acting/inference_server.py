"""The learner's server of thin actors: receives rows, sends actions."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from seedx import types, wire
from seedx.acting import batcher, inference, sessions, unroll_store
from seedx.runtime import counters


class InferenceServer:
  """Opens a session for each actor, on the device with the most free slots.

  It is what the stream `protocol.ACT` is bound to.

  Attributes:
    seeds: of their environments.
  """

  def __init__(
    self,
    inferences: Sequence[inference.Inference],
    sizes: Sequence[inference.Sizes],
    acted: counters.Acted,
    seed: int,
  ) -> None:
    """Nobody is connected yet.

    Args:
      inferences: one for each device.
      sizes: of each; the first is the largest.
      acted: what is received is counted there.
      seed: of the run; the environments' seeds are derived from it.
    """
    exploration = [each.exploration for each in sizes]
    reported = counters.explores_least(np.concatenate(exploration))
    ends = np.cumsum([each.layout.num_slots for each in sizes])
    self._devices = list(
      zip(inferences, np.split(reported, ends[:-1]), strict=True)
    )
    self._acted = acted
    self._layout = sizes[0].layout
    self._lock = threading.Lock()
    self.seeds = sessions.Seeds(seed)

  def __call__(self, hello: Mapping[str, Any]) -> "Session":
    """Takes slots for an actor's hello `{"num_envs": n}`.

    Raises:
      wire.Refused: the hello is malformed or no device has n slots free.
    """
    num_envs = sessions.wanted(hello, self._layout.num_slots)
    with self._lock:
      device, reported = max(self._devices, key=lambda x: x[0].slots.free)
      slots = device.slots.take(num_envs)
    if slots is None:
      raise sessions.too_few(device.slots.free, num_envs)
    first_seed = self.seeds.take(num_envs)
    return Session(
      device, slots, reported[slots], first_seed, self._acted, self._layout
    )


class Session:
  """One thin actor, from its stream's start to its end.

  Attributes:
    welcome: what the actor is told first.
  """

  def __init__(
    self,
    device: inference.Inference,
    slots: np.ndarray,
    reported: np.ndarray,
    first_seed: int,
    acted: counters.Acted,
    layout: unroll_store.Layout,
  ) -> None:
    """Holds `slots`, of which `reported` count, until it is closed."""
    self.welcome = {"first_seed": first_seed}
    self._inference = device
    self._slots = slots
    self._reported = reported
    self._counts = np.zeros(len(slots), np.int32)
    self._acted = acted
    self._layout = layout
    self._lock = threading.Lock()
    self._busy = False
    self._closed = False

  def __call__(self, inputs: types.Rows) -> types.Tree:
    """Acts for some of the actor's environments.

    Raises:
      wire.Refused: an index is out of the actor's range, or comes twice; or
        the run is over.
    """
    index = inputs.index
    self._check(index)
    with self._lock:
      if self._closed:
        raise _over()
      self._busy = True
    try:
      self._acted.add_rows(inputs, self._reported[index])
      batch = unroll_store.Batch(
        slot=self._slots[index],
        count=self._counts[index],
        timestep=inputs.timestep,
      )
      self._counts[index] += 1
      return self._inference.requests(batch, len(index))
    except batcher.Closed:
      raise _over() from None
    finally:
      with self._lock:
        self._busy = False
        if self._closed:
          self._release()

  def close(self) -> None:
    """Gives the slots back, once a step that is under way has ended."""
    with self._lock:
      self._closed = True
      if not self._busy:
        self._release()

  def _release(self) -> None:
    self._inference.slots.give_back(self._slots)
    begun = -(-self._counts // self._layout.period)
    past_first = self._counts - self._layout.length
    finished = np.where(
      past_first < 0, 0, past_first // self._layout.period + 1
    )
    self._acted.add_discarded(int(np.sum(begun - finished)))

  def _check(self, index: np.ndarray) -> None:
    if index.min() < 0 or index.max() >= len(self._slots):
      raise wire.Refused(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"expected indices from 0 to {len(self._slots) - 1}, the actor's"
        f" environments, found {index.min()} to {index.max()}",
      )
    times = np.bincount(index)
    if times.max() > 1:
      raise wire.Refused(
        grpc.StatusCode.INVALID_ARGUMENT,
        "expected each environment at most once in a message, found"
        f" {times.argmax()} {times.max()} times",
      )


def _over() -> wire.Refused:
  return wire.Refused(grpc.StatusCode.UNAVAILABLE, "this run is over")
