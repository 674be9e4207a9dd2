"""Anakin: the same results as `sync`, on any devices and for any seed."""

import dataclasses
import functools
import json
import signal
import subprocess
import sys

import chex
import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from seedx import app, envs, replay, sharding, types
from seedx.agents import a2c, dqn, ppo, r2d2
from seedx.learning import learner
from seedx.pipelines import anakin, sync
from seedx.pipelines.anakin import training as training_lib
from seedx.runtime import memory, process
from tests import conftest, running

CARTPOLE = envs.Config("seedx:CartPole-v1")
SMALL = {"hidden_sizes": (8,)}
REPLAY = {
  "replay_capacity": 200,
  "replay_min_steps": 40,
  "replay_batch_size": 4,
}
UNIFORM = replay.Config(**REPLAY)
PRIORITIZED = replay.PrioritizedConfig(**REPLAY)
LSTM = {"recurrent": True, "normalize_observations": True, **SMALL}
SEQUENCES = {"lstm_size": 8, "n_step": 2, "burn_in": 2, "sequence_length": 6}
# An agent, its replay, and the number of seeds that train together.
CELLS = {
  "ppo": (ppo.Config(epochs=2, minibatches=2, **SMALL), None, 2),
  "a2c-lstm-normalized": (a2c.Config(**LSTM), None, 1),
  "dqn": (dqn.Config(n_step=3, **SMALL), UNIFORM, 1),
  "r2d2": (r2d2.Config(**SEQUENCES, **SMALL), PRIORITIZED, 2),
}


def config_of(kind, agent=None, devices=1, **options):
  options = {"env": CARTPOLE, "num_envs": 4, "total_steps": 5000, **options}
  return kind.Config(
    agent=agent or CELLS["ppo"][0],
    learner=learner.Config(
      unroll_length=5, learner_devices=tuple(range(devices))
    ),
    **options,
  )


def train(made, updates):
  steps = made.steps()
  while made.parts["agent"].measure()["learner_steps"] < updates:
    next(steps)
  made.close()  # Reads the results that are still on their way.


def saved(made):
  """Returns the state for a checkpoint, without the wall time."""
  state = jax.device_get(made.saved())
  state["acted"].pop("wall_seconds")
  return state


@functools.cache
def trained(name):
  """Trains; returns the process, the states before and after, and metrics."""
  agent, replay, num_seeds = CELLS[name]
  options = {"replay": replay, "num_seeds": num_seeds, "seed": 7}
  made = config_of(anakin, agent, **options).learn(process.Context())
  start = saved(made)
  train(made, 10)
  return made, start, saved(made), made.measure()


def train_from(made, start, updates):
  """Trains from a saved state; returns the state at the end."""
  start["acted"]["wall_seconds"] = 0.0
  made.restore(lambda shapes: start)
  train(made, updates)
  return saved(made)


@pytest.mark.slow
def test_a_replay_larger_than_the_memory_is_refused_before_it_is_made(
  monkeypatch,
):
  agent = dqn.Config(**SMALL)
  config = config_of(anakin, agent, replay=PRIORITIZED, num_seeds=2)
  kept = [
    x.nbytes
    for x in jax.tree.leaves(training_lib.Training(config)._state.replay)
  ]
  free = sum(kept)
  monkeypatch.setattr(memory, "free_bytes", lambda _: free)
  training_lib.Training(config)
  free -= 1
  with pytest.raises(types.ConfigError, match="--replay-capacity 200 needs"):
    training_lib.Training(config)


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_runs_from_the_same_start_or_checkpoint_are_bitwise_equal(name):
  made, start, first, line = trained(name)
  updates = line["learner_steps"]
  train(made, updates + 6)
  last = saved(made)
  equal = functools.partial(jax.tree.map, np.testing.assert_array_equal)
  equal(train_from(made, start, updates), first)
  equal(train_from(made, first, updates + 6), last)
  if CELLS[name][1] is PRIORITIZED:
    # Updates change the priorities of stored windows.
    one, other = (x["learner"]["acting"].replay.tree[0] for x in (first, last))
    assert np.any((one > 0) & (one != other))


# Without the prioritized replay, since `sync` samples it one batch ahead.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ppo", "a2c-lstm-normalized"])
def test_ten_updates_are_the_same_as_in_sync(name):
  """The last of several seeds trains as if it were alone."""
  _, _, state, line = trained(name)
  agent, replay, num_seeds = CELLS[name]
  seed = 7 + num_seeds - 1
  config = config_of(sync, agent, replay=replay, seed=seed)
  other = config.learn(process.Context())
  train(other, 10)
  expected = other.measure()
  assert line["learner_steps"] == expected["learner_steps"] >= 10
  params = state["agent"].params
  if num_seeds > 1:
    params = jax.tree.map(lambda x: x[-1], params)
  chex.assert_trees_all_close(
    params,
    jax.device_get(other.saved())["agent"].params,
    rtol=2e-3,
    atol=2e-5,
  )
  if num_seeds > 1:
    # The other metrics are means over the seeds.
    episode_return = line[f"episode_return_seed_{seed}"]
    assert episode_return == expected["episode_return"] > 1
    return
  losses = [x for x in expected if "loss" in x]
  assert losses
  for key in (*losses, "policy_lag"):
    np.testing.assert_allclose(line[key], expected[key], rtol=2e-3, atol=1e-5)
  if replay is None:
    # With a replay, the two runs are at different env steps by now.
    for key in ("episodes", "env_steps", "episode_return", "episode_length"):
      assert line[key] == expected[key]
    assert line["episodes"] > 4


