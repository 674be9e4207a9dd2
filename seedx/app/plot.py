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
import io
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seedx import files, metrics, types
from seedx.app.cli import command_line
from seedx.app.runs import run_dirs, statistics

# The lines of metrics of each run in a group, by the label of the group.
Groups = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]

_SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which colour-blind readers can tell apart. Dashes and
# markers do the same in grey. With 7, 6 and 5 of them, 210 groups look unique.
_COLOURS = (
  "#0072B2",
  "#D55E00",
  "#009E73",
  "#CC79A7",
  "#E69F00",
  "#56B4E9",
  "#000000",
)
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 3)))
_MARKERS = ("o", "s", "^", "D", "v")
_WIDTH_INCHES = 12.0
_ROW_INCHES = 4.9
_LONGEST_LABEL = 70
_LEGEND = "interquartile mean, its 95% interval, and each seed"
_CURVE_POINTS = 200
# A run that made a smaller share of the longest one's env steps ended early.
_EARLY = 0.95
# Matplotlib's settings: legible at half the size.
_LOOK: Any = {
  "font.size": 16,
  "text.parse_math": False,
  "axes.titlesize": 20,
  "axes.titlelocation": "left",
  "axes.labelsize": 18,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "axes.axisbelow": True,
  "grid.color": "0.88",
  "lines.linewidth": 2.5,
  "lines.markersize": 9,
  "legend.fontsize": 16,
  "legend.frameon": False,
  "legend.handlelength": 3.5,
}


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
  import matplotlib
  from matplotlib import figure, layout_engine, lines
  from matplotlib.backends import backend_agg

  panels = _of_seeds(panels, metric)
  labels = {label: None for groups in panels.values() for label in groups}
  styles = {label: _style(i) for i, label in enumerate(labels)}
  with matplotlib.rc_context(_LOOK):
    picture = figure.Figure(
      figsize=(_WIDTH_INCHES, _ROW_INCHES * len(panels)),
      dpi=100,
      layout=layout_engine.ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12),
    )
    backend_agg.FigureCanvasAgg(picture)
    rows = picture.subplots(len(panels), len(x), sharey="row", squeeze=False)
    plotted: set[str] = set()
    for row, (env, groups) in zip(rows, panels.items(), strict=True):
      row[0].set_title(textwrap.fill(env, 60))
      row[0].set_ylabel(metric.replace("_", " "))
      for axes, key in zip(row, x, strict=True):
        curves = _curves(groups, key, metric)
        plotted |= curves.keys()
        _draw_panel(axes, key, curves, styles, _none(metric))
    handles, several = [], False
    for name, style in styles.items():
      most = max(len(groups.get(name, ())) for groups in panels.values())
      label = f"{name} ({_count(most, 'seed')})" if most > 1 else name
      label = label if name in plotted else f"{name} ({_none(metric)})"
      handles.append(lines.Line2D([], [], label=label, **style))
      several |= most > 1
    _add_legend(picture, handles, _LEGEND if several else None)
    _save(picture, path)


def draw_scores(panels: Mapping[str, Groups], path: pathlib.Path) -> None:
  """Plots each group's final returns, normalized, over all environments.

  Args:
    panels: the groups of each environment.
    path: the image file; its suffix sets the format.

  Raises:
    types.ConfigError: the file is not writable.
  """
  import matplotlib
  from matplotlib import figure, layout_engine
  from matplotlib.backends import backend_agg

  scores = _scores(_of_seeds(panels, "episode_return"))
  with matplotlib.rc_context(_LOOK):
    picture = figure.Figure(
      figsize=(_WIDTH_INCHES, 2.0 + 0.7 * len(scores)),
      dpi=100,
      layout=layout_engine.ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12),
    )
    backend_agg.FigureCanvasAgg(picture)
    axes = picture.subplots()
    for i, (label, parts) in enumerate(scores.items()):
      mean, low, high = statistics.pooled(parts)
      runs = sum(map(len, parts))
      name = f"{label} ({_count(runs, 'run')}, {_count(len(parts), 'env')})"
      error = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
      look = {"color": _style(i)["color"], "capsize": 6 if high > low else 0}
      axes.barh(textwrap.fill(name, 40), mean, xerr=error, **look)
    axes.invert_yaxis()
    axes.set_xlabel("final return: 0 the first, 1 the best of an environment")
    _save(picture, path)


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


def _style(i: int) -> dict[str, Any]:
  """The look of the i-th group."""
  return {
    "color": _COLOURS[i % len(_COLOURS)],
    "linestyle": _DASHES[i % len(_DASHES)],
    "marker": _MARKERS[i % len(_MARKERS)],
  }


def _save(picture: Any, path: pathlib.Path) -> None:
  image = io.BytesIO()
  picture.savefig(image, format=path.suffix[1:].lower())
  files.write_file(path, image.getvalue())


