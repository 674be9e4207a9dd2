"""The floors: imports only go down, and thin actors import no JAX."""

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
  ("seedx.agents",),
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
# Pipelines bring them together.
_STRANGERS = {"seedx.acting", "seedx.learning"}
# A process that only steps environments imports these, or one that only reads.
_WITHOUT_JAX = (
  "seedx.acting.thin_actor",
  "seedx.join",
  "seedx.__main__",
  "seedx.app.cli.command_line",
  "seedx.app.cli.configs",
  "seedx.app.runs.run_dirs",
)

# The only rooms that deal with several learner hosts, and what connects these
# with a run. In `seedx.wire`, `seedx.envs` and others, a host is a machine.
_HOSTS = (
  "seedx.runtime.hosts",
  "seedx.learning.together",
  "seedx.launch.hosts",
  "seedx.runtime.process",
  "seedx.app",
  "seedx.wire",
  "seedx.launch.ray_cluster",
  "seedx.runtime.running",
  "seedx.learning.learners",
)
# The one has the setting, the other arrays of which others have a part.
_ALSO = ("seedx.learning.learner", "seedx.sharding")
# Names that have one of these words, such as `on_all_hosts`, or are JAX's.
_HOST_WORDS = {"host", "hosts", "starved", "addressable"}
_HOST_NAMES = {"process_index", "process_count", "multihost_utils"}


def _place(module):
  """The floor and the room of a module; None for the bare package."""
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
  """Every name that a module imports, anywhere in it."""
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
  """Names of a module that deal with several learner hosts.

  The setting `hosts` of a learner's config is not one of them.
  """
  for node in ast.walk(ast.parse(source)):
    match node:
      case ast.Attribute(value=ast.Attribute(attr="learner"), attr="hosts"):
        continue
      case ast.Name(id="host"):  # A device's host; it may be any variable.
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


def _wrong(module, source):
  """The imports of a module that it must not have."""
  return [name for name in _imports(source) if _is_wrong(module, name)]


def _is_wrong(module, name):
  """Whether an import goes up, or across to who must not be known."""
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


def test_imports_go_down_and_nobody_knows_who_it_must_not():
  wrong = {}
  for module, path in _modules():
    if module == "seedx":
      continue
    assert _place(module) is not None, f"{module} is on no floor"
    found = _wrong(module, path.read_text())
    if found:
      wrong[module] = found
  assert not wrong


@pytest.mark.parametrize(
  ("module", "source"),
  [
    # Up.
    ("seedx.types", "from seedx import metrics"),
    ("seedx.pipelines.seed", "from experiments import impala"),
    ("seedx.on_cpu.packing", "from seedx import replay"),
    ("seedx.__main__", "import experiments.impala"),
    # From leaf to leaf.
    ("seedx.losses.vtrace", "def f():\n  import seedx.networks"),
    # Between acting and learning.
    ("seedx.acting.unroll_server", "from seedx.learning import experience"),
    ("seedx.acting.inference", "if TYPE_CHECKING:\n  import seedx.learning"),
    # The command line.
    ("seedx.pipelines.seed", "def f():\n  import argparse"),
    # By a function.
    (
      "seedx.launch.joining",
      "import importlib as i\ni.import_module('seedx.app.cli.programs')",
    ),
    ("seedx.wire.client", "x = import_module('seedx.envs', None)"),
    ("experiments.impala", "__import__('experiments.a3c')"),
    # Between experiments.
    ("experiments.impala", "def f():\n  import experiments.impala_too"),
    ("experiments.impala", "from experiments.a3c import main"),
  ],
)
def test_the_rules_find_what_breaks_them(module, source):
  assert _wrong(module, source)


