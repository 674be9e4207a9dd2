"""Unrolls that inference processes forward to the learner of a pool."""

import functools

import chex
import numpy as np
import pytest

from seedx import envs, wire
from seedx.acting import (
  forwarded,
  inference,
  inference_node,
  leases,
  local_actor,
  protocol,
  unroll_store,
)
from seedx.runtime import counters, seeding
from tests import fakes, running

CARTPOLE = envs.Config("CartPole-v1")
# The slots of two inference processes.
SIZES = (3, 2)
MESSAGE, PARTS, LENGTH = 2, 2, 4


@functools.cache
def programs():
  agent, spec = fakes.counting_agent(), envs.spec(CARTPOLE)
  return local_actor.Programs.of(agent, spec, LENGTH - 1, PARTS * MESSAGE)


def message_share():
  """Returns the unrolls of a message, of zeros."""
  made = programs()
  return local_actor.Programs.of(
    made.agent, made.spec, LENGTH - 1, MESSAGE
  ).example()


def sizes_of(num_slots):
  agent = programs().agent
  return inference.Sizes(
    layout=unroll_store.Layout.of(agent, LENGTH - 1, num_slots),
    exploration=np.zeros(num_slots, np.float32),
    reported=np.ones(num_slots, np.bool_),
    share_size=MESSAGE,
    target_rows=1,
    padded=[1],
    max_wait_seconds=0.0,
  )


class Serving:
  """The learner's server, with what it has taken."""

  def __init__(self):
    self.counts = counters.ActingCounts()
    self.seeds = seeding.Seeds(0)
    self.shares, self.over = [], False
    self.server = forwarded.ForwardServer(
      programs(),
      [[sizes_of(x)] for x in SIZES],
      self.counts,
      self.seeds,
      "localhost:{}".format,
      newest=lambda: (np.float32(0), 7),
      sink=self.sink,
    )

  def sink(self, share):
    self.shares.append(share)
    return not self.over

  def join(self, process=0):
    return self.server._join({"process": process})


def share_of(number):
  """Returns the unrolls of a message; rewards encode the number."""
  zeros = message_share()
  inputs = zeros.data.inputs
  reward = inputs.timestep.reward + 10 * number + np.arange(MESSAGE)
  timestep = inputs.timestep._replace(
    step_type=np.ones_like(inputs.timestep.step_type),
    reward=np.float32(reward),
  )
  inputs = inputs._replace(timestep=timestep)
  return zeros._replace(data=zeros.data._replace(inputs=inputs))


def message(events=(), number=0, env_steps=0, discarded=0, waits=np.nan):
  """Returns a message; events are `(kind, slot)`, or also return and length."""
  first = (forwarded.STEPS, 0, env_steps), (forwarded.DISCARDED, 0, discarded)
  rows = [(*event, 0.0, 0.0)[:4] for event in (*first, *events)]
  measured = np.full(len(forwarded.MEASURED), waits, np.float32)
  sent = forwarded.Forward(
    np.array(rows, np.float64),
    share_of(number),
    measured,
  )
  layout = forwarded.layout(message_share(), sum(SIZES), 0)
  return layout.decode(layout.encode(sent))


JOINS = [(forwarded.JOINED, k) for k in range(3)]


def ended(slot, value, length=2):
  return forwarded.ENDED, slot, length, value


def test_the_unrolls_of_messages_make_shares_in_order():
  made = Serving()
  first, second = made.join(0), made.join(1)
  for number, session in enumerate([first, second, second, second, first]):
    answer = session(message(number=number))
    assert answer == 7
  assert len(made.shares) == 2
  for k, share in enumerate(made.shares):
    parts = [share_of(2 * k).data, share_of(2 * k + 1).data]
    chex.assert_trees_all_equal(share.data, running.joined(parts))
  chex.assert_trees_all_equal_shapes_and_dtypes(
    made.shares[0], programs().example()
  )


