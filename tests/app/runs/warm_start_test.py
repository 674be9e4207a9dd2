"""Runs that begin with the parameters of another run."""

import dataclasses
import errno
import json
import os
import re
from unittest import mock

import chex
import jax
import numpy as np
import pytest

from seedx import app, checkpoint, envs, files, replay, types
from seedx.acting import local_actor
from seedx.agents import a2c, dqn
from seedx.app import directory, training
from seedx.app.runs import checkpointer, records, run_groups, warm_start
from seedx.launch import config as launch_config
from seedx.learning import learner
from seedx.pipelines import a3c, anakin, apex, gorila, impala, sync
from seedx.runtime import process
from tests import conftest, programs

compiled_once = programs.compiled_once
own_signals = programs.own_signals

ENV = envs.Config("seedx:CartPole-v1")
SMALL = {"hidden_sizes": (8,)}
WORKERS = local_actor.WorkersConfig(
  num_workers=1, envs_per_worker=2, unroll_length=4
)
# Pipelines whose parameters other pipelines take.
SOURCES = [("sync",), ("impala",), ("a3c",), ("anakin",)]
# Pipelines whose agents have target parameters.
TARGETS = [("apex",), ("anakin",)]
REPLAY = replay.Config(replay_capacity=64, replay_min_steps=8)


def config_of(pipeline, **changes):
  """Returns a small config of a pipeline."""
  options = {"env": ENV, "seed": 1, "total_steps": 2_000, **changes}
  critic, q_values = a2c.Config(**SMALL), dqn.Config(**SMALL)
  lockstep = {
    "agent": critic,
    "num_envs": 2,
    "learner": learner.Config(unroll_length=4),
  }
  workers = {"workers": WORKERS}
  module, fields = {
    "sync": (sync, lockstep),
    "impala": (impala, {"agent": critic}),
    "apex": (apex, {"agent": q_values}),
    "a3c": (a3c, {"agent": critic, **workers}),
    "anakin": (anakin, lockstep),
    "gorila": (gorila, {"agent": q_values, "replay": REPLAY, **workers}),
  }[pipeline]
  return module.Config(**{**fields, **options}).with_sockets("nowhere")


def learned(config):
  """Returns a process that has not run, its state, and its parameters."""
  made = config.learn(process.Context())
  part = made.parts["agent"]
  return made, None if hasattr(part, "form") else made.saved()["agent"]


def write(path, config, saved=None, acting=None, *, score=7.5, steps=1_000):
  """Writes a run with one checkpoint."""
  path.mkdir(exist_ok=True)
  records.write(path, records.of(config, config, None))
  if saved is None:
    made, _ = learned(config)
    saved = made.saved()
    acting = made.policy(saved)
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(path))
  checkpoints.save(steps, {"run": saved, "acting": acting}, score)
  return str(path)


def take(config, path, which="latest"):
  options = warm_start.Config(init_from=path, init_checkpoint=which)
  return warm_start.take(config, options)


def assert_begins(config, path, expected):
  """Checks the state of a process that begins with the parameters of a run."""
  taken = take(config, path)
  made, before = learned(config)
  made.begin(taken.params, taken.statistics)
  after = made.saved()["agent"]
  chex.assert_trees_all_equal(after.params, expected)
  chex.assert_trees_all_equal_shapes_and_dtypes(after, before)
  chex.assert_trees_all_equal(
    after.optimizer_state, jax.tree.map(np.zeros_like, after.optimizer_state)
  )
  assert not np.any(after.updates)
  return made, after, before


@pytest.mark.parametrize(
  "pipeline", conftest.slow_but([("sync",), ("anakin",)], SOURCES)
)
def test_parameters_pass_from_a_pipeline_to_each_other(pipeline, tmp_path):
  source = config_of(pipeline, seed=9)
  made, state = learned(source)
  saved = made.saved()
  path = write(tmp_path / "run", source, saved, made.policy(saved))
  for target in ("sync", "anakin", "a3c"):
    made, _, before = assert_begins(config_of(target), path, state.params)
    if target == "sync":  # The first action is taken with them.
      acting, _ = made.parts["agent"].newest()
      chex.assert_trees_all_equal(acting.params, state.params)
    kernels = [
      next(x for x in jax.tree.leaves(nest) if x.ndim == 2)
      for nest in (before.params, state.params)
    ]
    assert not np.array_equal(*kernels)


@pytest.mark.parametrize("pipeline", conftest.slow_but([("apex",)], TARGETS))
def test_target_parameters_are_equal_to_those_taken(pipeline, tmp_path):
  source = config_of("apex", seed=9)
  _, state = learned(source)
  path = write(tmp_path / "run", source)
  changes = {"agent": dqn.Config(**SMALL), "replay": REPLAY}
  config = config_of(pipeline, **changes if pipeline == "anakin" else {})
  made, after, _ = assert_begins(config, path, state.params)
  chex.assert_trees_all_equal(after.target_params, state.params)
  if pipeline == "anakin":
    next(made.steps())  # The program accepts and donates the state.


