"""Unroll actors and their server."""

import contextlib
import dataclasses
import functools
import itertools
import threading

import chex
import dm_env
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from seedx import envs, metrics, types, wire
from seedx.acting import (
  local_actor,
  protocol,
  unroll_actor,
  unroll_messages,
  unroll_server,
  unroll_store,
)
from seedx.agents import base, vtrace
from seedx.runtime import counters, seeding
from seedx.wire import serving as server_lib
from tests import fakes, running

FIRST = int(dm_env.StepType.FIRST)
CARTPOLE = envs.Config("CartPole-v1")
LENGTH, WINDOW = 4, 2
# Consecutive unrolls share a step, so the first and last step types are equal.
STEP_TYPES = [0, 1, 2, 0]


def unroll_of(numbers):
  """Returns `[S, L, ...]` unrolls; each unroll's values encode its number."""
  value = np.array(numbers, np.float32)
  steps = value[:, None] * 100 + np.arange(LENGTH, dtype=np.float32)
  timestep = dm_env.TimeStep(
    step_type=np.full(steps.shape, STEP_TYPES, np.uint8),
    reward=-steps,
    discount=np.ones_like(steps),
    observation=np.repeat(steps[..., None], 4, axis=-1),
  )
  return types.Unroll(
    inputs=types.Inputs(
      timestep, np.zeros(steps.shape, np.int32), np.zeros_like(steps)
    ),
    action=np.zeros(steps.shape, np.int32),
    extras={"sum": steps + 0.5},
    version=(steps % 8).astype(np.int32),
    core_state=value,
  )


def priorities_of(numbers):
  """Returns `[S, windows]` priorities, all different."""
  windows = np.arange(LENGTH - WINDOW + 1, dtype=np.float32)
  return np.array(numbers, np.float32)[:, None] * 10 + windows


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(
  size=st.integers(1, 7),
  sizes=st.lists(st.integers(1, 20), min_size=1, max_size=12),
  prioritized=st.booleans(),
)
def test_messages_of_all_sizes_are_cut_into_shares_of_one_size(
  size, sizes, prioritized
):
  taken = []
  shares = unroll_server.Shares(
    size, lambda: ((), 5), lambda x: taken.append(x) or True
  )
  waiting, number = [], 0
  for rows in sizes:
    numbers = list(range(number, number + rows))
    number += rows
    waiting += numbers
    priorities = priorities_of(numbers) if prioritized else ()
    origin = np.array([(x, -x) for x in numbers]) if prioritized else ()
    # Arrays from the wire are read-only.
    message = running.copied((unroll_of(numbers), priorities, origin))
    for leaf in jax.tree.leaves(message):
      leaf.flags.writeable = False
    unroll, *others = message
    unroll = unroll_messages.swapped(unroll)
    assert shares.take(types.Share(unroll, *others)) == 5
    full, taken[:] = taken[:], []
    for unroll, share_priorities, share_origin in full:
      expected, waiting = waiting[:size], waiting[size:]
      chex.assert_trees_all_equal(
        unroll, running.time_major(unroll_of(expected))
      )
      assert isinstance(unroll, types.Unroll)
      if prioritized:
        np.testing.assert_array_equal(share_priorities, priorities_of(expected))
        np.testing.assert_array_equal(share_origin, [(x, -x) for x in expected])
      else:
        assert share_priorities == share_origin == ()
    assert len(waiting) < size


# Over the wire


PERIOD = LENGTH - 1
ACTORS = protocol.Actors(num_actors=2, envs_per_actor=3)
SHARE = 4


AGENT = fakes.counting_agent()
WITH_PRIORITIES = dataclasses.replace(
  AGENT,
  needs=base.Needs(WINDOW),
  priorities=lambda acting, unroll: jnp.float32(unroll.version[1:].T),
)


@functools.cache
def programs_of(agent, layout):
  """Returns the programs of actors, compiled once for all tests."""
  return local_actor.Programs(agent, envs.spec(CARTPOLE), layout)


