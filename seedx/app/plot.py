"""Plots runs: a metric against env steps and against wall time.

  seedx plot runs/ppo/* runs/impala/* --output plot.svg
  seedx plot runs/ppo/* --metric entropy --x env_steps
  seedx plot runs/*/* --scores

Runs that differ only in their seed share a curve: the interquartile mean over
the runs, with its 95% bootstrap confidence interval (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264), before the faint curves of single runs. A
single run has no interval, unless it has several trainings (`--num-seeds`).
Each environment has its own row.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seedx import metrics, types
from seedx.app.cli import command_line
from seedx.app.runs import run_dirs, statistics

# The lines of metrics of each run in a group, by the label of the group.
Groups = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]

_SUFFIXES = (".png", ".svg", ".pdf")
# A run that made a smaller share of the longest one's env steps ended early.
_EARLY = 0.95


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    run_dir: directories of the runs to plot.
    output: the image file to write: .png, .svg or .pdf.
    metric: what to plot, by its name in `metrics.jsonl`.
    x: what to plot it against, env_steps, wall_seconds or both.
    scores: draw a bar for the final returns over all environments instead, 0
      for the first of all returns in an environment, 1 for the best.
  """

  run_dir: tuple[str, ...] = ()
  output: str = "plot.png"
  metric: str = "episode_return"
  x: tuple[str, ...] = ("env_steps", "wall_seconds")
  scores: bool = False

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be drawn."""
    if not self.x or not {*self.x} <= {"env_steps", "wall_seconds"}:
      raise types.ConfigError(
        f"expected x of env_steps,wall_seconds, found {','.join(self.x)!r}"
      )
    if self.scores and self.metric != "episode_return":
      raise types.ConfigError(
        f"expected --scores of returns, found --metric {self.metric}"
      )


def main(argv: Sequence[str] | None = None) -> int:
  """Plots runs; returns the exit status."""
  return command_line.run(
    _plot, Options(), "seedx plot", __doc__, argv, positional=("run_dir",)
  )


def draw(
  panels: Mapping[str, Groups],
  path: pathlib.Path,
  metric: str = "episode_return",
  x: Sequence[str] = ("env_steps", "wall_seconds"),
) -> None:
  """Plots the interquartile mean and interval of groups of runs.

  Args:
    panels: the groups of each environment. A label has the same look in all.
    path: the image file; its suffix sets the format.
    metric: what to plot.
    x: what to plot it against.

  Raises:
    types.ConfigError: the file is not writable.
  """
  from seedx.app import drawing  # It loads Matplotlib.

  panels = _of_seeds(panels, metric)
  seeds: dict[str, int] = {}
  for groups in panels.values():
    for label, runs in groups.items():
      seeds[label] = max(seeds.get(label, 0), len(runs))
  rows = {
    env: {key: _curves(groups, key, metric) for key in x}
    for env, groups in panels.items()
  }
  name = metric.replace("_", " ")
  drawing.draw_curves(rows, path, seeds, name=name, empty=_none(metric))


def draw_scores(panels: Mapping[str, Groups], path: pathlib.Path) -> None:
  """Plots each group's final returns, normalized, over all environments.

  Args:
    panels: the groups of each environment.
    path: the image file; its suffix sets the format.

  Raises:
    types.ConfigError: the file is not writable.
  """
  from seedx.app import drawing

  drawing.draw_scores(_scores(_of_seeds(panels, "episode_return")), path)


def curve(
  lines: Sequence[Mapping[str, Any]], key: str, metric: str = "episode_return"
) -> np.ndarray:
  """A metric of a run against the values at `key`, as `[points, 2]`."""
  points = [
    (line[key], line[metric])
    for line in lines
    if metrics.is_number(line.get(metric))
  ]
  return np.array(points, np.float64).reshape(-1, 2)


def _plot(options: Options) -> int:
  path = pathlib.Path(options.output).expanduser()
  if path.suffix.lower() not in _SUFFIXES:
    raise types.ConfigError(
      f"expected an image file that ends in {', '.join(_SUFFIXES)}, found"
      f" {str(path)!r}"
    )
  # Two patterns of the shell may name the same run.
  paths = dict.fromkeys(
    pathlib.Path(name).expanduser().resolve() for name in options.run_dir
  )
  runs = [run_dirs.read(path) for path in paths]
  metric = "episode_return" if options.scores else options.metric
  if not any(len(curve(run.lines, "env_steps", metric)) for run in runs):
    known = {name for run in runs for line in run.lines for name in line}
    if metric not in known and known:
      raise types.ConfigError(
        f"expected a metric of {', '.join(sorted(known))}, found {metric!r}"
      )
    raise types.ConfigError(
      f"expected a run with {metric}, found none ({_none(metric)}); let the"
      " runs train for longer"
    )
  panels: dict[str, dict[str, list[Any]]] = {}
  named = list(zip(runs, run_dirs.labels(runs), strict=True))
  for run, label in named:
    panels.setdefault(run.env, {}).setdefault(label, []).append(run.lines)
  if not options.scores and "env_steps" in options.x:
    for words in _ended_early(named):
      print(words)
  if options.scores:
    draw_scores(panels, path)
  else:
    draw(panels, path, metric, options.x)
  print(f"plotted {len(runs)} run(s) in {path}", flush=True)
  return 0


def _ended_early(named: Sequence[tuple[run_dirs.Run, str]]) -> list[str]:
  """Names the runs that ended well before others of their group.

  Args:
    named: the runs, each with the label of its group.
  """
  ends: dict[tuple[str, str], int] = {}
  for run, label in named:
    key = run.env, label
    ends[key] = max(ends.get(key, 0), run.lines[-1]["env_steps"])
  return [
    f"seed {run.seed} of {label} ended after {steps:,} of {most:,} env steps;"
    " means are drawn until the first end"
    for run, label in named
    if (steps := run.lines[-1]["env_steps"])
    < _EARLY * (most := ends[run.env, label])
  ]


def _of_seeds(panels: Mapping[str, Groups], metric: str) -> dict[str, Groups]:
  """The same with a run of its own for each training of a run of several."""

  def runs(lines: Sequence[Mapping[str, Any]]) -> list[Any]:
    seeds = [x for x in lines[-1] if x.startswith(metrics.OF_SEED)]
    if not seeds or metric != "episode_return":
      return [lines]
    return [[{**x, metric: x.get(seed)} for x in lines] for seed in seeds]

  return {
    env: {
      label: [x for lines in own if lines for x in runs(lines)]
      for label, own in groups.items()
    }
    for env, groups in panels.items()
  }


def _none(metric: str) -> str:
  """Says that a run has no value of a metric."""
  if metric == "episode_return":
    return "no episode has ended"
  return f"no {metric.replace('_', ' ')}"


def _scores(panels: Mapping[str, Groups]) -> dict[str, list[np.ndarray]]:
  """Final returns by label, an array of the runs in each environment."""
  found: dict[str, list[np.ndarray]] = {}
  for groups in panels.values():
    curves = _curves(groups, "env_steps", "episode_return")
    if not curves:
      continue
    ends = {k: np.array([x[-1, 1] for x in own]) for k, own in curves.items()}
    first = np.mean([x[0, 1] for own in curves.values() for x in own])
    best = max(statistics.pooled([x])[0] for x in ends.values())
    size = best - first if best > first else 1.0
    for label, values in ends.items():
      found.setdefault(label, []).append((values - first) / size)
  return found


def _curves(
  groups: Groups, key: str, metric: str
) -> dict[str, list[np.ndarray]]:
  """The curves of each group, without runs that lack the metric."""
  curves: dict[str, list[np.ndarray]] = {}
  for label, runs in groups.items():
    for lines in runs:
      points = curve(lines, key, metric)
      if len(points):
        curves.setdefault(label, []).append(points)
  return curves