def test_gorila_takes_and_gives_parameters(tmp_path):
  """Its servers hold them in one vector each, its checkpoints by name."""
  _, state = learned(config_of("apex", seed=9))
  path = write(tmp_path / "run", config_of("apex", seed=9))
  config = config_of("gorila")
  made, _ = learned(config)
  taken = take(config, path)
  made.begin(taken.params, taken.statistics)
  shards = made.parts["agent"]
  assert not shards.are_ready()  # The servers do not have them yet.
  restored = shards._restored
  chex.assert_trees_all_equal_shapes_and_dtypes(restored, shards.form().agent)
  saved = {"agent": restored, "acted": made.acted.saved()}
  chex.assert_trees_all_equal(made.policy(saved).variables.params, state.params)
  back = write(tmp_path / "back", config, saved, made.policy(saved))
  chex.assert_trees_all_equal(
    take(config_of("apex"), back).params, state.params
  )


@pytest.mark.slow
def test_all_seeds_begin_with_the_parameters_of_the_first(tmp_path):
  made, state = learned(config_of("sync", seed=9))
  # Such a run's state has an axis of seeds, and its acting parameters do not.
  source, acting = config_of("anakin", num_seeds=3), made.policy(made.saved())
  by_seed = jax.tree.map(lambda x: np.stack([x, 0 * x, 0 * x]), state)
  path = write(tmp_path / "run", source, {"agent": by_seed}, acting)
  of_two = jax.tree.map(lambda x: np.stack([x, x]), state.params)
  made, *_ = assert_begins(config_of("anakin", num_seeds=2), path, of_two)
  next(made.steps())  # The program accepts and donates the state.


def test_statistics_of_observations_are_taken_and_those_of_rewards_are_not(
  tmp_path,
):
  normalizing = a2c.Config(**SMALL, normalize_observations=True)
  both = dataclasses.replace(normalizing, normalize_rewards=True)
  source = config_of("sync", agent=both)
  made, state = learned(source)
  of_observations, of_rewards = 5 * np.ones(4, np.float32), np.float32(100)
  statistics = state.statistics._replace(
    mean=(of_observations, of_rewards),
    variance=(of_observations, of_rewards),
    batches=(np.int32(70), np.int32(70)),
  )
  saved = made.saved()
  saved["agent"] = dataclasses.replace(state, statistics=statistics)
  path = write(tmp_path / "run", source, saved, made.policy(saved))
  for agent in (normalizing, both):
    config = config_of("sync", agent=agent)
    _, after, before = assert_begins(config, path, state.params)
    fresh = [part[1:] for part in before.statistics]
    for part, taken, rest in zip(
      after.statistics, statistics, fresh, strict=True
    ):
      np.testing.assert_array_equal(part[0], taken[0])
      chex.assert_trees_all_equal(part[1:], rest)
  assert "statistics of observations" in take(config, path).words


def test_a_checkpoint_is_chosen_as_in_evaluate(tmp_path):
  config = config_of("sync")
  path = write(tmp_path / "run", config, score=9.0, steps=500)
  taken = take(config, path)
  assert taken.origin == {"run": path, "env_steps": 500, "score": 9.0}
  # 4 x 8 + 8, 8 x 2 + 2 and 8 x 1 + 1 numbers.
  assert "(mean return 9.0) | 6 arrays with 67 parameters" in taken.words
  write(tmp_path / "run", config, score=-np.inf, steps=1_000)

  def chosen(path, which="latest"):
    return take(config, path, which).origin["env_steps"]

  assert chosen(path) == chosen(path, "1000") == chosen(path, "1e3") == 1_000
  assert chosen(path, "best") == chosen(f"{path}/checkpoints/500/") == 500
  assert "(mean return unknown)" in take(config, path).words
  with pytest.raises(types.ConfigError, match="--init-checkpoint latest, best"):
    chosen(path, "700")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"agent": a2c.Config(hidden_sizes=(8, 8))},
      r"params/.*MLP_0/Dense_1/bias: expected \[8\], found none in"
      r" .*\(2 arrays differ\); add --hidden-sizes 8, as in that run",
    ),
    (
      {"env": envs.Config("seedx:Acrobot-v1")},
      r"params/.*/kernel: expected \[6, 8\], found \[4, 8\] in .* one of"
      " sync_a2c on seedx:CartPole-v1, and this environment is"
      " seedx:Acrobot-v1",
    ),
    (
      {"agent": dqn.Config(**SMALL), "replay": REPLAY},
      r"params/.*/bias: expected no such array, found \[1\] .*one of sync_a2c",
    ),
  ],
)
def test_arrays_that_differ_are_refused_by_name(changes, message, tmp_path):
  path = write(tmp_path / "run", config_of("sync"))
  with pytest.raises(types.ConfigError) as caught:
    take(config_of("sync", **changes), path)
  assert re.search(message, str(caught.value)), caught.value
  assert path in str(caught.value)