class Serving:
  """An unroll server, with a sink that a test can block."""

  def __init__(self, folder, agent=AGENT):
    self.agent = agent
    self.counts = counters.ActingCounts()
    self.newest = np.float32(1.5), 7
    self.shares, self.open, self.over = [], threading.Event(), False
    self.in_sink = 0
    self.open.set()
    self.server = server_lib.Server(f"unix:{folder}/learner", 4)
    self.unrolls = unroll_server.UnrollServer(
      self.programs(num_slots=SHARE),
      ACTORS,
      self.counts,
      seeding.Seeds(0),
      CARTPOLE,
      newest=lambda: self.newest,
      sink=self._sink,
    )
    self.unrolls.bind(self.server)

  def _sink(self, share):
    self.in_sink += 1
    assert self.open.wait(300)
    self.in_sink -= 1
    self.shares.append(share)
    return not self.over

  def __enter__(self):
    self.server.start()
    self.client = wire.Client(self.server.address)
    return self

  def __exit__(self, *_):
    self.open.set()
    self.client.close()
    self.server.stop(0)

  @property
  def free_slots(self):
    return self.unrolls.sessions.leases.free[0]

  def programs(self, agent=None, num_slots=3):
    """Returns the programs of an actor, by default with the server's agent."""
    agent = agent or self.agent
    layout = unroll_store.Layout.of(agent, PERIOD, num_slots)
    return programs_of(agent, layout)

  def work(self):
    """Returns the work of an actor that connects to this server."""
    return unroll_actor.Work(
      self.server.address,
      CARTPOLE,
      running.Changed(vtrace.Config(), lambda agent: self.agent),
      base.Horizon.of(1000, 10),
      ACTORS,
      PERIOD,
    )

  def actor(self, num_envs=3, programs=None):
    share = (programs or self.programs()).share()
    return self.client.exchange(
      unroll_messages.EXPERIENCE,
      unroll_messages.experience_layout(share, 3),
      unroll_messages.VERSION,
      {"num_envs": num_envs},
    )


@pytest.fixture
def serving(tmp_path):
  with Serving(tmp_path) as running_server:
    yield running_server


def experience(numbers, waits=(0.0, 0.0)):
  rows = len(numbers)
  return unroll_messages.Experience(
    unroll=unroll_of(numbers),
    priorities=(),
    episode_return=np.full((rows, LENGTH), 3e38, np.float32),
    wait_environments=np.float32(waits[0]),
    wait_learner=np.float32(waits[1]),
  )


def test_experience_of_actors_becomes_shares_and_is_counted(serving):
  first, second = serving.actor(), serving.actor(num_envs=2)
  reply = first(experience([0, 1, 2], waits=(0.5, 0.2)))
  assert reply == 7
  assert serving.shares == []
  serving.newest = np.float32(2.5), 8
  assert second(experience([3, 4], waits=(0.25, 0.4))) == 8
  assert first(experience([5, 6, 7], waits=(0.0, 0.0))) == 8
  assert len(serving.shares) == 2
  for share, numbers in zip(
    serving.shares, ([0, 1, 2, 3], [4, 5, 6, 7]), strict=True
  ):
    chex.assert_trees_all_equal(
      share.data, running.time_major(unroll_of(numbers))
    )
  assert serving.counts.env_steps == 2 * (3 + 2 + 3)
  # Returns are sums of rewards, whatever the actors claim.
  assert serving.counts.returns.count == 3 + 2 + 3
  returns = [-200 * number - 3 for number in range(8)]
  assert serving.counts.returns.mean() == np.mean(returns)
  # The metrics are means over the latest message of each actor.
  assert serving.unrolls.measure() == {
    metrics.WAIT_ENVIRONMENTS: pytest.approx(0.125),
    metrics.WAIT_LEARNER: pytest.approx(0.2),
  }


@pytest.fixture
def acting(monkeypatch):
  """Returns a function that starts an actor on a thread; ends all actors."""
  monkeypatch.setattr(
    local_actor.Programs,
    "of",
    lambda agent, _, period, num_envs: programs_of(
      agent, unroll_store.Layout.of(agent, period, num_envs)
    ),
  )
  stop, threads = threading.Event(), []

  def start(work):
    actor = threading.Thread(target=unroll_actor.run, args=(work, stop))
    threads.append(actor)
    actor.start()
    return actor

  yield start
  stop.set()
  for thread in threads:
    thread.join(300)
    assert not thread.is_alive()


@pytest.mark.slow
def test_an_actor_that_waits_for_slots_leaves_no_threads_behind(
  serving, acting
):
  tries, open_session = [], serving.unrolls.sessions.open

  def counted(hello):
    tries.append(hello)
    return open_session(hello)

  serving.unrolls.sessions.open = counted
  holders = [serving.actor(), serving.actor()]
  actor = acting(serving.work())
  # The first two tries are the holders', all later ones the actor's.
  running.wait_until(lambda: len(tries) > 2 + 1)
  num_threads = threading.active_count()
  running.wait_until(lambda: len(tries) > 2 + 6)
  running.wait_until(lambda: threading.active_count() <= num_threads + 2)
  assert actor.is_alive()
  assert all(holder.welcome for holder in holders)


