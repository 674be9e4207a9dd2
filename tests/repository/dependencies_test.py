"""What seedx requires: setup.py, imports and CONTRIBUTING's table agree."""

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

_LATE = {
  "PIL": {"seedx/app/videos.py"},
  "matplotlib": {"seedx/app/drawing.py"},
  "rich": {"seedx/metrics/status.py"},
  "scipy": {"seedx/app/runs/statistics.py"},
  "tensorboardX": {"seedx/metrics/events.py"},
}
_OWN = {"seedx", "experiments", "tests", "colab", "benchmarks", "examples"}
# May be missing when seedx runs, with one line that says what to install.
_OPTIONAL = {"imageio-ffmpeg", "ray"}


@functools.cache
def imported():
  """The files of the repository that import a module, by its first name."""
  found = {}
  for top in sorted(_OWN):
    for path in sorted((programs.ROOT / top).rglob("*.py")):
      file = str(path.relative_to(programs.ROOT))
      for name in names_in(path.read_text()):
        if name not in _OWN | sys.stdlib_module_names:
          found.setdefault(name, set()).add(file)
  return found


def names_in(source):
  """The first names of all that a module imports, anywhere in it."""
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
  """The names by which pip knows a module, by the module's first name."""
  return {
    module: {x.replace("_", "-").lower() for x in names}
    for module, names in importlib.metadata.packages_distributions().items()
  }


@pytest.fixture(scope="module")
def required():
  """The names that setup.py requires, by extra; "" for all who install it."""
  said = {}
  fake = types.SimpleNamespace(
    setup=lambda **words: said.update(words), find_packages=lambda **_: []
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "setuptools", fake)
    runpy.run_path(str(programs.ROOT / "setup.py"))
  parts = {"": said["install_requires"], **said["extras_require"]}
  return {
    extra: {re.match(r"[\w-]+", word)[0].lower() for word in words}
    for extra, words in parts.items()
  }


@pytest.fixture(scope="module")
def table():
  """Where each requirement is imported and why, by CONTRIBUTING."""
  text = (programs.ROOT / "CONTRIBUTING.md").read_text()
  (section,) = re.findall(r"^## Dependencies$(.*?)^## ", text, re.M | re.S)
  rows = re.findall(r"^\| (`.*) \| (.*) \| (.*) \|$", section, re.M)
  return {
    name.lower(): (where, why)
    for names, where, why in rows
    for name in re.findall(r"`([\w-]+)", names)
  }


def test_all_that_is_imported_is_required(required):
  wrong = {
    module: sorted(files)[:3]
    for module, files in imported().items()
    if any(x.startswith(("seedx/", "experiments/")) for x in files)
    and not required[""] | _OPTIONAL >= distributions().get(module, {module})
  }
  assert not wrong


def test_each_requirement_has_a_row_that_is_true(required, table):
  assert {*table} == set().union(*required.values())
  files = {}
  for module, own in imported().items():
    files |= dict.fromkeys(distributions().get(module, ()), own)
  for name, (where, why) in table.items():
    own = files.get(name, set())
    for room in re.findall(r"`([\w/.]+)`", where):
      assert any(x.startswith((room, f"seedx/{room}")) for x in own), (
        f"{name} is not imported by {room}"
      )
    assert len(why) > 20
    assert (where == "nothing") == (not own), (name, sorted(own)[:3])


def test_each_of_these_is_imported_in_one_module():
  found = {
    name: {x for x in imported()[name] if x.startswith("seedx/")}
    for name in _LATE
  }
  assert found == _LATE


def test_they_are_not_loaded_before_they_are_used():
  script = f"""
import sys
import flax.linen  # It imports Rich.
before = set(sys.modules)
import seedx.app, seedx.app.training, seedx.app.plot, seedx.app.evaluate
import seedx.__main__, seedx.join, seedx.acting.thin_actor
print(*(set(sys.modules) - before).intersection({[*_LATE]}))
"""
  done = subprocess.run(
    [sys.executable, "-c", script],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert not done.stdout.split()
