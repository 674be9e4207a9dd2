"""The SEED pipeline end to end, its actors as threads."""

import dataclasses
import functools
import json
import subprocess
import sys
import threading
import time

import dm_env
import grpc
import jax
import numpy as np
import pytest

from seedx import envs, metrics, types, wire
from seedx.acting import (
  inference,
  inference_server,
  protocol,
  sessions,
  thin_actor,
)
from seedx.agents import dqn, vtrace
from seedx.learning import learner
from seedx.pipelines import seed
from seedx.runtime import counters, process
from tests import other_actor, running

# Whose learning rate stays as it is.
AGENT = vtrace.Config(
  learning_rate=2e-3, learning_rate_end=1.0, reward_scale=1.0
)


def config_of(tmp_path, **changes):
  """A small run; `changes` are fields of it or of its parts."""
  config = seed.Config(
    agent=AGENT,
    total_steps=4_000,
    actors=thin_actor.Config(num_actors=2, envs_per_actor=8),
    learner=learner.InboxConfig(unroll_length=5, batch_size=16),
    log_seconds=0.1,
  )
  return running.replaced(config, **changes).with_sockets(str(tmp_path))


_Running = functools.partial(running.Running, seed)


def test_every_unroll_is_learned_from_and_nothing_recompiles(tmp_path):
  with _Running(config_of(tmp_path)) as run:
    run.wait_for_steps(500)
    compiled = [device.compiled() for device in run.inferences]
  assert compiled == [device.compiled() for device in run.inferences]
  last = run.sink.lines[-1]
  assert last["env_steps"] >= 4_000
  # What is not learned is at most what was under way at the end: in slots,
  # in the item that fills, in the queue, in front of it, and in last replies.
  under_way = 16 * 6 + 5 * 16 * 5
  assert last["env_steps"] - under_way <= last["learned_steps"]
  assert last["learned_steps"] <= last["env_steps"]
  assert last["episodes"] > 50
  assert 5 < last["episode_return"] < 500
  assert last["learner_steps"] == run.learner.steps > 20
  assert 0 <= last["policy_lag"] < 8
  json.dumps(last, allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("env_id", "options", "info_keys"),
  [
    ("FrozenLake-v1", {}, ()),
    ("Pendulum-v1", {}, ()),
    ("Taxi-v3", {"max_episode_steps": 20}, ("elapsed_step",)),
    ("Pong-v5", {"img_height": 36, "img_width": 36}, ()),
  ],
)
def test_trains_on_every_kind_of_observation_and_action(
  tmp_path, env_id, options, info_keys
):
  config = config_of(
    tmp_path,
    agent=dataclasses.replace(AGENT, stack_frames=2 if "Pong" in env_id else 1),
    env=envs.Config(env_id, options, info_keys),
    total_steps=600,
    num_actors=1,
    actor_batch_size=4,  # EnvPool asynchronous: half steps, half waits.
    batch_size=8,
    micro_batches=2,
  )
  with _Running(config) as run:
    pass
  last = run.sink.lines[-1]
  assert last["learner_steps"] >= 8
  assert np.isfinite(last["loss_value"])
  assert last["env_frames"] == last["env_steps"] * (
    4 if "Pong" in env_id else 1
  )


@pytest.mark.slow
def test_many_cores_train_cartpole(tmp_path):
  """Two devices act while four others learn."""
  config = config_of(
    tmp_path,
    agent=dataclasses.replace(AGENT, learning_rate=3e-3, reward_scale=0.1),
    total_steps=150_000,
    envs_per_actor=32,
    actor_batch_size=32,
    unroll_length=20,
    batch_size=32,
    inference_devices=(0, 1),
    learner_devices=(2, 3, 4, 5),
  )
  assert len(jax.local_devices()) >= 8
  with _Running(config) as run:
    pass
  best = max(line["episode_return"] or 0 for line in run.sink.lines)
  assert best > 120  # A random policy has 20.
  for device in run.inferences:
    assert device.slots.free == 32


class _Acting:
  """An inference device whose actions are zeros."""

  def __init__(self, sizes):
    self.slots = sessions.Slots(sizes.layout.num_slots)
    self.rows = 0

  def requests(self, batch, rows):
    self.rows += rows
    return np.zeros(rows, np.int32)


def _sizes(num_actors, num_devices, envs_per_actor):
  """Of devices whose slots have an epsilon ladder."""
  spec = envs.spec(envs.Config("CartPole-v1"))
  agent = dqn.Config(epsilon_ladder=True).make(spec)
  sizes = inference.Config(inference_devices=tuple(range(num_devices))).sizes(
    agent,
    thin_actor.Config(num_actors=num_actors, envs_per_actor=envs_per_actor),
    rows_per_actor=envs_per_actor,
    period=2,
    share_size=2,
  )
  return agent.exploration(num_actors * envs_per_actor), sizes


