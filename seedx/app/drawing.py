"""Pictures of runs; `plot` imports this module and Matplotlib when it draws."""

import io
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import collections, figure, layout_engine, lines, ticker
from matplotlib.backends import backend_agg

from seedx import files
from seedx.app.runs import statistics

# Okabe and Ito's colours, distinct for colour-blind readers; dashes and markers
# are distinct in grey, too. 7 colours, 6 dashes and 5 markers give 210 looks.
COLOURS = (
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
ROW_INCHES = 4.9
_LONGEST_LABEL = 70
_LEGEND = "interquartile mean, its 95% interval, and each seed"
_CURVE_POINTS = 200
# Settings of Matplotlib, with which text is legible at half the size.
LOOK: Any = {
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


def draw_curves(
  panels: Mapping[str, Mapping[str, Mapping[str, Sequence[np.ndarray]]]],
  path: pathlib.Path,
  seeds: Mapping[str, int],
  name: str,
  empty: str,
  unit: str = "env steps",
) -> None:
  """Draws the interquartile mean and interval of each group of curves.

  Args:
    panels: curves, each `[points, 2]`, in dicts by environment, by key of the x
      axis and by label of a group. All environments have the same keys.
    path: image file; its suffix sets the format.
    seeds: number of runs of each label, including those without a curve.
    name: name of the vertical axis.
    unit: unit of the runs' clocks.
    empty: text in a panel without a curve.

  Raises:
    types.ConfigError: the file is not writable.
  """
  styles = {label: _style(i) for i, label in enumerate(seeds)}
  with matplotlib.rc_context(LOOK):
    picture = new_figure(ROW_INCHES * len(panels))
    columns = len(next(iter(panels.values())))
    rows = picture.subplots(len(panels), columns, sharey="row", squeeze=False)
    plotted: set[str] = set()
    for row, (env, by_x) in zip(rows, panels.items(), strict=True):
      row[0].set_title(_filled(env, 60))
      row[0].set_ylabel(name)
      for axes, (key, curves) in zip(row, by_x.items(), strict=True):
        plotted |= curves.keys()
        _draw_panel(axes, key, curves, styles, empty, unit)
    handles = []
    for label, num_seeds in seeds.items():
      text = (
        f"{label} ({_count(num_seeds, 'seed')})" if num_seeds > 1 else label
      )
      text = text if label in plotted else f"{label} ({empty})"
      handles.append(lines.Line2D([], [], label=text, **styles[label]))
    several = any(num_seeds > 1 for num_seeds in seeds.values())
    _add_legend(picture, handles, _LEGEND if several else None)
    save(picture, path)


def draw_scores(
  scores: Mapping[str, Sequence[np.ndarray]], path: pathlib.Path
) -> None:
  """Draws each group's scores, pooled over all environments.

  Args:
    scores: one array of scores per environment, by label of a group.
    path: image file; its suffix sets the format.

  Raises:
    types.ConfigError: the file is not writable.
  """
  with matplotlib.rc_context(LOOK):
    picture = new_figure(2.0 + 0.7 * len(scores))
    axes = picture.subplots()
    for i, (label, parts) in enumerate(scores.items()):
      mean, low, high = statistics.pooled(parts)
      runs = sum(map(len, parts))
      name = f"{label} ({_count(runs, 'run')}, {_count(len(parts), 'env')})"
      error = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
      look = {"color": _style(i)["color"], "capsize": 6 if high > low else 0}
      axes.barh(_filled(name, 40), mean, xerr=error, **look)
    axes.invert_yaxis()
    axes.set_xlabel("final return: 0 is an environment's first, 1 its best")
    save(picture, path)


def new_figure(height_inches: float) -> Any:
  """Returns an empty figure, which needs no screen."""
  picture = figure.Figure(
    figsize=(_WIDTH_INCHES, height_inches),
    dpi=100,
    layout=layout_engine.ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12),
  )
  backend_agg.FigureCanvasAgg(picture)
  return picture


def _filled(text: str, width: int) -> str:
  """Breaks a name into lines; a longer one than a plot has room for is cut."""
  return textwrap.fill(
    text, width, break_on_hyphens=False, max_lines=10, placeholder=" ..."
  )


def _style(i: int) -> dict[str, Any]:
  return {
    "color": COLOURS[i % len(COLOURS)],
    "linestyle": _DASHES[i % len(_DASHES)],
    "marker": _MARKERS[i % len(_MARKERS)],
  }


def save(picture: Any, path: pathlib.Path) -> None:
  """Writes an image file; types.ConfigError if it is not writable."""
  image = io.BytesIO()
  picture.savefig(image, format=path.suffix[1:].lower())
  files.write_file(path, image.getvalue())


def _count(number: int, name: str) -> str:
  return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _draw_panel(
  axes: Any,
  key: str,
  curves: Mapping[str, Sequence[np.ndarray]],
  styles: Mapping[str, Mapping[str, Any]],
  empty: str,
  unit: str,
) -> None:
  if not curves:
    axes.set_xlabel("wall time" if key == "wall_seconds" else unit)
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
  ends = [_end(members, key) for members in curves.values()]
  logarithmic = max(ends) > 8 * min(ends) > 0
  size = 1
  if key == "wall_seconds":
    size, unit = _time_unit(min(ends) if logarithmic else max(ends))
    unit = f"wall time ({unit})"
  first = min(points[0, 0] for members in curves.values() for points in members)
  left = max(min(ends) / 30, first)
  for i, (label, members) in enumerate(curves.items()):
    if logarithmic:
      at = np.geomspace(left, ends[i], _CURVE_POINTS)
    else:
      at = np.linspace(0, ends[i], _CURVE_POINTS)
    mean, low, high = statistics.iqm(members, at)
    has_mean = ~np.isnan(mean)
    x = at[has_mean] / size
    every = max(1, len(x) // 5)
    # Keeps the markers of overlapping curves apart.
    offset = every * (i + 1) // (len(curves) + 1)
    axes.plot(x, mean[has_mean], markevery=(offset, every), **styles[label])
    if len(members) > 1:
      color = styles[label]["color"]
      band = {"color": color, "alpha": 0.2, "linewidth": 0}
      axes.fill_between(x, low[has_mean], high[has_mean], **band)
      thin: dict[str, Any] = {"color": color, "alpha": 0.5, "linewidth": 1.0}
      seeds = [xy / (size, 1) for xy in members]
      axes.add_collection(collections.LineCollection(seeds, **thin))
  axes.set_xlabel(unit)
  # The panel extends to the end of the longest run.
  right = max(
    points[-1, 0] for members in curves.values() for points in members
  )
  _set_axes(axes, left / size, right / size, logarithmic)


def _end(curves: Sequence[np.ndarray], key: str) -> float:
  """Returns the x at which the mean of a group ends.

  In env steps, the mean ends with the shortest run. In wall time, the mean ends
  with the longest, since time also passes for runs that have ended.
  """
  last = [points[-1, 0] for points in curves]
  return max(last) if key == "wall_seconds" else min(last)


def _time_unit(longest_seconds: float) -> tuple[int, str]:
  """Returns a unit for a time: its length in seconds, and its name."""
  for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
    if longest_seconds >= 2 * size:
      return size, unit
  return 1, "seconds"


def _set_axes(axes: Any, low: float, high: float, logarithmic: bool) -> None:
  if logarithmic:
    axes.set_xscale("log")
    axes.set_xlim(low / 1.2, high * 1.2)
    subs = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=subs))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
  else:
    axes.set_xlim(0, high * 1.03)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
  axes.xaxis.set_major_formatter(short)
  axes.yaxis.set_major_formatter(short)


def short(value: float, position: int | None = None) -> str:
  """Formats a tick as 0.5, 250 or 1.5k; EngFormatter prints 0.5 as 500m."""
  del position  # Matplotlib passes it.
  for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if abs(value) >= size:
      return f"{value / size:g}{suffix}"
  return f"{value:g}"


def _add_legend(
  picture: Any, handles: Sequence[Any], title: str | None
) -> None:
  for handle in handles:
    handle.set_label(_filled(handle.get_label(), _LONGEST_LABEL))
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
