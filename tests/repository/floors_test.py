"""Tests that no import goes up a floor, and thin actors need no JAX."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_FLOORS = (
  (
    "seedx.types",
    "seedx.trees",
    "seedx.files",
    "seedx.output",
    "seedx.signals",
    "seedx.channels",
    "seedx.search_spaces",
  ),
  ("seedx.on_cpu",),
  (
    "seedx.losses",
    "seedx.networks",
    "seedx.distributions",
    "seedx.envs",
    "seedx.replay",
    "seedx.wire",
    "seedx.sharding",
    "seedx.metrics",
    "seedx.checkpoint",
  ),
  ("seedx.agents", "seedx.recordings"),
  (
    "seedx.runtime",
    "seedx.launch",
    "seedx.acting",
    "seedx.learning",
  ),
  ("seedx.pipelines",),
  ("seedx.app", "seedx.join", "seedx.__main__"),
  ("experiments",),
)
_LEAVES = 2
# Packages that must not import each other; pipelines connect them.
_STRANGERS = {"seedx.acting", "seedx.learning"}
# Modules of a process that only steps environments, or only reads a run.
_WITHOUT_JAX = (
  "seedx.acting.thin_actor",
  "seedx.join",
  "seedx.__main__",
  "seedx.app.cli.command_line",
  "seedx.app.settings.configs",
  "seedx.app.runs.records",
)

# The only packages and modules that deal with several learner hosts, or in
# which a host is another machine.
_HOSTS = (
  "seedx.runtime.hosts",
  "seedx.learning.multihost",
  "seedx.runtime.host_links",
  "seedx.runtime.process",
  "seedx.app",
  "seedx.wire",
  "seedx.launch.ray_cluster",
  "seedx.runtime.running",
  "seedx.learning.learners",
)
# Modules with the setting of several hosts, and with arrays that hosts share.
_EXCEPTIONS = ("seedx.learning.learner", "seedx.sharding")
# Words of names that deal with several hosts, such as `on_all_hosts`.
_HOST_WORDS = {"host", "hosts", "starved", "addressable"}
# Names of JAX that deal with several hosts.
_HOST_NAMES = {"process_index", "process_count", "multihost_utils"}


def _place(module):
  """Returns a module's floor (from 0) and room (a name in `_FLOORS`)."""
  for floor, rooms in enumerate(_FLOORS):
    for room in rooms:
      if module == room or module.startswith(room + "."):
        return floor, room
  return None


def _modules():
  for top in ("seedx", "experiments"):
    for path in sorted((_ROOT / top).rglob("*.py")):
      parts = path.relative_to(_ROOT).with_suffix("").parts
      yield ".".join(parts).removesuffix(".__init__"), path


def _imports(source):
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "relative imports hide the floor"
      yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call):
      called = getattr(node.func, "attr", getattr(node.func, "id", ""))
      match called, node.args:
        case "import_module" | "__import__", [ast.Constant(str(name)), *_]:
          assert name[:1] != ".", "relative imports hide the floor"
          yield name


def _host_names(source):
  """Yields the names of a module that deal with several learner hosts.

  The setting `hosts` of a learner's config does not count.
  """
  for node in ast.walk(ast.parse(source)):
    match node:
      case ast.Attribute(value=ast.Attribute(attr="learner"), attr="hosts"):
        continue
      case ast.Name(id="host"):  # May be a device's host.
        continue
      case ast.Name(id=str(name)) | ast.Attribute(attr=str(name)):
        pass
      case ast.arg(arg=str(name)) | ast.keyword(arg=str(name)):
        pass
      case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
        pass
      case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
        pass
      case _:
        continue
    words = re.split(r"[_.]", name.lower())
    if not _HOST_WORDS.isdisjoint(words) or name in _HOST_NAMES:
      yield name


def _forbidden(module, source):
  """Returns the imports that a module must not have."""
  return [name for name in _imports(source) if _is_forbidden(module, name)]


def _is_forbidden(module, name):
  """Returns whether an import goes up, or connects separate rooms."""
  floor, room = _place(module)
  if name.partition(".")[0] == "argparse":
    return floor != _place("seedx.app")[0]
  other = _place(name)
  if other is None:
    return False
  if room == other[1] == "experiments":
    return not (name + ".").startswith(module + ".")
  across = room != other[1] and (
    floor == other[0] == _LEAVES or {room, other[1]} == _STRANGERS
  )
  return other[0] > floor or across


def _room(module):
  """Returns a package of seedx; in the application, a package or module."""
  parts = module.split(".")
  return ".".join(parts[: 3 if parts[:2] == ["seedx", "app"] else 2])


def test_no_two_rooms_import_each_other():
  modules = dict(_modules())
  pairs = set()
  for module, path in modules.items():
    for name in _imports(path.read_text()):
      other = name if name in modules else name.rpartition(".")[0]
      if other in modules and other != "seedx":
        pairs.add((_room(module), _room(other)))
  assert ("seedx.app.cli", "seedx.app.settings") in pairs
  assert not [x for x in pairs if x[0] < x[1] and x[::-1] in pairs]


