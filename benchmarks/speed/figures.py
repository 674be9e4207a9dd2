"""Figures measured on a machine, as JSON lines and as a table."""

import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from seedx import files, types
from seedx.app.studies import trials

_VERSIONS = ("jax", "jaxlib", "flax", "optax", "envpool", "grpcio", "numpy")


class Figure(NamedTuple):
  """A measured number; the unit of a ratio is empty."""

  figure: str
  unit: str
  value: float


class Figures:
  """All measured figures; each `add` writes all of them to the file."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    """Writes the file's first line, which describes the machine.

    Raises:
      types.ConfigError: the file is not writable.
    """
    self._path = pathlib.Path(path)
    self._machine = json.dumps({"machine": machine()}) + "\n"
    # Key: experiment or component, name of the figure, unit.
    self._values: dict[tuple[str, str, str], list[float]] = {}
    self.add("", [])

  def add(self, subject: str, figures: Iterable[Figure]) -> None:
    """Adds figures of an experiment or of a component, and writes the file."""
    for name, unit, value in figures:
      self._values.setdefault((subject, name, unit), []).append(value)
    files.write_file(self._path, self._machine + self.json_lines())

  def json_lines(self) -> str:
    """Returns a line of JSON for each figure: its median and all its values."""
    keys = ("of", "figure", "unit", "value", "values")
    rows = (
      (*key, statistics.median(values), values)
      for key, values in self._values.items()
    )
    return "".join(
      json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows
    )

  def table(self) -> str:
    """Returns one Markdown table of medians per experiment or component."""
    lines: list[str] = []
    rows = sorted(self._values.items(), key=lambda row: row[0][0])
    for subject, group in itertools.groupby(rows, key=lambda row: row[0][0]):
      lines += [
        f"\n**{subject}**\n",
        "| figure | median | unit |",
        "|---|---:|---|",
      ]
      for (_, name, unit), values in group:
        lines.append(
          f"| {name} | {_text(statistics.median(values))} | {unit} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
  """Returns devices, processor, memory and versions as a JSON object."""
  devices, unused = _devices()
  pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  return {
    "devices": devices,
    "unused": unused,
    "processor": platform.processor() or platform.machine(),
    "cpus": len(os.sched_getaffinity(0)),
    "memory_gib": round(pages / 2**30),
    "python": platform.python_version(),
    "versions": {x: importlib.metadata.version(x) for x in _VERSIONS},
  }


def _devices() -> list[str]:
  """Describes used and unused devices; a child process opens and frees them.

  Raises:
    types.ConfigError: JAX cannot start its devices.
  """
  program = "from seedx.app import devices as x; x.check();"
  program += " print(x.described(), x.unused(), sep='\\n')"
  process = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True
  )
  if process.returncode:
    error = trials.cause(process.stderr)
    raise types.ConfigError(error.removeprefix("seedx.types.ConfigError: "))
  return [*process.stdout.split("\n"), "", ""][:2]


def _text(value: float) -> str:
  return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
