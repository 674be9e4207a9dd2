"""Tests of the pipelines' figures, and of the pages that show them."""

import pathlib
import pkgutil
from xml.etree import ElementTree

from experiments.figures import pipelines as figures
from seedx import pipelines

_ROOT = pathlib.Path(__file__).parents[2]
_FOLDER = _ROOT / "experiments" / "figures"


def test_each_pipeline_has_a_figure_and_a_page_that_shows_it():
  names = {x.name for x in pkgutil.iter_modules(pipelines.__path__)}
  pages = {x.stem: x for x in (_ROOT / "docs" / "pipelines").glob("*.md")}
  assert names == figures.PIPELINES.keys() == pages.keys()
  for name, page in pages.items():
    assert f"figures/pipeline_{name}.svg)" in page.read_text()


def test_figures_are_as_the_program_draws_them():
  drawn = {f"pipeline_{x}": figures.of_one(x) for x in figures.PIPELINES}
  for name, text in (drawn | {"pipelines": figures.of_all()}).items():
    assert (_FOLDER / f"{name}.svg").read_text() == text
    ElementTree.fromstring(text)
