"""Measures the CPU seconds until a run's first line and its first update.

  python -m benchmarks.start "cold=. ppo --compilation-cache off" "warm=. ppo"

In each of `--rounds` rounds, the runs start one after another. The table has
the lowest values, because other programs only add to the CPU time of a start.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import watched

_HEADER = ("run", "first line, CPU s", "first update, CPU s", "wall s")
_LOG_SECONDS = 0.05


class Start(NamedTuple):
  """The start of a run.

  Attributes:
    first_line: CPU seconds of running processes at the first line.
    first_update: CPU seconds of running processes at the first update.
    wall: seconds until the first update.
  """

  first_line: float
  first_update: float
  wall: float


def main(argv: Sequence[str] | None = None) -> int:
  """Starts each run in each round, and prints a table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("runs", nargs="+", help="NAME=CHECKOUT EXPERIMENT ...")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--limit", type=float, default=240.0, help="of a start")
  parser.add_argument("--python", default=sys.executable)
  options = parser.parse_args(argv)
  runs = [watched.Run.of(text) for text in options.runs]
  starts: dict[str, list[Start]] = {run.name: [] for run in runs}
  for _ in range(options.rounds):
    for run in runs:
      starts[run.name].append(of_run(run, options.python, options.limit))
  rows = (
    [name, *(f"{min(values):.2f}" for values in zip(*each, strict=True))]
    for name, each in starts.items()
  )
  print(watched.table(_HEADER, rows))
  return 0


def of_run(run: watched.Run, python: str, limit: float) -> Start:
  """Starts a run, and ends it after its first update."""
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    with run.start(python, folder, _LOG_SECONDS) as program:
      watched.wait([program], _has_learned, limit)
    first = next(x for x in program.samples if x.progress.updates)
    assert program.first_line is not None
    return Start(
      sum(program.first_line.values()),
      sum(first.cpu_seconds.values()),
      first.seconds - program.start_seconds,
    )


def _has_learned(program: watched.Program) -> bool:
  return bool(program.samples) and program.samples[-1].progress.updates > 0


if __name__ == "__main__":
  watched.end_on_signals()
  sys.exit(main())
