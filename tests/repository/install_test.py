"""Ways to install seedx: what can be run then, from where, and what cannot."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from seedx.app.cli import experiments
from tests import programs
from tests.app import app_test

pytestmark = pytest.mark.long

SMALL = "--hidden-sizes 8 --num-envs 4 --unroll-length 5 --total-steps 300"
_KEPT = ("seedx", "experiments", "setup.py", "pyproject.toml", "README.md")


def copied(folder):
  """What the repository has, less what only it needs."""
  folder.mkdir()
  for name in _KEPT:
    source = programs.ROOT / name
    if source.is_dir():
      ignored = shutil.ignore_patterns("__pycache__")
      shutil.copytree(source, folder / name, ignore=ignored)
    else:
      shutil.copy(source, folder / name)
  return folder


class Environment:
  """An environment that has what seedx needs, and not seedx itself."""

  def __init__(self, folder):
    subprocess.run(
      [sys.executable, "-m", "venv", "--without-pip", folder], check=True
    )
    self.bin = folder / "bin"
    (site,) = (folder / "lib").glob("python*/site-packages")
    # Beside them may lie a link to this repository, which is not followed.
    needed = sysconfig.get_paths()["purelib"]
    (site / "needed.pth").write_text(needed + "\n")
    self.site = site

  def install(self, *words):
    """Installs by pip, which fetches what builds it."""
    self.pip("install", "--no-deps", *words)

  def pip(self, *words):
    """Runs this environment's pip for the other."""
    program = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    program += ["--python", self.bin / "python", *words]
    subprocess.run(
      list(map(str, program)), check=True, env=clean(), capture_output=True
    )

  def run(self, folder, *words, status=0):
    """Runs one of its programs in a folder; returns what it says."""
    name, *words = map(str, words)
    done = subprocess.run(
      [self.bin / name, *words],
      cwd=folder,
      env=clean(),
      capture_output=True,
      text=True,
      timeout=600,
    )
    assert done.returncode == status, done.stderr
    return done.stdout + (done.stderr if status else "")


def clean():
  """This process's environment, with no path of its own."""
  return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
  """Nothing is installed; the repository is the current directory."""
  parent = tmp_path_factory.mktemp("checkout")
  environment = Environment(parent / "venv")
  environment.home = copied(parent / "copy")
  return environment


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
  """As who works on it installs it."""
  parent = tmp_path_factory.mktemp("editable")
  environment = Environment(parent / "venv")
  environment.home = copied(parent / "copy")
  environment.install("--editable", environment.home)
  return environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """As who uses it does."""
  parent = tmp_path_factory.mktemp("wheel")
  environment = Environment(parent / "venv")
  home = copied(parent / "copy")
  environment.pip("wheel", "--no-deps", "--wheel-dir", parent / "dist", home)
  shutil.rmtree(home)
  (environment.file,) = (parent / "dist").glob("*.whl")
  environment.install(environment.file)
  return environment


def check(environment, folder, train, evaluate):
  """Trains, evaluates and goes on, by these commands."""
  environment.run(folder, *train, *SMALL.split(), "--run-dir", "run")
  said = json.loads((folder / "run" / "config.json").read_text())
  assert said["experiment"] == "a2c"
  out = environment.run(folder, *evaluate, "run", "--episodes", "3")
  assert "of 3 episodes" in out
  environment.run(folder, *train, "--resume", "run", "--total-steps", "500")
  text = (folder / "run" / "metrics.jsonl").read_text()
  assert json.loads(text.splitlines()[-1])["env_steps"] >= 500


def where(environment, folder, *names):
  """The files of modules, as Python in a folder finds them; '' for none."""
  script = """
import importlib, sys
for name in sys.argv[1:]:
  try:
    print(importlib.import_module(name).__file__)
  except ImportError:
    print()
"""
  out = environment.run(folder, "python", "-c", script, *names)
  return [line and pathlib.Path(line).resolve() for line in out.splitlines()]


def test_a_checkout_is_run_where_it_lies(checkout):
  here = checkout.home
  (found,) = where(checkout, here, "experiments.a2c")
  assert found == (here / "experiments" / "a2c.py").resolve()
  program = ("python", "-m", "seedx")
  experiment = ("python", "-m", "experiments.a2c")
  check(checkout, here, experiment, (*program, "evaluate"))
  shutil.rmtree(here / "run")
  check(checkout, here, (*program, "train", "a2c"), (*program, "evaluate"))


