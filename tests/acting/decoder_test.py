"""Messages have the same results whether checked together or one by one."""

import random

import numpy as np
import pytest

from seedx import envs, wire
from seedx.acting import decoder, protocol, unroll_store
from seedx.runtime import counters
from seedx.wire import serving
from tests import fuzz
from tests.acting import devices

ACTORS, ENVS = 3, 2
SLOTS = ACTORS * ENVS
LAYOUT, _ = protocol.act_layouts(envs.spec(devices.CARTPOLE), ENVS)


class Peers:
  """Some actors, and a `Decoder` that takes their messages."""

  def __init__(self):
    self.acted = counters.ActingCounts()
    # The returns of the first slot are not reported.
    self.received = decoder.Decoder(
      LAYOUT,
      unroll_store.Layout(SLOTS, length=4, period=3),
      np.arange(SLOTS) > 0,
      self.acted,
      returns_are_sums=True,
    )
    self.slots = np.random.default_rng(0).permutation(SLOTS).reshape(-1, ENVS)
    self.answers = {}
    for slots in self.slots:
      self.received.join(slots)

  def take(self, messages, together):
    """Takes the messages of actors; returns the accepted rows by slot."""
    asked = [self._message(actor, x) for actor, x in messages.items()]
    rows = {}
    for some in [asked] if together else [[each] for each in asked]:
      _, batch = self.received.take(some, [1, 2, SLOTS])
      if batch is None:
        continue
      for row, slot in enumerate(batch.slot):
        if slot == SLOTS:
          assert all(not leaf[row].any() for leaf in batch.timestep)
        else:
          leaves = [leaf[row].tolist() for leaf in batch.timestep]
          rows[int(slot)] = [batch.count[row], *leaves]
    return rows

  def _message(self, actor, message):
    def answer(refused):
      self.answers[actor] = (refused.code, refused.message)

    request = serving.Request(message, LAYOUT.rows(message), answer)
    return decoder.Message(request, self.slots[actor], lambda: None)

  def state(self):
    """Returns all counts and refusals."""
    for actor, slots in enumerate(self.slots):
      if actor not in self.answers:
        self.received.leave(slots)
    saved = self.acted.saved()
    del saved["wall_seconds"]
    return self.answers, repr(saved), self.acted.all_have_ended


def next_rows(rng, is_first):
  """Returns valid rows of some of an actor's environments, in any order."""
  index = rng.permutation(ENVS)[: rng.integers(1, ENVS + 1)]
  step_type = np.where(is_first[index], 0, rng.integers(1, 3, len(index)))
  is_first[index] = step_type == 2
  rows = fuzz.rows_of(len(index))
  rows.timestep.step_type[:] = step_type
  rows.timestep.observation[:] = rng.normal(size=(len(index), 4))
  return rows._replace(index=index.astype(np.int32))


def can_be_received(message):
  try:
    return bool(LAYOUT.rows(message))
  except wire.MessageError:
    return False


@pytest.mark.parametrize("seed", range(30))
def test_messages_have_the_same_results_together_as_one_by_one(seed):
  rng, mutations = np.random.default_rng(seed), random.Random(seed)
  joint, alone = Peers(), Peers()
  is_first = np.ones((ACTORS, ENVS), bool)
  for _ in range(12):
    messages = {}
    for actor in rng.permutation(ACTORS)[: rng.integers(1, ACTORS + 1)]:
      if actor in joint.answers:
        continue  # The actor's stream has ended.
      message = LAYOUT.encode(next_rows(rng, is_first[actor]))
      changed = fuzz.mutated(mutations, message)
      if rng.random() < 0.15 and can_be_received(changed):
        message = changed
      messages[int(actor)] = message
    if messages:
      rows = joint.take(messages, together=True)
      assert rows == alone.take(messages, together=False)
  assert joint.state() == alone.state()


def test_a_slot_starts_again_with_its_next_actor():
  """Steps of the previous session do not count in the next episode."""
  peers = Peers()
  rows = fuzz.rows_of(ENVS)
  middle = LAYOUT.encode(fuzz.rows_of(ENVS, step_type=1))
  peers.take({0: LAYOUT.encode(rows)}, together=True)
  peers.take({0: middle}, together=True)
  peers.received.leave(peers.slots[0])
  peers.received.join(peers.slots[0])
  taken = peers.take({0: LAYOUT.encode(rows)}, together=True)
  assert not peers.answers
  assert all(count == 0 for count, *_ in taken.values())
  last = fuzz.rows_of(ENVS, step_type=2)
  peers.take({0: LAYOUT.encode(last)}, together=True)
  assert peers.acted.lengths.mean() == peers.acted.returns.mean() == 1


def test_a_message_of_all_environments_is_not_copied():
  message = LAYOUT.encode(fuzz.rows_of(ENVS))
  peers = Peers()
  _, batch = peers.received.take([peers._message(0, message)], [ENVS])
  as_bytes = np.frombuffer(message, np.uint8)
  assert np.shares_memory(batch.timestep.observation, as_bytes)
