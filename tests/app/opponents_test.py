"""Trained runs as opponents in games, and evaluations against opponents."""

import dataclasses
import json
import threading
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.speed import work
from experiments import anakin_ppo
from experiments import impala as impala_experiment
from experiments import ppo as ppo_experiment
from seedx import app, checkpoint, envs, types, wire
from seedx.acting import unroll_actor
from seedx.agents import acting_step, alphazero, dqn, ppo, r2d2
from seedx.app import evaluate, opponent, roles, training
from seedx.app.runs import checkpointer, evaluations, records
from seedx.app.settings import configs, opponents
from seedx.envs import functional
from seedx.envs.functional import opponents as opponents_lib
from seedx.launch import joining
from seedx.learning import learner
from seedx.pipelines import sync
from seedx.runtime import process
from seedx.runtime import running as running_lib
from tests import programs, running
from tests.pipelines import cells

own_signals = programs.own_signals

GAME = functional.TicTacToe()
TIC_TAC_TOE = envs.Config("seedx:TicTacToe")
AGAINST_RANDOM = envs.Config("seedx:TicTacToe", {"opponent": "random"})
SMALL = {"hidden_sizes": (8,)}


def save(folder, agent, env=AGAINST_RANDOM, env_steps=(7,), **options):
  """Writes a run whose networks are new ones; returns its directory."""
  config = sync.Config(agent=agent, env=env)
  record = records.of(config, config, None)
  record = dataclasses.replace(record, **options)
  folder.mkdir()
  records.write(folder, record)
  made = agent.make(envs.spec(env))
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(folder))
  for step in env_steps:
    acting = made.acting(made.init(jax.random.key(step)))
    checkpoints.save(step, {checkpointer.ACTING: acting}, score=-step)
  return folder


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs") / "ppo"
  return save(folder, ppo.Config(**SMALL), env_steps=(7, 8))


@pytest.fixture(scope="module")
def positions():
  """Returns positions of a random game, `[B, 2, 3, 3]`."""
  state, states = GAME.start(), []
  for move in (4, 0, 8, 2, 3):
    states.append(state)
    state = GAME.play(state, jnp.int32(move)).state
  return jnp.stack([*states, state])


def moves(play, states, seeds=None):
  keys = jax.random.split(jax.random.key(0), len(states))
  seeds = jnp.arange(len(states), dtype=jnp.uint32) if seeds is None else seeds
  return np.asarray(jax.jit(jax.vmap(play))(keys, seeds, states))


def greedy(policy, states):
  timestep = acting_step.zero_inputs(policy.spec, len(states)).timestep
  timestep = timestep._replace(observation=jax.vmap(GAME.observe)(states))
  state = policy.initial_state(len(states))
  return np.asarray(jax.jit(policy.act)(timestep, state)[0])


def test_an_opponent_plays_the_greedy_policy_of_a_search(tmp_path, positions):
  agent = alphazero.Config(**SMALL, num_simulations=2)
  folder = save(tmp_path / "run", agent, TIC_TAC_TOE)
  actual = moves(opponent.run(GAME, str(folder)), positions)
  np.testing.assert_array_equal(actual, greedy(app.load(folder), positions))
  assert np.asarray(jax.vmap(GAME.legal)(positions))[range(6), actual].all()


def test_a_run_has_an_opponent_for_each_checkpoint(run_dir, positions):
  for which in ("latest", "best", "7", "8"):
    actual = moves(opponent.run(GAME, f"{run_dir}@{which}"), positions)
    expected = greedy(app.load(run_dir, which), positions)
    np.testing.assert_array_equal(actual, expected)


def test_the_name_of_an_existing_directory_is_not_split(tmp_path):
  odd = tmp_path / "a@7"
  assert opponents.split(f"{odd}") == (f"{tmp_path}/a", "7")
  odd.mkdir()
  assert opponents.split(f"{odd}") == (f"{odd}", "latest")
  assert opponents.split(f"{odd}@8") == (f"{odd}", "8")
  assert opponents.split("a@b/c") == ("a@b/c", "latest")


def fixed(game, text):
  """Returns an opponent that always makes the same move."""
  return lambda rng_key, game_seed, state: jnp.int32(text)


def failing(game):
  raise KeyError("wrong")


def test_one_of_several_opponents_plays_a_whole_game():
  name = "+".join(f"tests.app.opponents_test:fixed:{k}" for k in range(3))
  play = opponents_lib.make(GAME, name)
  states = jnp.stack([GAME.start()] * 300)
  seeds = jax.vmap(jax.random.bits)(jax.random.split(jax.random.key(1), 300))
  first, second = moves(play, states, seeds), moves(play, states, seeds)
  np.testing.assert_array_equal(first, second)
  assert (np.bincount(first) > 70).all() and len(np.bincount(first)) == 3


