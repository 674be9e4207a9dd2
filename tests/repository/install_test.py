"""Tests of the ways to install seedx, and of programs that run afterwards."""

import json
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from seedx.app.settings import experiments
from tests import programs
from tests.app import cases

pytestmark = pytest.mark.long

SMALL = "--hidden-sizes 8 --num-envs 4 --unroll-length 5 --total-steps 300"


class Environment:
  """A virtual environment with the requirements of seedx, but without seedx."""

  def __init__(self, folder):
    subprocess.run(
      [sys.executable, "-m", "venv", "--without-pip", folder], check=True
    )
    self.bin = folder / "bin"
    (site,) = (folder / "lib").glob("python*/site-packages")
    # The .pth files in `requirements` have no effect, not even that of an
    # editable seedx.
    requirements = sysconfig.get_paths()["purelib"]
    (site / "requirements.pth").write_text(requirements + "\n")
    self.site = site

  def install(self, *words):
    self.pip("install", "--no-deps", *words)

  def pip(self, *words):
    program = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    program += ["--python", self.bin / "python", *words]
    subprocess.run(
      list(map(str, program)),
      check=True,
      env=programs.clean(),
      capture_output=True,
    )

  def run(self, folder, *words, status=0):
    """Runs a program of the environment in a folder; returns its output."""
    name, *words = map(str, words)
    done = subprocess.run(
      [self.bin / name, *words],
      cwd=folder,
      env=programs.clean(),
      capture_output=True,
      text=True,
      timeout=600,
    )
    assert done.returncode == status, done.stderr
    return done.stdout + (done.stderr if status else "")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
  """An environment without seedx, and a copy of the repository."""
  parent = tmp_path_factory.mktemp("checkout")
  environment = Environment(parent / "venv")
  environment.home = programs.copied(parent / "copy")
  return environment


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
  """An environment with an editable installation, as developers use it."""
  parent = tmp_path_factory.mktemp("editable")
  environment = Environment(parent / "venv")
  environment.home = programs.copied(parent / "copy")
  environment.install("--editable", environment.home)
  return environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """An environment with an installed wheel, as users have it."""
  parent = tmp_path_factory.mktemp("wheel")
  environment = Environment(parent / "venv")
  home = programs.copied(parent / "copy")
  environment.pip("wheel", "--no-deps", "--wheel-dir", parent / "dist", home)
  shutil.rmtree(home)
  (environment.file,) = (parent / "dist").glob("*.whl")
  environment.install(environment.file)
  return environment


def check(environment, folder, train, evaluate):
  """Trains, evaluates and resumes with the given commands."""
  environment.run(folder, *train, *SMALL.split(), "--run-dir", "run")
  config = json.loads((folder / "run" / "config.json").read_text())
  assert config["experiment"] == "a2c"
  out = environment.run(folder, *evaluate, "run", "--episodes", "3")
  assert "of 3 episodes" in out
  environment.run(folder, *train, "--resume", "run", "--total-steps", "500")
  text = (folder / "run" / "metrics.jsonl").read_text()
  assert json.loads(text.splitlines()[-1])["env_steps"] >= 500


def module_files(environment, folder, *names):
  """Imports modules in a folder; returns their files, or "" if missing."""
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


def test_a_checkout_runs_in_its_folder(checkout):
  home = checkout.home
  (file,) = module_files(checkout, home, "experiments.a2c")
  assert file == (home / "experiments" / "a2c.py").resolve()
  program = ("python", "-m", "seedx")
  experiment = ("python", "-m", "experiments.a2c")
  check(checkout, home, experiment, (*program, "evaluate"))
  shutil.rmtree(home / "run")
  check(checkout, home, (*program, "train", "a2c"), (*program, "evaluate"))


@pytest.mark.parametrize("kind", ["editable", "wheel"])
def test_an_installation_runs_in_any_folder(kind, tmp_path, request):
  environment = request.getfixturevalue(kind)
  check(environment, tmp_path, ("seedx", "train", "a2c"), ("seedx", "evaluate"))
  shutil.rmtree(tmp_path / "run")
  module = ("python", "-m", "seedx.experiments.a2c")
  check(environment, tmp_path, module, ("python", "-m", "seedx", "evaluate"))
  if kind == "editable":  # Commands of a checkout work in the repository, too.
    module = ("python", "-m", "experiments.a2c")
    check(environment, environment.home, module, ("seedx", "evaluate"))


def test_a_wheel_has_experiments_inside_seedx_only(wheel):
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
def test_an_installation_has_no_package_experiments(kind, tmp_path, request):
  environment = request.getfixturevalue(kind)
  names = ("experiments", "seedx.experiments.a2c", "seedx")
  top, shipped, package = module_files(environment, tmp_path, *names)
  assert top == ""
  assert shipped.name == "a2c.py" and package.name == "__init__.py"
  # Both ways to import an experiment return the same module, in any order.
  script = """
import importlib, sys
from seedx.app.settings import experiments
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
def test_a_users_folder_experiments_takes_precedence(kind, tmp_path, request):
  environment = request.getfixturevalue(kind)
  folder = tmp_path / "experiments"
  folder.mkdir()
  for name in ("mine", "a2c"):
    (folder / f"{name}.py").write_text(cases.CUSTOM)
  if kind == "checkout":
    # The user's repository has seedx as a submodule.
    (tmp_path / "seedx").symlink_to(environment.home / "seedx")
  for name in ("mine", "a2c"):
    experiment = ("python", "-m", f"experiments.{name}")
    environment.run(tmp_path, *experiment, "--run-dir", name)
    config = json.loads((tmp_path / name / "config.json").read_text())
    assert config["experiment"] == f"experiments.{name}:EXPERIMENT"
    assert config["options"]["total_steps"] == 100
    program = ("python", "-m", "seedx")
    words = ("evaluate", name, "--episodes", "2", "--trust")
    environment.run(tmp_path, *program, *words)
    resume = ("--resume", name, "--total-steps", "200")
    environment.run(tmp_path, *experiment, *resume)
  shipped = (*program, "train", "a2c")
  check(environment, tmp_path, shipped, (*program, "evaluate"))
  out = environment.run(
    tmp_path, *shipped, "--resume", "mine", "--total-steps", "300", status=2
  )
  assert "found one of experiments.mine:EXPERIMENT" in out


def test_an_installation_can_join(wheel, tmp_path):
  out = wheel.run(tmp_path, "seedx", "join", status=2)
  assert "expected ADDRESS" in out
