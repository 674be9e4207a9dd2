"""The pipeline `offline`, and the agents that are made for it."""

import dataclasses
import json
import shutil

import chex
import jax
import numpy as np
import pytest

from experiments import iql as iql_experiment
from experiments import offline as offline_experiment
from seedx import app, checkpoint, envs, recordings, replay, types
from seedx.agents import cloning, dqn, iql, ppo, r2d2
from seedx.app import plot, record
from seedx.app.runs import checkpointer, records
from seedx.learning import learner
from seedx.pipelines import offline
from tests import conftest, programs, running
from tests.recordings import episodes

own_signals = programs.own_signals
compiled_once = programs.compiled_once

SMALL = {"hidden_sizes": (8,)}


@pytest.fixture
def data(tmp_path):
  return episodes.write(tmp_path / "data", lengths=(40, 30, 70))


def config_of(data, agent=None, **fields):
  return offline.Config(
    dataset=data,
    agent=agent or cloning.Config(**SMALL),
    env=envs.Config("CartPole-v1"),
    total_steps=fields.pop("total_steps", 30),
    replay=replay.Batches(8),
    **fields,
  )


def arrays(run_dir):
  folder = checkpoint.Checkpoints(checkpointer.directory(run_dir))
  saved = folder.restore(folder.steps()[-1], "run")
  return {k: x for k, x in saved.items() if "wall_seconds" not in k}


