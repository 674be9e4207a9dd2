"""Tests of search spaces."""

import math

import pytest

from seedx import types
from seedx.app.studies import search

KINDS = {"rate": float, "length": int, "name": str, "switch": bool}


def test_draws_cover_a_log_range_and_a_whole_number_range():
  space = search.space({"rate": "log:1e-4..1e-2", "length": "2..4"}, KINDS)
  draws = search.drawn(space, 3_000, seed=0)
  rates = [float(x["rate"]) for x in draws]
  assert 1e-4 <= min(rates) < 1.1e-4 and 9e-3 < max(rates) <= 1e-2
  # Half of the logarithms are below -3, within five standard deviations.
  below = sum(math.log10(x) < -3 for x in rates)
  assert abs(below - 1_500) < 5 * math.sqrt(3_000 / 4)
  for length in "234":
    count = sum(x["length"] == length for x in draws)
    assert abs(count - 1_000) < 5 * math.sqrt(3_000 * 2 / 9)


def test_a_range_without_log_is_uniform():
  space = search.space({"rate": "1..3"}, KINDS)
  rates = [float(x["rate"]) for x in search.drawn(space, 3_000, seed=0)]
  assert abs(sum(x < 2 for x in rates) - 1_500) < 5 * math.sqrt(3_000 / 4)


@pytest.mark.parametrize("text", ["0.999..0.99999", "100000..123456"])
def test_rounded_draws_stay_within_a_narrow_range(text):
  low, high = map(float, text.split(".."))
  space = search.space({"rate": text}, KINDS)
  rates = [float(x["rate"]) for x in search.drawn(space, 500, seed=0)]
  assert low <= min(rates) and max(rates) <= high
  assert len({*rates}) > 250


def test_the_seed_determines_the_draws():
  space = search.space({"rate": "0.5..0.9", "name": "a|b|c"}, KINDS)
  assert search.drawn(space, 5, seed=3) == search.drawn(space, 5, seed=3)
  assert search.drawn(space, 5, seed=3) != search.drawn(space, 5, seed=4)
  assert {x["name"] for x in search.drawn(space, 99, 0)} == {"a", "b", "c"}


def test_a_grid_has_all_combinations():
  space = search.space({"name": "a|b", "rate": "0.1|0.2|0.3"}, KINDS)
  assert [tuple(x.values()) for x in search.grid(space)] == [
    ("a", "0.1"),
    ("a", "0.2"),
    ("a", "0.3"),
    ("b", "0.1"),
    ("b", "0.2"),
    ("b", "0.3"),
  ]


def test_a_grid_refuses_ranges():
  space = search.space({"rate": "0.1..0.2"}, KINDS)
  with pytest.raises(types.ConfigError, match=r"A\|B with method grid"):
    search.grid(space)


def test_a_whole_number_range_may_have_any_notation():
  space = search.space({"length": "1e3..2.5e3"}, KINDS)
  assert space["length"] == search.Range(1000, 2500, log=False, whole=True)


def test_names_may_have_dashes_like_flags():
  kinds = {"batch_size": int}
  assert "batch_size" in search.space({"batch-size": "1|2"}, kinds)


@pytest.mark.parametrize(
  ("texts", "message"),
  [
    ({}, "found none"),
    ({"rat": "1..2"}, "found rat"),
    ({"rate": "2..1"}, "LOW..HIGH"),
    ({"rate": "1..inf"}, "LOW..HIGH"),
    ({"rate": "log:0..1"}, "0 < LOW"),
    ({"rate": 1}, "LOW..HIGH"),
    ({"rate": "1|1"}, "LOW..HIGH"),
    ({"rate": "٣..٤"}, "LOW..HIGH"),
    ({"length": "1.5..3"}, "LOW..HIGH"),
    ({"name": "a..b"}, "LOW..HIGH"),
  ],
)
def test_a_wrong_search_space_is_refused(texts, message):
  with pytest.raises(types.ConfigError, match=message):
    search.space(texts, KINDS)
