"""Anakin: the numbers of `sync`, on any number of devices, for any seed."""

import dataclasses
import json
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from seedx import app, envs, sharding, types
from seedx.agents import a2c, dqn, ppo, r2d2, rainbow, vtrace
from seedx.learning import experience, learner
from seedx.pipelines import anakin, sync
from seedx.pipelines.anakin import training as training_lib
from seedx.runtime import process

CARTPOLE = envs.Config("seedx:CartPole-v1")
REPLAY = experience.ReplayConfig(
  replay_capacity=2000, replay_min_steps=100, replay_batch_size=16
)
PRIORITIZED = experience.PrioritizedConfig(
  replay_capacity=2000, replay_min_steps=100, replay_batch_size=16
)


def config_of(kind, agent=None, devices=1, replay=None, **options):
  options = {"env": CARTPOLE, "num_envs": 16, "total_steps": 5000, **options}
  return kind.Config(
    agent=agent or ppo.Config(hidden_sizes=(8,), epochs=2, minibatches=2),
    learner=learner.Config(
      unroll_length=options.pop("unroll_length", 5),
      learner_devices=tuple(range(devices)),
    ),
    replay=replay,
    **options,
  )


def trained(kind, config, updates):
  """The learner's part of a process after so many updates, and its line."""
  made = kind.learn(config, process.Context())
  steps = made.steps()
  while made.parts["learner"].measure()["learner_steps"] < updates:
    next(steps)
  made.close()  # Reads what is still on its way.
  line = made.measure()
  saved = jax.device_get(made.parts["learner"].saved())
  return saved, line


SMALL = {"hidden_sizes": (8,)}
AGENTS = {
  "ppo": (ppo.Config(epochs=2, minibatches=2, **SMALL), None),
  "ppo-lstm": (ppo.Config(minibatches=2, recurrent=True, **SMALL), None),
  "a2c-normalized": (a2c.Config(normalize_observations=True, **SMALL), None),
  "vtrace": (vtrace.Config(**SMALL), None),
  "dqn": (dqn.Config(n_step=3, **SMALL), REPLAY),
}


@pytest.mark.parametrize("name", AGENTS)
def test_ten_updates_are_those_of_sync(name):
  agent, replay = AGENTS[name]
  options = {"agent": agent, "replay": replay, "seed": 7}
  own, line = trained(anakin, config_of(anakin, **options), 10)
  other, expected = trained(sync, config_of(sync, **options), 10)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5),
    own["agent"].params,
    other["agent"].params,
  )
  assert own["agent"].updates == other["agent"].updates >= 10
  losses = [x for x in expected if "loss" in x]
  assert losses
  for key in (*losses, "policy_lag"):
    np.testing.assert_allclose(line[key], expected[key], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("replay", [None, PRIORITIZED])
def test_two_runs_are_bitwise_equal_and_other_seeds_are_not(replay):
  agent = dqn.Config(hidden_sizes=(8,)) if replay else None

  def params(seed):
    config = config_of(anakin, agent, replay=replay, seed=seed)
    return trained(anakin, config, 5)[0]["agent"].params

  jax.tree.map(np.testing.assert_array_equal, params(3), params(3))
  first, other = (jax.tree.leaves(params(seed)) for seed in (3, 4))
  assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_eight_devices_give_the_gradients_of_one():
  """Of the same unroll; each device draws actions of its own."""
  agent = a2c.Config(transformation=lambda: optax.sgd(0.1), **SMALL)
  config = config_of(anakin, agent, devices=8)
  training = training_lib.Training(config)
  before = jax.device_get(training._state)
  training.call()
  after = jax.device_get(training._state.agent)
  one = config.plan.agent(agent, envs.spec(CARTPOLE))
  unroll = unrolled(config)
  single, _ = jax.jit(one.update)(before.agent, jax.random.key(0), unroll)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    after.params,
    single.params,
  )
  moved = jax.tree.map(
    lambda a, b: np.abs(a - b).max(), after.params, before.agent.params
  )
  assert all(x > 1e-4 for x in jax.tree.leaves(moved))


def unrolled(config):
  """The unroll of all cores that follows the initial state."""
  training = training_lib.Training(config)
  program = sharding.per_core(
    lambda *arguments: training._one._unroll(*arguments)[1],
    training._mesh,
    (training._state_specs, training._key_specs, PartitionSpec()),
    sharding.UNROLL,
  )
  return jax.device_get(
    program(training._state, training._keys, training._clock)
  )


