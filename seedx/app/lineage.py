"""The picture of a population: lineage and schedules. It loads Matplotlib."""

import itertools
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import matplotlib
from matplotlib import ticker

from seedx import files, metrics, types
from seedx.app import drawing
from seedx.app.runs import run_folders


class Change(NamedTuple):
  """A member's hyper-parameters from a number of its steps on.

  Attributes:
    steps: steps of the member.
    member: index of the member.
    parent: index of the member that it has copied; None for none.
    values: hyper-parameters by name.
  """

  steps: int
  member: int
  parent: int | None
  values: Mapping[str, float]


def read(run_dir: str | os.PathLike[str]) -> list[list[Change]]:
  """Reads changes in order, those of the same time together.

  A study of runs has a `lineage.jsonl`; a population on the device has parents
  and values in its metrics, in which copies between two lines are joined.

  Raises:
    types.ConfigError: the directory has no population.
  """
  folder = files.Folder(run_dir)
  if folder.has(run_folders.LINEAGE):
    lines = map(json.loads, folder.read(run_folders.LINEAGE).splitlines())
    return [[Change(**x)] for x in lines]
  path = pathlib.Path(folder) / run_folders.METRICS
  changes = (
    [[*_of(x)] for x in metrics.read_lines(path)] if path.exists() else []
  )
  if not any(changes):
    raise types.ConfigError(
      f"expected the directory of a population, found {str(folder)!r}"
    )
  return changes


def draw(run_dir: str | os.PathLike[str], path: pathlib.Path) -> None:
  """Draws which member copied which, and the schedules of hyper-parameters.

  A colour stands for the member whose first parameters others have inherited; a
  thin line leads from a member to one that copies it.

  Raises:
    types.ConfigError: there is no population, or the file is not writable.
  """
  changes = read(run_dir)
  first = changes[0][0].values
  with matplotlib.rc_context(drawing.LOOK):
    picture = drawing.new_figure(drawing.ROW_INCHES * (1 + len(first)))
    rows = picture.subplots(1 + len(first), sharex=True, squeeze=False)[:, 0]
    rows[0].set(title="lineage", ylabel="member")
    rows[0].yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    for axes, name in zip(rows[1:], first, strict=True):
      seen = [x.values[name] for together in changes for x in together]
      is_wide = 0 < 10 * min(seen) < max(seen)
      axes.set(ylabel=name.replace("_", " "), yscale=["linear", "log"][is_wide])
      axes.yaxis.set_major_formatter("{x:g}")
    newest: dict[int, Change] = {}
    colours = dict(enumerate(drawing.COLOURS * (1 + len(changes[0]))))
    for together in changes:
      before = dict(colours)
      for change in together:
        k, parent = change.member, change.parent
        old = newest.get(k, change._replace(steps=0))
        for axes, value in zip(rows, [k, *old.values.values()], strict=True):
          axes.hlines(value, old.steps, change.steps, before[k])
        if parent is not None:
          colours[k] = before[parent]
          look = {"color": colours[k], "linewidth": 1.0, "marker": "."}
          rows[0].plot([change.steps] * 2, [parent, k], **look)
        newest[k] = change
    rows[-1].set_xlabel("steps of each member")
    rows[-1].xaxis.set_major_formatter(drawing.short)
    drawing.save(picture, path)


def _of(line: Mapping[str, Any]) -> Iterator[Change]:
  steps = line[metrics.clock(line)]
  for k in itertools.count():
    own = f"{metrics.OF_MEMBER}{k}_"
    values = {x[len(own) :]: y for x, y in line.items() if x.startswith(own)}
    if not values:
      return
    parent = values.pop("parent")
    yield Change(steps, k, None if parent == k else parent, values)
