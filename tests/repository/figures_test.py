"""Tests of the pipelines' figures, and of the pages that show them."""

import pathlib
import pkgutil
from xml.etree import ElementTree

import pytest

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


@pytest.mark.parametrize("name", figures.PIPELINES)
def test_the_figure_of_a_pipeline_is_as_the_program_draws_it(name):
  drawn = figures.of_one(name)
  assert (_FOLDER / f"pipeline_{name}.svg").read_text() == drawn
  ElementTree.fromstring(drawn)


def test_the_figure_of_all_pipelines_is_as_the_program_draws_it():
  drawn = figures.of_all()
  assert (_FOLDER / "pipelines.svg").read_text() == drawn
  ElementTree.fromstring(drawn)
