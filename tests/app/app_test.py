"""`app.train` and `app.load` in Python, and the program `seedx`."""

import dataclasses
import importlib
import inspect
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import chex
import jax
import numpy as np
import pytest

import seedx as seedx_lib
from experiments import a2c as a2c_experiment
from seedx import __main__ as seedx_program
from seedx import app, checkpoint, envs, metrics, output, signals, types
from seedx.acting import evaluator
from seedx.agents import a2c, vtrace
from seedx.app import devices, roles
from seedx.app.runs import checkpointer, records
from seedx.app.settings import experiments
from seedx.on_cpu import allocator
from seedx.pipelines import sync
from tests import programs, running
from tests.app import cases
from tests.repository import documentation

own_signals = programs.own_signals
compiled_once = programs.compiled_once


def play(policy, seed):
  """Plays an episode with `policy.act`; returns the episode's return."""
  act = jax.jit(policy.act)
  environment = envs.make(policy.env, 1, seed=seed)
  environment.reset()
  state = policy.initial_state(1)
  while True:
    rows = environment.recv()
    if not np.isnan(rows.episode_return[0]):
      environment.close()
      return rows.episode_return[0]
    action, state = act(rows.timestep, state)
    environment.send(rows.index, np.asarray(action))


@pytest.mark.parametrize(
  ("pipeline", "name"),
  [
    ("sync", "a2c"),
    # Checkpoints of these pipelines have the policy in different places.
    *(
      pytest.param(*cell, marks=pytest.mark.slow)
      for cell in (("seed", "vtrace"), ("a3c", "a2c"), ("gorila", "dqn"))
    ),
    *(
      pytest.param(*cell, marks=pytest.mark.long)
      for cell in (("impala", "a2c"), ("apex", "dqn"))
    ),
  ],
)
def test_any_pipeline_trains_a_run_that_can_be_loaded_and_resumed(
  pipeline, name, tmp_path, capfd
):
  config = cases.config_of(pipeline, name)
  steps = config.total_steps
  run = app.train(config, run_dir=str(tmp_path), quiet=True)
  assert capfd.readouterr() == ("", "")
  assert run.run_dir == tmp_path
  assert run.metrics["env_steps"] >= steps
  assert (run.restarts, run.interrupted, run.evaluation) == (0, False, "")
  lines = metrics.read_lines(tmp_path / "metrics.jsonl")
  assert lines[-1]["env_steps"] == run.metrics["env_steps"]
  assert lines[-1].keys() <= documentation.metrics()
  assert (tmp_path / "learning_curve.png").exists()
  assert list(tmp_path.glob("events.out.tfevents*"))
  saved = json.loads((tmp_path / "config.json").read_text())
  assert saved["experiment"] is None and saved["format"] == records.FORMAT
  assert saved["pipeline"].startswith(f"seedx.pipelines.{pipeline}")
  assert saved["pipeline"].endswith(":Config")
  assert saved["agent"] == f"seedx.agents.{name}:Config"
  assert saved["options"]["total_steps"] == steps
  assert saved["options"].get("address", "") == ""

  policy = app.load(tmp_path)
  assert policy.env_steps == run.metrics["env_steps"]
  assert (policy.name, policy.seed) == (records.read(tmp_path).name, 0)
  assert 8 <= play(policy, seed=5) <= 500

  longer = running.replaced(config, total_steps=2 * steps)
  more = app.train(longer, resume=str(tmp_path), quiet=True)
  assert more.run_dir == tmp_path
  assert more.metrics["env_steps"] >= 2 * steps
  assert more.metrics["learner_steps"] > run.metrics["learner_steps"]
  assert programs.steps_of(tmp_path)[-1] == more.metrics["env_steps"]
  options = json.loads((tmp_path / "config.json").read_text())["options"]
  assert options["total_steps"] == 2 * steps


@pytest.mark.slow
def test_a_loaded_policy_has_the_same_returns_as_in_the_evaluator(tmp_path):
  agent = vtrace.Config(hidden_sizes=(8,), recurrent=True, lstm_size=8)
  config = cases.small(agent=agent, seed=3)
  app.train(config, run_dir=str(tmp_path), quiet=True)
  policy = app.load(tmp_path, config=config)
  assert policy.agent.initial_core_state(2) is not None
  player = evaluator.Evaluator(
    policy.agent, evaluator.Config(cases.CARTPOLE, num_episodes=1)
  )
  for seed in (11, 12):
    (expected,) = player.play(policy.acting, seed).returns
    assert play(policy, seed) == expected


