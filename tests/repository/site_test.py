"""Tests of the site that `python -m docs.build` makes."""

import html.parser
import os
import subprocess
import sys
import urllib.parse

import pytest

from docs import build, docstrings
from tests import programs

pytestmark = pytest.mark.slow


class Page(html.parser.HTMLParser):
  """The links, anchors and resources of a page."""

  def __init__(self, path):
    super().__init__()
    self.links, self.anchors, self.resources = [], set(), []
    self.feed(path.read_text())

  def handle_starttag(self, tag, attributes):
    values = dict(attributes)
    self.anchors |= {x for x in (values.get("id"), values.get("name")) if x}
    if tag == "a" and "href" in values:
      self.links.append(values["href"])
    if tag in ("img", "link", "script", "source"):
      self.resources += [
        x for x in (values.get("src"), values.get("href")) if x
      ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  """The folder of the site, built in a process of its own."""
  folder = tmp_path_factory.mktemp("site")
  done = subprocess.run(
    [sys.executable, "-m", "docs.build", "--output", folder],
    cwd=programs.ROOT,
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
  return folder


@pytest.fixture(scope="module")
def pages(site):
  return {path: Page(path) for path in site.rglob("*.html")}


def local(page, link):
  """Returns the file and the anchor of a link; None for another site's."""
  parts = urllib.parse.urlsplit(link)
  if parts.scheme or parts.netloc:
    return None
  path = urllib.parse.unquote(parts.path)
  target = (page.parent / path).resolve() if path else page
  return target, urllib.parse.unquote(parts.fragment)


def test_all_pages_can_be_reached_from_the_first_one(site, pages):
  reached, new = set(), [site / "index.html"]
  while new:
    page = new.pop()
    if page in pages and page not in reached:
      reached.add(page)
      targets = [local(page, link) for link in pages[page].links]
      new += [target[0] for target in targets if target]
  expected = {site / f"{name}.html" for name in build.pages().values()}
  assert len(expected) > 50 and expected <= reached


def test_targets_of_links_exist(pages):
  for path, page in pages.items():
    for link in page.links:
      target = local(path, link)
      if target is not None:
        assert target[0].exists(), (path, link)
        if target[0] in pages and target[1]:
          assert target[1] in pages[target[0]].anchors, (path, link)


def test_pages_load_nothing_from_other_sites(pages):
  for path, page in pages.items():
    for name in page.resources:
      target = local(path, name)
      assert target is not None and target[0].exists(), (path, name)


def test_pages_of_modules_have_their_functions_and_classes(site, pages):
  for module in docstrings.modules():
    names = {f"{module}.{name}" for name in docstrings.public(module)}
    assert names, module
    assert names <= pages[site / "api" / f"{module}.html"].anchors


@pytest.mark.parametrize(
  "text",
  [
    "[A page](missing.md) that is missing.",
    "```{nonsense}\n```",
  ],
)
def test_a_broken_page_fails_the_build(text, tmp_path):
  (tmp_path / "pages").mkdir()
  (tmp_path / "pages" / "index.md").write_text(f"# A page\n\n{text}\n")
  script = "import pathlib, sys; from docs import build; sys.exit("
  script += "build.html(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))"
  done = subprocess.run(
    [sys.executable, "-c", script, tmp_path / "pages", tmp_path / "html"],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1 and "WARNING" in done.stderr + done.stdout
