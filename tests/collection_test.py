"""What actors that act for themselves send, and who takes it in."""

import dataclasses
import itertools
import threading
import time

import dm_env
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from seedx import envs, metrics, types, wire
from seedx.runtime import (
  collection,
  feeds,
  local_actor,
  progress,
  protocol,
  unroll_actor,
  unrolls,
)
from tests import fakes, running

FIRST = int(dm_env.StepType.FIRST)
CARTPOLE = envs.Config("CartPole-v1")
LENGTH, WINDOW = 4, 2


def unroll_of(numbers):
  """Unrolls `[S, L, ...]` of which every value says its number."""
  value = np.array(numbers, np.float32)
  steps = value[:, None] * 100 + np.arange(LENGTH, dtype=np.float32)
  timestep = dm_env.TimeStep(
    step_type=np.ones(steps.shape, np.uint8),
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
    version=steps.astype(np.int32),
    core_state=value,
  )


def priorities_of(numbers):
  """Priorities `[S, windows]`, each of its own value."""
  windows = np.arange(LENGTH - WINDOW + 1, dtype=np.float32)
  return np.array(numbers, np.float32)[:, None] * 10 + windows


@hypothesis.settings(max_examples=80, deadline=None, derandomize=True)
@hypothesis.given(
  size=st.integers(1, 7),
  sizes=st.lists(st.integers(1, 20), min_size=1, max_size=12),
  prioritized=st.booleans(),
)
def test_any_messages_are_cut_into_items_of_one_size(size, sizes, prioritized):
  items = collection._Items(size)
  waiting, number = [], 0
  for rows in sizes:
    numbers = list(range(number, number + rows))
    number += rows
    waiting += numbers
    priorities = priorities_of(numbers) if prioritized else ()
    # As they come over the wire: nobody may write into them.
    message = running.copied((unroll_of(numbers), priorities))
    for leaf in jax.tree.leaves(message):
      leaf.flags.writeable = False
    for unroll, found in items.add(*message):
      now, waiting = waiting[:size], waiting[size:]
      running.assert_equal(unroll, running.time_major(unroll_of(now)))
      assert isinstance(unroll, types.Unroll)
      if prioritized:
        np.testing.assert_array_equal(found, priorities_of(now))
      else:
        assert found == ()
    assert len(waiting) < size


# Over the wire


@dataclasses.dataclass(frozen=True)
class Config:
  """See `collection.Config`."""

  seed: int = 0
  num_actors: int = 2
  envs_per_actor: int = 3
  unroll_length: int = LENGTH - 1
  batch_size: int = 4
  learner_devices: tuple[int, ...] = (0,)


class Serving:
  """A collection that serves, and a sink that a test can hold back."""

  def __init__(self, folder, agent=None):
    self.agent = agent or fakes.counting_agent()
    self.spec = envs.spec(CARTPOLE)
    self.counts = progress.Progress()
    self.newest = jnp.float32(1.5), 7
    self.items, self.open, self.over = [], threading.Event(), False
    self.in_sink = 0
    self.open.set()
    self.server = wire.Server(f"unix:{folder}/learner", 4)
    self.collection, self.actors = collection.serve(
      self.server,
      Config(),
      self.agent,
      self.spec,
      self.counts,
      newest=lambda: self.newest,
      sink=self._sink,
    )

  def _sink(self, item):
    self.in_sink += 1
    assert self.open.wait(20)
    self.in_sink -= 1
    self.items.append(item)
    return not self.over

  def __enter__(self):
    self.server.start()
    self.client = wire.Client(self.server.address)
    return self

  def __exit__(self, *_):
    self.open.set()
    self.client.close()
    self.server.stop(0)

  def layout(self, agent=None, length=None):
    """Of what an actor sends, perhaps of another agent."""
    agent = agent or self.agent
    period = length or Config.unroll_length
    layout = unrolls.Layout(3, feeds.unroll_length(agent, period), period)
    programs = local_actor.Programs(agent, self.spec, layout)
    return protocol.experience_layout(programs.item(), programs.window, 3)

  def actor(self, num_envs=3, layout=None):
    return wire.Exchange(
      self.client,
      protocol.EXPERIENCE,
      layout or self.layout(),
      protocol.VERSION,
      {"num_envs": num_envs},
    )