@pytest.mark.parametrize("kind", ["editable", "wheel"])
def test_an_installation_is_run_anywhere(kind, tmp_path, request):
  own = request.getfixturevalue(kind)
  check(own, tmp_path, ("seedx", "train", "a2c"), ("seedx", "evaluate"))
  shutil.rmtree(tmp_path / "run")
  module = ("python", "-m", "seedx.experiments.a2c")
  check(own, tmp_path, module, ("python", "-m", "seedx", "evaluate"))
  if kind == "editable":  # In the repository as without it.
    module = ("python", "-m", "experiments.a2c")
    check(own, own.home, module, ("seedx", "evaluate"))


def test_a_wheel_ships_experiments_inside_of_seedx_alone(wheel):
  with zipfile.ZipFile(wheel.file) as archive:
    names = archive.namelist()
  tops = {name.partition("/")[0] for name in names}
  assert {top for top in tops if not top.endswith(".dist-info")} == {"seedx"}
  expected = {
    f"seedx/experiments/{path.name}"
    for path in (programs.ROOT / "experiments").glob("*.py")
  }
  assert expected <= set(names)
  package = {
    str(path.relative_to(programs.ROOT))
    for path in (programs.ROOT / "seedx").rglob("*.py")
  }
  assert package | expected == {x for x in names if x.endswith(".py")}


@pytest.mark.parametrize("kind", ["editable", "wheel"])
def test_nothing_of_it_has_the_name_of_a_users_folder(kind, tmp_path, request):
  environment = request.getfixturevalue(kind)
  names = ("experiments", "seedx.experiments.a2c", "seedx")
  top, shipped, package = where(environment, tmp_path, *names)
  assert top == ""
  assert shipped.name == "a2c.py" and package.name == "__init__.py"
  # One and the same module, whoever imports it first.
  script = """
import importlib, sys
from seedx.app.cli import experiments
calls = [
  lambda: importlib.import_module("seedx.experiments.a2c"),
  lambda: experiments.load_module("a2c"),
]
if sys.argv[1] == "reversed":
  calls.reverse()
modules = [call() for call in calls]
assert modules[0] is modules[1], modules
assert experiments.name_of(modules[0].__name__) == "a2c"
print(*experiments.shipped())
"""
  for order in ("as they are", "reversed"):
    out = environment.run(tmp_path, "python", "-c", script, order)
    assert out.split() == experiments.shipped()


@pytest.mark.parametrize("kind", ["checkout", "editable", "wheel"])
def test_a_users_folder_of_that_name_is_the_users(kind, tmp_path, request):
  environment = request.getfixturevalue(kind)
  folder = tmp_path / "experiments"
  folder.mkdir()
  for name in ("mine", "a2c"):
    (folder / f"{name}.py").write_text(app_test.OWN)
  if kind == "checkout":
    # As a submodule of the user's.
    (tmp_path / "seedx").symlink_to(environment.home / "seedx")
  for name in ("mine", "a2c"):
    own = ("python", "-m", f"experiments.{name}")
    environment.run(tmp_path, *own, "--run-dir", name)
    said = json.loads((tmp_path / name / "config.json").read_text())
    assert said["experiment"] == f"experiments.{name}:EXPERIMENT"
    assert said["options"]["total_steps"] == 100
    program = ("python", "-m", "seedx")
    words = ("evaluate", name, "--episodes", "2", "--trust")
    environment.run(tmp_path, *program, *words)
    environment.run(tmp_path, *own, "--resume", name, "--total-steps", "200")
  shipped = (*program, "train", "a2c")
  check(environment, tmp_path, shipped, (*program, "evaluate"))
  out = environment.run(
    tmp_path, *shipped, "--resume", "mine", "--total-steps", "300", status=2
  )
  assert "found one of experiments.mine:EXPERIMENT" in out


def test_an_installation_can_join(wheel, tmp_path):
  out = wheel.run(tmp_path, "seedx", "join", status=2)
  assert "required: HOST:PORT" in out