@pytest.mark.parametrize(
  ("agent", "replay"),
  [
    (None, None),
    (rainbow.Config(**SMALL), PRIORITIZED),
    (
      r2d2.Config(lstm_size=8, burn_in=4, sequence_length=9, **SMALL),
      PRIORITIZED,
    ),
  ],
)
def test_a_resumed_run_is_bitwise_the_one_that_was_not_stopped(
  agent, replay, tmp_path
):
  config = config_of(anakin, agent, replay=replay, num_seeds=2)
  made = anakin.learn(config, process.Context())
  steps = made.steps()
  for _ in range(8):
    next(steps)
  saved = jax.device_get(made.saved())
  for _ in range(5):
    next(steps)
  again = anakin.learn(config, process.Context())
  again.restore(lambda shapes: saved)
  steps = again.steps()
  for _ in range(5):
    next(steps)
  one, other = (jax.device_get(x.saved()) for x in (made, again))
  for x in (one, other):
    x["acted"].pop("wall_seconds")
  jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("name", ["ppo", "ppo-lstm"])
def test_a_seed_of_many_trains_as_it_does_alone(name):
  agent, _ = AGENTS[name]
  together, line = trained(anakin, config_of(anakin, agent, num_seeds=3), 4)
  alone, _ = trained(anakin, config_of(anakin, agent, seed=2), 4)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a[2], b, rtol=1e-3, atol=1e-5),
    together["agent"].params,
    alone["agent"].params,
  )
  assert {f"episode_return_seed_{k}" for k in range(3)} <= line.keys()


def test_episodes_are_counted_as_sync_does():
  own = anakin.learn(config_of(anakin), process.Context())
  other = sync.learn(config_of(sync), process.Context())
  lines = []
  for made in (own, other):
    for _ in made.steps():
      pass
    lines.append(made.measure())
  assert lines[0]["env_steps"] >= 5000
  # They stop a few steps apart.
  for key in ("episodes", "env_steps"):
    np.testing.assert_allclose(lines[0][key], lines[1][key], rtol=0.03)
  for key in ("episode_return", "episode_length"):
    np.testing.assert_allclose(lines[0][key], lines[1][key], rtol=0.15)
  assert lines[0]["episode_return"] == lines[0]["episode_length"]


def test_what_cannot_be_run_is_said():
  with pytest.raises(types.ConfigError, match="no environment 'CartPole-v1'"):
    anakin.learn(
      config_of(anakin, env=envs.Config("CartPole-v1")), process.Context()
    )
  with pytest.raises(types.ConfigError, match="num_envs"):
    config_of(anakin, devices=3)
  with pytest.raises(types.ConfigError, match="micro_batches"):
    anakin.Config(agent=ppo.Config(), learner=learner.Config(micro_batches=2))
  hide = "seedx.envs.transforms:hide_velocities"
  env = dataclasses.replace(CARTPOLE, observation_transform=hide)
  with pytest.raises(types.ConfigError, match="observation_transform"):
    anakin.learn(config_of(anakin, env=env), process.Context())


def test_a_run_of_several_seeds_leaves_what_every_run_does(tmp_path):
  config = config_of(anakin, num_seeds=2, total_steps=3000)
  run = app.train(config, run_dir=str(tmp_path / "run"), quiet=True)
  assert run.metrics["env_steps"] >= 3000
  assert (run.run_dir / "learning_curve.png").stat().st_size > 1000
  again = app.train(
    dataclasses.replace(config, total_steps=4000), resume=str(run.run_dir)
  )
  assert again.metrics["env_steps"] >= 4000
  lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
  assert json.loads(lines[-1])["episode_return_seed_1"] > 5


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path):
  """Bitwise, from whatever checkpoint is the newest."""
  options = "--quiet --checkpoint-every-seconds 1 --total-steps 400000"
  command = [sys.executable, "-m", "experiments.anakin_ppo", *options.split()]
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  subprocess.run([*command, "--run-dir", whole], check=True)
  process = subprocess.Popen([*command, "--run-dir", killed])
  deadline = time.monotonic() + 120
  while not checkpoints(killed) and process.poll() is None:
    assert time.monotonic() < deadline
    time.sleep(0.05)
  process.kill()
  assert process.wait() == -signal.SIGKILL
  subprocess.run([*command[:3], "--resume", killed, "--quiet"], check=True)
  one, other = (last_line(x) for x in (whole, killed))
  assert one["env_steps"] == other["env_steps"] >= 400_000
  same = ("learner_steps", "episodes", "episode_return", "gradient_norm")
  for key in (*same, "entropy", "loss_value", "episode_length"):
    assert one[key] == other[key], key


def checkpoints(run_dir):
  """Those that are whole; others have longer names."""
  return [x for x in run_dir.glob("checkpoints/*") if x.name.isdigit()]


def last_line(run_dir):
  return json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