@pytest.fixture
def serving(tmp_path):
  with Serving(tmp_path) as running_server:
    yield running_server


def experience(numbers, env_steps=1, returns=(), waits=(0.0, 0.0)):
  rows = len(numbers)
  episode_return = np.full((rows, LENGTH), np.nan, np.float32)
  episode_return.ravel()[: len(returns)] = returns
  return protocol.Experience(
    unroll=unroll_of(numbers),
    priorities=(),
    env_steps=np.full(rows, env_steps, np.int32),
    episode_return=episode_return,
    wait_environments=np.full(rows, waits[0], np.float32),
    wait_learner=np.full(rows, waits[1], np.float32),
  )


def eventually(condition, seconds=10.0):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_what_actors_send_becomes_items_and_is_counted(serving):
  first, second = serving.actor(), serving.actor(num_envs=2)
  reply = first(experience([0, 1, 2], 5, returns=[3.0, 5.0], waits=(0.5, 0.2)))
  assert reply.tolist() == [7]
  assert serving.items == []
  serving.newest = jnp.float32(2.5), 8
  assert second(experience([3, 4], 2, waits=(0.25, 0.4))).tolist() == [8]
  assert first(experience([5, 6, 7], 1, waits=(0.0, 0.0))).tolist() == [8]
  assert len(serving.items) == 2
  for item, numbers in zip(
    serving.items, ([0, 1, 2, 3], [4, 5, 6, 7]), strict=True
  ):
    running.assert_equal(item[0], running.time_major(unroll_of(numbers)))
  assert serving.counts.env_steps == 3 * 5 + 2 * 2 + 3
  assert serving.counts.returns.count == 2
  assert serving.counts.returns.mean() == 4.0
  # The newest of each actor.
  assert serving.actors.shares() == {
    metrics.WAIT_REQUESTS: pytest.approx(0.125),
    metrics.WAIT_QUEUE: pytest.approx(0.2),
  }


@pytest.mark.parametrize("rows", [1, 2])
def test_a_message_of_some_environments_is_refused(serving, rows):
  bystander, actor = serving.actor(num_envs=1), serving.actor()
  with pytest.raises(wire.WireError, match="of all 3 environments") as caught:
    actor(experience(range(rows)))
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  # So is one of more than that.
  with pytest.raises(wire.WireError, match="of all 2 environments"):
    serving.actor(num_envs=2)(experience(range(3)))
  assert serving.counts.env_steps == 0
  assert bystander(experience([1])).tolist() == [7]
  eventually(lambda: serving.actors._leases.free == 5)
  bystander.close()
  eventually(lambda: serving.actors._leases.free == 6)


def test_an_actor_of_too_many_environments_is_refused(serving):
  with pytest.raises(wire.WireError, match="at most 6 env") as caught:
    serving.actor(num_envs=7)
  assert caught.value.code is wire.StatusCode.FAILED_PRECONDITION
  first, second = serving.actor(), serving.actor(num_envs=2)
  with pytest.raises(wire.WireError, match="at most 1 env") as caught:
    serving.actor()
  assert caught.value.code is wire.StatusCode.RESOURCE_EXHAUSTED
  first.close()
  eventually(lambda: serving.actors._leases.free == 4)
  third = serving.actor()
  assert third.welcome["first_seed"] == 5
  assert second(experience([0, 1])).tolist() == [7]


def test_an_actor_that_waits_for_a_place_gathers_no_threads(serving):
  holders = [serving.actor(), serving.actor()]
  config = unroll_actor.Config(
    serving.server.address,
    CARTPOLE,
    lambda spec, axis_name: serving.agent,
    num_envs=3,
    unroll_length=Config.unroll_length,
  )
  stop = threading.Event()
  actor = threading.Thread(
    target=unroll_actor.run, args=(config, stop), daemon=True
  )
  actor.start()
  time.sleep(2)
  before = threading.active_count()
  time.sleep(4)
  # It tries twice a second; each try used to leave a thread behind.
  assert threading.active_count() <= before + 2
  assert actor.is_alive()
  stop.set()
  actor.join(20)
  assert not actor.is_alive()
  assert all(holder.welcome for holder in holders)


