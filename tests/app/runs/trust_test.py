"""A run directory that somebody else wrote runs no code of theirs."""

import dataclasses
import json
import shutil
import sys
from unittest import mock

import pytest

from experiments import a2c as a2c_experiment
from seedx import app, envs, types
from seedx.agents import a2c
from seedx.app import evaluate, export
from seedx.app.cli import configs
from seedx.app.cli import programs as programs_lib
from seedx.app.runs import run_dirs
from seedx.learning import learner
from seedx.pipelines import sync
from seedx.runtime import process
from seedx.runtime import running as running_lib
from tests import programs, running

own_signals = programs.own_signals

# A module that says that it was imported, and has all that a run may name.
_CODE = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()

import gymnasium
from seedx import app
from seedx.agents import a2c
from seedx.pipelines import sync

def make():
  return gymnasium.make("CartPole-v1")

def same(observation):
  return observation

EXPERIMENT = app.Experiment(sync.Config(agent=a2c.Config()))
"""
SMALL = ("--hidden-sizes", "8", "--num-envs", "4", "--unroll-length", "5")


class _BeganError(Exception):
  """A run has written its config.json."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
  """Directories of an experiment's run, and of a script's."""
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


# What another may have written in config.json: the run, what is changed in it,
# and what the refusal says of it.
VECTORS = {
  "environment": ("program", {"env": "theirs:make"}, "--env theirs:make"),
  "transform": (
    "program",
    {"observation_transform": "theirs:same"},
    "--observation-transform theirs:same",
  ),
  "program": (
    "program",
    {"env_options": {"vzd_path": "/bin/evil"}},
    "--env-options vzd_path=/bin/evil",
  ),
  "model": (
    "program",
    {"env_options": {"xml_file": "/home/evil.xml"}},
    "--env-options xml_file=/home/evil.xml",
  ),
  "path": (
    "program",
    {"env_options": {"task": "../evil", "size": 5}},
    "--env-options task=../evil,size=5",
  ),
  "arguments": (
    "program",
    {"env": "gymnasium:make", "env_options": {"id": "theirs:CartPole-v1"}},
    "--env gymnasium:make, --env-options id=theirs:CartPole-v1",
  ),
  "experiment": (
    "program",
    {"experiment": "theirs:EXPERIMENT"},
    "the experiment theirs:EXPERIMENT",
  ),
  "pipeline": ("script", {"pipeline": "theirs:Config"}, "not part of seedx"),
  "agent": ("script", {"agent": "theirs:Config"}, "not part of seedx"),
  "nothing of seedx": (
    "script",
    {"agent": "seedx.agents.nowhere:Config"},
    "expected configs that this version",
  ),
  "function of seedx": (
    "script",
    {"agent": "seedx.app.studies.compare:main"},
    "not part of seedx",
  ),
}


@pytest.fixture
def theirs(begun, tmp_path, monkeypatch):
  """Writes such a directory; nothing of it may run, nor `sys.path` change."""

  def write(case):
    run, changes, reason = VECTORS[case]
    folder = tmp_path / "run"
    shutil.copytree(begun / run, folder)
    (folder / "theirs.py").write_text(_CODE)
    content = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
      where = content if name in content else content["options"]
      assert name in where
      where[name] = value
    (folder / "config.json").write_text(json.dumps(content))
    monkeypatch.chdir(folder)  # Where the module could be imported.
    return folder, reason

  before = list(sys.path)
  yield write
  assert sys.path == before
  assert "theirs" not in sys.modules
  assert not list(tmp_path.rglob("imported"))


@pytest.mark.parametrize("case", VECTORS)
def test_nothing_runs_it(case, theirs, capfd):
  """Neither evaluation, export and loading, nor a run that is resumed."""
  folder, reason = theirs(case)
  for program in (evaluate, export):
    said = programs.refused(program, [str(folder)], capfd)
    assert reason in said
    if reason.startswith(("--", "the experiment")):
      assert "expected --trust" in said
  with pytest.raises(types.ConfigError, match=reason):
    app.load(folder)
  if VECTORS[case][0] == "program":
    said = programs.refused(a2c_experiment, ["--resume", str(folder)], capfd)
    reason = reason.replace(", ", " ")
    if case == "experiment":
      reason = "a run of a2c to --resume, found one of theirs"
    assert f"expected {reason}" in said