@pytest.mark.parametrize(
  ("module", "source"),
  [
    ("seedx.losses.vtrace", "from seedx import types\nimport jax"),
    ("seedx.losses.vtrace", "from seedx.losses import returns"),
    ("seedx.replay.uniform", "from seedx.on_cpu import packing"),
    ("seedx.pipelines.seed", "from seedx.acting import protocol"),
    ("seedx.join", "import argparse"),
    (
      "seedx.app.studies.sweep",
      "importlib.import_module('seedx.app.studies.tuning')",
    ),
    (
      "seedx.launch.ray_cluster",
      "import_module('ray')\nimport_module(name)",
    ),
    ("experiments.impala", "from seedx.app import command"),
  ],
)
def test_the_rules_leave_what_is_right(module, source):
  assert not _wrong(module, source)


def _graph():
  """The modules that each module imports, anywhere in it.

  The face of a package, which gathers what is in there, is left out.
  """
  sources = dict(_modules())
  faces = {name.rpartition(".")[0] for name in sources}

  def module_of(name):
    while name and name not in sources:
      name = name.rpartition(".")[0]
    return name

  return {
    module: {*map(module_of, _imports(path.read_text()))} - faces - {module, ""}
    for module, path in sources.items()
    if module not in faces
  }


def _circles(graph):
  """The modules that import themselves by way of others."""

  def reached(module):
    seen, ahead = set(), [module]
    while ahead:
      new = graph.get(ahead.pop(), set()) - seen
      seen |= new
      ahead += new
    return seen

  return {module for module in graph if module in reached(module)}


def test_no_modules_import_each_other():
  assert not _circles(_graph())


def test_circles_are_found():
  assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {"b", "c"}


def test_each_folder_of_modules_is_a_package():
  # setup.py finds no others, so an installation would lack them.
  folders = {
    path.parent
    for top in ("seedx", "tests", "benchmarks")
    for path in (_ROOT / top).rglob("*.py")
  }
  assert not [x for x in folders if not (x / "__init__.py").is_file()]


def _hides_a_library(module, source):
  """Whether a module has the name of a library that it imports."""
  own = module.rpartition(".")[2]
  return any(name.partition(".")[0] == own for name in _imports(source))


def test_no_module_is_named_like_a_library_that_it_imports():
  assert not [x for x, y in _modules() if _hides_a_library(x, y.read_text())]


@pytest.mark.parametrize(
  "source", ["import ray", "from ray import tune", "import_module('ray')"]
)
def test_the_name_of_an_imported_library_is_found(source):
  assert _hides_a_library("seedx.launch.ray", source)
  assert not _hides_a_library("seedx.launch.ray_cluster", source)


def test_several_learner_hosts_are_dealt_with_in_few_rooms():
  having = {
    module
    for module, path in _modules()
    if not f"{module}.".startswith(tuple(f"{x}." for x in _HOSTS))
    and any(_host_names(path.read_text()))
  }
  assert having == {*_ALSO}


@pytest.mark.parametrize(
  "source",
  [
    "from seedx.runtime import hosts",
    "hosts_lib.Config()",
    "def f(host): pass",
    "f(num_hosts=2)",
    "def on_all_hosts(): pass",
    "context.hosts.acted(1)",
    "if self._starved: pass",
    "jax.process_index()",
  ],
)
def test_names_of_several_hosts_are_found(source):
  assert [*_host_names(source)]


def test_the_setting_of_several_hosts_is_none_of_their_names():
  assert not [*_host_names("plan(self.learner.hosts)  # On all hosts.")]


def test_a_thin_actor_needs_no_jax():
  """Its modules import where JAX cannot be."""
  program = (
    "import sys; sys.modules['jax'] = None\n"
    f"import {', '.join(_WITHOUT_JAX)}\n"
    "loaded = {name.partition('.')[0] for name in sys.modules}\n"
    "heavy = {'jaxlib', 'chex', 'flax', 'matplotlib', 'tensorboardX', 'rich'}\n"
    "assert not loaded & heavy, loaded"
  )
  subprocess.run([sys.executable, "-c", program], cwd=_ROOT, check=True)