def test_the_default_directory_is_named_after_the_pipeline_and_the_agent(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  run = app.train(cases.small(), quiet=True)
  assert run.run_dir.parent == pathlib.Path("runs/sync_a2c")
  assert app.load(run.run_dir).name == "sync_a2c"


def test_progress_and_evaluations_are_shown_on_request(tmp_path, capfd):
  run = app.train(
    cases.small(),
    run_dir=str(tmp_path),
    evaluate_every_steps=1_000,
    evaluate_episodes=3,
    checkpoint_every_seconds=0,
  )
  assert "env steps/s" in capfd.readouterr().err
  assert run.evaluation.startswith("mean ")
  assert run.evaluation.endswith(" of 3 episodes")
  lines = (tmp_path / "evaluations.jsonl").read_text().splitlines()
  assert json.loads(lines[-1])["env_steps"] == run.metrics["env_steps"]


def test_load_restores_the_requested_checkpoint(tmp_path):
  config = cases.small()
  app.train(config, run_dir=str(tmp_path), quiet=True)
  longer = running.replaced(config, total_steps=200)
  app.train(longer, resume=str(tmp_path), quiet=True)
  first, last = programs.steps_of(tmp_path)
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(tmp_path))
  best = checkpoints.ranked()[0]
  for which, expected in (
    (str(first), first),
    (last, last),
    ("latest", last),
    ("best", best),
  ):
    policy = app.load(tmp_path, which)
    assert policy.env_steps == expected
    saved = checkpoints.restore(expected, checkpointer.ACTING, policy.acting)
    chex.assert_trees_all_equal(policy.acting, saved)
  with pytest.raises(types.ConfigError, match=f"{first}, {last}, found '1'$"):
    app.load(tmp_path, "1")
  with pytest.raises(types.ConfigError, match="found no config"):
    app.load(tmp_path / "checkpoints")


# Custom networks and agents


@dataclasses.dataclass(frozen=True)
class Mine(a2c.Config):
  """An agent that does not come with seedx.

  Attributes:
    patience: a setting that no agent of seedx has.
  """

  patience: int = 1


@pytest.mark.slow
@pytest.mark.parametrize(
  ("agent", "reason"),
  [
    (a2c.Config(torso=cases.Torso()), "config="),
    (Mine(hidden_sizes=(8,)), "is not part of seedx; use app.load"),
  ],
  ids=["torso", "agent"],
)
def test_a_custom_network_or_agent_needs_its_config_to_be_loaded(
  agent, reason, tmp_path
):
  config = cases.small(agent=agent)
  app.train(config, run_dir=str(tmp_path), quiet=True)
  with pytest.raises(types.ConfigError, match=reason):
    app.load(tmp_path)
  policy = app.load(tmp_path, config=config)
  assert play(policy, 5) >= 8
  longer = running.replaced(config, total_steps=200)
  app.train(longer, run_dir=str(tmp_path), resume=True, quiet=True)
  assert app.load(tmp_path, config=longer).env_steps >= 200


def test_the_signature_of_train_names_its_options():
  named = inspect.signature(app.train).parameters
  assert {"config", "sinks", "run_dir", "resume", "stop_at"} <= {*named}
  assert named["log_every"].default == 10.0 and "options" not in named


def test_a_resume_with_another_config_is_refused(tmp_path):
  app.train(cases.small(), run_dir=str(tmp_path), quiet=True)
  original = (tmp_path / "config.json").read_text()
  for other, reason in (
    (cases.small(seed=1), "found another --seed"),
    (
      cases.small(agent=dataclasses.replace(cases.A2C, hidden_sizes=(9,))),
      "another --hidden-sizes",
    ),
    (
      cases.small(agent=vtrace.Config(hidden_sizes=(8,))),
      "vtrace:Config to resume",
    ),
    (cases.small(agent=Mine(hidden_sizes=(8,))), "tests.app.app_test:Mine to"),
    (cases.config_of("a3c", "a2c"), "a run of seedx.pipelines.a3c:Config"),
  ):
    with pytest.raises(types.ConfigError, match=reason):
      app.train(other, resume=str(tmp_path), quiet=True)
  assert (tmp_path / "config.json").read_text() == original