@pytest.mark.parametrize(
  ("actors", "devices"), [(2, 1), (2, 2), (5, 2), (7, 3)]
)
def test_an_epsilon_ladder_spans_the_devices(actors, devices):
  ladder, sizes = _sizes(actors, devices, envs_per_actor=3)
  assert len(set(ladder.tolist())) == len(ladder) == actors * 3
  explored = np.concatenate([each.exploration for each in sizes])
  np.testing.assert_array_equal(explored, ladder)
  for each in sizes:
    assert each.layout.num_slots == len(each.exploration)
    assert each.max_rows <= sizes[0].max_rows


def test_more_devices_than_actors_are_refused():
  with pytest.raises(types.ConfigError, match="at most 2 inference_devices"):
    _sizes(2, 3, envs_per_actor=1)


def test_returns_are_of_the_slots_that_explore_least():
  """Each session counts those of its own slots, on its device."""
  ladder, sizes = _sizes(num_actors=4, num_devices=2, envs_per_actor=2)
  acted = counters.Acted()
  server = inference_server.InferenceServer(
    [_Acting(each) for each in sizes], sizes, acted, sessions.Seeds(0)
  )
  actors = [server({"num_envs": 2}) for _ in range(4)]
  # The first two slots of each device, then its last two.
  held = [0, 1], [4, 5], [2, 3], [6, 7]
  least = counters.explores_least(ladder)
  assert least.any() and not least.all()
  for actor, slots in zip(actors, held, strict=True):
    for index in (0, 1):
      before = acted.returns.count
      for step_type in (dm_env.StepType.FIRST, dm_env.StepType.LAST):
        actor(_row(step_type, index=index))
      assert acted.returns.count - before == least[slots[index]]


def _row(step_type, **changes):
  """Of one environment; `changes` are fields of it."""
  timestep = dm_env.TimeStep(
    np.array([step_type], np.uint8),
    np.array([changes.pop("reward", 1)], np.float32),
    np.array([changes.pop("discount", 1)], np.float32),
    np.full((1, 4), changes.pop("observation", 0), np.float32),
  )
  index = np.array([changes.pop("index", 0)], np.int32)
  returns = np.array([changes.pop("episode_return", np.nan)], np.float32)
  assert not changes
  return types.Rows(index, timestep, returns)


@pytest.mark.parametrize(
  "changes",
  [
    {"step_type": 255},
    {"step_type": 0},
    {"reward": np.nan},
    {"reward": -np.inf},
    {"discount": 1.5},
    {"discount": np.nan},
    {"observation": np.nan},
    {"observation": np.inf},
    {"index": 2},
    {"index": -1},
  ],
  ids=str,
)
def test_a_row_that_cannot_be_is_refused_and_counts_nothing(changes):
  _, sizes = _sizes(num_actors=2, num_devices=1, envs_per_actor=2)
  acted, acting = counters.Acted(), _Acting(sizes[0])
  server = inference_server.InferenceServer(
    [acting], sizes, acted, sessions.Seeds(0)
  )
  actor = server({"num_envs": 2})
  actor(_row(0))
  with pytest.raises(wire.Refused, match=r"expected .* found") as caught:
    actor(_row(**{"step_type": 2, "episode_return": 1.0, **changes}))
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  assert (acted.env_steps, acted.returns.count) == (0, 0)
  assert acting.rows == 1


def test_each_row_goes_to_its_slot_in_any_order():
  _, sizes = _sizes(num_actors=1, num_devices=1, envs_per_actor=3)
  acting = _Acting(sizes[0])
  batches = []
  acting.requests = lambda batch, rows: batches.append(batch)
  server = inference_server.InferenceServer(
    [acting], sizes, counters.Acted(), sessions.Seeds(0)
  )
  actor = server({"num_envs": 3})
  sent = [0, 1, 2], [0, 1, 2], [2, 1], [1, 0, 2]
  for step_type, index in zip((0, 1, 1, 1), sent, strict=True):
    rows = [_row(step_type, index=k) for k in index]
    actor(jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows))
  assert [x.slot.tolist() for x in batches] == [*sent]
  counts = [x.count.tolist() for x in batches]
  assert counts == [[0, 0, 0], [1, 1, 1], [2, 2], [3, 2, 3]]
  # In order, nothing is gathered.
  assert np.shares_memory(batches[0].slot, batches[1].slot)


def test_a_return_is_the_sum_of_rewards_whatever_an_actor_says_of_it():
  _, sizes = _sizes(num_actors=1, num_devices=1, envs_per_actor=1)
  acted = counters.Acted()
  server = inference_server.InferenceServer(
    [_Acting(sizes[0])], sizes, acted, sessions.Seeds(0)
  )
  actor = server({"num_envs": 1})
  for step_type in (0, 1, 2):
    actor(_row(step_type, episode_return=3e38))
  assert (acted.env_steps, acted.returns.count) == (2, 1)
  assert acted.returns.mean() == 2.0


