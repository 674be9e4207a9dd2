"""Entries of the last `info` of episodes, as metrics of every pipeline."""

import dataclasses

import pytest

from tests import conftest, own_games, programs, running
from tests.pipelines import cells

compiled_once = programs.compiled_once

# EnvPool counts the env steps of an episode in this entry.
STEPS = "elapsed_step"
CELLS = [
  ("sync", "a2c"),
  ("seed", "vtrace"),
  ("impala", "vtrace"),
  ("pool", "vtrace"),
  ("a3c", "a2c"),
  ("gorila", "dqn"),
]


@pytest.mark.parametrize(
  ("pipeline", "name"), conftest.slow_but([("sync", "a2c")], CELLS)
)
def test_the_mean_of_an_entry_arrives_from_the_same_episodes_as_the_return(
  pipeline, name, tmp_path
):
  config = cells.config_of(pipeline, name, tmp_path)
  env = dataclasses.replace(config.env, log_info=("env_id", STEPS))
  made = running.Own(dataclasses.replace(config, env=env))
  last = cells.run_all(made)
  assert last["episodes"] > 0
  assert last[f"info_{STEPS}"] == last["episode_length"]
  acted = made.process.acted
  assert acted.info[STEPS].count == acted.lengths.count == last["episodes"]
  assert acted.info[STEPS].mean() == acted.lengths.mean()


@pytest.mark.slow
def test_an_environment_of_jax_functions_may_have_info(tmp_path):
  config = cells.config_of("anakin", "a2c", tmp_path)
  env = own_games.jax_config("over", "last/steps")
  made = running.Own(
    dataclasses.replace(config, env=env, num_seeds=2, updates_per_call=2)
  )
  last = made.run()
  assert last["info_last/steps"] == last["episode_length"] > 5
  assert last["info_over"] == 1.0
