"""Interquartile means and their bootstrap confidence intervals.

The interquartile mean leaves out the lowest and the highest quarter of values
(rounded down). Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of
the Statistical Precipice", https://arxiv.org/abs/2108.13264.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from seedx import metrics

_EPISODE_RESAMPLES = 10_000
_RUN_RESAMPLES = 2_000


def summary(returns: np.ndarray) -> dict[str, float | int]:
  """Returns the mean, median, interquartile mean and its 95% interval.

  Args:
    returns: `[episodes]`, at least one.
  """
  draws = _draws(len(returns), _EPISODE_RESAMPLES)
  iqm, low, high = _interval(returns, returns[draws])
  return {
    "episodes": len(returns),
    "mean": float(np.mean(returns)),
    "median": float(np.median(returns)),
    "iqm": iqm,
    "iqm_low": low,
    "iqm_high": high,
  }


def in_words(summary: Mapping[str, float]) -> str:
  """Formats a summary as one line."""
  return (
    f"mean {summary['mean']:.1f}, median {summary['median']:.1f}, interquartile"
    f" mean {summary['iqm']:.1f} (95% interval {summary['iqm_low']:.1f} to"
    f" {summary['iqm_high']:.1f}) of {summary['episodes']} episodes"
  )


def info_means(
  names: Sequence[str], info: np.ndarray
) -> dict[str, float | None]:
  """Returns the mean of each entry of episodes' last `info`, by metric.

  Args:
    names: names of the E entries.
    info: `[episodes, E]`; NaN does not count.
  """
  means: dict[str, float | None] = {}
  for name, values in zip(names, info.T, strict=True):
    values = values[~np.isnan(values)]
    mean = float(np.mean(values)) if len(values) else None
    means[f"{metrics.OF_INFO}{name}"] = mean
  return means


def info_in_words(means: Mapping[str, float | None]) -> str:
  """Formats means of `info_means`, each after a comma; empty for none."""
  return "".join(
    f", {name.removeprefix(metrics.OF_INFO)} "
    + ("-" if mean is None else f"{mean:.3g}")
    for name, mean in means.items()
  )


def iqm(
  curves: Sequence[np.ndarray], at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the interquartile mean over curves, and its 95% interval.

  Args:
    curves: one or more arrays `[points, 2]` with columns x (increasing) and y.
    at: `[P]` increasing values of x.

  Returns:
    The mean and the lower and upper end of the interval at these x, each `[P]`;
    NaN before the first curve begins. Before its first x, a curve has its first
    y; after its last x, its last y.
  """
  values = np.stack([np.interp(at, xy[:, 0], xy[:, 1]) for xy in curves])
  values[:, at < min(xy[0, 0] for xy in curves)] = np.nan
  if len(curves) == 1:
    return values[0], values[0], values[0]
  result = np.full((3, len(at)), np.nan)
  draws = _draws(len(curves), _RUN_RESAMPLES)
  # One x at a time: for 100 runs, all at once would take gigabytes.
  for i in np.flatnonzero(~np.isnan(values).any(axis=0)):
    at_x = values[:, i]
    result[:, i] = _interval(at_x, at_x[draws])
  return result[0], result[1], result[2]


def pooled(parts: Sequence[np.ndarray]) -> tuple[float, float, float]:
  """Returns the interquartile mean of all values, and its 95% interval.

  Args:
    parts: values of each environment, `[runs]`. The bootstrap draws within each
      environment, so that every environment always counts.
  """
  rng = np.random.default_rng(0)
  resampled = [rng.choice(x, size=(_RUN_RESAMPLES, len(x))) for x in parts]
  return _interval(np.concatenate(parts), np.concatenate(resampled, axis=1))


def _draws(count: int, resamples: int) -> np.ndarray:
  """Returns fixed random indices `[resamples, count]`, with replacement."""
  return np.random.default_rng(0).integers(count, size=(resamples, count))


def _interval(
  values: np.ndarray, resampled: np.ndarray
) -> tuple[float, float, float]:
  """Returns a mean and its interval, given resampled values `[draws, n]`."""
  from scipy import stats  # The import takes half a second.

  means = stats.trim_mean(resampled, 0.25, axis=1)
  low, high = np.quantile(means, (0.025, 0.975))
  return float(stats.trim_mean(values, 0.25)), float(low), float(high)
