"""The data of the results: rows, the outcomes of their runs, and tables.

`rows.toml` has the rows, `outcomes/ROW/SEED.json` one file for each run, and
`tables/NAME.json` the tables of other programs of `benchmarks/`.
"""

import dataclasses
import datetime
import functools
import importlib.metadata
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

ROOT = pathlib.Path(__file__).parents[2]
_FOLDER = pathlib.Path(__file__).parent
ROWS = _FOLDER / "rows.toml"
OUTCOMES = _FOLDER / "outcomes"
TABLES = _FOLDER / "tables"
_VERSIONS = ("jax", "flax", "optax", "envpool", "numpy")

# How a run is measured: the mean return of the last 100 training episodes at
# its end, or of 100 greedy episodes; the returns of its evaluations; or the
# env steps and seconds until the mean training return reaches `at`.
Measure = Literal["training", "greedy", "evaluation", "reached"]


@dataclasses.dataclass(frozen=True)
class Published:
  """A figure that others have published.

  Attributes:
    by: the program or paper.
    value: the mean return.
    source: address of the page that has the figure.
    deviation: standard deviation over seeds; None if not published.
    env_steps: number of env steps, such as "1M"; empty if not published.
    note: version of the environment, or what else differs.
    at: the entry of `Row.at` that the figure stands beside; None for all.
  """

  by: str
  value: float
  source: str
  deviation: float | None = None
  env_steps: str = ""
  note: str = ""
  at: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
  """Runs of one command with several seeds.

  Attributes:
    name: name of the row, and of the folder of its outcomes.
    table: the table that shows the row.
    command: the experiment and its options, as after `seedx train`.
    measure: the measured result of a run, see `Measure`.
    seeds: the seeds of the runs.
    at: the env steps of evaluations, or returns to reach.
    digits: number of decimals that a page shows.
    minutes: approximate minutes of a run on two cores.
    note: remark beside the command.
    noted: options of the command that the note stands for.
    published: the figures of others.
  """

  name: str
  table: str
  command: str
  measure: Measure = "training"
  seeds: Sequence[int] = (0, 1, 2, 3, 4)
  at: Sequence[float] = ()
  digits: int = 1
  minutes: float = 5.0
  note: str = ""
  noted: str = ""
  published: Sequence[Published] = ()

  @property
  def words(self) -> list[str]:
    """The words of the command, without its seed."""
    return self.command.split()

  @property
  def env_steps(self) -> int:
    """Number of env steps of a run."""
    return int(self.words[self.words.index("--total-steps") + 1])

  @functools.cached_property
  def outcomes(self) -> Mapping[int, "Outcome"]:
    """The outcomes of its runs, by seed."""
    return {
      seed: Outcome(**json.loads(path.read_text()))
      for seed in self.seeds
      if (path := self.path(seed)).exists()
    }

  def path(self, seed: int) -> pathlib.Path:
    """Returns the file of the outcome of a seed."""
    return OUTCOMES / self.name / f"{seed}.json"

  def values(self, at: float = 0.0) -> dict[int, float]:
    """Returns the returns by seed, of the evaluation at env step `at`."""
    values = {k: x.value(self.measure, at) for k, x in self.outcomes.items()}
    return {k: x for k, x in values.items() if x is not None}

  @property
  def commits(self) -> list[str]:
    """The commits of its runs; "" for one without a record."""
    return sorted({x.commit or "" for x in self.outcomes.values()})


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of a run; None stands for an unknown value.

  Attributes:
    seed: seed of the run.
    training: mean return of the last 100 training episodes at the end.
    greedy: mean return of 100 greedy episodes at the end.
    evaluations: mean returns of evaluations, by env steps.
    reached: env steps and seconds until the mean return of the last 100
      training episodes reached a return, by that return.
    commit: commit of seedx.
    date: day of the run's end.
    versions: versions of packages.
    machine: the machine in words.
    cpu: kind of CPU, see `cpu`; a fingerprint is of this kind.
    fingerprint: digest of the agent after a few updates, see `fingerprints`.
  """

  seed: int
  training: float | None = None
  greedy: float | None = None
  evaluations: Mapping[str, float] = dataclasses.field(default_factory=dict)
  reached: Mapping[str, Sequence[float]] = dataclasses.field(
    default_factory=dict
  )
  commit: str | None = None
  date: str | None = None
  versions: Mapping[str, str] | None = None
  machine: str | None = None
  cpu: str | None = None
  fingerprint: str | None = None

  def value(self, measure: Measure, at: float) -> float | None:
    """Returns the measured return; None if there is none."""
    if measure == "evaluation":
      # An evaluation begins after the step that reaches its number.
      near = [x for x in self.evaluations if at <= int(x) < 1.02 * at]
      return self.evaluations[near[0]] if near else None
    return self.greedy if measure == "greedy" else self.training

  def write(self, path: pathlib.Path) -> None:
    """Writes the file of the outcome."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in vars(self).items() if v is not None and v != {}}
    path.write_text(json.dumps(kept, indent=1) + "\n")


@functools.cache
def rows() -> Mapping[str, Row]:
  """Reads all rows, by name."""
  read = tomllib.loads(ROWS.read_text())
  made = [_row(values, read["sources"]) for values in read["row"]]
  names = [row.name for row in made]
  if len({*names}) < len(names):
    raise ValueError(f"expected rows with different names, found {names}")
  return {row.name: row for row in made}


def _row(values: Mapping[str, Any], sources: Mapping[str, str]) -> Row:
  published = tuple(
    Published(**{**x, "source": sources[x["source"]]})
    for x in values.get("published", ())
  )
  return Row(**{**values, "published": published})


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
  """Returns the mean, and the sample standard deviation (NaN of one value)."""
  deviation = statistics.stdev(values) if len(values) > 1 else math.nan
  return statistics.fmean(values), deviation


def cpu() -> str:
  """Returns the kind of CPU: its model, and a checksum of its features.

  XLA compiles for the features, on which rounding depends.
  """
  text = pathlib.Path("/proc/cpuinfo").read_text()
  entries = dict(re.findall(r"^(model name|flags)\s*:\s*(.*)$", text, re.M))
  features = zlib.crc32(entries.get("flags", "").encode())
  return f"{entries.get('model name', 'unknown')}, features {features:08x}"


def versions() -> dict[str, str]:
  """Returns the versions of the packages that decide about numbers."""
  return {name: importlib.metadata.version(name) for name in _VERSIONS}


def provenance() -> dict[str, Any]:
  """Returns the commit, the date, the versions and the machine."""
  cores = len(os.sched_getaffinity(0))
  return {
    "commit": git("rev-parse", "--short=7", "HEAD"),
    "date": f"{datetime.date.today()}",
    "versions": versions(),
    "machine": f"{cores} CPU core{'s' * (cores > 1)}",
    "cpu": cpu(),
  }


def git(*words: str, root: pathlib.Path = ROOT) -> str:
  """Returns the output of a command of Git; empty if the command fails."""
  process = subprocess.run(
    ["git", "-C", str(root), *words], capture_output=True, text=True
  )
  return process.stdout.strip() if not process.returncode else ""
