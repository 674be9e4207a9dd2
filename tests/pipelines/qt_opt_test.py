"""The pipeline `qt_opt`."""

import dataclasses
import json
import os
import signal

import numpy as np
import pytest

from experiments import qt_opt as experiment
from seedx import app, envs, replay, types
from seedx.acting import protocol
from seedx.agents import dqn
from seedx.agents import qt_opt as agents
from seedx.app import record
from seedx.learning import learner
from seedx.pipelines import qt_opt
from tests import programs, running
from tests.pipelines import cells

own_signals = programs.own_signals
compiled_once = programs.compiled_once

LAG = 5
AGENT = agents.Config(
  hidden_sizes=(8,),
  value_min=-1_000.0,
  value_max=0.0,
  target_lag=LAG,
  cem_samples=8,
  cem_elites=2,
)


def config_of(tmp_path, total_steps=300, **fields):
  fields = {
    "agent": AGENT,
    "actors": protocol.Actors(num_actors=1, envs_per_actor=4),
    "learner": learner.InboxConfig(unroll_length=5, batch_size=4),
    "replay": replay.Config(
      replay_capacity=1000,
      replay_min_steps=40,
      replay_batch_size=8,
      replay_ratio=4.0,
    ),
    "num_labellers": 2,
    "label_ahead": 2,
    "label_capacity": 4,
    "label_fetch_interval": 2,
    **fields,
  }
  config = qt_opt.Config(
    env=envs.Config("Pendulum-v1", {"max_episode_steps": 20}),
    total_steps=total_steps,
    log_seconds=0.05,
    **fields,
  )
  return config.with_sockets(str(tmp_path))


def mean(made, name):
  values = [x[name] for x in made.sink.lines if x.get(name) is not None]
  assert values
  return np.mean(values)


def check_lags(made, staleness):
  """Checks the lags after the first copies, which are younger."""
  old = [
    x["target_lag"]
    for x in made.sink.lines
    if x.get("target_lag") is not None and x["learner_steps"] > 6 * LAG
  ]
  assert old and LAG <= np.mean(old) < 2 * LAG + staleness


@pytest.mark.slow
def test_the_learner_learns_from_stored_targets(tmp_path):
  made = running.Own(config_of(tmp_path))
  last = cells.run_all(made)
  assert last["env_steps"] >= 300 and last["learner_steps"] > 80
  assert np.isfinite(last["loss"]) and last["episodes"] > 5
  assert mean(made, "on_policy_share") == 1
  # Two labellers, each fetching after two batches, with two batches waiting.
  check_lags(made, staleness=3 * LAG)
  assert last["wire_bytes"] > 1000


@pytest.mark.slow
def test_a_recording_is_the_log_without_actors(tmp_path):
  data = str(tmp_path / "data")
  words = ["--env", "Pendulum-v1", "--episodes", "2", "--output", data]
  assert record.main([*words, "--max-episode-steps", "30"]) == 0
  config = config_of(tmp_path, dataset=data, total_steps=60)
  assert [x.role for x in config.nodes()] == ["labeller"]
  made = running.Own(config)
  last = cells.run_all(made)
  assert last["learner_steps"] == 60 and last["env_steps"] == 0
  assert mean(made, "on_policy_share") == 0
  check_lags(made, staleness=3 * LAG)
  assert next(iter(last)) == "learner_steps"


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"replay": replay.PrioritizedConfig()}, "a uniform replay"),
    ({"learner": learner.InboxConfig(hosts=2)}, "one learner host"),
  ],
)
def test_wrong_configs_are_refused(tmp_path, fields, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(tmp_path, **fields)


def test_an_agent_without_labels_is_refused(tmp_path):
  config = config_of(tmp_path, agent=dqn.Config())
  config = dataclasses.replace(config, env=envs.Config("CartPole-v1"))
  with pytest.raises(types.ConfigError, match="without `label`"):
    running.Own(config)


@pytest.mark.slow
def test_a_killed_labeller_changes_nothing(tmp_path):
  config = config_of(tmp_path, total_steps=10**9)
  with cells.Running(config) as run:
    run.wait_for_more_steps(200)
    victim = run.child("labeller")
    os.kill(victim.pid, signal.SIGKILL)
    run.wait_for_more_steps(200)
    run.wait_for(lambda: len(run.children("labeller")) == 2)
    assert victim not in run.children("labeller")
    run.wait_for_more_steps(400)
  check_lags(run, staleness=3 * LAG)


@pytest.mark.slow
def test_a_run_is_resumed_with_its_log(tmp_path):
  config = dataclasses.replace(config_of(tmp_path), address="")
  run = app.train(config, run_dir=str(tmp_path / "run"), quiet=True)
  config = dataclasses.replace(config, total_steps=600)
  again = app.train(config, resume=str(run.run_dir), quiet=True)
  assert again.metrics["env_steps"] >= 600
  assert again.metrics["learner_steps"] > run.metrics["learner_steps"] + 100
  assert again.metrics["replay_size"] > 550


def last_evaluation(run):
  lines = (run.run_dir / "evaluations.jsonl").read_text().splitlines()
  return json.loads(lines[-1])["mean"]


@pytest.mark.slow
def test_the_pipeline_learns_to_aim(tmp_path):
  """Random actions have a mean return of 0.83, and 0 one of 0.92."""
  config = config_of(
    tmp_path,
    agent=agents.Config(target_lag=20),
    replay=replay.Config(
      replay_min_steps=200, replay_batch_size=64, replay_ratio=32.0
    ),
  )
  config = dataclasses.replace(
    config, env=envs.Config("tests.own_envs:Aim"), total_steps=2_000
  )
  run = app.train(
    dataclasses.replace(config, address=""),
    run_dir=str(tmp_path / "run"),
    quiet=True,
    evaluate_every_steps=2_000,
    evaluate_episodes=100,
  )
  assert last_evaluation(run) > 0.99


@pytest.mark.long
def test_qt_opt_learns_pendulum(tmp_path):
  """Four of five runs reach -200 in 30,000 env steps."""
  reached = []
  for seed in range(5):
    config = dataclasses.replace(experiment.EXPERIMENT.config, seed=seed)
    run = app.train(
      config,
      run_dir=str(tmp_path / str(seed)),
      quiet=True,
      evaluate_every_steps=30_000,
      evaluate_episodes=100,
    )
    reached.append(last_evaluation(run) >= -200)
  assert sum(reached) >= 4
