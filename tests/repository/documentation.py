"""The README and the pages: their code, and the words of their commands."""

import importlib
import re

import pytest

from seedx import app, envs
from seedx.__main__ import _PROGRAMS
from seedx.app.cli import command_line, programs
from seedx.app.runs import foreign_code
from seedx.app.settings import experiments
from tests.programs import ROOT

README = ROOT / "README.md"
INDEX = ROOT / "docs" / "index.md"
# The README, the index, the pages in the order of the index, and the pages of
# pipelines and agents.
PAGES = [
  README,
  INDEX,
  *(
    INDEX.parent / name
    for name in dict.fromkeys(re.findall(r"\]\((\w+\.md)\)", INDEX.read_text()))
  ),
  *sorted(x for x in INDEX.parent.glob("[!_]*/*.md")),
]


def name_of(page):
  return str(page.relative_to(ROOT))


def blocks(language, pages=PAGES):
  fence = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
  return [code for page in pages for code in fence.findall(page.read_text())]


def file_named(name):
  (text,) = [x for x in blocks("python") if x.startswith(f"# {name}\n")]
  return text


def metrics():
  """Returns the names in the table of docs/metrics.md."""
  text = (ROOT / "docs/metrics.md").read_text()
  (table,) = re.findall(r"^\| metric \|.*?\n\n", text, re.DOTALL | re.MULTILINE)
  first_cells = [row.split("|")[1] for row in table.strip().splitlines()]
  return {*re.findall(r"`(\w+)`", " ".join(first_cells))}


def parse(name, words, monkeypatch):
  """Checks that a program or experiment accepts words, without running it."""
  parsed = []

  def work(*arguments, **_):
    parsed.append(arguments)
    return 0

  if name in experiments.shipped():
    monkeypatch.setattr(programs, "_train", work)
    monkeypatch.setattr(programs, "_join", work)
    # The recordings of the pages do not exist.
    monkeypatch.setattr(foreign_code, "recorded_env", lambda *_: envs.Config())
    module = experiments.load_module(name)
    if "--help" in words:
      with pytest.raises(SystemExit):
        app.main(module.EXPERIMENT, words, module.__name__)
      return
    assert app.main(module.EXPERIMENT, words, module.__name__) == 0
  else:
    run = command_line.run
    monkeypatch.setattr(
      command_line, "run", lambda _, *rest, **more: run(work, *rest, **more)
    )
    assert importlib.import_module(_PROGRAMS[name]).main(words) == 0
  assert parsed
