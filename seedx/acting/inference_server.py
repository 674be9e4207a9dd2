"""The learner's server of thin actors: receives rows, sends actions."""

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from seedx import types, wire
from seedx.acting import (
  batcher,
  episodes,
  inference,
  sessions,
  unroll_store,
)
from seedx.runtime import counters


class InferenceServer:
  """Opens a session for each actor, on the device with the most free slots.

  It is what the stream `protocol.ACT` is bound to.
  """

  def __init__(
    self,
    inferences: Sequence[inference.Inference],
    sizes: Sequence[inference.Sizes],
    acted: counters.Acted,
    seeds: sessions.Seeds,
    returns_are_sums: bool = True,
  ) -> None:
    """Nobody is connected yet.

    Args:
      inferences: one for each device.
      sizes: of each; the first is the largest.
      acted: what is received is counted there.
      seeds: of the actors' environments.
      returns_are_sums: see `envs.returns_are_sums`.
    """
    exploration = [each.exploration for each in sizes]
    reported = counters.explores_least(np.concatenate(exploration))
    ends = np.cumsum([each.layout.num_slots for each in sizes])
    self._devices = list(
      zip(inferences, np.split(reported, ends[:-1]), strict=True)
    )
    self._acted = acted
    self._layout = sizes[0].layout
    self._returns_are_sums = returns_are_sums
    self._lock = threading.Lock()
    self._seeds = seeds

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
    first_seed = self._seeds.take(num_envs)
    return Session(
      device,
      slots,
      self._acted.join(reported[slots]),
      first_seed,
      self._acted,
      self._layout,
      episodes.Episodes(num_envs, self._returns_are_sums),
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
    environments: counters.Environments,
    first_seed: int,
    acted: counters.Acted,
    layout: unroll_store.Layout,
    own_episodes: episodes.Episodes,
  ) -> None:
    """Holds `slots`, those of `environments`, until it is closed."""
    self.welcome = {"first_seed": first_seed}
    self._inference = device
    self._slots = slots
    self._in_order = np.arange(len(slots), dtype=np.int32)
    self._environments = environments
    self._counts = np.zeros(len(slots), np.int32)
    self._acted = acted
    self._layout = layout
    self._episodes = own_episodes
    self._lock = threading.Lock()
    self._busy = False
    self._closed = False

  def __call__(self, inputs: types.Rows) -> types.Tree:
    """Acts for some of the actor's environments.

    Raises:
      wire.Refused: an index comes twice, a number is out of its range, steps
        are not in order, or the run is over.
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
    """Gives the slots back, once a step that is under way has ended."""
    with self._lock:
      self._closed = True
      if not self._busy:
        self._release()

  @functools.partial(jax.profiler.annotate_function, name="receive")
  def _received(self, inputs: types.Rows) -> unroll_store.Batch:
    """Checks and counts a message; returns what acts for it."""
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
    begun = -(-self._counts // self._layout.period)
    past_first = self._counts - self._layout.length
    finished = np.where(
      past_first < 0, 0, past_first // self._layout.period + 1
    )
    self._acted.add_discarded(int(np.sum(begun - finished)))

  def _checked(self, index: np.ndarray) -> np.ndarray | slice:
    """An index of the actor's environments; a slice for all of them in order.

    To index by a slice takes a fraction of the time.
    """
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