def test_parameters_that_are_not_finite_are_refused(tmp_path):
  config = config_of("sync")
  made, state = learned(config)
  saved = made.saved()
  wrong = jax.tree.map(lambda x: np.full_like(x, np.nan), state.params)
  saved["agent"] = dataclasses.replace(state, params=wrong)
  path = write(tmp_path / "run", config, saved, made.policy(saved))
  with pytest.raises(types.ConfigError, match="a NaN or an infinity in params"):
    take(config, path)


def test_a_pipeline_without_begin_is_refused(tmp_path):
  config = config_of("sync")
  taken = take(config, write(tmp_path / "run", config))
  made = dataclasses.replace(learned(config)[0], begin=None)
  with pytest.raises(types.ConfigError, match="has no `begin`"):
    training._begin(made, taken)


def test_an_agent_with_a_state_of_its_own_is_refused(tmp_path, monkeypatch):
  config = config_of("sync")
  path = write(tmp_path / "run", config)
  made = dataclasses.replace(
    config.agent.make(envs.spec(config.env)), init=lambda key: {"weights": key}
  )
  monkeypatch.setattr(type(config.agent), "make", lambda *_: made)
  with pytest.raises(types.ConfigError, match=r"base\.AgentState.*found dict"):
    take(config, path)


@pytest.mark.parametrize(
  ("source", "message"),
  [("", "add --init-from DIR"), ("run/checkpoints/7", "leave out --init-ch")],
)
def test_a_choice_of_a_checkpoint_without_effect_is_refused(source, message):
  with pytest.raises(types.ConfigError, match=message):
    directory.Config(init_from=source, init_checkpoint="best")
  directory.Config(init_from=source)


def test_a_learner_on_a_cluster_finds_a_run_named_by_a_relative_path(
  tmp_path, monkeypatch
):
  """The other machine has another working directory."""
  monkeypatch.chdir(tmp_path)
  there = mock.MagicMock()
  there.return_value.status = 0
  monkeypatch.setattr(training.cluster_learner, "run", there)
  launching = launch_config.Config(launcher="ray", learner_on_cluster=True)
  config = dataclasses.replace(
    config_of("impala"), address="", launching=launching
  )
  app.train(config, quiet=True, run_dir="new", init_from="first")
  (work,) = there.call_args.args[0].args
  assert work.files.init_from == str(tmp_path / "first")


def test_lines_that_cannot_be_printed_do_not_end_a_run(tmp_path, monkeypatch):
  """A full disk below stderr; the second run begins as a killed one does."""
  config = config_of("sync", total_steps=40)
  first = write(tmp_path / "first", config)
  second = {"run_dir": str(tmp_path / "second"), "init_from": first}
  full = mock.MagicMock()
  full.write.side_effect = OSError(errno.ENOSPC, "no space left")
  monkeypatch.setattr("sys.stderr", full)
  for _ in range(2):
    run = app.train(config, resume="auto", **second)
    assert run.metrics["env_steps"] >= 40
    files.Folder(run.run_dir).remove_folder(checkpointer.DIRECTORY)


def trained(config, **options):
  return app.train(config, quiet=True, **options).run_dir


def final(run_dir):
  """Returns the env steps and the parameters of a run's last checkpoint."""
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(run_dir))
  steps = checkpoints.steps()[-1]
  return steps, checkpoints.restore(steps, checkpointer.ACTING)


@pytest.mark.slow
def test_a_run_begins_once_and_records_its_origin(tmp_path):
  """The learning rate is 0, so all runs keep the parameters of the first."""
  still = a2c.Config(**SMALL, learning_rate=0.0)
  config = config_of("sync", agent=still, total_steps=40)
  first = trained(config, run_dir=str(tmp_path / "first"))
  first_steps, expected = final(first)
  other = dataclasses.replace(config, seed=2)
  second = trained(
    other, run_dir=str(tmp_path / "second"), init_from=str(first)
  )
  steps, params = final(second)
  chex.assert_trees_all_equal(params, expected)
  assert 40 <= steps < 60  # Counters are fresh.
  recorded = json.loads((second / "config.json").read_text())["init_from"]
  assert recorded["run"] == str(first) and recorded["env_steps"] == first_steps
  # A resume of the run neither needs nor takes anything from its origin.
  os.rename(first, tmp_path / "moved")
  longer = dataclasses.replace(other, total_steps=80)
  trained(longer, resume=str(second), init_from=str(first))
  assert json.loads((second / "config.json").read_text())["init_from"] == (
    recorded
  )
  steps, params = final(second)
  chex.assert_trees_all_equal(params, expected)
  assert 80 <= steps < 120
  with pytest.raises(types.ConfigError, match="--resume without --init-from"):
    trained(longer, resume=str(second), init_from=str(tmp_path / "moved"))
  labels = run_groups.labels(
    list(map(run_groups.read, (tmp_path / "moved", second)))
  )
  assert ["--init-from" in label for label in labels] == [False, True]