def _none(metric: str) -> str:
  """Says that a run has no value of a metric."""
  if metric == "episode_return":
    return "no episode has ended"
  return f"no {metric.replace('_', ' ')}"


def _count(number: int, name: str) -> str:
  return f"{number} {name}" if number == 1 else f"{number} {name}s"


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


def _draw_panel(
  axes: Any,
  key: str,
  curves: Mapping[str, Sequence[np.ndarray]],
  styles: Mapping[str, Mapping[str, Any]],
  empty: str,
) -> None:
  """Plots the groups that have curves against env steps or wall time.

  Args:
    axes: of the panel.
    key: the x.
    curves: of each group, each `[points, 2]`.
    styles: of each group.
    empty: what the panel says if there are none.
  """
  from matplotlib import collections

  if not curves:
    axes.set_xlabel("wall time" if key == "wall_seconds" else "env steps")
    axes.set(xticks=[], yticks=[])
    axes.text(
      x=0.5,
      y=0.5,
      s=empty,
      ha="center",
      va="center",
      color="0.3",
      transform=axes.transAxes,
    )
    return
  ends = [_end(own, key) for own in curves.values()]
  logarithmic = max(ends) > 8 * min(ends) > 0
  size, unit = 1, "env steps"
  if key == "wall_seconds":
    size, unit = _time_unit(min(ends) if logarithmic else max(ends))
    unit = f"wall time ({unit})"
  first = min(points[0, 0] for own in curves.values() for points in own)
  left = max(min(ends) / 30, first)
  for i, (label, own) in enumerate(curves.items()):
    if logarithmic:
      at = np.geomspace(left, ends[i], _CURVE_POINTS)
    else:
      at = np.linspace(0, ends[i], _CURVE_POINTS)
    mean, low, high = statistics.iqm(own, at)
    known = ~np.isnan(mean)
    x = at[known] / size
    every = max(1, len(x) // 5)
    # Where curves meet, their markers do not.
    offset = every * (i + 1) // (len(curves) + 1)
    axes.plot(x, mean[known], markevery=(offset, every), **styles[label])
    if len(own) > 1:
      color = styles[label]["color"]
      band = {"color": color, "alpha": 0.2, "linewidth": 0}
      axes.fill_between(x, low[known], high[known], **band)
      thin: dict[str, Any] = {"color": color, "alpha": 0.5, "linewidth": 1.0}
      seeds = [xy / (size, 1) for xy in own]
      axes.add_collection(collections.LineCollection(seeds, **thin))
  axes.set_xlabel(unit)
  # A run that has ended early does not hide the rest of the others.
  right = max(points[-1, 0] for own in curves.values() for points in own)
  _set_axes(axes, left / size, right / size, logarithmic)


def _end(curves: Sequence[np.ndarray], key: str) -> float:
  """The x at which the mean of a group ends; single runs go on to their own.

  Wall time passes for runs that have ended, so it is the end of the longest
  run. Env steps do not, so it is the end of the shortest run.
  """
  last = [points[-1, 0] for points in curves]
  return max(last) if key == "wall_seconds" else min(last)


def _time_unit(longest_seconds: float) -> tuple[int, str]:
  """The size in seconds and the name of the unit for times up to a longest."""
  for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
    if longest_seconds >= 2 * size:
      return size, unit
  return 1, "seconds"


def _set_axes(axes: Any, low: float, high: float, logarithmic: bool) -> None:
  """Sets the limits and the ticks of a panel."""
  from matplotlib import ticker

  if logarithmic:
    axes.set_xscale("log")
    axes.set_xlim(low / 1.2, high * 1.2)
    subs = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=subs))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
  else:
    axes.set_xlim(0, high * 1.03)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
  axes.xaxis.set_major_formatter(_short)
  axes.yaxis.set_major_formatter(_short)


def _short(value: float, position: int | None = None) -> str:
  """Formats a tick as 0.5, 250 or 1.5k; EngFormatter would write 0.5 as 500m.

  Args:
    value: of the tick.
    position: along the axis; Matplotlib passes it.
  """
  del position
  for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if abs(value) >= size:
      return f"{value / size:g}{suffix}"
  return f"{value:g}"


def _add_legend(
  picture: Any, handles: Sequence[Any], title: str | None
) -> None:
  """Adds a legend below, with as many columns as fit, and the room for it."""
  for handle in handles:
    handle.set_label(
      textwrap.fill(handle.get_label(), _LONGEST_LABEL, break_on_hyphens=False)
    )
  renderer = picture.canvas.get_renderer()
  for columns in range(min(len(handles), 5), 0, -1):
    legend = picture.legend(
      handles=handles,
      loc="outside lower center",
      ncols=columns,
      title=title,
      title_fontsize=14,
    )
    box = legend.get_window_extent(renderer)
    if box.width < 0.98 * picture.bbox.width or columns == 1:
      break
    legend.remove()
  width, height = picture.get_size_inches()
  picture.set_size_inches(width, height + box.height / picture.dpi)
