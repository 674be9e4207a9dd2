"""Draws runs: episode return against env steps and against time.

  seedx plot runs/ppo/* runs/impala/* --output plot.svg

Runs that differ in their seed alone are one line: the interquartile mean over
them, with its 95% bootstrap interval (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264); a single run has none. Each environment has
a row of its own.
"""

import dataclasses
import io
import pathlib
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seedx import metrics, types
from seedx.app import command_line, run_dirs, statistics

# The lines of each run of a group, by the group's label.
Groups = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]

_SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, told apart by the colour-blind; the rest for in grey.
# There are 7, 6 and 5, so that no two of 210 groups look the same.
_COLOURS = (
  *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
  "#000000",
)
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 3)))
_MARKERS = ("o", "s", "^", "D", "v")
_WIDTH_INCHES = 12.0
_ROW_INCHES = 4.9
_LONGEST_LABEL = 70


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    run_dir: what is drawn: directories of runs.
    output: the picture, .png, .svg or .pdf.
  """

  run_dir: tuple[str, ...] = ()
  output: str = "plot.png"


def main(argv: Sequence[str] | None = None) -> int:
  """Draws runs; returns the exit status."""
  argv = sys.argv[1:] if argv is None else argv
  try:
    return _plot(
      command_line.parse(
        Options(), argv, "seedx plot", __doc__, positional=("run_dir",)
      )
    )
  except types.ConfigError as error:
    command_line.fail(error)


def draw(panels: Mapping[str, Groups], path: pathlib.Path) -> None:
  """Draws return against env steps and time: IQM and interval over runs.

  Args:
    panels: the groups of each environment; those of one label look the same.
    path: of the picture, whose suffix says its format.

  Raises:
    types.ConfigError: the suffix is unknown, or the file cannot be written.
  """
  from matplotlib import figure, layout_engine, lines
  from matplotlib.backends import backend_agg

  _check_suffix(path)
  everything = [item for groups in panels.values() for item in groups.items()]
  styles = {name: _style(i) for i, name in enumerate(dict(everything))}
  picture = figure.Figure(
    figsize=(_WIDTH_INCHES, _ROW_INCHES * len(panels)),
    dpi=100,
    layout=layout_engine.ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12),
  )
  backend_agg.FigureCanvasAgg(picture)
  rows = picture.subplots(len(panels), 2, sharey="row", squeeze=False)
  for row, (env, groups) in zip(rows, panels.items(), strict=True):
    _draw_row(row, groups, styles)
    row[0].set_title(
      textwrap.fill(env, 60), loc="left", fontsize=20, parse_math=False
    )
  handles = []
  for name, style in styles.items():
    own = [x for label, of_runs in everything if label == name for x in of_runs]
    ended = any(len(curve(x, "env_steps")) for x in own)
    label = name if ended else f"{name} (no episode has ended)"
    handles.append(lines.Line2D([], [], label=label, **style))
  _add_legend(picture, handles)
  image = io.BytesIO()
  picture.savefig(image, format=path.suffix[1:].lower())
  try:
    # Whoever looks at it meanwhile sees the old picture and not half of one.
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(image.getvalue())
    unfinished.replace(path)
  except OSError as error:
    raise types.ConfigError(
      f"cannot write {str(path)!r} ({error.strerror or error}); choose a file"
      " that you can write"
    ) from error


def curve(lines: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
  """A run's returns against what its lines have under `key`, `[points, 2]`."""
  points = [
    (line[key], line["episode_return"])
    for line in lines
    if line["episode_return"] is not None
  ]
  return np.array(points, np.float64).reshape(-1, 2)


def _plot(given: Options) -> int:
  path = pathlib.Path(given.output).expanduser()
  _check_suffix(path)
  # A run that two patterns of the shell name is one run all the same.
  found = list(
    {
      run.path.resolve(): run for run in map(run_dirs.read, given.run_dir)
    }.values()
  )
  if not any(len(curve(run.lines, "env_steps")) for run in found):
    raise types.ConfigError(
      "expected a run in which an episode has ended, found none; let them run"
      " for longer"
    )
  panels: dict[str, dict[str, list[Any]]] = {}
  for run, label in zip(found, run_dirs.labels(found), strict=True):
    panels.setdefault(run.env, {}).setdefault(label, []).append(run.lines)
  draw(panels, path)
  print(f"drawn from {len(found)} run(s): {path}", flush=True)
  return 0


def _check_suffix(path: pathlib.Path) -> None:
  if path.suffix.lower() not in _SUFFIXES:
    raise types.ConfigError(
      f"expected a picture's name that ends in {', '.join(_SUFFIXES)}, found"
      f" {str(path)!r}"
    )


