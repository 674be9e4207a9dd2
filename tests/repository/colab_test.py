"""Tests of the notebooks: they match their sources and run without errors."""

import itertools
import pathlib
import re

import nbformat
import pytest

from colab import build

_ROOT = pathlib.Path(__file__).parents[2]
# Paths of the machine that ran a notebook.
_MACHINE_PATH = re.compile(
  r"/(tmp|root|home|work|Users|private|var/folders|site-packages)/"
)


def _committed(name):
  return nbformat.read(_ROOT / "colab" / f"{name}.ipynb", as_version=4)


def _outputs(notebook):
  return [
    output
    for cell in notebook.cells
    if cell.cell_type == "code"
    for output in cell.outputs
  ]


def _texts(notebook):
  """Yields the texts of the outputs, without images."""
  for output in _outputs(notebook):
    if output.output_type == "stream":
      yield output.text
    for kind, value in output.get("data", {}).items():
      if not kind.startswith("image/"):
        yield value if isinstance(value, str) else str(value)


@pytest.mark.parametrize("name", build.NAMES)
def test_a_notebook_matches_its_source(name):
  def cells(notebook):
    return [(cell.id, cell.cell_type, cell.source) for cell in notebook.cells]

  committed, built = _committed(name), build.notebook(name)
  assert cells(committed) == cells(built), f"run python -m colab.build {name}"
  assert committed.metadata == built.metadata


@pytest.mark.parametrize("name", build.NAMES)
def test_a_notebook_opens_in_colab_and_installs_seedx(name):
  badge, install = _committed(name).cells[:2]
  path = f"{build.REPOSITORY}/blob/main/colab/{name}.ipynb"
  assert f"https://colab.research.google.com/github/{path}" in badge.source
  assert f"git+https://github.com/{build.REPOSITORY}" in install.source


@pytest.mark.parametrize("name", build.NAMES)
def test_a_notebook_has_run_from_top_to_bottom_without_an_error(name):
  notebook = _committed(name)
  nbformat.validate(notebook)
  assert not [cell.metadata for cell in notebook.cells if cell.metadata]
  cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
  assert [x.execution_count for x in cells] == list(range(1, len(cells) + 1))
  outputs = _outputs(notebook)
  assert len(outputs) >= 5
  assert {output.output_type for output in outputs} <= {
    "display_data",
    "execute_result",
    "stream",
  }
  for text in _texts(notebook):
    assert not re.search(r"Traceback|^error: |Warning", text, re.MULTILINE)
    assert not _MACHINE_PATH.search(text), text
    assert "\x1b" not in text, "a terminal's escape sequence"


@pytest.mark.long
@pytest.mark.parametrize("name", build.NAMES)
def test_a_notebook_runs_with_the_current_code(name, tmp_path):
  notebook = build.notebook(name)
  build.execute(notebook, tmp_path)
  committed = _committed(name)
  for cell, old in zip(notebook.cells, committed.cells, strict=True):
    if cell.cell_type == "code":
      assert _kinds(cell) == _kinds(old), cell.source
      assert _names(cell) == _names(old), cell.source


def _kinds(cell):
  """Returns the kinds of a cell's outputs; consecutive streams count as one.

  On a busy machine, a run may also write to stderr.
  """
  kinds = [(x.output_type, *sorted(x.get("data", ()))) for x in cell.outputs]
  return [kind for kind, _ in itertools.groupby(kinds)]


def _names(cell):
  """Returns the names in a cell's outputs, such as metrics and options."""
  texts = (
    text
    for x in cell.outputs
    for text in (x.get("text", ""), x.get("data", {}).get("text/plain", ""))
  )
  return set(re.findall(r"[a-z]+(?:[_-][a-z]+)+", " ".join(texts)))


@pytest.mark.slow
def test_a_failing_command_fails_the_notebook(tmp_path):
  failing = nbformat.v4.new_code_cell("!python -c 'import sys; sys.exit(3)'")
  notebook = nbformat.v4.new_notebook(cells=[failing])
  with pytest.raises(build.nbclient.exceptions.CellExecutionError):
    build.execute(notebook, tmp_path)
