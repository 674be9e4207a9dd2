"""Tests of the results: their data, and the pages rendered from them."""

import json
import re

import pytest

from benchmarks.results import data, pages

_TEXTS = {page: (data.ROOT / page).read_text() for page in pages.PAGES}
_RENDERED = [page for page in pages.PAGES if "<!--= " in _TEXTS[page]]
_WITH_TABLES = [*pages.phrases()]


def wrong(page, text):
  """Returns whether a page's text differs from the data, or is not listed."""
  return pages.rendered(text) != text or pages.unlisted(page, text)


@pytest.mark.parametrize("page", {**dict.fromkeys(_WITH_TABLES + _RENDERED)})
def test_a_page_is_as_the_data_render_it(page):
  assert pages.rendered(_TEXTS[page]) == _TEXTS[page]
  assert not pages.unlisted(page, _TEXTS[page])
  assert not re.search(r"^ *<!--= ", _TEXTS[page], re.MULTILINE)


@pytest.mark.parametrize("page", _WITH_TABLES[1:])
def test_a_change_of_any_digit_of_a_page_is_noticed(page):
  text = _TEXTS[page]
  # Commands and links are checked by other tests.
  own = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]*>", _blank, text)
  for place in [x.start() for x in re.finditer(r"\d", own)][::7]:
    digit = str((int(text[place]) + 1) % 10)
    assert wrong(page, text[:place] + digit + text[place + 1 :]), place


def _blank(match):
  return re.sub(r"\d", "x", match[0])


@pytest.mark.parametrize(
  ("row", "change"),
  [
    ("ppo_acrobot", {"training": -69.2}),
    ("td3_halfcheetah", {"evaluations": {"50000": 1041, "100000": 4581}}),
    ("seed_vtrace_pong", {"reached": {"18": [2_300_000, 2608]}}),
    ("ppo_acrobot", {"commit": "1234567"}),
  ],
)
def test_a_change_of_an_outcome_is_noticed(row, change, monkeypatch):
  made = data.rows()[row]
  first = min(made.outcomes)
  changed = data.Outcome(**{**vars(made.outcomes[first]), **change})
  monkeypatch.setitem(
    made.__dict__, "outcomes", {**made.outcomes, first: changed}
  )
  assert any(wrong(page, _TEXTS[page]) for page in _WITH_TABLES)


def test_a_new_number_in_a_text_must_be_listed():
  page = "docs/results.md"
  text = _TEXTS[page] + "\nPPO reaches 7.\n"
  (problem,) = pages.unlisted(page, text)
  assert "PPO reaches 7" in problem


def test_each_outcome_belongs_to_a_row():
  for path in data.OUTCOMES.glob("*/*.json"):
    row = data.rows()[path.parent.name]
    assert int(path.stem) in row.seeds
    outcome = data.Outcome(**json.loads(path.read_text()))
    assert outcome.seed == int(path.stem)
    # A run may end before its training reaches the return.
    has_result = row.measure == "reached" and bool(outcome.reached)
    for at in row.at or (0.0,):
      has_result |= outcome.value(row.measure, at) is not None
    assert has_result, path
