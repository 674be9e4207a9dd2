"""Run directories by other authors, whose code must not run."""

import dataclasses
import json
import shutil
import sys
from unittest import mock

import pytest

from experiments import a2c as a2c_experiment
from seedx import app, envs, types
from seedx.agents import a2c
from seedx.app import evaluate, export, requests
from seedx.app.runs import records, run_groups
from seedx.app.settings import configs
from seedx.learning import learner
from seedx.pipelines import sync
from seedx.runtime import process
from seedx.runtime import running as running_lib
from tests import programs, running

own_signals = programs.own_signals

# A module with all names that a run may use; its import leaves a mark.
_CODE = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()

import gymnasium
from seedx import app
from seedx.agents import a2c
from seedx.pipelines import sync

def make():
  return gymnasium.make("CartPole-v1")

EXPERIMENT = app.Experiment(sync.Config(agent=a2c.Config()))
"""
SMALL = ("--hidden-sizes", "8", "--num-envs", "4", "--unroll-length", "5")


class _BeganError(Exception):
  """Raised when a run has written its config.json."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
  """Returns a folder with an experiment's run and a script's run."""
  folder = tmp_path_factory.mktemp("begun")
  words = (*SMALL, "--run-dir", str(folder / "program"))
  config = sync.Config(
    agent=a2c.Config(hidden_sizes=(8,)),
    num_envs=4,
    learner=learner.Config(unroll_length=5),
  )
  with pytest.MonkeyPatch.context() as patch:
    nothing = process.Process(
      acted=mock.Mock(), parts={}, policy=mock.Mock(), measures=[]
    )
    patch.setattr(sync.Config, "learn", lambda *_: nothing)
    patch.setattr(running_lib, "run", mock.Mock(side_effect=_BeganError))
    with pytest.raises(_BeganError):
      programs.main(a2c_experiment, words)
    with pytest.raises(_BeganError):
      app.train(config, run_dir=str(folder / "script"), quiet=True)
  return folder


# Attacks by config.json: the changes, and a part of the error. A script's run
# names its pipeline and agent.
VECTORS = {
  "environment": ({"env": "theirs:make"}, "--env theirs:make"),
  "arguments": (
    {"env": "gymnasium:make", "env_options": {"id": "theirs:CartPole-v1"}},
    "--env gymnasium:make, --env-options id=theirs:CartPole-v1",
  ),
  "experiment": ({"experiment": "theirs:EXPERIMENT"}, "the experiment theirs:"),
  "pipeline": ({"pipeline": "theirs:Config"}, "not part of seedx"),
  "agent": ({"agent": "theirs:Config"}, "not part of seedx"),
  "nothing of seedx": (
    {"agent": "seedx.agents.nowhere:Config"},
    "expected configs that this version",
  ),
  "function of seedx": (
    {"agent": "seedx.app.studies.compare:main"},
    "not part of seedx",
  ),
}


@pytest.fixture
def theirs(begun, tmp_path, monkeypatch):
  """Yields a writer of runs of `VECTORS`; checks that their code never runs."""

  def write(case):
    changes, reason = VECTORS[case]
    run = "script" if {"pipeline", "agent"} & {*changes} else "program"
    folder = tmp_path / "run"
    shutil.copytree(begun / run, folder)
    (folder / "theirs.py").write_text(_CODE)
    content = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
      where = content if name in content else content["options"]
      assert name in where
      where[name] = value
    (folder / "config.json").write_text(json.dumps(content))
    monkeypatch.chdir(folder)  # `theirs` can be imported from here.
    return folder, reason

  original = list(sys.path)
  yield write
  assert sys.path == original
  assert "theirs" not in sys.modules
  assert not list(tmp_path.rglob("imported"))


@pytest.mark.parametrize("case", VECTORS)
def test_no_program_runs_untrusted_code(case, theirs, capfd):
  folder, reason = theirs(case)
  for program in (evaluate, export):
    error = programs.refused(program, [str(folder)], capfd)
    assert reason in error
    if reason.startswith(("--", "the experiment")):
      assert "add --trust" in error
  with pytest.raises(types.ConfigError, match=reason):
    app.load(folder)
  if reason.startswith(("--", "the experiment")):
    error = programs.refused(a2c_experiment, ["--resume", str(folder)], capfd)
    reason = f"add {reason.replace(', ', ' ')} or --trust"
    if case == "experiment":
      reason = "expected a run of a2c to --resume, found one of theirs"
    assert reason in error