def other_extras():
  agent = fakes.counting_agent()

  def step(*arguments):
    output, core_state = agent.step(*arguments)
    return output._replace(extras={"mean": output.extras["sum"]}), core_state

  return dataclasses.replace(agent, step=step)


def with_priorities():
  return dataclasses.replace(
    fakes.counting_agent(), window=2, priorities=lambda acting, unroll: None
  )


@pytest.mark.parametrize(
  ("agent", "length", "column"),
  [
    (other_extras(), None, "unroll/extras/mean"),
    (with_priorities(), None, "priorities"),
    (None, LENGTH, "unroll/inputs/timestep/step_type"),
  ],
)
def test_the_actor_of_another_agent_is_refused(serving, agent, length, column):
  with pytest.raises(wire.WireError, match=column) as caught:
    serving.actor(layout=serving.layout(agent, length))
  assert caught.value.code is wire.StatusCode.FAILED_PRECONDITION
  assert serving.actors._leases.free == 6


def test_a_sink_that_is_full_holds_all_actors_back(serving):
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
  eventually(lambda: serving.counts.env_steps == 9)
  time.sleep(0.3)
  assert replies == [] and serving.items == []
  # Items come one by one: the order of messages is that of items.
  assert serving.in_sink == 1
  # Nobody waits for parameters, or for a place.
  assert fetch(serving).version == 7
  serving.open.set()
  for thread in threads:
    thread.join(10)
  assert replies == [[7], [7]]
  assert len(serving.items) == 2
  assert first(experience([9, 10, 11])).tolist() == [7]
  numbers = [int(x) for unroll, _ in serving.items for x in unroll.core_state]
  # Of the two that waited, either may come first.
  assert sorted(numbers) == list(range(12))


def test_actors_are_told_when_all_is_over(serving):
  first, second = serving.actor(), serving.actor()
  first(experience([0, 1, 2]))
  serving.over = True
  assert second(experience([3, 4, 5])) is None
  assert len(serving.items) == 1


def fetch(serving):
  layout = protocol.parameters_layout(np.zeros((), np.float32))
  return serving.client.call(protocol.PARAMETERS, (), protocol.NOTHING, layout)


def test_parameters_come_with_their_version(serving):
  for acting, version in ((1.5, 7), (-2.25, 8), (-2.25, 9), (0.1, 20)):
    serving.newest = jnp.float32(acting), version
    for _ in range(2):
      reply = fetch(serving)
      assert reply.version.tolist() == [version]
      assert reply.acting.tolist() == [np.float32(acting)]


def test_an_example_has_the_form_of_items(serving):
  actor = serving.actor()
  for numbers in ([0, 1, 2], [3, 4, 5]):
    actor(experience(numbers))

  def forms(item):
    return jax.tree.map(lambda x: (x.shape, x.dtype), item)

  device = jax.local_devices()[3]
  example = serving.collection.example(device)
  assert forms(example) == forms(serving.items[0])
  assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(example))


# Local actors


def made_actor(layout, agent, seed, exploration=None):
  programs = local_actor.Programs(agent, envs.spec(CARTPOLE), layout)
  return local_actor.LocalActor(
    programs,
    CARTPOLE,
    seed=seed,
    rng_key=jax.random.key(0),
    device=jax.local_devices()[0],
    waits=metrics.Waits({metrics.WAIT_REQUESTS: 1}),
    exploration=exploration,
  )


def counted(rows, core_state, acting):
  """What `counting_agent` does, in NumPy: its core state afterwards."""
  first = rows.timestep.step_type == FIRST
  before = np.where(first, np.float32(0), core_state)
  seen = rows.timestep.observation.sum(axis=-1, dtype=np.float32)
  return before, (before + seen + acting).astype(np.float32)