def test_counts_of_a_process_are_those_of_its_environments():
  made = Serving()
  session, other = made.join(0), made.join(1)
  session(message(JOINS, env_steps=5))
  other(message([(forwarded.JOINED, 1)]))
  assert made.counts.measure()["episode_return"] is None
  games = [ended(2, 3.0), ended(0, 4.0, 7), ended(2, 5.0), ended(1, 6.0)]
  session(message(games, env_steps=6, discarded=2))
  assert not made.counts.all_have_ended
  other(message([ended(1, 8.0)], env_steps=1))
  assert made.counts.all_have_ended
  saved = made.counts.saved()
  assert saved["env_steps"] == 12 and saved["unrolls_discarded"] == 2
  line = made.counts.measure()
  assert line["episodes"] == 5
  assert line["episode_return"] == pytest.approx(26 / 5)
  assert line["episode_length"] == pytest.approx(15 / 5)
  # A restarted actor joins within one message; the games stay in order.
  again = [(forwarded.LEFT, 0), (forwarded.JOINED, 0), ended(0, 9.0)]
  session(message(again))
  newest = made.counts.returns.saved()["latest"]
  assert newest[:6].tolist() == [3.0, 4.0, 5.0, 6.0, 8.0, 9.0]


def test_a_process_that_ends_leaves_its_place_and_its_environments():
  made = Serving()
  session = made.join(0)
  session(message(JOINS[:2]))
  with pytest.raises(wire.Refusal, match="process 0 is connected already"):
    made.join(0)
  session.close()
  assert made.counts.measure()["unrolls_discarded"] == 2
  with pytest.raises(wire.Refusal, match="over"):
    session(message(JOINS[2:]))
  made.join(0)(message([*JOINS, ended(0, 1.0)]))
  assert not made.counts.all_have_ended


def with_leaf(change):
  """Returns a message with a changed leaf."""
  made = running.copied(message([*JOINS, ended(0, 1.0)]))
  change(made)
  return made


def spoil(get, index, value):
  def change(made):
    get(made)[index] = value

  return change


@pytest.mark.parametrize(
  ("sent", "words"),
  [
    (message([(forwarded.JOINED, 3)]), "slot from 0 to 2"),
    (message([(5, 0)]), "kind from 0 to 4"),
    (message([(forwarded.JOINED, 0.5)]), "integers"),
    (message([ended(0, 1.0)]), "that have joined"),
    (message([(forwarded.LEFT, 0)]), "that have joined"),
    (message([JOINS[0], JOINS[0]]), "that have joined"),
    (message([JOINS[0], ended(0, np.inf)]), "finite"),
    (message([JOINS[0], ended(0, 1.0, -1)]), "number of an event"),
    (message(env_steps=-1), "number of an event from 0"),
    (message(env_steps=10**6), "number of an event from 0"),
    (message(discarded=-1), "number of an event from 0"),
    (
      with_leaf(spoil(lambda x: x.share.data.version, (1, 1), 8)),
      "version from 0 to 7",
    ),
    (
      with_leaf(
        spoil(lambda x: x.share.data.inputs.timestep.reward, (1, 1), np.nan)
      ),
      "finite",
    ),
    (
      with_leaf(
        spoil(lambda x: x.share.data.inputs.timestep.step_type, (1, 1), 0)
      ),
      "FIRST after each LAST",
    ),
    (
      with_leaf(
        spoil(lambda x: x.share.data.inputs.timestep.step_type, (1, 1), 2)
      ),
      "FIRST after each LAST",
    ),
    (
      with_leaf(spoil(lambda x: x.share.data.inputs.exploration, (0, 0), 2)),
      "exploration from 0",
    ),
  ],
)
def test_a_message_that_breaks_a_rule_is_not_learned_from(sent, words):
  made = Serving()
  with pytest.raises(wire.Refusal, match=words) as caught:
    made.join(0)(sent)
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  assert not made.server.shares._waiting


@pytest.mark.parametrize("process", [None, -1, 2, True, "0"])
def test_only_processes_of_the_run_may_join(process):
  with pytest.raises(wire.Refusal, match="process from 0 to 1"):
    Serving().join(process)


def test_no_unroll_is_taken_when_the_run_is_over():
  made = Serving()
  made.over, session = True, made.join(0)
  session(message())
  with pytest.raises(wire.Refusal) as caught:
    session(message())
  assert caught.value.code is wire.StatusCode.CANCELLED


