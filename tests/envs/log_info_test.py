"""Entries of the last `info` of users' and EnvPool's episodes."""

import numpy as np
import pytest

from seedx import envs, types
from seedx.envs.processes import restarting
from tests import own_games
from tests.envs import worker_processes

fork_server, workers = worker_processes.fork_server, worker_processes.workers
start, config_of = worker_processes.start, worker_processes.config_of
NAN = np.nan


def played(environment, steps):
  """Returns `[steps + 1, B, E]`, the `info` of rows."""
  actions = np.zeros((steps, environment.num_envs), int)
  return worker_processes.run(environment, actions).info


def informing(start, infos, *keys, **kwargs):
  fields = {"log_info": keys}
  return start("Informing", 2, {"infos": infos}, fields=fields, **kwargs)


@pytest.mark.parametrize(
  ("info", "key", "expected"),
  [
    ({"is_success": True}, "is_success", 1.0),
    ({"is_success": np.bool_(False)}, "is_success", 0.0),
    ({"x": np.array([7], np.int8)}, "x", 7.0),
    ({"x": NAN}, "x", NAN),
    ({"x": None}, "x", NAN),
    ({"episode/r": 5.0, "episode": {"r": -2.0}}, "episode/r", 5.0),
    ({"a": {"b": {"c": 1}}}, "a/b/c", 1.0),
  ],
)
def test_an_entry_becomes_a_number_where_an_episode_ends(
  start, info, key, expected
):
  environment = informing(start, [info], key)
  assert environment.spec.log_info == (key,)
  values = played(environment, 3)
  # Episodes have one step, so every second row follows a reset.
  column = np.array([NAN, expected, NAN, expected], np.float32)
  np.testing.assert_array_equal(values, np.tile(column[:, None, None], (2, 1)))


def test_entries_are_in_the_order_of_the_option_and_of_rows(start):
  environment = start(
    "Informing",
    3,
    {"infos": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]},
    fields={"log_info": ("b", "a")},
    batch_size=1,
    num_threads=2,
  )
  seen = {k: [] for k in range(3)}
  for _ in range(15):
    rows = environment.recv()
    seen[int(rows.index[0])].append(rows.info[0].tolist())
    environment.send(rows.index, np.zeros(1, int))
  for values in seen.values():
    assert [x for x in values if x[0] == x[0]][:2] == [[2, 1], [4, 3]][
      : len(values) // 2
    ]


def test_a_later_episode_without_the_entry_does_not_count(start):
  values = played(informing(start, [{"x": 1.0}, {"y": 2.0}], "x"), 3)
  np.testing.assert_array_equal(values[1::2, 0, 0], [1.0, NAN])


@pytest.mark.parametrize(
  ("info", "message"),
  [
    (
      {"is_succes": True, "a": {"b": 1.0}, "text": "", "image": np.zeros(2)},
      r"no entry 'is_success' .* Did you mean is_succes\? Known: is_succes,"
      r" a/b\. .* NaN",
    ),
    ({}, "no entry 'is_success' .* Known: none"),
    ({"is_success": np.zeros(2)}, r"a number .*'is_success'.*ndarray"),
    ({"is_success": 1e39}, "finite number or NaN .*1e"),
  ],
)
def test_a_wrong_entry_ends_the_run_in_one_line_without_restarts(
  start, info, message
):
  allowed = restarting.Restarts(5, lambda count: 100)
  environment = informing(start, [info], "is_success", restarts=allowed)
  with pytest.raises(types.ConfigError, match=message) as caught:
    played(environment, 1)
  assert "\n" not in str(caught.value) and "--log-info" in str(caught.value)
  assert allowed.count == 0


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (config_of("counting_dm", log_info=("a",)), "no info, found a: .*Env"),
    (envs.Config("Pong-v5", log_info=("live",)), "'live'.*Did you mean lives"),
    (envs.Config("Pong-v5", log_info=("ram",)), "no number 'ram'"),
    (
      envs.Config("seedx:Catch", log_info=("a",)),
      "without info, found a: .*st",
    ),
    (own_games.jax_config("time"), r"'time' .* Known: last/steps, over\."),
    (own_games.jax_config("shape"), "no number 'shape'"),
    (
      own_games.jax_config("over", fails=True),
      "info raises ValueError: no info",
    ),
    (envs.Config("Pong-v5", log_info=("lives",) * 2), "different entries"),
  ],
)
def test_what_is_known_before_training_is_refused_at_once(config, message):
  with pytest.raises(types.ConfigError, match=message) as caught:
    envs.spec(config)
  assert "\n" not in str(caught.value)


def test_envpools_entries_are_those_of_whole_games():
  options = {"max_episode_steps": 40, "noop_max": 1, "episodic_life": True}
  config = envs.Config("Breakout-v5", options, log_info=("lives", "reward"))
  environment = envs.make(config, 2)
  environment.reset()
  ended = 0
  for _ in range(90):
    rows = environment.recv()
    game_ended = ~np.isnan(rows.episode_return)
    assert rows.info.shape == (2, 2) and rows.info.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(rows.info[:, 0]), ~game_ended)
    ended += np.count_nonzero(game_ended)
    assert (rows.info[game_ended, 0] <= 5).all()
    environment.send(rows.index, np.ones(2, int))
  environment.close()
  assert ended


def test_an_environment_of_jax_functions_has_entries_of_its_state():
  environment = envs.make(
    own_games.jax_config("last/steps", "over"), 3, batch_size=2
  )
  environment.reset()
  lengths, ended = np.zeros(3), 0
  for _ in range(60):
    rows = environment.recv()
    first = rows.timestep.step_type == 0
    lengths[rows.index] = np.where(first, 0, lengths[rows.index] + 1)
    last = rows.timestep.step_type == 2
    expected = np.stack([lengths[rows.index], np.ones(2)], axis=1)
    expected[~last] = NAN
    np.testing.assert_array_equal(rows.info, expected)
    ended += np.count_nonzero(last)
    environment.send(rows.index, np.zeros(2, int))
  assert ended > 3


def test_without_entries_rows_have_no_column():
  environment = envs.make(envs.Config("CartPole-v1"), 2)
  environment.reset()
  assert environment.recv().info == ()
  environment.close()