def test_a_trusted_factory_takes_no_untrusted_arguments(theirs, capfd):
  """`gymnasium:make` imports the module before the colon of its `id`."""
  folder, _ = theirs("arguments")
  words = ["--resume", str(folder), "--env", "gymnasium:make"]
  error = programs.refused(a2c_experiment, words, capfd)
  assert "add --env-options id=theirs:CartPole-v1 or --trust" in error


@pytest.mark.parametrize(
  "options",
  [
    {"task_name": "a/b"},
    {"task_name": [".."]},
    {"base_path": "evil"},
    {"reward_config": {"AMMO0": "evil"}},
    "evil",
  ],
  ids=str,
)
def test_options_that_may_make_a_simulator_read_files_need_trust(options):
  code = envs.code_in({"env": "Pong-v5", "env_options": options})
  assert code == {"env_options": options}


def test_a_directory_is_read_for_plots_without_running_its_code(theirs):
  folder, _ = theirs("environment")
  line = {"env_steps": 9, "wall_seconds": 1.0, "episode_return": 1.0}
  (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
  assert run_groups.read(folder).env == "theirs:make"


def test_environments_transforms_and_plain_options_of_seedx_are_trusted():
  transform = "seedx.envs.transforms:hide_velocities"
  assert not envs.code_in({"observation_transform": transform})
  assert envs.code_in({"observation_transform": "theirs:same"})
  plain = {"noise": 0.5, "size": 5, "mask": [True, None]}
  plain |= {"task_name": "swingup_sparse", "tasks_to_complete": ["top burner"]}
  plain |= {"reward_config": {"AMMO0": [0.1, -0.1]}}
  assert not envs.code_in({"env": "Pong-v5", "env_options": plain})
  assert envs.code_in({"env": "seedx.app.studies.compare:main"})


@pytest.mark.slow
def test_custom_code_runs_if_it_is_named_or_trusted(
  tmp_path, monkeypatch, capfd
):
  """A program's config or a command line may name the code."""
  (tmp_path / "mine.py").write_text(_CODE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  env = ("--env", "mine:make")
  words = (*env, *SMALL, "--total-steps", "100", "--run-dir", "run")
  assert programs.main(a2c_experiment, words) == 0
  resume = ("--resume", "run")
  error = programs.refused(a2c_experiment, resume, capfd)
  assert "add --env mine:make or --trust" in error
  assert programs.main(a2c_experiment, (*resume, *env)) == 0
  assert programs.main(a2c_experiment, (*resume, "--trust")) == 0
  assert "--trust" in programs.refused(evaluate, ["run"], capfd)
  assert programs.main(evaluate, ["run", "--episodes", "2", "--trust"]) == 0
  assert app.load("run", trust=True).env.env == "mine:make"
  # This program's own config names the code.
  config = running.replaced(
    a2c_experiment.EXPERIMENT.config, env=envs.Config("mine:make")
  )
  assert app.load("run", config=running.replaced(config, hidden_sizes=(8,)))
  program = dataclasses.replace(a2c_experiment.EXPERIMENT, config=config)
  name = a2c_experiment.__name__
  assert app.main(program, resume, name) == 0


def test_a_resume_takes_no_address_or_device_from_the_run(begun, tmp_path):
  folder = tmp_path / "run"
  shutil.copytree(begun / "program", folder)
  content = json.loads((folder / "config.json").read_text())
  planted = {"hosts": 2, "coordinator": "evil:1", "host_index": 1}
  planted |= {"learner_devices": [7], "role": "actor", "address": "evil:2"}
  names = [name for name in planted if name in content["options"]]
  assert {"hosts", "coordinator", "learner_devices"} <= {*names}
  content["options"] |= {name: planted[name] for name in names}
  content["options"]["seed"] = 9
  (folder / "config.json").write_text(json.dumps(content))
  fresh = requests.of(a2c_experiment.EXPERIMENT)
  asked = records.restored(fresh, records.read(folder))
  old, new = (configs.values(x) for x in (fresh, asked))
  assert new["seed"] == 9
  assert [new[name] for name in names] == [old[name] for name in names]
