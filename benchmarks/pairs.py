"""Compares two runs of seedx at the same time on the same cores.

  git worktree add ../old HEAD~5
  python -m benchmarks.pairs "old=../old seed_vtrace" "new=. seed_vtrace"

Other programs disturb both runs alike. So the ratio of their CPU times per env
step is right to about 10% even on a busy machine; the ratio of rates is not.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import watched
from seedx.metrics import cpu_time

_HEADER = (
  "run",
  "CPU us/env step",
  "of the busiest process",
  "of the others",
  "env steps/s",
)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs all at the same time, and prints a table of costs."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("runs", nargs="+", help="NAME=CHECKOUT EXPERIMENT ...")
  parser.add_argument("--seconds", type=float, default=10.0)
  parser.add_argument(
    "--settle",
    type=float,
    default=3.0,
    help="seconds to wait after the first updates",
  )
  parser.add_argument("--limit", type=float, default=240.0, help="of the start")
  parser.add_argument("--python", default=sys.executable)
  options = parser.parse_args(argv)
  runs = [watched.Run.of(text) for text in options.runs]
  with contextlib.ExitStack() as stack:
    programs = [
      stack.enter_context(
        run.start(
          options.python,
          stack.enter_context(tempfile.TemporaryDirectory(prefix="seedx-")),
        )
      )
      for run in runs
    ]
    watched.wait(programs, _updates, options.limit)
    begin_seconds = time.monotonic() + options.settle
    others = cpu_time.Others()
    watched.wait(
      programs,
      lambda x: watched.has_lasted(x, begin_seconds, options.seconds),
      options.limit,
    )
    cores = (
      others.cores
    )  # Some processes end without a parent that counts them.
  costs = []
  for program in programs:
    start = watched.first_after(program, begin_seconds)
    assert start is not None
    costs.append(watched.cost(start, program.samples[-1]))
  print(watched.table(_HEADER, map(_row, runs, costs)))
  if cores is not None:
    print(f"\nOther programs kept {cores:.2f} cores busy.")
  return 0


def _updates(program: watched.Program) -> bool:
  """Returns whether a program has made at least three updates."""
  return bool(program.samples) and program.samples[-1].progress.updates > 2


def _row(run: watched.Run, cost: watched.Cost) -> list[str]:
  times = (cost.total, cost.busiest, cost.others)
  return [run.name, *(f"{x:.2f}" for x in times), f"{cost.rate:,.0f}"]


if __name__ == "__main__":
  watched.end_on_signals()
  sys.exit(main())
