"""The figure of `benchmarks.control_study`: curves of seedx and of CleanRL."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import figure, ticker

from experiments.figures import dark

_COLOURS = {"seedx": "#0072B2", "cleanrl": "#D55E00"}
_NAMES = {"seedx": "seedx", "cleanrl": "CleanRL"}
_MARKERS = {"seedx": "o", "cleanrl": "s"}
_LOOK: Any = {
  "font.size": 14,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "grid.color": "0.88",
}


def draw(results: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
  """Draws mean and single seeds of both programs, and the figure's dark twin.

  Args:
    results: contents of the study's files.
    path: image file in PNG; the twin is `NAME_dark.png`.
  """
  keys = {(x["algorithm"], x["environment"]) for x in results}
  panels = sorted(keys, key=lambda key: (key[0] != "td3", key))
  columns = min(2, len(panels))
  rows = -(-len(panels) // columns)
  with matplotlib.rc_context(_LOOK):
    picture = figure.Figure(
      figsize=(6 * columns, 4.3 * rows), dpi=100, layout="constrained"
    )
    grid = picture.subplots(rows, columns, squeeze=False).ravel()
    for axes, (algorithm, env) in zip(grid, panels, strict=False):
      axes.set(title=f"{algorithm.upper()}, {env}", xlabel="env steps")
      for program in _COLOURS:
        key = program, algorithm, env
        curves = [
          np.array(x["evaluations"])
          for x in results
          if (x["program"], x["algorithm"], x["environment"]) == key
        ]
        _draw_program(axes, program, curves)
      axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
      axes.legend(frameon=False, loc="upper left")
    for axes in grid[len(panels) :]:
      axes.set_axis_off()
    for axes in grid[::columns]:
      axes.set_ylabel("return of greedy episodes")
    picture.savefig(path, pil_kwargs={"optimize": True})
  dark.main([str(path)])


def _draw_program(
  axes: axes_lib.Axes, program: str, curves: Sequence[np.ndarray]
) -> None:
  if not curves:
    return
  look: Any = {"color": _COLOURS[program], "marker": _MARKERS[program]}
  for steps, returns in (curve.T for curve in curves):
    axes.plot(steps, returns, linewidth=0.8, alpha=0.45, markersize=3, **look)
  mean = np.mean(curves, axis=0)
  seeds = "1 seed" if len(curves) == 1 else f"{len(curves)} seeds"
  label = f"{_NAMES[program]} ({seeds})"
  axes.plot(*mean.T, linewidth=2.5, markersize=7, label=label, **look)
