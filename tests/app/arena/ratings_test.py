"""Scores and Elo ratings, compared with other computations of the same."""

import numpy as np
import pytest
from scipy import optimize

from seedx.app.arena import ratings

Counts = ratings.Counts


def brute_force(number, games):
  """Maximizes the likelihood without derivatives; player 0 has rating 0."""

  def minus_log_likelihood(others):
    rating = np.array([0.0, *others])
    total = 0.0
    for (i, j), (won, drawn, lost) in games.items():
      points = won + drawn / 2 + 0.5, lost + drawn / 2 + 0.5
      expected = 1 / (1 + 10 ** ((rating[j] - rating[i]) / 400))
      total -= points[0] * np.log(expected) + points[1] * np.log1p(-expected)
    return total

  options = {"xatol": 1e-7, "fatol": 1e-12, "maxiter": 10_000, "maxfev": 10_000}
  return optimize.minimize(
    minus_log_likelihood,
    np.zeros(number - 1),
    method="Nelder-Mead",
    options=options,
  ).x


def test_ratings_have_the_largest_likelihood():
  games = {
    (0, 1): Counts(10, 20, 70),
    (2, 0): Counts(55, 5, 40),
    (1, 2): Counts(3, 90, 7),
    (1, 3): Counts(0, 1, 99),
  }
  rated = ratings.elo(4, games, anchor=0)
  np.testing.assert_allclose(
    [x.value for x in rated[1:]], brute_force(4, games), atol=0.01
  )
  assert rated[0] == (0.0, 0.0, 0.0)
  assert all(x.low < x.value < x.high for x in rated[1:])


def test_two_players_differ_by_the_log_odds_of_their_scores():
  (low, high) = ratings.elo(2, {(0, 1): Counts(20, 19, 60)})
  # With one draw more, 30 points of 100 against 70.
  assert high.value - low.value == pytest.approx(400 * np.log10(70 / 30))
  assert high.value + low.value == pytest.approx(0, abs=1e-6)


def test_intervals_contain_the_rating_of_95_percent_of_samples():
  rng = np.random.default_rng(1)
  true = 120.0
  win = 1 / (1 + 10 ** (-true / 400))
  inside = 0
  for _ in range(200):
    won = int(rng.binomial(100, win))
    _, second = ratings.elo(2, {(1, 0): Counts(won, 0, 100 - won)}, anchor=0)
    inside += second.low < true < second.high
  assert 180 <= inside <= 199


def test_a_player_that_won_all_games_has_a_finite_rating_above_the_others():
  games = {
    (0, 1): Counts(200, 0, 0),
    (0, 2): Counts(200, 0, 0),
    (1, 2): Counts(200, 0, 0),
  }
  rated = ratings.elo(3, games, anchor=2)
  assert np.isfinite(rated).all()
  assert rated[0].value > rated[1].value > rated[2].value == 0
  # A single loss would have changed the rating by 190.
  assert rated[1].low < rated[1].value - 100
  assert rated[1].high > rated[1].value + 100


def test_a_score_counts_draws_as_half_and_has_wilsons_interval():
  score = ratings.score(Counts(70, 20, 10))
  assert score.value == 0.8
  assert score.low == pytest.approx(0.7112, abs=1e-4)
  assert score.high == pytest.approx(0.8666, abs=1e-4)
  perfect = ratings.score(Counts(50, 0, 0))
  assert perfect.value == perfect.high == 1 and 0.92 < perfect.low < 0.94
