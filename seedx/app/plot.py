"""Plots runs: a metric against env steps and against wall time.

  seedx plot runs/ppo/* runs/impala/* --output plot.svg
  seedx plot runs/ppo/* --metric entropy --x env_steps
  seedx plot runs/*/* --scores
  seedx plot runs/population/1 --lineage

Runs that differ only in their seed share a curve: the interquartile mean over
the runs, with its 95% bootstrap confidence interval (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264). Single runs are faint curves behind it. A
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
from seedx.app.runs import run_folders, run_groups, statistics

# By label of a group: the lines of metrics of each run.
Groups = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]

_SUFFIXES = (".png", ".svg", ".pdf")
# A run that made a smaller fraction of the longest run's env steps ended early.
_EARLY = 0.95


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the command line.

  Attributes:
    run_dir: directories of the runs to plot, or of sweeps and comparisons, all
      of whose runs are plotted.
    output: image file to write: .png, .svg or .pdf.
    metric: name of the metric to plot, as in `metrics.jsonl`.
    x: horizontal axes of the plots: env_steps, wall_seconds or both.
    scores: whether to draw bars instead of curves: final returns, pooled over
      environments; an environment's first return counts as 0, its best as 1.
    lineage: whether to draw lineage and schedules of a population, whose
      directory is the only one.
  """

  run_dir: tuple[str, ...] = ()
  output: str = "plot.png"
  metric: str = "episode_return"
  x: tuple[str, ...] = ("env_steps", "wall_seconds")
  scores: bool = False
  lineage: bool = False

  def __post_init__(self) -> None:
    if not self.x or not {*self.x} <= {"env_steps", "wall_seconds"}:
      raise types.ConfigError(
        f"expected x of env_steps,wall_seconds, found {','.join(self.x)!r}"
      )
    if self.scores and self.metric != "episode_return":
      raise types.ConfigError(
        "expected --metric episode_return with --scores, found --metric"
        f" {self.metric}"
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
  """Plots the interquartile mean and interval of each group of runs.

  Args:
    panels: groups of each environment's runs. Equal labels look the same.
    path: image file; its suffix sets the format.
    metric: name of the metric to plot.
    x: keys of the horizontal axes.

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
  units = {
    metrics.unit(lines[0])
    for groups in panels.values()
    for runs in groups.values()
    for lines in runs
    if len(lines)
  }
  drawing.draw_curves(
    rows,
    path,
    seeds,
    name=name,
    empty=_none(metric),
    unit=" or ".join(sorted(units)) or "env steps",
  )


def draw_scores(panels: Mapping[str, Groups], path: pathlib.Path) -> None:
  """Plots each group's normalized final returns, pooled over environments.

  Raises:
    types.ConfigError: the file is not writable.
  """
  from seedx.app import drawing

  drawing.draw_scores(_scores(_of_seeds(panels, "episode_return")), path)


def curve(
  lines: Sequence[Mapping[str, Any]], key: str, metric: str = "episode_return"
) -> np.ndarray:
  """Returns a curve, `[points, 2]`, with the columns `key` and `metric`.

  The key "env_steps" stands for the clock of the run.
  """
  points = [
    (line[metrics.clock(line) if key == "env_steps" else key], line[metric])
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
  if options.lineage:
    if len(options.run_dir) != 1:
      raise types.ConfigError(
        f"expected one directory with --lineage, found {len(options.run_dir)}"
      )
    from seedx.app import lineage  # It loads Matplotlib.

    lineage.draw(pathlib.Path(options.run_dir[0]).expanduser(), path)
    print(f"drew the population in {path}", flush=True)
    return 0
  # Two shell patterns may match the same run.
  paths = dict.fromkeys(
    path.resolve() for name in options.run_dir for path in _runs(name)
  )
  runs = [run_groups.read(path) for path in paths]
  metric = "episode_return" if options.scores else options.metric
  if not any(len(curve(run.lines, "env_steps", metric)) for run in runs):
    names = {name for run in runs for line in run.lines for name in line}
    if metric not in names and names:
      raise types.ConfigError(
        f"expected a metric among {', '.join(sorted(names))}, found {metric!r}"
      )
    raise types.ConfigError(
      f"expected a run with {metric}, found none ({_none(metric)}); let the"
      " runs train for longer"
    )
  panels: dict[str, dict[str, list[Any]]] = {}
  labelled = list(zip(runs, run_groups.labels(runs), strict=True))
  for run, label in labelled:
    panels.setdefault(run.env, {}).setdefault(label, []).append(run.lines)
  if not options.scores and "env_steps" in options.x:
    for message in _ended_early(labelled):
      print(message)
  if options.scores:
    draw_scores(panels, path)
  else:
    draw(panels, path, metric, options.x)
  print(f"plotted {len(runs)} run(s) in {path}", flush=True)
  return 0


def _runs(name: str) -> list[pathlib.Path]:
  """Returns the run that a directory is, or the runs in it."""
  path = pathlib.Path(name).expanduser()
  is_run = (path / run_folders.METRICS).exists()
  return [path] if is_run else run_folders.inside(path) or [path]


def _ended_early(labelled: Sequence[tuple[run_groups.Run, str]]) -> list[str]:
  ends: dict[tuple[str, str], int] = {}
  for run, label in labelled:
    key = run.env, label
    ends[key] = max(ends.get(key, 0), _end(run))
  return [
    f"seed {run.seed} of {label:.400} ended after {steps:,} of {end:,} env"
    " steps; the mean is drawn until the shortest run's end"
    for run, label in labelled
    if (steps := _end(run)) < _EARLY * (end := ends[run.env, label])
  ]


def _end(run: run_groups.Run) -> int:
  last = run.lines[-1]
  return int(last[metrics.clock(last)])


def _of_seeds(panels: Mapping[str, Groups], metric: str) -> dict[str, Groups]:
  """Splits each run of several trainings into one run for each training."""

  def runs(lines: Sequence[Mapping[str, Any]]) -> list[Any]:
    seeds = [x for x in lines[-1] if x.startswith(metrics.OF_SEED)]
    if not seeds or metric != "episode_return":
      return [lines]
    return [[{**x, metric: x.get(seed)} for x in lines] for seed in seeds]

  return {
    env: {
      label: [x for lines in members if lines for x in runs(lines)]
      for label, members in groups.items()
    }
    for env, groups in panels.items()
  }


def _none(metric: str) -> str:
  if metric == "episode_return":
    return "no episode has ended"
  return f"no {metric.replace('_', ' ')}"


def _scores(panels: Mapping[str, Groups]) -> dict[str, list[np.ndarray]]:
  """Returns normalized final returns by label: one array per environment."""
  scores: dict[str, list[np.ndarray]] = {}
  for groups in panels.values():
    curves = _curves(groups, "env_steps", "episode_return")
    if not curves:
      continue
    ends = {
      k: np.array([x[-1, 1] for x in members]) for k, members in curves.items()
    }
    first = np.mean([x[0, 1] for members in curves.values() for x in members])
    best = max(statistics.pooled([x])[0] for x in ends.values())
    size = best - first if best > first else 1.0
    for label, values in ends.items():
      scores.setdefault(label, []).append((values - first) / size)
  return scores


def _curves(
  groups: Groups, key: str, metric: str
) -> dict[str, list[np.ndarray]]:
  """Returns the curves of each group; runs that lack the metric have none."""
  curves: dict[str, list[np.ndarray]] = {}
  for label, runs in groups.items():
    for lines in runs:
      points = curve(lines, key, metric)
      if len(points):
        curves.setdefault(label, []).append(points)
  return curves