@pytest.mark.parametrize(("interval", "messages"), [(9, 1), (10, 2)])
def test_actors_fetch_parameters_at_an_interval(
  serving, acting, interval, messages
):
  """Each message has 9 env steps, and increments the version."""
  fetched, sent = [], 0
  take, versioned = serving.unrolls.take, serving.unrolls._parameters._versioned

  def counted_take(*arguments):
    nonlocal sent
    sent += 1
    serving.newest = serving.newest[0], serving.newest[1] + 1
    return take(*arguments)

  def counted_versioned(nothing):
    fetched.append(sent)
    return versioned(nothing)

  serving.unrolls.take = counted_take
  method = serving.server._methods[unroll_messages.PARAMETERS]
  method.open_session = lambda hello: server_lib.FunctionSession(
    counted_versioned
  )
  acting(dataclasses.replace(serving.work(), fetch_interval=interval))
  running.wait_until(lambda: len(fetched) > 4)
  fetched = list(fetched)
  assert fetched == [messages * k for k in range(len(fetched))]


def test_an_actor_fails_if_a_priority_is_nan_and_sends_nothing(tmp_path):
  def priorities(acting, unroll):
    return WITH_PRIORITIES.priorities(acting, unroll).at[1, 2].set(np.nan)

  agent = dataclasses.replace(WITH_PRIORITIES, priorities=priorities)
  message = "priorities of 0 or more, found .* for environment 1 of this actor"
  with (
    Serving(tmp_path, agent) as serving,
    pytest.raises(RuntimeError, match=message),
  ):
    unroll_actor.run(serving.work(), threading.Event())
  assert serving.counts.env_steps == 0


def test_an_actor_with_other_columns_is_refused(serving):
  with pytest.raises(wire.WireError, match="priorities") as caught:
    serving.actor(programs=serving.programs(WITH_PRIORITIES))
  assert caught.value.code is wire.StatusCode.FAILED_PRECONDITION
  assert serving.free_slots == 6


def test_actors_wait_while_the_sink_blocks(serving):
  first, second = serving.actor(), serving.actor()
  first(experience([0, 1, 2]))
  serving.open.clear()
  replies = []

  def send(actor, numbers):
    replies.append(actor(experience(numbers)).tolist())

  threads = [
    threading.Thread(target=send, args=(first, [3, 4, 5]), daemon=True),
    threading.Thread(target=send, args=(second, [6, 7, 8]), daemon=True),
  ]
  for thread in threads:
    thread.start()
  running.wait_until(lambda: serving.counts.env_steps == 2 * 9)
  running.wait_until(lambda: serving.in_sink)
  assert replies == [] and serving.shares == []
  # The sink takes one share at a time, which keeps the order of messages.
  assert serving.in_sink == 1
  # Requests for parameters are answered meanwhile.
  assert fetch(serving).version == 7
  serving.open.set()
  for thread in threads:
    thread.join(300)
  assert replies == [7, 7]
  assert len(serving.shares) == 2
  assert first(experience([9, 10, 11])) == 7
  numbers = [int(x) for share in serving.shares for x in share.data.core_state]
  # Either of the two waiting messages may come first.
  assert sorted(numbers) == list(range(12))


def test_actors_receive_none_when_the_run_is_over(serving):
  first, second = serving.actor(), serving.actor()
  first(experience([0, 1, 2]))
  serving.over = True
  assert second(experience([3, 4, 5])) is None
  assert len(serving.shares) == 1


def replaced(message, path, value):
  """Returns a message with `value` as the last number of the leaf at `path`."""
  name, _, rest = path.partition("/")
  inner = getattr(message, name)
  if rest:
    return message._replace(**{name: replaced(inner, rest, value)})
  leaf = np.array(inner)
  leaf.ravel()[-1] = value
  return message._replace(**{name: leaf})


