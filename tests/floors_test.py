"""The floors: imports only go down, and thin actors import no JAX."""

import ast
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_FLOORS = (
  (
    *("seedx.types", "seedx.trees", "seedx.files", "seedx.output"),
    "seedx.channels",
  ),
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
    "seedx.join",
    "seedx.acting",
    "seedx.learning",
  ),
  ("seedx.pipelines",),
  ("seedx.app", "seedx.__main__"),
  ("experiments",),
)
_LEAVES = 1
# Pipelines bring them together.
_STRANGERS = {"seedx.acting", "seedx.learning"}
# A process that only steps environments imports these, or one that only reads.
_WITHOUT_JAX = (
  *("seedx.acting.thin_actor", "seedx.join", "seedx.__main__"),
  *("seedx.app.command_line", "seedx.app.configs", "seedx.app.run_dirs"),
)


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


def _wrong(module, source):
  """The imports of a module that it must not have."""
  return [name for name in _imports(source) if _is_wrong(module, name)]


def _is_wrong(module, name):
  """Whether an import goes up, or across to who must not be known."""
  floor, room = _place(module)
  if name.partition(".")[0] == "tyro":
    return room != "seedx.app"
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
    ("seedx.__main__", "import experiments.impala"),
    # From leaf to leaf.
    ("seedx.losses.vtrace", "def f():\n  import seedx.networks"),
    # Between acting and learning.
    ("seedx.acting.unroll_server", "from seedx.learning import experience"),
    ("seedx.acting.inference", "if TYPE_CHECKING:\n  import seedx.learning"),
    # The command line.
    ("seedx.pipelines.seed", "def f():\n  import tyro.conf"),
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
    ("seedx.pipelines.seed", "from seedx.acting import protocol"),
    ("seedx.app.command_line", "import tyro"),
    ("experiments.impala", "from seedx.app import command"),
  ],
)
def test_the_rules_leave_what_is_right(module, source):
  assert not _wrong(module, source)


def test_a_thin_actor_needs_no_jax():
  """Its modules import where JAX cannot be."""
  program = (
    "import sys; sys.modules['jax'] = None\n"
    f"import {', '.join(_WITHOUT_JAX)}\n"
    "loaded = {name.partition('.')[0] for name in sys.modules}\n"
    "heavy = {'jaxlib', 'flax', 'matplotlib', 'tensorboardX', 'rich'}\n"
    "assert not loaded & heavy, loaded"
  )
  subprocess.run([sys.executable, "-c", program], cwd=_ROOT, check=True)