@pytest.mark.parametrize(("length", "period"), [(4, 3), (5, 2), (3, 3), (1, 1)])
def test_unrolls_are_what_the_environments_did(length, period):
  """The same seeds are stepped by hand, and the agent's sums made in NumPy."""
  num_envs, seed, steps = 3, 11, 60
  layout = unrolls.Layout(num_envs, length, period)
  actor = made_actor(layout, fakes.counting_agent(), seed)
  hand = envs.EnvPoolEnvironment(CARTPOLE, num_envs, seed=seed)
  hand.reset()
  done, state, last, ended = [], np.zeros(num_envs, np.float32), None, 0
  for time_step in range(steps):
    # New parameters come between an unroll's end and the next action.
    acting, version = np.float32(time_step // 7), np.int32(time_step)
    rows, unroll = actor.observe(acting, version)
    expected = hand.recv()
    running.assert_equal(rows, expected)
    ended += np.sum(~np.isnan(rows.episode_return))
    before, state = counted(expected, state, acting)
    action = np.round(state).astype(np.int32) % 2
    first = expected.timestep.step_type == FIRST
    action_tm1 = np.where(first | (last is None), 0, last)
    last = action
    done.append((expected, before, state, action, action_tm1, version))
    since = time_step - (length - 1)
    assert (unroll is not None) == (since >= 0 and since % period == 0)
    if unroll is not None:
      check_unroll(unroll, done[-length:])
    actor.act(acting, version)
    hand.send(expected.index, action)
  assert ended >= 3
  actor.close()
  hand.close()


def check_unroll(unroll, done):
  """That it is of these steps; the last one's action came later."""
  expected, before, state, action, action_tm1, version = zip(*done, strict=True)
  timesteps = [rows.timestep for rows in expected]
  running.assert_equal(
    unroll.inputs.timestep, jax.tree.map(lambda *x: np.stack(x), *timesteps)
  )
  np.testing.assert_allclose(unroll.extras["sum"], state, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(unroll.action, action)
  np.testing.assert_array_equal(unroll.inputs.action_tm1, np.stack(action_tm1))
  np.testing.assert_array_equal(unroll.version[:, 0], version)
  np.testing.assert_allclose(unroll.core_state, before[0], rtol=1e-5, atol=1e-5)
  assert unroll.inputs.exploration.shape == unroll.action.shape


def test_the_last_action_of_an_unroll_comes_from_newer_parameters():
  layout = unrolls.Layout(num_slots=2, length=3, period=2)
  actor = made_actor(layout, fakes.counting_agent(), 0)
  found, version = [], 0
  for _ in range(9):
    _, unroll = actor.observe(np.float32(version), np.int32(version))
    if unroll is not None:
      found.append(running.copied(unroll))
      version += 10
    actor.act(np.float32(version), np.int32(version))
  actor.close()
  assert [x.version[:, 0].tolist() for x in found] == [
    [0, 0, 0],
    [10, 10, 10],
    [20, 20, 20],
    [30, 30, 30],
  ]
  for old, new in itertools.pairwise(found):
    # They share a step, of which only who acted differs.
    running.assert_equal(
      jax.tree.map(lambda x: x[-1], old.inputs),
      jax.tree.map(lambda x: x[0], new.inputs),
    )
    np.testing.assert_allclose(new.extras["sum"][0] - old.extras["sum"][-1], 10)


@pytest.mark.parametrize("given", [True, False])
def test_exploration_reaches_the_agent_and_the_unrolls(given):
  ladder = np.array([0.5, 0.25, 0.125], np.float32)

  def step(acting, rng_key, inputs, core_state):
    output, core_state = agent.step(acting, rng_key, inputs, core_state)
    return output._replace(extras={"seen": inputs.exploration}), core_state

  agent = dataclasses.replace(
    fakes.counting_agent(),
    exploration=lambda count: np.full(count, 0.75, np.float32),
  )
  layout = unrolls.Layout(num_slots=3, length=2, period=1)
  actor = made_actor(
    layout, dataclasses.replace(agent, step=step), 0, ladder if given else None
  )
  expected = ladder if given else np.full(3, 0.75, np.float32)
  for time_step in range(6):
    _, unroll = actor.observe(np.float32(0), np.int32(0))
    assert (unroll is not None) == (time_step >= 1)
    if unroll is not None:
      both = np.stack([expected, expected])
      np.testing.assert_array_equal(unroll.inputs.exploration, both)
      np.testing.assert_array_equal(unroll.extras["seen"], both)
    actor.act(np.float32(0), np.int32(0))
  actor.close()