@pytest.mark.parametrize(
  ("agent", "lies"),
  [
    (
      AGENT,
      [
        ("unroll/inputs/timestep/step_type", 3),
        ("unroll/inputs/timestep/step_type", 1),
        ("unroll/inputs/timestep/discount", 1.5),
        ("unroll/inputs/action_tm1", -1),
        ("unroll/inputs/exploration", 0.5),
        ("unroll/action", 2),
        ("unroll/version", 8),
        ("unroll/core_state", np.inf),
        ("wait_learner", 1.5),
      ],
    ),
    (WITH_PRIORITIES, [("priorities", np.inf), ("priorities", -1e-6)]),
  ],
  ids=["all", "priorities"],
)
def test_a_number_out_of_range_ends_only_the_stream_that_sent_it(
  tmp_path, agent, lies
):
  with Serving(tmp_path, agent) as serving:
    bystander, good = serving.actor(), experience([0, 1, 2])
    if agent is WITH_PRIORITIES:
      windows = serving.programs().share().priorities.shape[1]
      good = good._replace(
        unroll=agent.needs.stored(good.unroll),
        priorities=np.ones((3, windows), np.float32),
      )
    for lie in lies:
      liar = serving.actor()
      with pytest.raises(wire.WireError, match=r"expected .* found") as caught:
        liar(replaced(good, *lie))
      assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT, lie
      assert (serving.counts.env_steps, serving.counts.returns.count) == (0, 0)
      assert serving.unrolls._shares._rows == 0
      running.wait_until(lambda: serving.free_slots == 3)
    for _ in range(2):
      assert bystander(good) == 7
    assert serving.counts.env_steps == 2 * 6


def test_only_choices_of_hybrid_actions_have_a_range():
  spec = dataclasses.replace(
    envs.spec(CARTPOLE), action=types.HybridArray(1, [0, -1], [2, 1])
  )
  layout = unroll_store.Layout.of(AGENT, PERIOD, 3)
  server = unroll_server.UnrollServer(
    local_actor.Programs(AGENT, spec, layout),
    ACTORS,
    counters.ActingCounts(),
    seeding.Seeds(0),
    CARTPOLE,
    newest=lambda: (np.float32(0), 7),
    sink=lambda share: True,
  )
  message = experience([0, 1, 2])
  exploration = message.unroll.inputs.exploration[:, 0]
  # Environments clip numbers.
  for action, is_refused in (([2, 9], False), ([3, 0], True), ([-1, 0], True)):
    actions = np.broadcast_to(np.float32(action), (3, LENGTH, 2))
    unroll = message.unroll._replace(action=actions)
    inputs = unroll.inputs._replace(action_tm1=0 * actions)
    sent = message._replace(unroll=unroll._replace(inputs=inputs))
    refused = pytest.raises(wire.Refusal, match="actions from 0 to 2")
    with refused if is_refused else contextlib.nullcontext():
      server.check(sent, exploration)


def test_unrolls_that_do_not_continue_the_previous_ones_are_refused(serving):
  actor = serving.actor()
  actor(experience([0, 1, 2]))
  other = experience([3, 4, 5])
  other.unroll.inputs.timestep.step_type[1] = [1, 2, 0, 1]
  with pytest.raises(wire.WireError, match="begin with the last 1 steps"):
    actor(other)
  assert serving.counts.env_steps == 6
  assert len(serving.shares) == 0


def fetch(serving):
  layout = unroll_messages.parameters_layout(np.zeros((), np.float32))
  return serving.client.call(
    unroll_messages.PARAMETERS, (), wire.NOTHING, layout
  )


def test_the_example_has_the_shapes_of_shares(serving):
  actor = serving.actor()
  for numbers in ([0, 1, 2], [3, 4, 5]):
    actor(experience(numbers))

  def forms(share):
    return jax.tree.map(lambda x: (x.shape, x.dtype), share)

  example = serving.unrolls.example()
  assert forms(example) == forms(serving.shares[0])
  assert isinstance(example, types.Share)
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(example))


# Local actors


def make_actor(layout, agent, seed, exploration=None):
  return local_actor.LocalActor(
    programs_of(agent, layout),
    CARTPOLE,
    seed=seed,
    rng_key=jax.random.key(0),
    device=jax.local_devices()[0],
    waits=metrics.Waits({metrics.WAIT_ENVIRONMENTS: 1}),
    exploration=exploration,
  )


def core_states(rows, core_state, acting):
  """Computes `counting_agent`'s core states before and after a step."""
  first = rows.timestep.step_type == FIRST
  before = np.where(first, np.float32(0), core_state)
  seen = rows.timestep.observation.sum(axis=-1, dtype=np.float32)
  return before, (before + seen + acting).astype(np.float32)