def test_a_factory_that_the_user_names_takes_no_others_arguments(theirs, capfd):
  """`gymnasium:make` imports what is before the colon of its `id`."""
  folder, _ = theirs("arguments")
  words = ["--resume", str(folder), "--env", "gymnasium:make"]
  said = programs.refused(a2c_experiment, words, capfd)
  assert "expected --env-options id=theirs:CartPole-v1 here too" in said


@pytest.mark.parametrize(
  ("options", "plain"),
  [
    ({"max_episode_steps": 5, "noise": 0.5, "mask": [True, None]}, True),
    (
      {"task_name": "swingup_sparse", "tasks_to_complete": ["top burner"]},
      True,
    ),
    ({"reward_config": {"AMMO0": [0.1, -0.1]}}, True),
    ({"task_name": "a/b"}, False),
    ({"task_name": [".."]}, False),
    ({"game_args": "+exec"}, False),
    ({"base_path": "evil"}, False),
    ({"reward_config": {"AMMO0": "evil"}}, False),
    (["evil"], False),
    ("evil", False),
  ],
  ids=str,
)
def test_options_that_may_make_a_simulator_read_files_need_trust(
  options, plain
):
  found = envs.code_in({"env": "Pong-v5", "env_options": options})
  assert found == ({} if plain else {"env_options": options})


def test_a_directory_is_read_for_plots_without_running_it(theirs):
  folder, _ = theirs("environment")
  line = {"env_steps": 9, "wall_seconds": 1.0, "episode_return": 1.0}
  (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
  assert run_dirs.read(folder).env == "theirs:make"


def test_what_comes_with_seedx_is_no_others_code():
  own = "seedx.envs.transforms:hide_velocities"
  assert not envs.code_in({"observation_transform": own})
  assert not envs.code_in({"env": "Pong-v5", "env_options": {"size": 5}})
  assert envs.code_in({"env": "seedx.app.studies.compare:main"})


@pytest.mark.slow
def test_ones_own_code_runs_where_one_says_so(tmp_path, monkeypatch, capfd):
  """A program that names the code says so; so does its command line."""
  (tmp_path / "mine.py").write_text(_CODE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  own = ("--env", "mine:make")
  words = (*own, *SMALL, "--total-steps", "100", "--run-dir", "run")
  assert programs.main(a2c_experiment, words) == 0
  resume = ("--resume", "run", "--total-steps")
  said = programs.refused(a2c_experiment, (*resume, "200"), capfd)
  assert "expected --env mine:make here too, or --trust" in said
  assert programs.main(a2c_experiment, (*resume, "200", *own)) == 0
  assert programs.main(a2c_experiment, (*resume, "300", "--trust")) == 0
  assert "--trust" in programs.refused(evaluate, ["run"], capfd)
  assert programs.main(evaluate, ["run", "--episodes", "2", "--trust"]) == 0
  assert app.load("run", trust=True).env.env == "mine:make"
  # A program whose own config names it.
  named = running.replaced(
    a2c_experiment.EXPERIMENT.config, env=envs.Config("mine:make")
  )
  assert app.load("run", config=running.replaced(named, hidden_sizes=(8,)))
  program = dataclasses.replace(a2c_experiment.EXPERIMENT, config=named)
  name = a2c_experiment.__name__
  assert app.main(program, [*resume, "400"], name) == 0


def test_a_run_chooses_no_address_of_who_resumes_it(begun, tmp_path):
  """Nor its devices, which are those of another machine."""
  folder = tmp_path / "run"
  shutil.copytree(begun / "program", folder)
  content = json.loads((folder / "config.json").read_text())
  planted = {"hosts": 2, "coordinator": "evil:1", "host_index": 1}
  planted |= {"learner_devices": [7], "role": "actor", "address": "evil:2"}
  known = [name for name in planted if name in content["options"]]
  assert {"hosts", "coordinator", "learner_devices"} <= {*known}
  content["options"] |= {name: planted[name] for name in known}
  content["options"]["seed"] = 9
  (folder / "config.json").write_text(json.dumps(content))
  before = programs_lib.asked_of(a2c_experiment.EXPERIMENT)
  asked = run_dirs.restored(before, run_dirs.config(folder))
  old, new = (configs.values(x) for x in (before, asked))
  assert new["seed"] == 9
  assert [new[name] for name in known] == [old[name] for name in known]