def test_the_clock_is_the_number_of_updates(data, tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(plot, "draw", lambda *rest: drawn.append(rest[-1]))
  run = app.train(
    config_of(data),
    run_dir=str(tmp_path / "run"),
    quiet=True,
    evaluate_every_steps=30,
    evaluate_episodes=2,
  )
  last = run.metrics
  assert next(iter(last)) == "learner_steps" and last["learner_steps"] == 30
  assert last["env_steps"] == 0 and last["replay_size"] == 140
  assert np.isfinite(last["loss"]) and last["policy_lag"] == 0
  # An episode's last step is not learned from.
  assert 0.9 * 30 * 8 < last["learned_steps"] < 30 * 8
  folder = checkpoint.Checkpoints(checkpointer.directory(run.run_dir))
  assert folder.steps()[-1] == 30
  lines = (run.run_dir / "evaluations.jsonl").read_text().splitlines()
  assert json.loads(lines[-1])["learner_steps"] == 30
  assert app.load(run.run_dir).env_steps == 30
  assert drawn == ["evaluation_return"]


@pytest.mark.parametrize(
  ("agent", "options"),
  conftest.slow_but(
    [(dqn, {})], [(dqn, {}), (r2d2, {"lstm_size": 4, "burn_in": 2})]
  ),
)
def test_a_resume_makes_the_same_updates(data, tmp_path, agent, options):
  # Total steps change a schedule.
  agent = agent.Config(**SMALL, learning_rate_end=1.0, **options)
  config = config_of(data, agent)
  whole = app.train(
    dataclasses.replace(config, total_steps=50),
    run_dir=str(tmp_path / "whole"),
    quiet=True,
  )
  app.train(config, run_dir=str(tmp_path / "run"), quiet=True)
  shutil.move(data, tmp_path / "moved")
  config = dataclasses.replace(
    config, total_steps=50, dataset=str(tmp_path / "moved")
  )
  run = app.train(config, resume=str(tmp_path / "run"), quiet=True)
  chex.assert_trees_all_equal(arrays(run.run_dir), arrays(whole.run_dir))


def test_a_resume_with_another_recording_is_refused(data, tmp_path):
  app.train(config_of(data), run_dir=str(tmp_path / "run"), quiet=True)
  other = episodes.write(tmp_path / "other", lengths=(40, 31, 69))
  config = config_of(other, total_steps=50)
  with pytest.raises(types.ConfigError, match="found another one"):
    app.train(config, resume=str(tmp_path / "run"), quiet=True)


def test_cores_draw_parts_of_their_own(data):
  cores = learner.DevicesConfig(learner_devices=(0, 1))
  made = running.Own(config_of(data, dqn.Config(**SMALL), learner=cores))
  source = made.learner.source
  one, other = jax.device_get(source.example().parts)
  assert one.importance_weight.shape == (4,)
  assert np.any(one.unroll.action != other.unroll.action)
  (batch,) = source()
  chex.assert_trees_all_equal(jax.device_get(batch.parts), [one, other])
  made.run()
  assert made.learner.version == 30


@pytest.mark.parametrize(
  ("path", "agent", "message"),
  [
    ("pendulum", None, "like the environment"),
    ("", None, "expected a dataset"),
    ("nowhere", None, "the directory of a recording"),
    ("data", ppo.Config(), "learn from the actions of others"),
    ("data", dqn.Config(n_step=200), "expected at least 201 time steps"),
  ],
)
def test_what_cannot_be_learned_from_is_refused(
  data, tmp_path, path, agent, message
):
  pendulum = envs.spec(envs.Config("Pendulum-v1"))
  episodes.write(tmp_path / "pendulum", pendulum)
  path = str(tmp_path / path) if path else ""
  with pytest.raises(types.ConfigError, match=message):
    running.Own(config_of(path, agent))


def test_a_batch_size_that_cores_do_not_divide_is_refused(data):
  cores = learner.DevicesConfig(learner_devices=(0, 1, 2))
  with pytest.raises(types.ConfigError, match="a multiple of 3"):
    running.Own(config_of(data, dqn.Config(**SMALL), learner=cores))


# The command line

WORDS = ("--total-steps", "20", "--hidden-sizes", "8", "--quiet")


def test_the_environment_is_that_of_the_recording(tmp_path, capfd):
  data = str(tmp_path / "data")
  words = ["--env", "Pendulum-v1", "--episodes", "1", "--output", data]
  assert record.main([*words, "--max-episode-steps", "30"]) == 0
  run = ["--run-dir", str(tmp_path / "run")]
  words = ["--agent", "iql", "--dataset", data, *WORDS]
  assert programs.main(offline_experiment, [*words, *run]) == 0
  assert "Pendulum-v1: 20 updates" in capfd.readouterr().out
  options = records.read(tmp_path / "run").options
  assert options["env"] == "Pendulum-v1" and options["dataset"] == data
  assert options["replay_batch_size"] == 256


@pytest.mark.slow
def test_a_run_continues_on_line_with_the_recording(tmp_path, capfd):
  data, run = str(tmp_path / "data"), str(tmp_path / "run")
  words = ["--env", "Pendulum-v1", "--episodes", "1", "--output", data]
  assert record.main([*words, "--max-episode-steps", "30"]) == 0
  config = config_of(data, iql.Config(**SMALL), total_steps=2)
  env = envs.Config("Pendulum-v1")
  app.train(dataclasses.replace(config, env=env), run_dir=run, quiet=True)
  online = [
    *("--init-from", run, "--run-dir", str(tmp_path / "on-line")),
    *("--demonstrations", data, "--demonstration-ratio", "0.5"),
    *("--replay-min-steps", "20", "--total-steps", "40", *WORDS[2:]),
  ]
  assert programs.main(iql_experiment, online) == 0
  begun = records.read(tmp_path / "on-line").init_from
  assert begun["run"] == run and begun["env_steps"] == 2


def test_code_that_a_recording_names_needs_trust(tmp_path, capfd):
  data = tmp_path / "data"
  spec = envs.spec(envs.Config("CartPole-v1"))
  description = recordings.Description(
    {"env": "gymnasium:make", "env_options": {"id": "CartPole-v1"}}, spec, "?"
  )
  with recordings.Writer(str(data), description) as writer:
    for episode in recordings.Recording(
      episodes.write(tmp_path / "other")
    ).episodes():
      writer.add(episode)
  words = ["--dataset", str(data), *WORDS, "--run-dir", str(tmp_path / "run")]
  refused = programs.refused(offline_experiment, words, capfd)
  assert "names code" in refused and "--env gymnasium:make" in refused
  assert not (tmp_path / "run").exists()
  assert programs.main(offline_experiment, [*words, "--trust"]) == 0


@pytest.mark.parametrize(
  ("env", "message"),
  [
    ({}, "expected an environment in"),
    ({"env": 7}, "expected settings of an environment"),
    ({"env": "CartPole-v1", "code": "x"}, "found 'code' 'x'"),
  ],
)
def test_a_recording_without_a_valid_environment_is_refused(
  tmp_path, capfd, env, message
):
  data = tmp_path / "data"
  spec = envs.spec(envs.Config("CartPole-v1"))
  description = recordings.Description(env, spec, "?")
  recordings.Writer(str(data), description).close()
  words = ["--dataset", str(data), *WORDS]
  assert message in programs.refused(offline_experiment, words, capfd)


# Learning


def joined(path, *parts):
  """Writes the first `steps` env steps of each of the recordings `parts`."""
  description = recordings.Recording(parts[0][0]).description
  description = dataclasses.replace(description, policy="joined")
  with recordings.Writer(str(path), description) as writer:
    for part, steps in parts:
      for episode in recordings.Recording(part).episodes():
        if steps > 0:
          writer.add(episode)
        steps -= len(episode.reward) - 1
  return str(path)


def evaluated(config, run_dir, episodes=20):
  run = app.train(
    config,
    run_dir=str(run_dir),
    quiet=True,
    evaluate_every_steps=config.total_steps,
    evaluate_episodes=episodes,
  )
  lines = (run.run_dir / "evaluations.jsonl").read_text().splitlines()
  assert run.metrics["env_steps"] == 0
  return json.loads(lines[-1])["mean"]


def recorded(path, env, policy, count):
  words = f"--env {env} --policy {policy} --episodes {count} --output {path}"
  assert record.main(words.split()) == 0
  return str(path)


@pytest.mark.slow
def test_agents_learn_cartpole_from_recordings(tmp_path):
  expert = "seedx.envs.demonstrators:cartpole"
  expert = recorded(tmp_path / "expert", "CartPole-v1", expert, 50)
  random = recorded(tmp_path / "random", "CartPole-v1", "random", 1_200)
  agent = cloning.Config(reward_scale=0.1)
  clone = dataclasses.replace(config_of(expert, agent), total_steps=2_000)
  clone = dataclasses.replace(clone, replay=replay.Batches())
  assert evaluated(clone, tmp_path / "clone") >= 475
  both = joined(tmp_path / "both", (expert, 25_000), (random, 25_000))
  q_learner = dataclasses.replace(
    clone,
    dataset=both,
    agent=dqn.Config(reward_scale=0.1),
    total_steps=6_000,
  )
  for seed in range(2):
    config = dataclasses.replace(q_learner, seed=seed)
    assert evaluated(config, tmp_path / f"dqn{seed}") >= 400


@pytest.mark.slow
def test_iql_prefers_the_better_actions_of_random_ones(tmp_path):
  """A clone of random actions takes their mean, with a return of 0.92."""
  aim = envs.Config("tests.own_envs:Aim")
  data = recorded(tmp_path / "data", aim.env, "random", 4_000)
  for agent, low, high in (
    (iql.Config(hidden_sizes=(64, 64), expectile=0.9), 0.97, 1.0),
    (cloning.Config(), 0.9, 0.94),
  ):
    agent = dataclasses.replace(agent, learning_rate=1e-3)
    if isinstance(agent, iql.Config):
      agent = dataclasses.replace(agent, inverse_temperature=30.0)
    config = offline.Config(
      env=aim, agent=agent, dataset=data, total_steps=2_000
    )
    name = type(agent).__module__
    assert low < evaluated(config, tmp_path / name, episodes=200) <= high
