"""Scores and Elo ratings of players, with 95% intervals."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

# Elo points in a factor e of the odds of a win.
_POINTS = 400 / np.log(10)
_RESAMPLES = 1_000
_QUANTILE = 1.96


class Counts(NamedTuple):
  """The numbers of games that a player won, drew and lost."""

  won: int
  drawn: int
  lost: int

  def plus(self, other: "Counts") -> "Counts":
    """Returns the numbers of both."""
    return Counts(*(a + b for a, b in zip(self, other, strict=True)))

  def reversed(self) -> "Counts":
    """Returns the numbers of the other player."""
    return Counts(self.lost, self.drawn, self.won)


class Estimate(NamedTuple):
  """A number and its 95% interval."""

  value: float
  low: float
  high: float


def score(counts: Counts) -> Estimate:
  """Returns the share of points, a draw being half a point.

  The interval is Wilson's, "Probable inference, the law of succession, and
  statistical inference" (1927), of a share of wins. Draws make a score less
  variable, so the interval is wide enough.
  """
  games = sum(counts)
  share = (counts.won + counts.drawn / 2) / games
  extra = _QUANTILE**2 / games
  center = (share + extra / 2) / (1 + extra)
  half = np.sqrt(extra * (share * (1 - share) + extra / 4)) / (1 + extra)
  return Estimate(
    share, float(max(0.0, center - half)), float(min(1.0, center + half))
  )


def elo(
  number: int,
  games: Mapping[tuple[int, int], Counts],
  anchor: int | None = None,
) -> list[Estimate]:
  """Returns the Elo rating of each player.

  The ratings r are those of the model of Bradley and Terry, under which player
  i scores 1 / (1 + 10^((r_j - r_i) / 400)) against player j, with the largest
  likelihood of all scores; a draw is half a win and half a loss. Each pair
  counts one draw more than it played, so a player that won all games has a
  finite rating. The intervals are those of a Bayesian bootstrap (Rubin 1981,
  https://doi.org/10.1214/aos/1176345338), which gives each game a random
  weight.

  Args:
    number: number of players.
    games: numbers of player i against player j, by i and j; each pair once.
    anchor: player whose rating is 0; if None, the mean of all ratings is 0.
  """
  rng = np.random.default_rng(0)
  points = np.zeros((1 + _RESAMPLES, number, number))
  for (i, j), (won, drawn, lost) in games.items():
    # Sums of the games' weights: 1 in the estimate, random after it.
    sums = np.array([won + 0.5, drawn, lost + 0.5])
    drawn_sums = np.maximum(rng.gamma(sums, size=(_RESAMPLES, 3)), 1e-9)
    all_sums = np.concatenate([sums[None], drawn_sums])
    points[:, i, j] = all_sums[:, 0] + all_sums[:, 1] / 2
    points[:, j, i] = all_sums[:, 2] + all_sums[:, 1] / 2
  ratings = _POINTS * _fitted(points)
  if anchor is not None:
    ratings -= ratings[:, [anchor]]
  low, high = np.quantile(ratings[1:], (0.025, 0.975), axis=0)
  return [
    Estimate(*map(float, x)) for x in zip(ratings[0], low, high, strict=True)
  ]


def _fitted(points: np.ndarray) -> np.ndarray:
  """Returns strengths `[R, P]` of mean 0 for points `[R, P, P]`.

  Newton's method with bounded steps maximizes the sum of `points[i, j]` times
  the log-probability that i wins against j.
  """
  games = points + points.swapaxes(1, 2)
  strength = np.zeros(points.shape[:2])
  identity = np.eye(points.shape[1])
  for _ in range(200):
    difference = strength[:, :, None] - strength[:, None, :]
    wins = 1 / (1 + np.exp(-difference))
    gradient = np.sum(points - games * wins, axis=2)
    curvature = games * wins * (1 - wins)
    hessian = np.sum(curvature, axis=2)[:, :, None] * identity - curvature
    # Adding a constant to all strengths changes nothing, so 1 makes the
    # matrix regular and keeps the mean.
    step = np.linalg.solve(hessian + 1.0, gradient[:, :, None])[:, :, 0]
    strength += step / np.maximum(1, np.abs(step).max(axis=1, keepdims=True))
    if np.abs(step).max() < 1e-8:
      break
  return strength
