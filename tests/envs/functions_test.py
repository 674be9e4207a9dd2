"""Functions in place of names, and functions of scripts and of notebooks."""

import dataclasses
import functools
import os
import pathlib
import pickle
import subprocess
import sys
import types as python_types

import pytest

from seedx import app, envs, types
from seedx.envs import functional, functions
from seedx.envs.processes import child
from seedx.launch import instances, topology
from tests import own_envs, programs, running

# A notebook, or a script.
_CODE = """
import gymnasium
import threading
from gymnasium import spaces
from tests import own_envs

SIZE, LOCK = 4, threading.Lock()

class Sized(own_envs.Acting):
  def __init__(self, more=0):
    super().__init__(spaces.Discrete(SIZE + more))

def make(more=0):
  return Sized(more)

def locked():
  return LOCK and Sized()

def doubled(observation):
  return 2 * observation[:, :SIZE - 2]
"""


@pytest.fixture
def program(monkeypatch):
  """The module `__main__` of a notebook, in place of this program's."""
  module = python_types.ModuleType("__main__")
  monkeypatch.setitem(sys.modules, "__main__", module)
  exec(_CODE, vars(module))
  return module


@pytest.fixture
def brought(monkeypatch):
  """The functions that another process has brought."""
  functions_by_name = {}
  monkeypatch.setattr(functions, "_brought", functions_by_name)
  return functions_by_name


def num_actions(config):
  return envs.spec(config).action.num_values


# Names


def test_functions_and_classes_are_replaced_by_their_names():
  config = envs.Config(
    own_envs.cartpole, observation_transform=own_envs.picture
  )
  assert config.env == "tests.own_envs:cartpole"
  assert config.observation_transform == "tests.own_envs:picture"
  assert envs.Config(own_envs.Counting).env == "tests.own_envs:Counting"
  again = dataclasses.replace(config, env_options={"more": 1})
  assert again.env == config.env


def test_keywords_of_a_partial_become_options():
  make = functools.partial(own_envs.takes_a_seed, size=2, seed=5)
  config = envs.Config(make, env_options={"seed": 7})
  assert config.env == "tests.own_envs:takes_a_seed"
  assert config.env_options == {"size": 2, "seed": 7}


def test_classes_of_jax_functions_get_their_prefix():
  config = envs.Config(functional.Catch)
  assert config.env == "jax:seedx.envs.functional.bsuite:Catch"
  assert num_actions(config) == 3


def _inner():
  def make():
    return own_envs.Counting()

  return make


@pytest.mark.parametrize(
  "wrong",
  [
    lambda: own_envs.Counting(),
    _inner(),
    functools.partial(own_envs.takes_a_seed, 3),
    own_envs.Counting().step,
    own_envs.Counting(),
    functional.Catch(),
    None,
  ],
)
def test_what_has_no_name_is_refused_in_one_line(wrong):
  with pytest.raises(types.ConfigError, match="expected") as caught:
    envs.Config(wrong)
  assert ", found " in str(caught.value) and "\n" not in str(caught.value)


# Notebooks


def test_a_notebooks_functions_reach_the_environments_processes(program):
  for config in (
    envs.Config(program.make, {"more": 1}),
    envs.Config("__main__:make", {"more": 1}),
  ):
    assert config.env == "__main__:make"
    assert num_actions(config) == 5
  config = envs.Config(program.Sized, observation_transform=program.doubled)
  assert config.observation_transform == "__main__:doubled"
  environment = envs.make(config, 2, num_threads=2)
  environment.reset()
  assert environment.recv().timestep.observation.shape == (2, 2)
  environment.close()


def test_a_cell_that_runs_again_changes_the_environment(program):
  config = envs.Config(program.make)
  assert num_actions(config) == 4
  pickle.loads(pickle.dumps(config))  # The same process keeps no old version.
  exec(_CODE.replace("SIZE, LOCK = 4", "SIZE, LOCK = 6"), vars(program))
  assert num_actions(config) == 6


def test_a_process_passes_functions_on(program, brought, monkeypatch):
  config = envs.Config(program.make)
  names = ["__main__:make"]
  functions.bring(functions.pickled(names), process="another")
  # As in another process, which makes new configs of the one that it gets.
  monkeypatch.delattr(program, "make")
  program.__spec__ = python_types.SimpleNamespace(name="seedx.launch.__main__")
  config = dataclasses.replace(config, action_mask="action_mask")
  assert functions.pickled(names) == brought
  assert num_actions(config) == 4


def test_a_process_of_another_machine_may_have_the_same_id(brought):
  code = f"""{_CODE}
import os, pickle, sys
from seedx import envs
os.getpid = lambda: {os.getpid()}
sys.stdout.buffer.write(pickle.dumps(envs.Config(make)))
"""
  environment = {**os.environ, "PYTHONPATH": str(programs.ROOT)}
  command = [sys.executable, "-c", code]
  config = pickle.loads(subprocess.check_output(command, env=environment))
  assert list(brought) == [config.env] == ["__main__:make"]