def test_actors_are_sent_to_the_connected_processes_in_turn():
  made = Serving()
  with pytest.raises(wire.Refusal) as caught:
    made.server._direct({"num_envs": 2})
  assert caught.value.code is wire.StatusCode.UNAVAILABLE
  made.join(1)
  first = made.join(0)
  welcomes = [made.server._direct({"num_envs": 2}).welcome for _ in range(3)]
  seeds = [protocol.first_seed(x) for x in welcomes]
  assert seeds == [seeds[0], seeds[0] + 2, seeds[0] + 4]
  orders = [protocol.addresses(x) for x in welcomes]
  assert orders[0] == orders[2] == orders[1][::-1]
  assert sorted(orders[0]) == ["localhost:0", "localhost:1"]
  first.close()
  last = made.server._direct({"num_envs": 2}).welcome
  assert last["addresses"] == ["localhost:1"]
  with pytest.raises(wire.Refusal, match="num_envs"):
    made.server._direct({})


def test_metrics_are_means_over_the_processes():
  made = Serving()
  assert set(made.server.measure().values()) == {None}
  made.join(0)(message(waits=0.5))
  second = made.join(1)
  assert made.server.measure()["inference_rows"] == 0.5
  second(message(waits=0.25))
  assert made.server.measure()["reply_seconds_p99"] == 0.375


@pytest.mark.parametrize("seed", [None, -1, 2**30 - 1, True, 1.0, "1"])
def test_an_actor_brings_the_seeds_that_the_learner_leased(seed):
  leased = leases.Leases([4], None, counters.ActingCounts())
  lease = leased.grant({"num_envs": 2, "first_seed": 2**30 - 2})
  assert lease.envs.tolist() == [2**30 - 2, 2**30 - 1]
  with pytest.raises(wire.Refusal, match="first_seed"):
    leased.grant({"num_envs": 2, "first_seed": seed})
  assert leased.free == [2]


# The counts of an inference process


def test_what_a_process_counts_arrives_as_if_it_were_counted_there():
  rng = np.random.default_rng(0)
  local, made = counters.ActingCounts(), Serving()
  here = local.environments(np.ones(3, np.bool_))
  session = made.join(0)
  sent = inference_node.Journal(0)
  # Two devices, of one and of two slots.
  parts = [sent.environments(np.ones(n, np.bool_)) for n in (1, 2)]
  where = [(0, 0), (1, 0), (1, 1)]
  for slot, (part, index) in enumerate(where):
    here.join(np.array([slot]))
    parts[part].join(np.array([index]))
  for step in range(200):
    slot = rng.integers(3)
    part, index = where[slot]
    returns = rng.choice([np.nan, rng.normal()], (1, 1)).astype(np.float32)
    game = returns, rng.integers(1, 9, (1, 1))
    here.add(2, np.array([slot]), *game)
    parts[part].add(2, np.array([index]), *game)
    if step % 23 == 0:
      parts[part].leave(np.array([index]))
      parts[part].join(np.array([index]))
      sent.add_discarded(1)
    if step % 9 == 0:
      session(message()._replace(events=sent.take(1000)))
  session(message()._replace(events=sent.take(1000)))
  assert made.counts.env_steps == local.env_steps == 400
  line, expected = made.counts.measure(), local.measure()
  for name in ("episodes", "episode_return", "episode_length"):
    assert line[name] == expected[name]
  assert line["unrolls_discarded"] == 9
  assert sent.take(1000).tolist() == [[forwarded.STEPS, 0, 0, 0]]


def test_events_that_do_not_fit_wait_for_the_next_message():
  sent = inference_node.Journal(2)
  part = sent.environments(np.ones(5, np.bool_))
  part.join(slice(None))
  info = np.float32([[[1, 2]], [[3, 4]]])
  part.add(2, np.array([4, 1]), np.ones((2, 1)), np.ones((2, 1), int), info)
  taken = [sent.take(4) for _ in range(3)]
  none, joined, end = forwarded.STEPS, forwarded.JOINED, forwarded.ENDED
  rows = [events[:, :2].tolist() for events in taken]
  assert rows[0] == [[none, 0], [joined, 0], [joined, 1], [joined, 2]]
  assert rows[1] == [[none, 0], [joined, 3], [joined, 4], [end, 4]]
  assert rows[2] == [[none, 0], [end, 1]]
  assert [events[0, 2] for events in taken] == [2, 0, 0]
  np.testing.assert_array_equal(taken[1][-1, 2:], [1, 1, 1, 2])


def test_addresses_in_a_welcome_are_checked():
  assert protocol.addresses({"first_seed": 1}) == []
  for wrong in ("a:1", [1], ["a"], None):
    with pytest.raises(wire.WireError, match="addresses"):
      protocol.addresses({"addresses": wrong})