def test_a_plus_is_between_opponents_and_in_paths():
  for members in (
    ["run:a", "run:b", "random"],
    ["run:/c++/a+b@best", "search", "x.y:z"],
  ):
    assert opponents_lib.members("+".join(members)) == members


def test_every_process_can_load_an_opponent_by_its_resolved_name(
  run_dir, monkeypatch
):
  monkeypatch.chdir(run_dir.parent)
  env = envs.Config(
    "seedx:TicTacToe", {"opponent": "run:ppo@7+random", "seat": "first"}
  )
  resolved = opponents.resolved(env)
  assert opponents.resolved(resolved) == resolved
  assert opponents.in_words(resolved.env_options) == {
    "opponent": f"run:{run_dir}@7+random",
    "seat": "first",
  }
  monkeypatch.chdir("/")
  assert envs.spec(resolved).players == 1
  # A user's own option of this name is left alone.
  own = envs.Config("my_env:make", {"opponent": "run:ppo"})
  assert opponents.resolved(own) is own


class _BeganError(Exception):
  """Raised instead of training."""


@pytest.fixture
def begun(monkeypatch):
  """Lets runs write their config only; returns the configs that train."""
  trained = []
  nothing = process.Process(
    acted=mock.Mock(), parts={}, policy=mock.Mock(), measures=[]
  )

  def learn(config, context):
    trained.append(config)
    return nothing

  monkeypatch.setattr(sync.Config, "learn", learn)
  failing = mock.Mock(side_effect=_BeganError)
  monkeypatch.setattr(running_lib, "run", failing)
  return trained


WORDS = ("--hidden-sizes", "8", "--env", "seedx:TicTacToe", "--quiet")


def test_a_run_records_its_opponents_as_the_user_named_them(
  run_dir, tmp_path, monkeypatch, begun, capfd
):
  monkeypatch.chdir(run_dir.parent)
  path, option = str(tmp_path / "run"), ("--env-options", "opponent=run:ppo")
  evaluates = "--evaluate-every-steps", "9", "--evaluate-env-options"
  evaluates = *evaluates, "opponent=run:ppo@7"
  words = [*WORDS, *option, *evaluates, "--run-dir", path]
  with pytest.raises(_BeganError):
    programs.main(ppo_experiment, words)
  saved = records.read(path)
  assert saved.options["env_options"] == {"opponent": "run:ppo"}
  assert saved.options["evaluate_env_options"] == {"opponent": "run:ppo@7"}
  (config,) = begun
  name = f"seedx.app.opponent:run:{run_dir}"
  assert config.env.env_options == {"opponent": name}
  # A resume reads no file that only config.json names.
  resume = ["--resume", path]
  error = programs.refused(ppo_experiment, resume, capfd)
  assert "add --env-options opponent=run:ppo" in error
  error = programs.refused(ppo_experiment, [*resume, *option], capfd)
  assert "add --evaluate-env-options opponent=run:ppo@7 or --trust" in error
  for own in ((*option, *evaluates), ("--trust",)):
    error = programs.refused(ppo_experiment, [*resume, *own], capfd)
    assert "expected a checkpoint" in error


def test_the_other_opponent_of_a_run_is_not_loaded(run_dir, tmp_path, capfd):
  """A run that trained against a run is an opponent, and can be evaluated."""
  env = envs.Config("seedx:TicTacToe", {"opponent": "run:nowhere"})
  folder = save(tmp_path / "run", ppo.Config(**SMALL))
  content = json.loads((folder / "config.json").read_text())
  content["options"]["env_options"] = dict(env.env_options)
  (folder / "config.json").write_text(json.dumps(content))
  assert opponent.run(GAME, str(folder))
  error = programs.refused(evaluate, [str(folder)], capfd)
  assert "--env-options opponent=run:nowhere" in error and "--trust" in error
  with pytest.raises(types.ConfigError, match=r"no config.json in .*nowhere"):
    app.load(folder, trust=True)
  words = [str(folder), "--episodes", "6", "--env-options"]
  for name in ("perfect", f"run:{run_dir}"):
    assert evaluate.main([*words, f"opponent={name},seat=second"]) == 0
    assert f"opponent={name},seat=second after" in capfd.readouterr().out