def _style(i: int) -> dict[str, Any]:
  """How the i-th group looks."""
  return {
    "color": _COLOURS[i % len(_COLOURS)],
    "linestyle": _DASHES[i % len(_DASHES)],
    "marker": _MARKERS[i % len(_MARKERS)],
    "linewidth": 2.5,
    "markersize": 9,
  }


def _draw_row(
  row: Sequence[Any], groups: Groups, styles: Mapping[str, Mapping[str, Any]]
) -> None:
  """Draws the groups of an environment, against env steps and time."""
  row[0].set_ylabel("episode return", fontsize=18)
  for axes, key in zip(row, ("env_steps", "wall_seconds"), strict=True):
    curves = {
      name: [xy for xy in (curve(lines, key) for lines in of_runs) if len(xy)]
      for name, of_runs in groups.items()
    }
    curves = {name: own for name, own in curves.items() if own}
    _draw_panel(axes, key, curves, styles)


def _draw_panel(
  axes: Any,
  key: str,
  curves: Mapping[str, Sequence[np.ndarray]],
  styles: Mapping[str, Mapping[str, Any]],
) -> None:
  """Draws the groups that have curves against one of the two."""
  everything = [xy for own in curves.values() for xy in own]
  if not everything:
    _say_empty(axes, key)
    return
  ends = [_end(own, key) for own in curves.values()]
  logarithmic = max(ends) > 8 * min(ends) > 0
  size, unit = 1, "env steps"
  if key == "wall_seconds":
    size, unit = metrics.time_unit(min(ends) if logarithmic else max(ends))
    unit = f"wall time ({unit})"
  left = max(min(ends) / 30, min(xy[0, 0] for xy in everything))
  for i, (name, own) in enumerate(curves.items()):
    end = ends[i]
    places = (
      np.geomspace(left, end, 200) if logarithmic else np.linspace(0, end, 200)
    )
    mean, low, high = statistics.iqm(own, places)
    known = ~np.isnan(mean)
    x = places[known] / size
    every = max(1, len(x) // 5)
    # Where lines meet, their markers do not.
    first = every * (i + 1) // (len(curves) + 1)
    axes.plot(x, mean[known], markevery=(first, every), **styles[name])
    if len(own) > 1:
      axes.fill_between(
        x,
        low[known],
        high[known],
        color=styles[name]["color"],
        alpha=0.2,
        linewidth=0,
      )
  _set_axes(axes, unit, (left / size, max(ends) / size), logarithmic)


def _end(curves: Sequence[np.ndarray], key: str) -> float:
  """Where the line of a group ends.

  A run that has ended stays what it is while time goes on, but it has not made
  the env steps that others made.
  """
  last = [xy[-1, 0] for xy in curves]
  if key == "wall_seconds":
    return max(last)
  return max(min(last), max(xy[0, 0] for xy in curves))


def _say_empty(axes: Any, key: str) -> None:
  axes.set_xlabel(
    {"env_steps": "env steps", "wall_seconds": "wall time"}[key], fontsize=18
  )
  axes.set(xticks=[], yticks=[])
  axes.spines[["top", "right"]].set_visible(False)
  axes.text(
    *(0.5, 0.5, "no episode has ended yet"),
    transform=axes.transAxes,
    **{"fontsize": 18, "ha": "center", "va": "center", "color": "0.3"},
  )


def _set_axes(
  axes: Any, label: str, limits: tuple[float, float], logarithmic: bool
) -> None:
  """Makes a panel's axes legible at half its size."""
  from matplotlib import ticker

  low, high = limits
  axes.set_xlabel(label, fontsize=18)
  axes.tick_params(labelsize=16)
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="0.88")
  axes.set_axisbelow(True)
  axes.yaxis.set_major_formatter(_short)
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


def _short(value: float, position: int | None = None) -> str:
  """Such as 0.5, 250 or 1.5k; unlike EngFormatter's, no 500m for 0.5."""
  del position  # Along the axis; Matplotlib gives it.
  for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if abs(value) >= size:
      return f"{value / size:g}{suffix}"
  return f"{value:g}"


def _add_legend(picture: Any, handles: Sequence[Any]) -> None:
  """Adds the legend below, in as many columns as fit, and the room for it."""
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
      fontsize=16,
      frameon=False,
      handlelength=3.5,
    )
    for text in legend.get_texts():
      text.set_parse_math(False)
    box = legend.get_window_extent(renderer)
    if box.width < 0.98 * picture.bbox.width or columns == 1:
      break
    legend.remove()
  width, height = picture.get_size_inches()
  picture.set_size_inches(width, height + box.height / picture.dpi)


if __name__ == "__main__":
  sys.exit(main())
