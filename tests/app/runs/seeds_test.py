"""Policies of a run that trains with several seeds at once."""

import dataclasses
import json
import pathlib

import chex
import jax
import numpy as np
import pytest

from seedx import checkpoint, envs, replay, types
from seedx.agents import dqn, ppo
from seedx.app import evaluate, export, policies
from seedx.app.runs import checkpointer, records
from seedx.learning import learner
from seedx.pipelines import anakin, apex
from seedx.runtime import process
from tests import programs

compiled_once = programs.compiled_once

SEED, NUM_SEEDS, STEPS = 5, 3, 1_000
CONFIG = anakin.Config(
  env=envs.Config("seedx:CartPole-v1"),
  total_steps=2_000,
  num_envs=2,
  seed=SEED,
  num_seeds=NUM_SEEDS,
  agent=ppo.Config(
    hidden_sizes=(8,), minibatches=2, normalize_observations=True
  ),
  learner=learner.Config(unroll_length=4),
)


def begun(config):
  """Returns a process that has made no update, and its saved state."""
  made = config.learn(process.Context())
  return made, jax.device_get(made.saved())


def write(path, config, made, saved):
  """Writes a run with one checkpoint; returns its directory."""
  path.mkdir()
  records.write(path, records.of(config, config, None))
  items = {checkpointer.RUN: saved, checkpointer.ACTING: made.policy(saved)}
  checkpoint.Checkpoints(checkpointer.directory(path)).save(STEPS, items, 1.0)
  return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Returns the directory of a run of PPO."""
  return write(tmp_path_factory.mktemp("runs") / "run", CONFIG, *begun(CONFIG))


def test_each_training_has_its_own_policy(run):
  for index in range(NUM_SEEDS):
    policy = policies.load(run, seed_index=index)
    alone = dataclasses.replace(CONFIG, num_seeds=1, seed=SEED + index)
    made_alone, saved_alone = begun(alone)
    chex.assert_trees_all_close(
      policy.acting, made_alone.policy(saved_alone), rtol=1e-4, atol=1e-6
    )
    assert policy.seed == SEED + index


def test_the_program_evaluates_each_training(run, capsys):
  returns = []
  for index, name in enumerate(["", "-seed_index=1", "-seed_index=2"]):
    words = [run, "--episodes", "4", "--seed-index", str(index)]
    assert evaluate.main(words) == 0
    path = pathlib.Path(capsys.readouterr().out.split()[-1])
    assert path.name == f"evaluation-{STEPS}{name}.json"
    result = json.loads(path.read_text())
    assert result["seed_index"] == index
    returns.append(result["returns"])
  assert len(set(map(str, returns))) == NUM_SEEDS


def test_the_program_exports_each_training(run, tmp_path, monkeypatch):
  exported, of_policy = [], export.export
  monkeypatch.setattr(
    export, "export", lambda x, *y: exported.append(x) or of_policy(x, *y)
  )
  output = ["--output", str(tmp_path / "policy")]
  assert export.main([run, "--seed-index", "2", *output]) == 0
  (policy,) = exported
  expected = policies.load(run, seed_index=2)
  chex.assert_trees_all_equal(policy.acting, expected.acting)
  assert policy.seed == SEED + 2


def test_the_replay_of_a_pipeline_keeps_its_kind(tmp_path):
  config = apex.Config(agent=dqn.Config(hidden_sizes=(8,)))
  assert isinstance(config.replay, replay.PrioritizedConfig)
  records.write(tmp_path, records.of(config, config, None))
  read = policies._config(records.read(tmp_path))
  assert read.replay == config.replay


def test_a_training_that_a_run_lacks_is_refused(run, tmp_path):
  for index in (-1, NUM_SEEDS):
    reason = f"0 to 2, since this run has 3 seeds, found {index}"
    with pytest.raises(types.ConfigError, match=reason):
      policies.load(run, seed_index=index)
  alone = dataclasses.replace(CONFIG, num_seeds=1)
  run = write(tmp_path / "alone", alone, *begun(alone))
  with pytest.raises(types.ConfigError, match="0 to 0, since this run has 1 "):
    policies.load(run, seed_index=1)


def test_a_state_of_other_shapes_is_refused(tmp_path):
  made, saved = begun(CONFIG)
  saved["agent"] = jax.tree.map(lambda x: np.asarray(x)[:2], saved["agent"])
  run = write(tmp_path / "run", CONFIG, made, saved)
  policies.load(run)
  with pytest.raises(types.ConfigError, match=r"expected .* of shape"):
    policies.load(run, seed_index=1)
