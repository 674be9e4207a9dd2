"""The messages of thin actors, decoded, checked and counted batch by batch."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
import tree

from seedx import trees, types, wire
from seedx.acting import episodes, unroll_store
from seedx.runtime import counters
from seedx.wire import serving


class Message(NamedTuple):
  """A message of an actor; the actor waits for the actions.

  Attributes:
    request: the message's bytes; its methods answer the actor.
    slots: `[n]` int32 slots of the actor's environments.
    finish: function that is called right before the answer, maybe twice.
  """

  request: serving.Request
  slots: np.ndarray
  finish: Callable[[], None]

  @property
  def rows(self) -> int:
    """Number of rows."""
    return self.request.rows

  @property
  def arrived_seconds(self) -> float:
    """Time at which the message arrived, by `time.monotonic`."""
    return self.request.arrived_seconds

  def reply(self, message: bytes) -> None:
    """Sends the actions."""
    self.finish()
    self.request.reply(message)

  def refuse(self, reason: wire.Refusal) -> None:
    """Ends the actor's stream."""
    self.finish()
    self.request.refuse(reason)

  def end(self) -> None:
    """Ends the actor's stream, because the run is over."""
    self.refuse(over())


class Decoder:
  """A decoder of the messages for all slots, which checks and counts them.

  One thread calls `take`. Any thread may call the other methods.
  """

  def __init__(
    self,
    inputs: wire.Layout,
    layout: unroll_store.Layout,
    reported: np.ndarray,
    acted: counters.ActingCounts,
    returns_are_sums: bool,
  ) -> None:
    """Starts without sessions.

    Args:
      inputs: layout of the messages.
      layout: layout of the unroll store.
      reported: `[N]` bool, whether a slot's returns enter the metrics.
      acted: counts of all experience.
      returns_are_sums: see `envs.returns_are_sums`.
    """
    self._inputs = inputs
    self._layout = layout
    self._environments = acted.environments(reported)
    self._acted = acted
    self._episodes = episodes.Episodes(layout.num_slots, returns_are_sums)
    # Number of steps of each slot's session.
    self._counts = np.zeros(layout.num_slots, np.int32)

  def join(self, slots: np.ndarray) -> None:
    """Starts the session of an actor that has leased `[n]` slots."""
    self._counts[slots] = 0
    self._episodes.start(slots)
    self._environments.join(slots)

  def leave(self, slots: np.ndarray) -> None:
    """Ends an actor's session; its unfinished unrolls count as discarded."""
    self._environments.leave(slots)
    unfinished = self._layout.unfinished(self._counts[slots])
    self._acted.add_discarded(int(np.sum(unfinished)))

  @functools.partial(jax.profiler.annotate_function, name="receive")
  def take(
    self, messages: Sequence[Message], sizes: Sequence[int]
  ) -> tuple[Sequence[Message], unroll_store.Batch | None]:
    """Checks and counts messages; refuses those that break a rule.

    Args:
      messages: messages of different actors.
      sizes: numbers of rows to which batches are padded, in ascending order.

    Returns:
      The messages that were not refused, and the batch of their rows; None if
      all were refused.
    """
    try:
      return messages, self._batch(messages, sizes)
    except (wire.Refusal, wire.MessageError):
      pass  # At least one message breaks a rule, and none has been counted.
    accepted, batches = [], []
    for message in messages:
      try:
        batches.append(self._batch([message], [message.rows]))
        accepted.append(message)
      except wire.MessageError as error:
        code = wire.StatusCode.INVALID_ARGUMENT
        message.refuse(wire.Refusal(code, str(error)))
      except wire.Refusal as refused:
        message.refuse(refused)
    return accepted, self._joined(batches, sizes) if batches else None

  def _batch(
    self, messages: Sequence[Message], sizes: Sequence[int]
  ) -> unroll_store.Batch:
    """Returns the batch of messages, unless one of them breaks a rule.

    Raises:
      wire.Refusal: INVALID_ARGUMENT, an index or a step is not valid; no
        message has been counted.
      wire.MessageError: a message cannot be decoded; none has been counted.
    """
    rows = [message.rows for message in messages]
    end = sum(rows)
    size = next(size for size in sizes if size >= end)
    contents = [message.request.message for message in messages]
    inputs: types.Rows = self._inputs.decode_all(contents, rows, size)
    slot, count = (np.empty(size, np.int32) for _ in range(2))
    taken = inputs
    if end < size:
      taken = tree.map_structure(lambda leaf: leaf[:end], inputs)
    slot[:end] = self._slots(taken.index, [x.slots for x in messages], rows)
    slot[end:] = self._layout.num_slots  # Padding.
    used = slot[:end]
    wire.check_finite("observations", taken.timestep.observation)
    steps = _one_step(taken)
    ended = self._episodes.add(steps, used)
    self._environments.add(
      ended.env_steps, used, ended.returns, ended.lengths, steps.info
    )
    count[:end] = self._counts[used]
    count[end:] = 0
    self._counts[used] += 1
    return unroll_store.Batch(slot, count, inputs.timestep)

  def _slots(
    self, index: np.ndarray, slots: Sequence[np.ndarray], rows: Sequence[int]
  ) -> np.ndarray:
    """Returns `[R]` slots, from the rows' `[R]` indices within their actors."""
    held = [len(each) for each in slots]
    last = np.repeat(held, rows) - 1
    wire.check_range("an index of the actor's environments", index, 0, last)
    first = np.cumsum([0, *held[:-1]])
    slot = np.concatenate(slots)[np.repeat(first, rows) + index]
    times = np.bincount(slot)
    if times.max() > 1:
      twice = index[slot == times.argmax()][0]
      raise wire.invalid(
        "each environment at most once in a message",
        f"{twice} {times.max()} times",
      )
    return slot

  def _joined(
    self, batches: list[unroll_store.Batch], sizes: Sequence[int]
  ) -> unroll_store.Batch:
    end = sum(len(batch.slot) for batch in batches)
    size = next(size for size in sizes if size >= end)
    joined: unroll_store.Batch = trees.concatenate(batches, size)
    slot = np.array(joined.slot)
    slot[end:] = self._layout.num_slots
    return joined._replace(slot=slot)


def _one_step(rows: types.Rows) -> episodes.Steps:
  timestep = rows.timestep
  return episodes.Steps(
    timestep.step_type[:, None],
    timestep.reward[:, None],
    timestep.discount[:, None],
    rows.episode_return[:, None],
    rows.info[:, None] if len(rows.info) else (),
  )


def over() -> wire.Refusal:
  """Returns the refusal of an actor whose run is over."""
  return wire.Refusal(wire.StatusCode.CANCELLED, "this run is over")
