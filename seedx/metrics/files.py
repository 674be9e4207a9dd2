"""The files of a run: its directory, its configuration and its curve."""

import dataclasses
import json
import math
import os
import pathlib
import tempfile
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx import types

# What never falls in a run, and goes on from the checkpoint in one resumed.
_CLOCKS = ("env_steps", "wall_seconds")


def open_run_dir(path: str | os.PathLike[str]) -> pathlib.Path:
  """Makes the directory of a run, and makes sure that files can be written.

  Args:
    path: need not exist; `~` is the home directory.

  Returns:
    The directory.

  Raises:
    types.ConfigError: if a file in it cannot be written.
  """
  run_dir = pathlib.Path(path).expanduser()
  try:
    run_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=run_dir, prefix=".probe-") as probe:
      probe.write(b"seedx")
  except OSError as error:
    raise types.ConfigError(
      f"cannot write in the run directory {str(run_dir)!r}"
      f" ({error.strerror or error}); choose one that you can write in"
    ) from error
  return run_dir


def write_config(run_dir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Writes what was asked of a run to `config.json`.

  Dataclasses become objects; what JSON has nothing for becomes its text.
  """
  text = json.dumps(_plain(config), indent=2, allow_nan=False)
  # Whoever reads it meanwhile sees the old one, and not half of one.
  unfinished = run_dir / "config.unfinished"
  unfinished.write_text(text + "\n", encoding="utf-8")
  unfinished.replace(run_dir / "config.json")


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Reads the lines of a run, which may still be writing them.

  A run that is resumed goes on from its checkpoint: the lines that it had
  written after that are overtaken, and are left out.

  Args:
    path: what `JsonLines` wrote.

  Returns:
    The lines; neither env steps nor wall seconds fall from one to the next.

  Raises:
    OSError: if the file cannot be read.
    KeyError: if a line has no env steps or wall seconds.
  """
  text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
  lines: list[dict[str, Any]] = []
  # The last piece is empty, or a line that is being written.
  for piece in text.split("\n")[:-1]:
    try:
      # A run that was killed left half a line, before the next one's first.
      line = json.loads("{" + piece.rpartition("{")[2])
    except json.JSONDecodeError:
      continue
    if lines and any(line[clock] < lines[-1][clock] for clock in _CLOCKS):
      while lines and any(lines[-1][clock] >= line[clock] for clock in _CLOCKS):
        lines.pop()
    lines.append(line)
  return lines


def _plain(value: Any) -> Any:
  if isinstance(value, np.generic | np.ndarray):
    value = value.tolist()
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    value = {
      field.name: getattr(value, field.name)
      for field in dataclasses.fields(value)
    }
  if isinstance(value, Mapping):
    return {str(key): _plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  exact = value is None or isinstance(value, bool | int | str)
  if exact or (isinstance(value, float) and math.isfinite(value)):
    return value
  return str(value)


def learning_curve(
  metrics_path: str | os.PathLike[str],
  png_path: str | os.PathLike[str],
  title: str,
) -> None:
  """Draws the episode return against env steps and against time.

  Any thread may call it, without a display and while the run still writes.

  Args:
    metrics_path: what `JsonLines` wrote.
    png_path: the picture, replaced in one go if it exists.
    title: text above both panels, wrapped where it is long.

  Raises:
    OSError: if the one cannot be read or the other not written.
  """
  from matplotlib import figure, layout_engine
  from matplotlib.backends import backend_agg

  steps, seconds, returns = _read_curve(pathlib.Path(metrics_path))
  size, unit = time_unit(seconds.max(initial=0.0))
  layout = layout_engine.ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
  picture = figure.Figure(figsize=(12, 5), dpi=100, layout=layout)
  backend_agg.FigureCanvasAgg(picture)
  picture.suptitle(textwrap.fill(title, 60), fontsize=20, parse_math=False)
  panels = picture.subplots(1, 2, sharey=True)
  _draw(panels[0], steps, returns, "env steps")
  _draw(panels[1], seconds / size, returns, f"wall time ({unit})")
  panels[0].set_ylabel("episode return", fontsize=18)
  # Whoever looks at it meanwhile sees the old picture and not half of one.
  unfinished = pathlib.Path(png_path).with_suffix(".unfinished")
  picture.savefig(unfinished, format="png")
  unfinished.replace(png_path)


def time_unit(longest_seconds: float) -> tuple[int, str]:
  """The unit that suits times of up to so many seconds.

  Returns:
    Its size in seconds, and its name in the plural.
  """
  for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
    if longest_seconds >= 2 * size:
      return size, unit
  return 1, "seconds"


def _read_curve(
  path: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Env steps, wall seconds and returns, each `[points]`."""
  points = [
    (line["env_steps"], line["wall_seconds"], line["episode_return"])
    for line in read_lines(path)
    if line["episode_return"] is not None
  ]
  steps, seconds, returns = np.array(points, np.float64).reshape(-1, 3).T
  return steps, seconds, returns


def _draw(axes: Any, x: np.ndarray, y: np.ndarray, label: str) -> None:
  """Draws one panel, large enough to be read at half size."""
  from matplotlib import ticker

  axes.set_xlabel(label, fontsize=18)
  axes.tick_params(labelsize=16)
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="0.88")
  axes.set_axisbelow(True)
  if not len(x):
    axes.set(xticks=[], yticks=[])
    axes.text(
      *(0.5, 0.5, "no episode has ended yet"),
      transform=axes.transAxes,
      **{"fontsize": 18, "ha": "center", "va": "center", "color": "0.3"},
    )
    return
  # Blue of the Okabe-Ito palette; dots, so that a single point is seen.
  marker = "o" if len(x) <= 40 else None
  axes.plot(x, y, color="#0072B2", linewidth=2.5, marker=marker, markersize=6)
  axes.set_xlim(left=0)
  counts = label == "env steps"
  axes.xaxis.set_major_locator(
    ticker.MaxNLocator(5, integer=counts, steps=[1, 2, 5, 10])
  )
  if counts:
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