def test_imports_only_go_down_the_floors():
  forbidden = {}
  for module, path in _modules():
    if module == "seedx":
      continue
    assert _place(module) is not None, f"{module} is on no floor"
    names = _forbidden(module, path.read_text())
    if names:
      forbidden[module] = names
  assert not forbidden


@pytest.mark.parametrize(
  ("module", "source"),
  [
    # Imports of a higher floor.
    ("seedx.types", "from seedx import metrics"),
    ("seedx.__main__", "import experiments.impala"),
    # Imports of one leaf by another.
    ("seedx.losses.vtrace", "def f():\n  import seedx.networks"),
    # Imports between acting and learning.
    ("seedx.acting.inference", "if TYPE_CHECKING:\n  import seedx.learning"),
    # Command lines below the application.
    ("seedx.pipelines.seed", "def f():\n  import argparse"),
    # Imports by a function call.
    ("seedx.wire.clients", "x = import_module('seedx.envs', None)"),
    ("experiments.impala", "__import__('experiments.a3c')"),
    # Imports between experiments.
    ("experiments.impala", "def f():\n  import experiments.impala_too"),
  ],
)
def test_a_forbidden_import_is_detected(module, source):
  assert _forbidden(module, source)


@pytest.mark.parametrize(
  ("module", "source"),
  [
    ("seedx.losses.vtrace", "from seedx.losses import returns\nimport jax"),
    ("seedx.join", "import argparse"),
    ("seedx.launch.ray_cluster", "import_module('ray')\nimport_module(name)"),
    ("experiments.impala", "from seedx.app import command"),
  ],
)
def test_an_allowed_import_is_accepted(module, source):
  assert not _forbidden(module, source)


def _graph():
  """Returns each module's imports; packages, which only export, are omitted."""
  sources = dict(_modules())
  packages = {name.rpartition(".")[0] for name in sources}

  def module_of(name):
    while name and name not in sources:
      name = name.rpartition(".")[0]
    return name

  return {
    module: {*map(module_of, _imports(path.read_text()))}
    - packages
    - {module, ""}
    for module, path in sources.items()
    if module not in packages
  }


def _circles(graph):
  def reached(module):
    visited, pending = set(), [module]
    while pending:
      new = graph.get(pending.pop(), set()) - visited
      visited |= new
      pending += new
    return visited

  return {module for module in graph if module in reached(module)}


def test_no_modules_import_each_other_in_a_circle():
  assert not _circles(_graph())


def test_each_folder_of_modules_is_a_package():
  # setup.py would leave other folders out of an installation.
  folders = {
    path.parent
    for top in ("seedx", "tests", "benchmarks")
    for path in (_ROOT / top).rglob("*.py")
  }
  assert not [x for x in folders if not (x / "__init__.py").is_file()]


def test_no_test_module_is_imported_by_another():
  """Modules without tests contain what other modules share."""
  imported = {
    (str(path.relative_to(_ROOT)), name)
    for path in (_ROOT / "tests").rglob("*.py")
    for name in _imports(path.read_text())
    if re.match(r"tests\.(\w+\.)*\w+_test\b", name)
  }
  assert not imported


def _hides_a_library(module, source):
  stem = module.rpartition(".")[2]
  return any(name.partition(".")[0] == stem for name in _imports(source))


def test_no_module_has_the_name_of_a_library_that_it_imports():
  assert not [x for x, y in _modules() if _hides_a_library(x, y.read_text())]


def test_few_modules_deal_with_several_learner_hosts():
  modules = {
    module
    for module, path in _modules()
    if not f"{module}.".startswith(tuple(f"{x}." for x in _HOSTS))
    and any(_host_names(path.read_text()))
  }
  assert modules == {*_EXCEPTIONS}


@pytest.mark.parametrize(
  "source",
  [
    "from seedx.runtime import hosts",
    "def f(host): pass",
    "f(num_hosts=2)",
    "def on_all_hosts(): pass",
    "if self._starved: pass",
    "jax.process_index()",
  ],
)
def test_names_that_deal_with_several_hosts_are_detected(source):
  assert [*_host_names(source)]
  assert not [*_host_names("plan(self.learner.hosts)  # On all hosts.")]


def test_modules_of_a_thin_actor_can_be_imported_without_jax():
  program = (
    "import sys; sys.modules['jax'] = None\n"
    f"import {', '.join(_WITHOUT_JAX)}\n"
    "loaded = {name.partition('.')[0] for name in sys.modules}\n"
    "heavy = {'jaxlib', 'chex', 'flax', 'matplotlib', 'tensorboardX', 'rich'}\n"
    "assert not loaded & heavy, loaded"
  )
  subprocess.run([sys.executable, "-c", program], cwd=_ROOT, check=True)
