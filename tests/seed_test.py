"""The SEED pipeline end to end, its actors as threads."""

import functools
import json
import threading
import time

import grpc
import jax
import numpy as np
import pytest

from seedx import envs, metrics, types, wire
from seedx.agents import vtrace
from seedx.pipelines import seed
from seedx.runtime import actor, protocol
from tests import running


def _config(tmp_path, **changes):
  agent = changes.pop("agent", vtrace.Config(learning_rate=2e-3))
  options = {
    "env": envs.Config("CartPole-v1"),
    "make_agent": lambda spec, axis: vtrace.make(spec, agent, axis),
    "address": f"unix:{tmp_path}/learner",
    "total_steps": 4_000,
    "seed": 0,
    "num_actors": 2,
    "envs_per_actor": 8,
    "actor_batch_size": 8,
    "unroll_length": 5,
    "batch_size": 16,
    "log_seconds": 0.1,
    **changes,
  }
  return seed.Config(**options)


_Lines = running.Lines
_Running = functools.partial(running.Running, seed)


def test_every_unroll_is_learned_from_and_nothing_recompiles(tmp_path):
  with _Running(_config(tmp_path)) as run:
    run.wait_for_steps(500)
    compiled = [place.compiled() for place in run.learner.inferences]
  assert compiled == [place.compiled() for place in run.learner.inferences]
  last = run.sink.lines[-1]
  assert last["env_steps"] >= 4_000
  # What is not learned is at most what was under way at the end: in slots,
  # in the item that fills, in the queue, in front of it, and in last replies.
  under_way = 16 * 6 + 5 * 16 * 5
  assert last["env_steps"] - under_way <= last["learned_steps"]
  assert last["learned_steps"] <= last["env_steps"]
  assert last["episodes"] > 50
  assert 5 < last["episode_return"] < 500
  assert last["learner_steps"] == run.learner.learner.steps > 20
  assert 0 <= last["policy_lag"] < 8
  json.dumps(last, allow_nan=False)


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
  config = _config(
    tmp_path,
    agent=vtrace.Config(stack_frames=2 if "Pong" in env_id else 1),
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


def test_many_cores_train_cartpole(tmp_path):
  """Two devices act while four others learn."""
  config = _config(
    tmp_path,
    agent=vtrace.Config(learning_rate=3e-3, reward_scale=0.1),
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
  for place in run.learner.inferences:
    assert place.leases.free == 32


def test_an_actor_that_dies_gives_its_slots_back(tmp_path):
  config = _config(tmp_path, total_steps=10**9, num_actors=1)
  with _Running(config, actors=0) as run:
    for lease in range(3):
      stream, _, environment = _connect_when_there(config)
      assert stream.welcome["first_seed"] == lease * 8
      # Two messages, and gone in the middle of an unroll.
      assert next(stream).shape == (8,)
      stream.cancel()
      environment.close()
      _wait(lambda: run.learner.inferences[0].leases.free == 8)
    assert run.learner.progress.unrolls_discarded >= 3 * 8
    run.stop.set()


@pytest.mark.parametrize(
  ("index", "what"),
  [([0, 8], "0 to 7"), ([-1, 2], "0 to 7"), ([3, 3], "at most once")],
)
def test_a_wrong_index_ends_its_stream_and_no_other(tmp_path, index, what):
  config = _config(tmp_path, total_steps=10**9)
  with _Running(config, actors=1) as run:
    stream, rows, environment = _connect_when_there(config, send=index)
    with pytest.raises(wire.WireError, match=what) as caught:
      next(stream)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    del rows
    environment.close()
    run.wait_for_steps(run.learner.progress.env_steps + 500)
    run.stop.set()


def test_an_actor_of_another_environment_is_refused(tmp_path):
  config = _config(tmp_path, total_steps=10**9, num_actors=1)
  with _Running(config, actors=0) as run:
    other = actor.Config(config.address, envs.Config("Acrobot-v1"), 8, 8)
    with pytest.raises(wire.WireError, match="observation") as caught:
      actor.run(other, threading.Event())
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    many = actor.Config(config.address, config.env, 9, 8)
    with pytest.raises(wire.WireError, match="at most 8 environments"):
      actor.run(many, threading.Event())
    run.stop.set()


def test_a_failing_update_ends_the_run_with_its_error(tmp_path):
  def broken(spec, axis):
    agent = vtrace.make(spec, vtrace.Config(), axis)

    def update(state, rng_key, batch):
      raise FloatingPointError("no gradient")

    return type(agent)(**{**vars(agent), "update": update})

  run = _Running(_config(tmp_path, make_agent=broken))
  with pytest.raises(FloatingPointError, match="no gradient"), run:
    pass
  assert run.sink.lines


def test_config_names_what_is_wrong(tmp_path):
  for changes, message in (
    ({"batch_size": 6, "learner_devices": (0, 1, 2, 3)}, "4 learner devices"),
    ({"actor_batch_size": 9}, "from 1 to 8"),
    ({"total_steps": 0}, "total_steps of at least 1"),
  ):
    with pytest.raises(types.ConfigError, match=message):
      _config(tmp_path, **changes)
  with pytest.raises(types.ConfigError, match="inference devices from 0 to"):
    seed.Learner(_config(tmp_path, inference_devices=(99,)), [])


def _connect_when_there(config, send=None):
  """A stream as an actor opens it, with one message on its way."""
  environment = envs.EnvPoolEnvironment(config.env, config.envs_per_actor)
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
    inputs=protocol.rows_layout(environment.spec, config.actor_batch_size),
    outputs=protocol.actions_layout(environment.spec, config.actor_batch_size),
    hello={"num_envs": config.envs_per_actor},
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


def test_waits_are_declared_so_that_every_line_has_them(tmp_path):
  with _Running(_config(tmp_path, total_steps=100)) as run:
    pass
  names = {name for name in run.sink.lines[0] if "wait" in name}
  assert names == {
    "inference_wait_requests",
    "inference_wait_queue",
    "inference_wait_device",
    "learner_wait_unrolls",
  }
  assert metrics.bottleneck(run.sink.lines[0])
