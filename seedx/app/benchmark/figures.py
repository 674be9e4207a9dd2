"""Figures that were measured, as JSON lines and as a table."""

import dataclasses
import itertools
import json
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Figure:
  """A number that was measured.

  Attributes:
    of: the experiment with its options, or the component.
    figure: what the number says.
    unit: of the number; empty for a ratio.
    value: the number.
  """

  of: str
  figure: str
  unit: str
  value: float


def medians(figures: Sequence[Figure]) -> dict[Figure, list[float]]:
  """The figures with the medians over all of the same name, and their values.

  Args:
    figures: of all repetitions, in order.
  """
  values: dict[tuple[str, str, str], list[float]] = {}
  for x in figures:
    values.setdefault((x.of, x.figure, x.unit), []).append(x.value)
  return {
    Figure(*name, statistics.median(found)): found
    for name, found in values.items()
  }


def json_lines(figures: Sequence[Figure]) -> str:
  """One line of JSON for each figure, with its median and all its values."""
  return "".join(
    f"{json.dumps({**dataclasses.asdict(x), 'values': found})}\n"
    for x, found in medians(figures).items()
  )


def table(figures: Sequence[Figure]) -> str:
  """A Markdown table of medians for each experiment or component."""
  lines: list[str] = []
  for of, own in itertools.groupby(
    sorted(medians(figures), key=lambda x: x.of), key=lambda x: x.of
  ):
    lines += [f"\n**{of}**\n", "| figure | median | unit |", "|---|---:|---|"]
    lines += [f"| {x.figure} | {_text(x.value)} | {x.unit} |" for x in own]
  return "\n".join(lines)


def _text(value: float) -> str:
  return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