def test_an_actor_of_another_language_trains(tmp_path):
  """It knows of seedx what the text of `seedx.wire` says."""
  config = config_of(tmp_path, total_steps=1_500, num_actors=1)
  with _Running(config, actors=0) as run:
    actor = subprocess.run(
      [
        sys.executable,
        other_actor.__file__,
        config.address,
        "CartPole-v1",
        "8",
      ],
      capture_output=True,
      text=True,
      timeout=120,
    )
  assert (actor.returncode, actor.stderr) == (0, "")
  last = run.sink.lines[-1]
  assert last["env_steps"] >= 1_500
  assert last["episodes"] > 20 and 5 < last["episode_return"] < 500
  assert last["learner_steps"] > 5


def test_an_actor_that_dies_gives_its_slots_back(tmp_path):
  config = config_of(tmp_path, total_steps=10**9, num_actors=1)
  with _Running(config, actors=0) as run:
    for session in range(3):
      stream, _, environment = _connect_when_there(config)
      assert stream.welcome["first_seed"] == session * 8
      # Two messages, and gone in the middle of an unroll.
      assert next(stream).shape == (8,)
      stream.cancel()
      environment.close()
      _wait(lambda: run.inferences[0].slots.free == 8)
    assert run.acted.saved()["unrolls_discarded"] >= 3 * 8
    run.stop.set()


@pytest.mark.parametrize(
  ("index", "what"),
  [
    ([0, 8], "0 to 7"),
    pytest.param([-1, 2], "0 to 7", marks=pytest.mark.slow),
    pytest.param([3, 3], "at most once", marks=pytest.mark.slow),
  ],
)
def test_a_wrong_index_ends_its_stream_and_no_other(tmp_path, index, what):
  config = config_of(tmp_path, total_steps=10**9)
  with _Running(config, actors=1) as run:
    stream, rows, environment = _connect_when_there(config, send=index)
    with pytest.raises(wire.WireError, match=what) as caught:
      next(stream)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    del rows
    environment.close()
    run.wait_for_steps(run.acted.env_steps + 500)
    run.stop.set()


def test_an_actor_of_another_environment_is_refused(tmp_path):
  config = config_of(tmp_path, total_steps=10**9, num_actors=1)
  with _Running(config, actors=0) as run:
    acrobot = envs.Config("Acrobot-v1")
    other = thin_actor.Work(config.address, acrobot, config.actors)
    with pytest.raises(wire.WireError, match="observation") as caught:
      thin_actor.run(other, threading.Event())
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    many = dataclasses.replace(
      config.actors, envs_per_actor=9, actor_batch_size=8
    )
    many = thin_actor.Work(config.address, config.env, many)
    with pytest.raises(wire.WireError, match="at most 8 environments"):
      thin_actor.run(many, threading.Event())
    run.stop.set()


def without_gradients(agent):
  def update(state, rng_key, batch):
    raise FloatingPointError("no gradient")

  return dataclasses.replace(agent, update=update)


def test_a_failing_update_ends_the_run_with_its_error(tmp_path):
  broken = running.Changed(AGENT, without_gradients)
  run = _Running(config_of(tmp_path, agent=broken))
  with pytest.raises(FloatingPointError, match="no gradient"), run:
    pass
  assert run.sink.lines


def test_config_names_what_is_wrong(tmp_path):
  for changes, message in (
    ({"batch_size": 6, "learner_devices": (0, 1, 2, 3)}, "4 learner devices"),
    ({"actor_batch_size": 9}, "from 0 to 8"),
    ({"total_steps": 0}, "total_steps from 1 to"),
  ):
    with pytest.raises(types.ConfigError, match=message):
      config_of(tmp_path, **changes)
  with pytest.raises(types.ConfigError, match="inference devices from 0 to"):
    seed.learn(config_of(tmp_path, inference_devices=(99,)), process.Context())


def _connect_when_there(config, send=None):
  """A stream as an actor opens it, with one message on its way."""
  environment = envs.EnvPoolEnvironment(
    config.env, config.actors.envs_per_actor
  )
  environment.reset()
  rows = environment.recv()
  if send is not None:
    rows = jax.tree.map(lambda leaf: leaf[: len(send)], rows)
    rows = rows._replace(index=np.asarray(send, np.int32))
  requests = iter([rows])
  held = threading.Event()

  def observations():
    yield from requests
    held.wait(30)

  client = wire.Client(config.address)
  _wait(lambda: _ready(client))
  stream = client.stream(
    protocol.ACT,
    observations(),
    *protocol.act_layouts(environment.spec, config.actors.rows),
    hello={"num_envs": config.actors.envs_per_actor},
  )
  return stream, rows, environment


def _ready(client):
  try:
    client.wait_until_ready(1)
  except wire.WireError:
    return False
  return True


def _wait(condition, seconds=30):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


@pytest.mark.slow
def test_waits_are_declared_so_that_every_line_has_them(tmp_path):
  with _Running(config_of(tmp_path, total_steps=100)) as run:
    pass
  names = {name for name in run.sink.lines[0] if "wait" in name}
  assert names == {
    "acting_wait_environments",
    "acting_wait_learner",
    "acting_wait_device",
    "learning_wait_experience",
  }
  assert metrics.bottleneck(run.sink.lines[0])
