"""Interquartile means and their bootstrap intervals.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", https://arxiv.org/abs/2108.13264.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_EPISODE_RESAMPLES = 10_000
_RUN_RESAMPLES = 2_000


def summary(returns: np.ndarray) -> dict[str, float | int]:
  """Mean, median, interquartile mean and its 95% bootstrap interval.

  Args:
    returns: `[episodes]`, at least one.
  """
  from scipy import stats  # It takes a second, and most programs need none.

  draws = np.random.default_rng(0).integers(
    len(returns), size=(_EPISODE_RESAMPLES, len(returns))
  )
  means = stats.trim_mean(returns[draws], 0.25, axis=1)
  low, high = np.quantile(means, (0.025, 0.975))
  return {
    "episodes": len(returns),
    "mean": float(np.mean(returns)),
    "median": float(np.median(returns)),
    "iqm": float(stats.trim_mean(returns, 0.25)),
    "iqm_low": float(low),
    "iqm_high": float(high),
  }


def in_words(found: Mapping[str, Any]) -> str:
  """A summary as a line."""
  return (
    f"mean {found['mean']:.1f}, median {found['median']:.1f}, interquartile"
    f" mean {found['iqm']:.1f} (95% interval {found['iqm_low']:.1f} to"
    f" {found['iqm_high']:.1f}) of {found['episodes']} episodes"
  )


def iqm(
  curves: Sequence[np.ndarray], at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The interquartile mean over curves, and its 95% bootstrap interval.

  The mean without the lowest and the highest quarter, rounded down to whole
  curves; and percentiles of the same over curves drawn with replacement.
  Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.

  Args:
    curves: each `[points, 2]`, at least one: rising x, and y.
    at: `[P]`, rising, in the unit of x.

  Returns:
    The mean and the interval's lower and upper end at these points, each `[P]`,
    NaN before all curves have begun. One that has ended stays where it was.
  """
  values = np.stack(
    [np.interp(at, xy[:, 0], xy[:, 1], left=np.nan) for xy in curves]
  )
  if len(curves) == 1:
    return values[0], values[0], values[0]
  from scipy import stats

  result = np.full((3, len(at)), np.nan)
  count = len(curves)
  draws = np.random.default_rng(0).integers(count, size=(_RUN_RESAMPLES, count))
  # Point by point: all at once would be gigabytes with a hundred runs.
  for i in np.flatnonzero(~np.isnan(values).any(axis=0)):
    column = values[:, i]
    means = stats.trim_mean(column[draws], 0.25, axis=1)
    result[0, i] = stats.trim_mean(column, 0.25)
    result[1:, i] = np.quantile(means, (0.025, 0.975))
  return result[0], result[1], result[2]