def test_the_code_of_an_opponent_runs_only_if_it_is_trusted(tmp_path):
  folder = save(tmp_path / "run", ppo.Config(**SMALL), experiment="theirs:X")
  env = envs.Config("seedx:TicTacToe", {"opponent": f"run:{folder}"})
  with pytest.raises(types.ConfigError, match=r"experiment theirs:X.*trust"):
    envs.spec(opponents.resolved(env))
  # Trusted, the experiment would be imported.
  with pytest.raises(types.ConfigError, match="No module named 'theirs'"):
    envs.spec(opponents.resolved(env, trust=True))


@pytest.mark.parametrize(
  ("value", "is_code"),
  [
    ("search+perfect", False),
    ("random+run:a", True),
    ("my_module:make", True),
    ("seedx.app.opponent:trusted_run:a", True),
  ],
)
def test_words_for_opponents_need_no_trust(value, is_code):
  for name in ("env_options", "evaluate_env_options"):
    options = {"opponent": value, "seat": "first"}
    code = envs.code_in({"env": "seedx:TicTacToe", name: options})
    assert code == ({name: options} if is_code else {})


def test_a_wrong_opponent_is_refused_before_processes_start(
  tmp_path, monkeypatch
):
  launched = mock.Mock(side_effect=_BeganError)
  monkeypatch.setattr(training.launching, "launched", launched)
  env = envs.Config("seedx:TicTacToe", {"opponent": f"run:{tmp_path}/none"})
  config = running.replaced(impala_experiment.EXPERIMENT.config, env=env)
  with pytest.raises(types.ConfigError, match=r"found no config.json"):
    app.train(config, run_dir=str(tmp_path / "run"), quiet=True)
  assert not launched.called


def test_a_benchmark_plays_against_the_opponents_of_its_run(run_dir):
  words = f"ppo --env seedx:TicTacToe --env-options opponent=run:{run_dir}"
  config = work.config_of(words, "")
  name = f"seedx.app.opponent:run:{run_dir}"
  assert config.env.env_options == {"opponent": name}


def test_a_process_that_joins_loads_the_opponents_of_the_learner(
  run_dir, monkeypatch
):
  monkeypatch.chdir(run_dir.parent)
  for module, name in (
    (roles.devices, "compute_on_own_threads"),
    (roles.allocator, "keep_freed_memory"),
    (roles.compiled, "keep"),
  ):
    monkeypatch.setattr(module, name, lambda: None)
  joined = []
  monkeypatch.setattr(
    unroll_actor, "run", lambda work, stop: joined.append(work)
  )
  options = configs.in_json(impala_experiment.EXPERIMENT.config)
  recorded = configs.recorded(impala_experiment.EXPERIMENT.config)
  options = {k: x for k, x in options.items() if k in recorded}
  options |= {"env": "seedx:TicTacToe", "env_options": {"opponent": "run:ppo"}}
  welcome = joining.Welcome("actor", True, "impala", options)
  stop = threading.Event()
  roles.play(
    impala_experiment.EXPERIMENT, welcome, "unix:a", "", stop, wire.LOCAL
  )
  (work,) = joined
  name = f"seedx.app.opponent:run:{run_dir}"
  assert work.env.env_options == {"opponent": name}


@pytest.mark.parametrize(
  ("name", "reason"),
  [
    ("perfct", "unknown opponent 'perfct'. Did you mean perfect.*run:DIR"),
    ("run:nowhere", "run:.*nowhere: .*found no config.json"),
    ("run:{run}@9", "run:.*@9: expected .* latest, best or one of 7, 8"),
    ("tests.app.opponents_test:failing", "failing raises KeyError: 'wrong'"),
    ("tests.app.opponents_test:none", "expected an opponent"),
  ],
)
def test_an_opponent_that_does_not_exist_is_refused(name, reason, run_dir):
  name = name.format(run=run_dir)
  env = envs.Config("seedx:TicTacToe", {"opponent": name})
  with pytest.raises(types.ConfigError, match=reason):
    envs.spec(opponents.resolved(env))


def test_a_run_that_cannot_play_a_game_is_refused(run_dir, tmp_path):
  with pytest.raises(types.ConfigError, match="a run of ConnectFour as an opp"):
    opponent.run(functional.ConnectFour(), str(run_dir))
  agent = r2d2.Config(**SMALL, lstm_size=8)
  folder = save(tmp_path / "memory", agent)
  with pytest.raises(types.ConfigError, match="opponent without a memory"):
    opponent.run(GAME, str(folder))


