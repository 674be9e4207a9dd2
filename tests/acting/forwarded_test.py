"""Unrolls that inference processes forward to the learner of a pool."""

import functools

import chex
import jax
import numpy as np
import pytest

from seedx import envs, types, wire
from seedx.acting import (
  forwarded,
  inference,
  inference_node,
  local_actor,
  protocol,
  unroll_store,
)
from seedx.runtime import counters, seeding
from seedx.wire import serving
from tests import fakes, running

CARTPOLE = envs.Config("CartPole-v1")
# The slots of two inference processes.
SIZES = (3, 2)
MESSAGE, PARTS, LENGTH = 2, 2, 4


@functools.cache
def programs():
  agent, spec = fakes.counting_agent(), envs.spec(CARTPOLE)
  return local_actor.Programs.of(agent, spec, LENGTH - 1, MESSAGE)


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
      PARTS * MESSAGE,
      [sizes_of(x) for x in SIZES],
      len(SIZES),
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
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), programs().share())
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
  rows = [(*event, 0.0, 0.0)[:4] for event in ((forwarded.NONE, 0), *events)]
  measured = np.full(len(forwarded.MEASURED), waits, np.float32)
  sent = forwarded.Forward(
    np.array(rows, np.float64),
    share_of(number),
    np.int32(env_steps),
    np.int32(discarded),
    measured,
  )
  layout = forwarded.layout(programs().share(), sum(SIZES), 0)
  return layout.decode(layout.encode(sent))


JOINS = [(forwarded.JOINED, k) for k in range(3)]


def ended(slot, value, length=2):
  return forwarded.ENDED, slot, value, length


@pytest.mark.parametrize(
  ("size", "processes", "parts"),
  [(64, 1, 1), (64, 2, 2), (64, 3, 4), (6, 4, 6), (2, 5, 2), (7, 2, 7)],
)
def test_a_share_has_at_least_a_part_of_each_process(size, processes, parts):
  assert forwarded.num_parts(size, processes) == parts


def test_the_unrolls_of_messages_make_shares_in_order():
  made = Serving()
  first, second = made.join(0), made.join(1)
  for number, session in enumerate([first, second, second, second, first]):
    answer = session(message(number=number))
    assert answer == (7, 0)
  assert len(made.shares) == 2
  for k, share in enumerate(made.shares):
    parts = [share_of(2 * k).data, share_of(2 * k + 1).data]
    chex.assert_trees_all_equal(share.data, running.joined(parts))
  chex.assert_trees_all_equal_shapes_and_dtypes(
    made.shares[0], made.server.example()
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
    (message([(4, 0)]), "kind from 0 to 3"),
    (message([(forwarded.JOINED, 0.5)]), "integers"),
    (message([ended(0, 1.0)]), "that have joined"),
    (message([(forwarded.LEFT, 0)]), "that have joined"),
    (message([JOINS[0], JOINS[0]]), "that have joined"),
    (message([JOINS[0], ended(0, np.inf)]), "finite"),
    (message([JOINS[0], ended(0, 1.0, -1)]), "length of a game"),
    (message(env_steps=-1), "env_steps from 0"),
    (message(env_steps=10**6), "env_steps from 0"),
    (message(discarded=-1), "discarded from 0"),
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
  assert not made.server._waiting


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
    made.server._direct({})
  assert caught.value.code is wire.StatusCode.UNAVAILABLE
  made.join(1)
  first = made.join(0)
  welcomes = [made.server._direct({}).welcome for _ in range(3)]
  orders = [protocol.addresses(x) for x in welcomes]
  assert orders[0] == orders[2] == orders[1][::-1]
  assert sorted(orders[0]) == ["localhost:0", "localhost:1"]
  first.close()
  assert made.server._direct({}).welcome == {"addresses": ["localhost:1"]}


def test_metrics_are_means_over_the_processes():
  made = Serving()
  assert set(made.server.measure().values()) == {None}
  made.join(0)(message(waits=0.5))
  second = made.join(1)
  assert made.server.measure()["inference_rows"] == 0.5
  second(message(waits=0.25))
  assert made.server.measure()["reply_seconds_p99"] == 0.375


def test_seeds_are_leased_in_ranges_and_used_once(tmp_path):
  made, leases = Serving(), []
  server = serving.Server(f"unix:{tmp_path}/learner", 4)
  made.server.bind(server)

  def lease(count):
    leases.append(count)
    return inference_node._leased(client, count)

  with server, wire.Client(server.address) as client:
    all_seeds = [inference_node.Seeds(lease, 8) for _ in range(2)]
    taken = [all_seeds[k % 2].take(3) for k in range(8)]
    taken.append(all_seeds[0].take(20))
    with pytest.raises(wire.Refusal) as caught:
      all_seeds[0].take(forwarded.MAX_SEEDS + 1)
  assert caught.value.code is wire.StatusCode.UNAVAILABLE
  assert leases == [8, 8, 8, 8, 20, forwarded.MAX_SEEDS + 1]
  used = [
    x + k for x, n in zip(taken, [*[3] * 8, 20], strict=True) for k in range(n)
  ]
  assert len(set(used)) == len(used) == 44
  assert made.seeds.taken == 52


# The counts of an inference process


def test_what_a_process_counts_arrives_as_if_it_were_counted_there():
  rng = np.random.default_rng(0)
  local, made = counters.ActingCounts(), Serving()
  here = local.environments(np.ones(3, np.bool_))
  session = made.join(0)
  sent = inference_node.Counts(0, 11)
  assert sent.env_steps == 11
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
      events, env_steps, discarded = sent.take(1000)
      session(
        message(env_steps=env_steps, discarded=discarded)._replace(
          events=events
        )
      )
  events, env_steps, _ = sent.take(1000)
  session(message(env_steps=env_steps)._replace(events=events))
  assert made.counts.env_steps == local.env_steps == 400
  line, expected = made.counts.measure(), local.measure()
  for name in ("episodes", "episode_return", "episode_length"):
    assert line[name] == expected[name]
  assert line["unrolls_discarded"] == 9
  assert len(sent.take(1000)[0]) == 1


def test_events_that_do_not_fit_wait_for_the_next_message():
  sent = inference_node.Counts(2, 0)
  part = sent.environments(np.ones(5, np.bool_))
  part.join(slice(None))
  info = np.float32([[[1, 2]], [[3, 4]]])
  part.add(2, np.array([4, 1]), np.ones((2, 1)), np.ones((2, 1), int), info)
  taken = [sent.take(4) for _ in range(3)]
  none, joined, end = forwarded.NONE, forwarded.JOINED, forwarded.ENDED
  rows = [events[:, :2].tolist() for events, *_ in taken]
  assert rows[0] == [[none, 0], [joined, 0], [joined, 1], [joined, 2]]
  assert rows[1] == [[none, 0], [joined, 3], [joined, 4], [end, 4]]
  assert rows[2] == [[none, 0], [end, 1]]
  assert [steps for _, steps, _ in taken] == [2, 0, 0]
  np.testing.assert_array_equal(taken[1][0][-1, 2:], [1, 1, 1, 2])


def test_addresses_in_a_welcome_are_checked():
  assert protocol.addresses({"first_seed": 1}) == []
  for wrong in ("a:1", [1], ["a"], None):
    with pytest.raises(wire.WireError, match="addresses"):
      protocol.addresses({"addresses": wrong})


def test_a_share_with_no_unrolls_under_way_has_types(tmp_path):
  assert isinstance(Serving().server.example(), types.Share)
