"""Tests of search spaces."""

import math

import pytest

from seedx import search_spaces, types
from seedx.app.studies import search, trials

KINDS = {"rate": float, "cost": float, "length": int, "name": str}


def test_draws_cover_a_log_range_a_range_and_whole_numbers():
  texts = {"rate": "log:1e-4..1e-2", "length": "2..4", "cost": "1..3"}
  draws = search_spaces.drawn(search_spaces.space(texts, KINDS), 3_000, seed=0)
  rates = [float(x["rate"]) for x in draws]
  assert 1e-4 <= min(rates) < 1.1e-4 and 9e-3 < max(rates) <= 1e-2
  # Half of the logarithms are below -3, within five standard deviations.
  below = sum(math.log10(x) < -3 for x in rates)
  assert abs(below - 1_500) < 5 * math.sqrt(3_000 / 4)
  for length in "234":
    count = sum(x["length"] == length for x in draws)
    assert abs(count - 1_000) < 5 * math.sqrt(3_000 * 2 / 9)
  below = sum(float(x["cost"]) < 2 for x in draws)
  assert abs(below - 1_500) < 5 * math.sqrt(3_000 / 4)


def test_rounded_draws_stay_within_a_narrow_range():
  space = search_spaces.space({"rate": "0.999..0.99999"}, KINDS)
  rates = [float(x["rate"]) for x in search_spaces.drawn(space, 500, seed=0)]
  assert min(rates) >= 0.999 and max(rates) <= 0.99999
  assert len({*rates}) > 250


def test_the_seed_determines_the_draws():
  space = search_spaces.space({"rate": "0.5..0.9", "name": "a|b|c"}, KINDS)
  assert search_spaces.drawn(space, 5, seed=3) == search_spaces.drawn(
    space, 5, seed=3
  )
  assert search_spaces.drawn(space, 5, seed=3) != search_spaces.drawn(
    space, 5, seed=4
  )
  assert {x["name"] for x in search_spaces.drawn(space, 99, 0)} == {
    "a",
    "b",
    "c",
  }


def test_a_grid_has_all_combinations():
  space = search_spaces.space({"name": "a|b", "rate": "0.1|0.2|0.3"}, KINDS)
  words = ["a 0.1", "a 0.2", "a 0.3", "b 0.1", "b 0.2", "b 0.3"]
  assert [" ".join(x.values()) for x in search.grid(space)] == words


def test_names_may_have_dashes_and_whole_numbers_any_notation():
  space = search_spaces.space({"batch-size": "1e3..2.5e3"}, {"batch_size": int})
  expected = search_spaces.Range(1000, 2500, log=False, whole=True)
  assert space == {"batch_size": expected}


@pytest.mark.parametrize(
  ("name", "text"),
  [
    *(("rate", x) for x in ("2..1", "1..inf", "log:0..1", 1, "1|1", "٣..٤")),
    ("length", "1.5..3"),
    ("name", "a..b"),
  ],
)
def test_a_wrong_search_space_is_refused(name, text):
  with pytest.raises(types.ConfigError, match=r"LOW\.\.HIGH"):
    search_spaces.space({name: text}, KINDS)


@pytest.mark.slow
def test_guided_draws_approach_the_values_with_the_highest_scores():
  pytest.importorskip("optuna")
  texts = {"rate": "log:1e-5..1e-1", "length": "1..64", "name": "a|b"}
  space = search_spaces.space(texts, KINDS)
  draws = search.TpeDraws(space, 60, seed=0)
  for words in [*draws.examples]:
    assert {*words} == {*texts}
  scores = []
  for k, words in enumerate(draws):
    distance = abs(math.log10(float(words["rate"])) + 3)
    distance += abs(int(words["length"]) - 40) / 20 + (words["name"] == "a")
    scores.append(-distance)
    draws.receive(k, None if k % 7 == 3 else -distance)  # Some trials fail.
  assert len(scores) == len(draws) == 60
  # At random, the mean is -2.3, and of 20 draws within 0.2 of it.
  assert sum(scores[-20:]) / 20 > -1.6


@pytest.mark.slow
def test_halving_ends_the_trials_that_are_not_among_the_best_third():
  pytest.importorskip("optuna")
  halving = search.Halving(900, "episode_return")
  values = [4.0, 7.0, 1.0, 8.0, 0.0, 3.0, 6.0, 2.0, 5.0]
  group = [trials.Trial(f"trials/{k}", ["ppo"], k) for k in range(9)]
  steps = [0] * len(group)
  for now in range(50, 901, 50):
    for k, trial in enumerate(group):
      if steps[k] == now - 50:  # It has not ended.
        value = None if now == 50 else values[k]
        line = {"env_steps": now, "episode_return": value}
        steps[k] = now - 50 if halving(trial, line) else now
  ended = [x for x in steps if x < 900]
  assert steps[values.index(8.0)] == 900
  assert all(x + 50 in (100, 300) for x in ended)
  assert 5 <= len(ended) <= 8
