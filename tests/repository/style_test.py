"""Tests of rules of style that the linter does not check."""

import ast
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_FOLDERS = (
  "seedx",
  "experiments",
  "benchmarks",
  "tests",
  "examples",
  "colab",
  "docs",
)
# A file without a match needs no parsing.
_SUSPECT = re.compile(r"\*[(\[{]|\._make\(")


def _places(source):
  """Yields lines that unpack a literal or make a named tuple by position."""
  for node in ast.walk(ast.parse(source)):
    match node:
      case ast.Starred(value=ast.Tuple() | ast.List() | ast.Set()):
        yield node.lineno
      case ast.Call(
        func=ast.Attribute(attr="_make"),
        args=[ast.Tuple() | ast.List() | ast.BinOp() | ast.Name()],
      ):
        yield node.lineno


def test_calls_name_their_arguments():
  places = []
  for folder in _FOLDERS:
    for path in sorted((_ROOT / folder).rglob("*.py")):
      source = path.read_text()
      if _SUSPECT.search(source):
        name = path.relative_to(_ROOT)
        places += [f"{name}:{line}" for line in _places(source)]
  assert not places


@pytest.mark.parametrize(
  "source",
  [
    'f(*("name", g, x), key=1)',
    "f(*[a, b])",
    'names = ("a", *("b", "c"))',
    "types.Unroll._make([*steps, core_state])",
    "Unroll._make([one] * 4 + [two])",
    "Unroll._make(leaves)",
  ],
)
def test_a_call_that_hides_names_is_detected(source):
  assert [*_places(source)] and _SUSPECT.search(source)


@pytest.mark.parametrize(
  "source",
  [
    "f(*words, *rest[1:])",
    "names = [*FEW, *(x.name for x in parts), *[a] * 3]",
    "structure._make([fill(x) for x in structure])",
    "self._make()",
  ],
)
def test_unpacking_a_named_sequence_is_accepted(source):
  assert not [*_places(source)]
