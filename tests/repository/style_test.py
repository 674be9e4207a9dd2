"""Calls name what they pass: what the linter does not check."""

import ast
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_FOLDERS = ("seedx", "experiments", "benchmarks", "tests", "examples", "colab")
# Without it in its text, a file has no such place and need not be parsed.
_SUSPECT = re.compile(r"\*[(\[{]|\._make\(")


def _places(source):
  """Lines with an unnamed literal splatted, or a named tuple by position."""
  for node in ast.walk(ast.parse(source)):
    match node:
      case ast.Starred(value=ast.Tuple() | ast.List() | ast.Set()):
        yield node.lineno
      case ast.Call(
        func=ast.Attribute(attr="_make"),
        args=[ast.Tuple() | ast.List() | ast.BinOp() | ast.Name()],
      ):
        yield node.lineno


def test_calls_and_literals_name_what_they_hold():
  found = []
  for folder in _FOLDERS:
    for path in sorted((_ROOT / folder).rglob("*.py")):
      source = path.read_text()
      if _SUSPECT.search(source):
        name = path.relative_to(_ROOT)
        found += [f"{name}:{line}" for line in _places(source)]
  assert not found


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
def test_what_hides_names_is_found(source):
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
def test_sequences_that_have_a_name_are_left(source):
  assert not [*_places(source)]