@pytest.mark.parametrize(("length", "period"), [(5, 2), (1, 1)])
def test_unrolls_have_the_steps_of_the_environments(length, period):
  """A second set of environments with the same seeds has the expected steps."""
  num_envs, seed, steps = 3, 11, 60
  layout = unroll_store.Layout(num_envs, length, period)
  actor = make_actor(layout, AGENT, seed)
  environment = envs.make(CARTPOLE, num_envs, seed=seed)
  environment.reset()
  steps_done, state, last, ended = [], np.zeros(num_envs, np.float32), None, 0
  for time_step in range(steps):
    acting, version = np.float32(time_step // 7), np.int32(time_step)
    rows, unroll = actor.observe(acting, version)
    expected = environment.recv()
    chex.assert_trees_all_equal(rows, expected)
    ended += np.sum(~np.isnan(rows.episode_return))
    before, state = core_states(expected, state, acting)
    action = np.round(state).astype(np.int32) % 2
    first = expected.timestep.step_type == FIRST
    action_tm1 = np.where(first | (last is None), 0, last)
    last = action
    steps_done.append((expected, before, state, action, action_tm1, version))
    since_first = time_step - (length - 1)
    assert (unroll is not None) == (
      since_first >= 0 and since_first % period == 0
    )
    if unroll is not None:
      check_unroll(unroll, steps_done[-length:])
    actor.act(acting, version)
    environment.send(expected.index, action)
  assert ended >= 3
  actor.close()
  environment.close()


def check_unroll(unroll, steps):
  expected, before, state, action, action_tm1, version = zip(
    *steps, strict=True
  )
  timesteps = [rows.timestep for rows in expected]
  chex.assert_trees_all_equal(
    unroll.inputs.timestep, jax.tree.map(lambda *x: np.stack(x), *timesteps)
  )
  np.testing.assert_allclose(unroll.extras["sum"], state, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(unroll.action, action)
  np.testing.assert_array_equal(unroll.inputs.action_tm1, np.stack(action_tm1))
  np.testing.assert_array_equal(unroll.version[:, 0], version)
  np.testing.assert_allclose(unroll.core_state, before[0], rtol=1e-5, atol=1e-5)
  assert unroll.inputs.exploration.shape == unroll.action.shape


def test_newer_parameters_may_act_at_the_last_step_of_an_unroll():
  layout = unroll_store.Layout(num_slots=3, length=4, period=3)
  actor = make_actor(layout, AGENT, 0)
  unrolls, version = [], 0
  for _ in range(13):
    _, unroll = actor.observe(np.float32(version), np.int32(version))
    if unroll is not None:
      unrolls.append(running.copied(unroll))
      version += 10
    actor.act(np.float32(version), np.int32(version))
  actor.close()
  versions = [set(x.version.ravel().tolist()) for x in unrolls]
  assert versions == [{0}, {10}, {20}, {30}]
  for old, new in itertools.pairwise(unrolls):
    # Both unrolls have this step, each with the output of its own parameters.
    chex.assert_trees_all_equal(
      jax.tree.map(lambda x: x[-1], old.inputs),
      jax.tree.map(lambda x: x[0], new.inputs),
    )
    np.testing.assert_allclose(new.extras["sum"][0] - old.extras["sum"][-1], 10)


def test_exploration_reaches_the_agent_and_the_unrolls():
  def step(acting, rng_key, inputs, core_state):
    output, core_state = AGENT.step(acting, rng_key, inputs, core_state)
    return output._replace(extras={"seen": inputs.exploration}), core_state

  exploration = np.full(3, 0.75, np.float32)
  agent = dataclasses.replace(
    AGENT, step=step, exploration=lambda count: exploration
  )
  layout = unroll_store.Layout(num_slots=3, length=2, period=1)
  for ladder in (None, np.array([0.5, 0.25, 0.125], np.float32)):
    actor = make_actor(layout, agent, 0, ladder)
    for time_step in range(6):
      _, unroll = actor.observe(np.float32(0), np.int32(0))
      assert (unroll is not None) == (time_step >= 1)
      if unroll is not None:
        expected = np.stack([exploration if ladder is None else ladder] * 2)
        np.testing.assert_array_equal(unroll.inputs.exploration, expected)
        np.testing.assert_array_equal(unroll.extras["seen"], expected)
      actor.act(np.float32(0), np.int32(0))
    actor.close()