def test_self_play_is_refused_with_its_remedy():
  for agent in (ppo.Config(), dqn.Config()):
    with pytest.raises(
      types.ConfigError, match="--env-options opponent=random"
    ):
      agent.make(envs.spec(TIC_TAC_TOE))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("pipeline", "name"), [("anakin", "dqn"), ("seed", "ppo")]
)
def test_every_pipeline_plays_against_a_run(pipeline, name, run_dir, tmp_path):
  config = cells.config_of(pipeline, name, tmp_path)
  options = {"opponent": f"run:{run_dir}@7+run:{run_dir}@8+random"}
  env = opponents.resolved(envs.Config("seedx:TicTacToe", options))
  made = running.Own(dataclasses.replace(config, env=env))
  last = cells.run_all(made)
  assert last["episodes"] > 50 and last["learner_steps"] > 0
  assert -1 <= last["episode_return"] <= 1
  assert 2 <= last["episode_length"] <= 5


# Evaluations during training


def periodic(tmp_path, agent, env, **options):
  return evaluations.of(
    sync.Config(env=env, agent=agent),
    evaluations.Config(
      evaluate_every_steps=100,
      evaluate_episodes=4,
      evaluate_env_options=options,
    ),
    tmp_path,
  )


def test_a_run_of_self_play_is_evaluated_against_an_opponent(tmp_path):
  agent = alphazero.Config(**SMALL, num_simulations=2)
  with pytest.raises(
    types.ConfigError, match="--evaluate-env-options opponent"
  ):
    periodic(tmp_path, agent, TIC_TAC_TOE)
  evaluation = periodic(
    tmp_path, agent, TIC_TAC_TOE, opponent="perfect", seat="second"
  )
  made = agent.make(envs.spec(TIC_TAC_TOE))
  acting = made.acting(made.init(jax.random.key(0)))
  evaluation.finish(100, acting, stop=False)
  (line,) = (tmp_path / "evaluations.jsonl").read_text().splitlines()
  assert evaluation.mean == json.loads(line)["mean"] <= 0
  assert evaluation.means == {100: evaluation.mean}


def test_evaluations_have_their_own_options(tmp_path, monkeypatch):
  """The options of the training stay, and `env_steps` is as it is given."""
  made = []

  def make(env, *_, **__):
    made.append(env.env_options)
    raise _BeganError

  monkeypatch.setattr(envs, "make", make)
  agent = ppo.Config(**SMALL)
  name = "jax:tests.app.opponents_test:stage"
  env = envs.Config(name, {"size": 2, "env_steps": 0})
  for options, expected in (
    ({}, {"size": 2, "env_steps": 300}),
    ({"size": 3}, {"size": 3, "env_steps": 300}),
    ({"env_steps": 900}, {"size": 2, "env_steps": 900}),
  ):
    evaluation = periodic(tmp_path, agent, env, **options)
    with pytest.raises(_BeganError):
      evaluation.finish(300, (), stop=False)
    assert made.pop() == expected
  with pytest.raises(types.ConfigError, match="same observations and actions"):
    periodic(tmp_path, agent, envs.Config("seedx:DeepSea"), size=5)


def stage(size, env_steps):
  """Returns an environment with options that change nothing."""
  return functional.CartPole()


def test_curve_and_score_are_those_of_the_evaluations(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(
    training.run_sinks.plot,
    "draw",
    lambda panels, path, metric: drawn.append(metric),
  )
  config = sync.Config(
    env=AGAINST_RANDOM,
    agent=ppo.Config(**SMALL, epochs=1, minibatches=1),
    num_envs=4,
    learner=learner.Config(unroll_length=8),
    total_steps=64,
  )
  run = app.train(
    config,
    run_dir=str(tmp_path / "run"),
    quiet=True,
    evaluate_every_steps=1000,
    evaluate_env_options={"opponent": "perfect"},
  )
  assert drawn == ["evaluation_return"]
  *_, line = (run.run_dir / "evaluations.jsonl").read_text().splitlines()
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(run.run_dir))
  score = checkpoints.score(run.metrics["env_steps"])
  assert score == json.loads(line)["mean"] <= 0


# Learning


@pytest.mark.slow
def test_an_agent_learns_to_beat_an_opponent(tmp_path):
  config = running.replaced(
    anakin_ppo.EXPERIMENT.config, env=AGAINST_RANDOM, total_steps=100_000
  )
  run = app.train(config, run_dir=str(tmp_path / "run"), quiet=True)
  assert run.metrics["episode_return"] > 0.6


def test_self_play_is_not_evaluated_against_itself(tmp_path, capfd):
  run = save(
    tmp_path / "run", alphazero.Config(hidden_sizes=(8,)), env=TIC_TAC_TOE
  )
  with pytest.raises(SystemExit):
    evaluate.main([str(run)])
  assert "expected an opponent in evaluations" in capfd.readouterr().err
