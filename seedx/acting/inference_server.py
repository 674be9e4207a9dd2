"""The learner's server of thin actors: receives time steps, sends actions."""

import functools
import threading
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from seedx import envs, types, wire
from seedx.acting import batcher, episodes, inference, protocol, unroll_store
from seedx.acting import slots as slots_lib
from seedx.runtime import counters
from seedx.runtime import seeds as seeds_lib
from seedx.wire import server as server_lib


class InferenceServer:
  """Server that opens a session for each thin actor.

  The session is on the inference device with the largest number of free slots.
  """

  def __init__(
    self,
    acting: inference.Devices,
    acted: counters.Acted,
    seeds: seeds_lib.Seeds,
    env: envs.Config,
  ) -> None:
    self._acting = acting
    self._acted = acted
    self._seeds = seeds
    self._returns_are_sums = envs.returns_are_sums(env)
    self._lock = threading.Lock()

  def bind(self, server: server_lib.Server) -> None:
    """Binds the stream `protocol.ACT`."""
    max_rows = self._acting.devices[0].sizes.padded[-1]
    layouts = protocol.act_layouts(self._acting.spec, max_rows)
    server.bind_stream(protocol.ACT, self.open, *layouts)

  def open(self, hello: Mapping[str, Any]) -> "Session":
    """Leases n slots to an actor whose hello is `{"num_envs": n}`.

    Raises:
      wire.Refused: the hello is malformed, or no device has n free slots.
    """
    devices = self._acting.devices
    num_envs = slots_lib.wanted(hello, devices[0].sizes.layout.num_slots)
    with self._lock:
      device = max(devices, key=lambda x: x.slots.free)
      slots = device.slots.take(num_envs)
    first_seed = self._seeds.take(num_envs)
    return Session(
      device, slots, first_seed, self._acted, self._returns_are_sums
    )


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
    acted: counters.Acted,
    returns_are_sums: bool,
  ) -> None:
    self.welcome = {"first_seed": first_seed}
    self._inference = device
    self._slots = slots
    self._in_order = np.arange(len(slots), dtype=np.int32)
    self._environments = acted.join(device.sizes.reported[slots])
    self._counts = np.zeros(len(slots), np.int32)
    self._acted = acted
    self._episodes = episodes.Episodes(len(slots), returns_are_sums)
    self._lock = threading.Lock()
    self._busy = False
    self._closed = False

  def __call__(self, inputs: types.Rows) -> types.Tree:
    """Returns actions for the rows of one message, which it counts.

    Raises:
      wire.Refused: an index occurs twice, a number is out of its range, steps
        are out of order, or the run is over.
    """
    with self._lock:
      if self._closed:
        raise _over()
      self._busy = True
    try:
      batch = self._received(inputs)
      return self._inference.requests(batch, len(batch.slot))
    except batcher.Closed:
      raise _over() from None
    finally:
      with self._lock:
        self._busy = False
        if self._closed:
          self._release()

  def close(self) -> None:
    """Frees the slots, after a step that is under way has ended.

    The server calls it when the stream ends, for whatever reason.
    """
    with self._lock:
      self._closed = True
      if not self._busy:
        self._release()

  @functools.partial(jax.profiler.annotate_function, name="receive")
  def _received(self, inputs: types.Rows) -> unroll_store.Batch:
    """Checks and counts a message; returns the inputs of inference."""
    index = self._checked(inputs.index)
    wire.check_finite("observations", inputs.timestep.observation)
    ended = self._episodes.add(_one_step(inputs), index)
    self._environments.add(ended.env_steps, index, ended.returns, ended.lengths)
    count = np.array(self._counts[index])
    self._counts[index] = count + 1
    return unroll_store.Batch(self._slots[index], count, inputs.timestep)

  def _release(self) -> None:
    self._inference.slots.give_back(self._slots)
    self._environments.leave()
    unfinished = self._inference.sizes.layout.unfinished(self._counts)
    self._acted.add_discarded(int(np.sum(unfinished)))

  def _checked(self, index: np.ndarray) -> np.ndarray | slice:
    """Checks an index; returns a slice, which is faster, for all in order."""
    if np.array_equal(index, self._in_order):
      return slice(None)
    wire.check_range(
      "an index of the actor's environments", index, 0, len(self._slots) - 1
    )
    times = np.bincount(index)
    if times.max() > 1:
      raise wire.invalid(
        "each environment at most once in a message",
        f"{times.argmax()} {times.max()} times",
      )
    return index


def _one_step(rows: types.Rows) -> episodes.Steps:
  timestep = rows.timestep
  leaves = (timestep.step_type, timestep.reward, timestep.discount)
  return episodes.Steps(*(x[:, None] for x in (*leaves, rows.episode_return)))


def _over() -> wire.Refused:
  return wire.Refused(wire.StatusCode.CANCELLED, "this run is over")
