"""The SEED pipeline end to end, with actors on threads."""

import dataclasses
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from seedx import envs, replay, types, wire
from seedx.acting import inference, protocol, thin_actor
from seedx.agents import vtrace
from seedx.learning import learner
from seedx.pipelines import seed
from seedx.runtime import process
from tests import fakes, other_actor, running
from tests.acting import devices

# The learning rate is constant.
AGENT = vtrace.Config(
  hidden_sizes=(8,),
  learning_rate=2e-3,
  learning_rate_end=1.0,
  reward_scale=1.0,
)
ENVS, T, BATCH = 4, 5, 8


def config_of(folder, **changes):
  config = seed.Config(
    agent=AGENT,
    total_steps=10**9,
    actors=thin_actor.Config(num_actors=3, envs_per_actor=ENVS),
    inference=inference.Config(inference_batch_size=ENVS),
    learner=learner.InboxConfig(unroll_length=T, batch_size=BATCH),
    log_seconds=0.1,
  )
  return running.replaced(config, **changes).with_sockets(str(folder))


@pytest.mark.slow
def test_an_actor_without_seedx_trains_with_every_unroll(tmp_path):
  """`other_actor` is written from the specification in `seedx.wire`."""
  config = config_of(tmp_path)
  with running.Running(config, actors=0) as run:
    words = other_actor.__file__, config.address, "CartPole-v1", str(ENVS)
    actor = subprocess.Popen(
      [sys.executable, *words], stderr=subprocess.PIPE, text=True
    )
    run.wait_for(
      lambda: run.acted.env_steps >= 1_500 or actor.poll() is not None
    )
    run.stop.set()
  _, err = actor.communicate()
  assert (actor.returncode, err) == (0, "")
  last = run.sink.lines[-1]
  assert last["env_steps"] >= 1_500
  # The other steps were in transit at the end: in slots, an unfinished share,
  # the queue, shares that waited for the queue, and the last replies.
  under_way = ENVS * (T + 1) + 5 * BATCH * T
  assert last["env_steps"] - under_way <= last["learned_steps"]
  assert last["learned_steps"] <= last["env_steps"]
  assert last["episodes"] > 20
  assert 5 < last["episode_return"] < 500
  assert last["learner_steps"] == run.learner.version > 20
  assert 0 <= last["policy_lag"] < 8
  json.dumps(last, allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("env_id", "options", "info_keys"),
  [
    ("Taxi-v3", {"max_episode_steps": 20}, ("elapsed_step",)),
    ("Pong-v5", {"img_height": 36, "img_width": 36}, ()),
  ],
)
def test_trains_on_every_kind_of_observation_and_action(
  tmp_path, env_id, options, info_keys
):
  frames = 4 if "Pong" in env_id else 1
  config = config_of(
    tmp_path,
    agent=dataclasses.replace(AGENT, stack_frames=2 if frames > 1 else 1),
    env=envs.Config(env_id, options, info_keys),
    total_steps=400,
    num_actors=1,
    # EnvPool is asynchronous: a batch has rows of 2 of the 4 environments.
    actor_batch_size=2,
    micro_batches=2,
  )
  with running.Running(config) as run:
    pass
  last = run.sink.lines[-1]
  assert last["learner_steps"] >= 5
  assert np.isfinite(last["loss_value"])
  assert last["env_frames"] == last["env_steps"] * frames


def on_many_cores(folder, **changes):
  """Returns a config with inference on two devices and learning on four."""
  return config_of(
    folder,
    num_actors=2,
    inference_devices=(0, 1),
    learner_devices=(2, 3, 4, 5),
    **changes,
  )


@pytest.mark.slow
def test_many_cores_act_and_learn(tmp_path):
  with running.Running(on_many_cores(tmp_path, total_steps=1_000)) as run:
    run.wait_for(lambda: not any(run.leases.free))
  assert run.sink.lines[-1]["learner_steps"] > 10
  assert run.leases.free == [ENVS] * 2


@pytest.mark.long
def test_many_cores_learn_cartpole(tmp_path):
  config = on_many_cores(
    tmp_path,
    agent=dataclasses.replace(
      AGENT, hidden_sizes=(64, 64), learning_rate=3e-3, reward_scale=0.1
    ),
    envs_per_actor=32,
    actor_batch_size=32,
    unroll_length=20,
    batch_size=32,
  )
  with running.Running(config) as run:

    def best():
      return max((x["episode_return"] or 0 for x in run.sink.lines), default=0)

    # On an idle machine, this takes about 200,000 steps and one minute.
    running.wait_until(
      lambda: best() >= 450 or run.failures or run.acted.env_steps > 2_000_000,
      seconds=3600,
    )
    run.stop.set()
  assert best() >= 450


@pytest.fixture(scope="module")
def training(tmp_path_factory):
  """Yields a run that trains with two actors, and has slots for a third."""
  with running.Running(
    config_of(tmp_path_factory.mktemp("run")), actors=2
  ) as run:
    run.wait_for(lambda: run.acted.env_steps and run.leases.free[0] == ENVS)
    yield run
    run.stop.set()


def test_an_actor_ends_if_the_run_stops_while_it_waits_for_actions(
  tmp_path,
):
  made = running.Own(config_of(tmp_path))
  environment = envs.make(made.config.env, ENVS)
  environment.reset()
  layouts = protocol.act_layouts(environment.spec, ENVS)
  session = made._served(protocol.ACT)({"num_envs": ENVS})
  made.process.close()
  with pytest.raises(wire.Refusal) as caught:
    devices.Actor(session, layouts)(environment.recv())
  environment.close()
  assert caught.value.code is wire.StatusCode.CANCELLED


def test_nothing_is_compiled_while_a_run_is_training(training):
  training.wait_for(lambda: training.learner.version > 0)  # It has compiled.
  with running.compiled() as names:
    updates = training.learner.version
    training.wait_for_steps(training.acted.env_steps + 1_000)
    training.wait_for(lambda: training.learner.version > updates + 20)
  assert not names


def test_an_actor_of_another_environment_is_refused(training):
  env = envs.Config("Acrobot-v1")
  work = thin_actor.Work(training.config.address, env, training.config.actors)
  with pytest.raises(wire.WireError, match="observation") as caught:
    thin_actor.run(work, threading.Event())
  assert caught.value.code is wire.StatusCode.FAILED_PRECONDITION


def without_gradients(_):
  def update(state, rng_key, batch):
    raise FloatingPointError("no gradient")

  return dataclasses.replace(fakes.counting_agent(), update=update)


def test_a_failing_update_ends_the_run_with_its_error(tmp_path):
  broken = running.Changed(AGENT, without_gradients)
  run = running.Running(config_of(tmp_path, agent=broken, num_actors=1))
  with pytest.raises(FloatingPointError, match="no gradient"), run:
    pass
  assert run.sink.lines


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"batch_size": 6, "learner_devices": (0, 1, 2, 3)}, "4 learner devices"),
    ({"actor_batch_size": 5}, "from 0 to 4"),
    (
      {"micro_batches": 2, "replay": replay.PrioritizedConfig()},
      "expected 1 micro-batch",
    ),
    ({"inference_devices": (99,)}, "inference devices from 0 to"),
    ({"inference_devices": (0, 1, 2, 3)}, "at most 3 inference_devices"),
  ],
)
def test_invalid_options_are_refused(tmp_path, changes, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(tmp_path, **changes).learn(process.Context())