def test_wrong_options_of_train_are_refused(tmp_path):
  app.train(cases.small(), run_dir=str(tmp_path / "a"), quiet=True)
  for fields in (
    {"run_dir": str(tmp_path / "a")},
    {"resume": str(tmp_path / "a"), "run_dir": "elsewhere"},
    {"resume": str(tmp_path)},
    {"checkpoint_every_seconds": -1.0},
    {"evaluate_episodes": 0},
  ):
    with pytest.raises(types.ConfigError, match=r"expected|already has a run"):
      app.train(cases.small(), quiet=True, **fields)
  with pytest.raises(types.ConfigError, match="expected a pipeline's config"):
    app.train(a2c.Config(), run_dir=str(tmp_path / "b"), quiet=True)
  with pytest.raises(TypeError, match="run_folder"):
    app.train(cases.small(), run_folder="x")
  assert [path.name for path in tmp_path.iterdir()] == ["a"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant(sync.Config):
  def learn(self, context):
    trainer = super().learn(context)
    return dataclasses.replace(trainer, measures=[*trainer.measures, self])

  def measure(self):
    return {"variant": 1.0}


def test_a_variant_of_a_pipeline_is_a_subclass_of_its_config(tmp_path):
  config = Variant(**vars(cases.small()))
  run = app.train(config, run_dir=str(tmp_path / "a"), quiet=True)
  assert run.metrics["variant"] == 1.0 and run.metrics["learner_steps"]


# Ctrl-C


def handlers():
  return [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize(
  ("number", "exception"),
  [
    (signal.SIGINT, None),
    (signal.SIGTERM, SystemExit),
  ],
)
def test_a_signal_ends_a_run_early_and_its_handler_is_restored(
  number, exception, tmp_path, capfd
):
  """`train` raises, which ends a script, unless `return_interrupted` is set."""
  before, sink = handlers(), running.Lines()

  def interrupt():
    path = tmp_path / "metrics.jsonl"
    running.wait_until(
      lambda: path.exists() and path.read_text().count("\n") >= 2
    )
    assert handlers() != before
    os.kill(os.getpid(), number)

  thread = threading.Thread(target=interrupt)
  thread.start()

  def train():
    return app.train(
      cases.small(10**9, log_seconds=0.05),
      run_dir=str(tmp_path),
      quiet=True,
      sinks=[sink],
      return_interrupted=exception is None,
    )

  if exception is None:
    run = train()
    assert run.interrupted and run.metrics["env_steps"] < 10**9
  else:
    with pytest.raises(exception) as caught:
      train()
    assert caught.value.code == 143
  thread.join()
  assert handlers() == before
  assert "Ctrl-C again to exit at once" in capfd.readouterr().err
  assert programs.steps_of(tmp_path) == [sink.lines[-1]["env_steps"]]


def test_training_on_another_thread_keeps_the_signal_handlers(tmp_path):
  before, seen, runs = handlers(), [], []

  def train():
    runs.append(app.train(cases.small(), run_dir=str(tmp_path), quiet=True))

  thread = threading.Thread(target=train)
  thread.start()
  while thread.is_alive():
    seen.append(handlers())
    thread.join(0.02)
  assert seen and all(x == before for x in seen)
  assert runs[0].metrics["env_steps"] >= 100


# The program


def seedx(monkeypatch, *words):
  """Runs `seedx WORDS` in this process; returns its exit status."""
  monkeypatch.setattr(sys, "argv", ["seedx", *map(str, words)])
  return seedx_program.main()


SMALL = "--hidden-sizes 8 --num-envs 4 --unroll-length 5 --total-steps 100"


def test_seedx_trains_evaluates_plots_and_exports(tmp_path, monkeypatch, capfd):
  run_dir = tmp_path / "run"
  words = ["train", "a2c", *SMALL.split(), "--run-dir", run_dir]
  # The run's clock starts with the program.
  monkeypatch.setattr(seedx_lib, "STARTED_SECONDS", time.monotonic() - 1000)
  assert seedx(monkeypatch, *words) == 0
  first = metrics.read_lines(run_dir / "metrics.jsonl")[0]
  assert 1000 < first["wall_seconds"] < 1600
  saved = json.loads((run_dir / "config.json").read_text())
  assert saved["experiment"] == "a2c"
  assert seedx(monkeypatch, "evaluate", run_dir, "--episodes", 2) == 0
  assert "of 2 episodes" in capfd.readouterr().out
  picture = tmp_path / "plot.svg"
  (run_dir / "metrics.jsonl").write_text(
    '{"env_steps": 1, "wall_seconds": 1, "episode_return": 2.0}\n'
  )
  assert seedx(monkeypatch, "plot", run_dir, "--output", picture) == 0
  assert picture.exists()
  policy = tmp_path / "policy"
  assert seedx(monkeypatch, "export", run_dir, "--output", policy) == 0
  assert json.loads((tmp_path / "policy.json").read_text())["env_steps"] >= 100
  # `python -m experiments.a2c` resumes a run of `seedx train a2c`.
  words = ["--resume", str(run_dir), "--total-steps", "200"]
  assert programs.main(a2c_experiment, words) == 0
  assert programs.steps_of(run_dir)[-1] >= 200
  # An experiment and a script do not resume each other's runs.
  script = str(tmp_path / "script")
  app.train(cases.small(), run_dir=script, quiet=True)
  error = programs.refused(a2c_experiment, ["--resume", script], capfd)
  assert "expected a run of a2c to --resume, found one of" in error
  assert "seedx.pipelines.sync:Config" in error
  with pytest.raises(types.ConfigError, match="found one of a2c in"):
    app.train(cases.small(), resume=str(run_dir), quiet=True)


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("fly", "join, certificates, found 'fly'"),
    ("train mine:OTHER", "MODULE:EXPERIMENT, found 'mine:OTHER'"),
  ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
  words, reason, monkeypatch, capsys
):
  with pytest.raises(SystemExit) as caught:
    seedx(monkeypatch, *words.split())
  assert caught.value.code == 2
  out, err = capsys.readouterr()
  assert out == "" and err.count("\n") == 1 and reason in err


# Experiments by name


def python(folder, *words):
  """Runs Python in a folder, with seedx from this repository."""
  return subprocess.run(
    [sys.executable, *map(str, words)],
    cwd=folder,
    env={**os.environ, "PYTHONPATH": str(programs.ROOT)},
    capture_output=True,
    text=True,
    timeout=600,
  )


@pytest.mark.parametrize(
  ("path", "words", "name"),
  [
    pytest.param(
      "mine.py",
      ["-m", "seedx", "train", "mine.py"],
      "mine:EXPERIMENT",
      marks=pytest.mark.slow,
    ),
    *(
      pytest.param(*case, marks=pytest.mark.long)
      for case in (
        ("mine.py", ["mine.py"], "mine:EXPERIMENT"),
        # Custom experiments in files named like an experiment of seedx.
        ("a2c.py", ["a2c.py"], "a2c:EXPERIMENT"),
        ("experiments/a2c.py", ["-m", "experiments.a2c"], "experiments.a2c:"),
      )
    ),
  ],
)
def test_a_run_of_a_custom_experiment_is_evaluated_and_resumed(
  path, words, name, tmp_path
):
  (tmp_path / path).parent.mkdir(exist_ok=True)
  # Without this file, Python would import the repository's `experiments`.
  (tmp_path / path).with_name("__init__.py").touch()
  (tmp_path / path).write_text(cases.CUSTOM)
  done = python(tmp_path, *words, "--run-dir", "run")
  assert done.returncode == 0, done.stderr
  saved = records.read(tmp_path / "run")
  assert saved.experiment.startswith(name)
  assert saved.name == pathlib.Path(path).stem
  program = ["-m", "seedx", "evaluate", "run", "--episodes", "2"]
  done = python(tmp_path, *program, "--trust")
  assert done.returncode == 0, done.stderr
  done = python(tmp_path, *words, "--resume", "run", "--total-steps", "200")
  assert done.returncode == 0, done.stderr
  if path == "mine.py":
    (tmp_path / "elsewhere").mkdir()
    program = ["-m", "seedx", "export", "../run", "--trust"]
    done = python(tmp_path / "elsewhere", *program)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "from here" in done.stderr


def test_an_experiment_of_seedx_has_a_short_name():
  for name in experiments.shipped():
    module = experiments.load_module(name)
    assert experiments.name_of(module.__name__) == name
  assert experiments.name_of("experiments.a2c") == "a2c"


@pytest.mark.parametrize("name", ["nowhere:EXPERIMENT", "json"])
def test_a_name_without_an_experiment_is_refused(name):
  with pytest.raises(types.ConfigError, match=f"expected {name} to be one of"):
    experiments.load(name)


@pytest.mark.parametrize(
  ("words", "expected"),
  [
    (["python", "-m", "experiments.ppo", "--env", "x"], True),
    (["python", "-m", "seedx.experiments.ppo"], False),
    (["python"], False),
  ],
)
def test_signals_end_only_programs_of_the_package_at_once(
  words, expected, monkeypatch
):
  calls = []
  monkeypatch.setattr(sys, "orig_argv", words)
  monkeypatch.setattr(sys, "argv", words[2:])
  monkeypatch.setattr(signals, "exit_on_signals", lambda: calls.append(words))
  monkeypatch.setattr(output, "outlive_readers", lambda: None)
  importlib.reload(sys.modules["experiments"])
  assert bool(calls) == expected


def test_programs_that_train_or_join_keep_freed_memory(tmp_path, monkeypatch):
  def keep():
    raise InterruptedError

  monkeypatch.setattr(allocator, "keep_freed_memory", keep)
  monkeypatch.setattr(devices, "compute_on_own_threads", lambda: None)
  with pytest.raises(InterruptedError):
    programs.main(a2c_experiment, ["--run-dir", str(tmp_path / "run")])
  with pytest.raises(InterruptedError):
    roles.play(a2c_experiment.EXPERIMENT, None, "", "", threading.Event(), None)