@pytest.mark.slow
def test_eight_devices_compute_the_gradients_of_one():
  """One device learns from the unroll that the eight devices have made."""
  agent = a2c.Config(transformation=lambda: optax.sgd(0.1), **SMALL)
  config = config_of(anakin, agent, devices=8, num_envs=16)
  training = training_lib.Training(config)
  before = jax.device_get(training.saved().agent)
  unroll = unrolled(training)
  training.call()
  after = jax.device_get(training.saved().agent)
  one = config.plan.agent(agent, envs.spec(CARTPOLE))
  single, _ = jax.jit(one.update)(before, jax.random.key(0), unroll)
  chex.assert_trees_all_close(after.params, single.params, rtol=1e-4, atol=1e-6)
  moved = jax.tree.map(
    lambda a, b: np.abs(a - b).max(), after.params, before.params
  )
  assert all(x > 1e-4 for x in jax.tree.leaves(moved))


def unrolled(training):
  program = sharding.per_core(
    lambda *arguments: training._one._unroll(*arguments)[1],
    training._mesh,
    (training._state_specs, training._key_specs, PartitionSpec()),
    sharding.UNROLL,
  )
  return jax.device_get(
    program(training._state, training._keys, training._clock)
  )


def test_invalid_options_are_refused():
  with pytest.raises(types.ConfigError, match="no environment 'CartPole-v1'"):
    config_of(anakin, env=envs.Config("CartPole-v1")).learn(process.Context())
  with pytest.raises(types.ConfigError, match="num_envs"):
    config_of(anakin, devices=3)
  with pytest.raises(types.ConfigError, match="micro_batches"):
    anakin.Config(agent=ppo.Config(), learner=learner.Config(micro_batches=2))
  hide = "seedx.envs.transforms:hide_velocities"
  env = dataclasses.replace(CARTPOLE, observation_transform=hide)
  with pytest.raises(types.ConfigError, match="observation_transform"):
    config_of(anakin, env=env).learn(process.Context())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  agent = a2c.Config(**SMALL)
  config = config_of(anakin, agent, num_seeds=2, total_steps=400)
  run_dir = tmp_path_factory.mktemp("run") / "run"
  return config, app.train(config, run_dir=str(run_dir), quiet=True)


@pytest.mark.slow
def test_a_run_of_several_seeds_writes_metrics_and_a_curve(run):
  last = run[1].metrics
  assert last["env_steps"] >= 400
  seeds = [last[f"episode_return_seed_{seed}"] for seed in (0, 1)]
  assert seeds[0] != seeds[1]
  assert last["episode_return"] == pytest.approx(np.mean(seeds))
  # The first rate is that of one seed, the second that of all seeds.
  rates = last["steps_per_second"], last["steps_per_second_all_seeds"]
  assert rates[1] == pytest.approx(2 * rates[0], rel=0.5)
  assert (run[1].run_dir / "learning_curve.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_run_of_several_seeds_can_be_resumed(run):
  config = dataclasses.replace(run[0], total_steps=600)
  again = app.train(config, resume=str(run[1].run_dir), quiet=True)
  assert again.metrics["env_steps"] >= 600
  assert last_line(run[1].run_dir)["episode_return_seed_1"] > 5


@pytest.mark.slow
def test_a_killed_run_resumes_bitwise(tmp_path):
  options = (
    "--quiet --checkpoint-every-seconds 0.2 --total-steps 100000 --num-envs 16"
    " --unroll-length 8 --hidden-sizes 8 --epochs 1 --minibatches 1"
  )
  command = [sys.executable, "-m", "experiments.anakin_ppo", *options.split()]
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  subprocess.run([*command, "--run-dir", whole], check=True)
  process = subprocess.Popen([*command, "--run-dir", killed])
  running.wait_until(lambda: checkpoints(killed) or process.poll() is not None)
  process.kill()
  assert process.wait() == -signal.SIGKILL
  subprocess.run([*command[:3], "--resume", killed, "--quiet"], check=True)
  one, other = (last_line(x) for x in (whole, killed))
  assert one["env_steps"] == other["env_steps"] >= 100_000
  same = ("learner_steps", "episodes", "episode_return", "gradient_norm")
  for key in (*same, "entropy", "loss_value", "episode_length"):
    assert one[key] == other[key], key


def checkpoints(run_dir):
  """Returns the whole checkpoints; unfinished ones have longer names."""
  return [x for x in run_dir.glob("checkpoints/*") if x.name.isdigit()]


def last_line(run_dir):
  return json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])


@dataclasses.dataclass(frozen=True)
class Searching(a2c.Config):
  """An agent that records whether it searches."""

  calls: list[str] = dataclasses.field(default_factory=list)

  def make(self, *arguments):
    agent = super().make(*arguments)
    return dataclasses.replace(
      agent,
      step=conftest.recorded(self.calls, "search", agent.step),
      without_search=conftest.recorded(self.calls, "network", agent.step),
    )


def test_an_agent_does_not_search_at_an_unrolls_last_step():
  agent = Searching(hidden_sizes=())
  made = config_of(anakin, agent).learn(process.Context())
  assert "network" not in agent.calls
  train(made, 1)
  assert agent.calls[-2:] == ["search", "network"]


def test_each_episode_has_a_length_of_its_own():
  made = config_of(anakin, a2c.Config(hidden_sizes=())).learn(process.Context())
  train(made, 20)
  line = made.measure()
  assert line["episodes"] > 8
  # Each step has the reward 1.
  assert line["episode_length"] == line["episode_return"]