def test_a_node_does_not_run_the_script_for_a_function_that_it_gets(program):
  def parent_of(config):
    node = topology.Node("actor", os.getenv, config)
    message = topology.message(node, "")
    return pickle.loads(message[topology.SIZE.size :])[0]

  assert parent_of(envs.Config(program.make)) == {}
  assert parent_of(program.Sized) != {}


@pytest.mark.parametrize(
  ("name", "message"),
  [
    (
      "locked",
      "cannot pickle .*lock.* file of its own, my_env.py, .*my_env:locked",
    ),
    (
      "none",
      "expected __main__:none in this program, found no none; .*%%writefile",
    ),
    ("SIZE", "__main__:SIZE.*is not callable"),
  ],
)
def test_functions_that_other_processes_cannot_have_are_refused(
  program, name, message
):
  with pytest.raises(types.ConfigError, match=message) as caught:
    envs.spec(envs.Config(f"__main__:{name}"))
  assert "\n" not in str(caught.value)


# Scripts


def test_a_scripts_functions_have_the_scripts_name(
  program, tmp_path, monkeypatch
):
  path = tmp_path / "trains_here.py"
  path.write_text(_CODE)
  program.__file__ = str(path)
  # Other processes could not import it by this name.
  assert envs.Config(program.make).env == "__main__:make"
  functions._importable.cache_clear()
  monkeypatch.syspath_prepend(tmp_path)
  for factory in (program.make, "__main__:make", "trains_here:make"):
    assert envs.Config(factory).env == "trains_here:make"
  assert envs.Config("jax:__main__:make").env == "jax:trains_here:make"
  program.SIZE = 7  # The program is not imported again.
  assert num_actions(envs.Config(program.make)) == 7
  program.__spec__ = python_types.SimpleNamespace(name="package.trains")
  assert envs.Config("__main__:make").env == "package.trains:make"


def test_a_scripts_function_that_cannot_be_sent_is_imported(
  program, tmp_path, monkeypatch
):
  (tmp_path / "locks_here.py").write_text(_CODE)
  program.__file__ = str(tmp_path / "locks_here.py")
  monkeypatch.syspath_prepend(tmp_path)
  assert num_actions(envs.Config(program.locked)) == 4


@pytest.mark.parametrize(
  "code",
  [
    "app.train(sync.Config(agent=a2c.Config(), total_steps=9))",
    "envs.spec(envs.Config(make))",
  ],
)
def test_an_unguarded_script_is_not_trained_again(code, tmp_path, monkeypatch):
  (tmp_path / "unguarded.py").write_text(
    "from seedx import app, envs\nfrom seedx.agents import a2c\n"
    "from seedx.pipelines import sync\nfrom tests import own_envs\n"
    f"def make():\n  return own_envs.Counting()\n{code}\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(child, "subprocess", None)  # No process may start.
  with pytest.raises(types.ConfigError, match='if __name__ == "__main__"'):
    envs.load_function("unguarded:make", "a factory")
  assert not (tmp_path / "runs").exists()


def test_a_module_may_make_other_environments_while_it_is_imported():
  with functions.importing("other"):
    assert num_actions(envs.Config("tests.own_envs:Counting")) == 3


def test_an_unguarded_script_is_not_trained_again_in_a_node(tmp_path):
  script = tmp_path / "unguarded.py"
  script.write_text(
    "from seedx.envs import functions\nfunctions.check_not_importing()"
  )
  parent = {"init_main_from_path": str(script)}
  work = pickle.dumps((os.getenv, "HOME"))
  message = pickle.dumps((parent, work, 0, False, ""))
  message = topology.SIZE.pack(len(message)) + message
  process = instances.Process("actor", message)
  running.wait_until(lambda: process.status() is not None)
  assert process.status() == topology.USAGE_STATUS
  assert 'if __name__ == "__main__"' in process.last_error()


@pytest.mark.slow
def test_a_notebook_trains_and_loads_its_run(tmp_path):
  """A program on standard input has no file, like a notebook."""
  code = f"""{_CODE}
from seedx import app, envs
from seedx.agents import a2c
from seedx.pipelines import sync

def make():
  return gymnasium.make("CartPole-v1", max_episode_steps=9)

config = sync.Config(env=envs.Config(make), agent=a2c.Config(), total_steps=500)
run = app.train(config, quiet=True, run_dir="run")
print(run.metrics["episode_length"], app.load("run", trust=True).env.env)
"""
  environment = {**os.environ, "PYTHONPATH": str(programs.ROOT)}
  done = subprocess.run(
    [sys.executable, "-"],
    input=code,
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  length, name = done.stdout.split()
  assert 1 <= float(length) <= 9 and name == "__main__:make"
  # Another program does not have the function.
  with pytest.raises(types.ConfigError, match=r"my_env\.py.*my_env:make"):
    app.load(pathlib.Path(tmp_path, "run"), trust=True)
