"""Tests that setup.py, the imports and the table in docs/libraries.md agree."""

import ast
import functools
import importlib.metadata
import re
import runpy
import subprocess
import sys
import types

import pytest

from tests import programs

_OWN = {x.parent.name for x in programs.ROOT.glob("*/*.py")}
# If one of these is missing, an error names the command that installs it.
_OPTIONAL = {
  "brax",
  "craftax",
  "gymnax",
  "imageio-ffmpeg",
  "mctx",
  "minari",
  "optuna",
  "pgx",
  "ray",
}


@functools.cache
def imported():
  """Returns the files that import each module outside the repository."""
  files = {}
  for top in sorted(_OWN):
    for path in sorted((programs.ROOT / top).rglob("*.py")):
      file = str(path.relative_to(programs.ROOT))
      for name in names_in(path.read_text()):
        if name not in _OWN | sys.stdlib_module_names:
          files.setdefault(name, set()).add(file)
  return files


def names_in(source):
  """Yields the top-level names of all imports in a module's source."""
  for node in ast.walk(ast.parse(source)):
    match node:
      case ast.Import(names=names):
        yield from (x.name.partition(".")[0] for x in names)
      case ast.ImportFrom(module=str(name)):
        yield name.partition(".")[0]
      case ast.Call(
        func=ast.Attribute(attr="import_module"),
        args=[ast.Constant(str(name)), *_],
      ):
        yield name.partition(".")[0]


@functools.cache
def distributions():
  """Returns the installed packages that have each top-level module."""
  return {
    module: {x.replace("_", "-").lower() for x in names}
    for module, names in importlib.metadata.packages_distributions().items()
  }


@pytest.fixture(scope="module")
def required():
  """Requirements in setup.py by extra; "" for a plain installation."""
  arguments = {}
  fake = types.SimpleNamespace(
    setup=lambda **words: arguments.update(words), find_packages=lambda **_: []
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "setuptools", fake)
    runpy.run_path(str(programs.ROOT / "setup.py"))
  parts = {"": arguments["install_requires"], **arguments["extras_require"]}
  return {
    extra: {re.match(r"[\w-]+", word)[0].lower() for word in words}
    for extra, words in parts.items()
  }


@pytest.fixture(scope="module")
def table():
  """The folders that import each requirement, in the page's table."""
  text = (programs.ROOT / "docs" / "libraries.md").read_text()
  (section,) = re.findall(r"^## Requirements$(.*?)^## ", text, re.M | re.S)
  rows = re.findall(r"^\| (`.*) \| (.*) \| (.*) \|$", section, re.M)
  return {
    name.lower(): where
    for names, where, _ in rows
    for name in re.findall(r"`([\w-]+)", names)
  }


def test_all_imports_are_required(required):
  missing = {
    module: sorted(files)[:3]
    for module, files in imported().items()
    if any(x.startswith(("seedx/", "experiments/")) for x in files)
    and not required[""] | _OPTIONAL >= distributions().get(module, {module})
  }
  assert not missing


def test_each_requirement_has_a_correct_row(required, table):
  assert {*table} == set().union(*required.values())
  files_of = {}
  for module, files in imported().items():
    files_of |= dict.fromkeys(distributions().get(module, {module}), files)
  for name, where in table.items():
    files = files_of.get(name, set())
    for folder in re.findall(r"`([\w/.]+)`", where):
      assert any(x.startswith((folder, f"seedx/{folder}")) for x in files), (
        f"{name} is not imported by {folder}"
      )
    assert (where == "nothing") == (not files), (name, sorted(files)[:3])


@pytest.mark.slow
def test_late_modules_are_not_loaded_before_they_are_used():
  """No command line, agent or EnvPool environment loads these modules."""
  script = """
import sys
import flax.linen  # Imports Rich.
loaded = set(sys.modules)
import jax
import seedx.app, seedx.app.training, seedx.app.plot, seedx.app.evaluate
import seedx.__main__, seedx.join, seedx.acting.thin_actor
from experiments import alphazero, apex_dqn, ppo
from seedx import envs
from seedx.app.cli import programs
for experiment in (alphazero, apex_dqn, ppo):
  asked, _ = programs.read(experiment.EXPERIMENT, [], experiment.__name__)
  agent = asked.run.agent.make(envs.spec(asked.run.env))
  jax.eval_shape(agent.init, jax.random.key(0))
assert "envpool.classic_control" in sys.modules
late = {
  *"PIL cloudpickle distrax envpool.jumanji matplotlib mctx minari".split(),
  *["brax", "craftax", "gymnax"],
  *"optuna pgx rich rlax scipy tensorboardX tensorflow_probability".split(),
}
print(*late.intersection(set(sys.modules) - loaded))
"""
  done = subprocess.run(
    [sys.executable, "-c", script],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert not done.stdout.split()
