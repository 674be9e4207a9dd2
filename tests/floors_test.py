"""The floors: imports only go down, and thin actors import no JAX."""

import ast
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_FLOORS = (
  ("seedx.types", "seedx.trees"),
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
  ("seedx.runtime", "seedx.launch"),
  ("seedx.pipelines",),
  ("experiments",),
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
  """The imports of a module that go up, or across the leaves' floor."""
  floor, room = _place(module)
  for name in _imports(source):
    other = _place(name)
    if other is None:
      continue
    across = other[0] == floor == 1 and other[1] != room
    if other[0] > floor or across:
      yield name


def test_imports_only_go_down():
  wrong = {}
  for module, path in _modules():
    if module == "seedx":
      continue
    assert _place(module) is not None, f"{module} is on no floor"
    found = list(_wrong(module, path.read_text()))
    if found:
      wrong[module] = found
  assert not wrong


@pytest.mark.parametrize(
  ("module", "source"),
  [
    ("seedx.losses.vtrace", "from seedx.agents import base"),
    ("seedx.losses.vtrace", "def f():\n  import seedx.networks"),
    ("seedx.types", "from seedx import metrics"),
    ("seedx.pipelines.seed", "from experiments import options"),
  ],
)
def test_the_rule_finds_what_breaks_it(module, source):
  assert list(_wrong(module, source))


def test_a_thin_actor_needs_no_jax():
  """Its modules import where JAX cannot be."""
  program = (
    "import sys; sys.modules['jax'] = None\n"
    "import seedx.runtime.actor\n"
    "loaded = {name.partition('.')[0] for name in sys.modules}\n"
    "assert not loaded & {'jaxlib', 'flax', 'optax', 'rlax', 'distrax'}, loaded"
  )
  subprocess.run([sys.executable, "-c", program], check=True, cwd=_ROOT)
