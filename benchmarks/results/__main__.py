r"""Runs rows of the results, renders them, and lists the rows that are stale.

  python -m benchmarks.results run ppo_cartpole dqn_cartpole --minutes 30
  python -m benchmarks.results run --due --minutes 60
  python -m benchmarks.results table peers,peers_replays \
    python -m benchmarks.peers
  python -m benchmarks.results render
  python -m benchmarks.results stale

`run` trains each seed whose outcome is not of today's code, one run at a time,
at the lowest priority; it continues where it was stopped. `--due` selects the
rows that are not current, cheapest first. `table` runs another program, and
keeps the tables that it prints under these names. `stale` trains each row for
some updates, and compares the result with that of the row's commit; then it
writes the table of the long tests with the parts that are stale.
"""

import argparse
import collections
import sys
from collections.abc import Sequence

from benchmarks.results import data, pages, runs, staleness, tables
from tests import long

_DONE = (staleness.CURRENT, staleness.SAME_AGENT)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one of the commands; returns the exit status."""
  words = sys.argv[1:] if argv is None else argv
  if words[:1] == ["table"] and len(words) > 2:
    return tables.measure(words[1].split(","), words[2:])
  options = _parser().parse_args(words)
  unknown = {*options.rows} - data.rows().keys()
  if unknown:
    print(f"expected rows of rows.toml, found {', '.join(sorted(unknown))}")
    return 2
  rows = [data.rows()[name] for name in options.rows]
  if options.command == "render":
    return _render()
  if options.command == "stale":
    return _stale(rows)
  if options.due:
    states = staleness.states([*data.rows().values()])
    due = [data.rows()[k] for k, state in states.items() if state not in _DONE]
    rows += runs.cheapest(due)
  return runs.run(rows, options.seeds, options.minutes, options.core)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.results",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("command", choices=("run", "table", "render", "stale"))
  parser.add_argument("rows", nargs="*", metavar="ROW")
  parser.add_argument("--due", action="store_true")
  parser.add_argument("--seeds", type=_numbers, default=(), metavar="0,1,...")
  parser.add_argument("--minutes", type=float, default=60.0)
  parser.add_argument(
    "--core", type=int, default=-1, help="the only core to use"
  )
  return parser


def _numbers(text: str) -> list[int]:
  return [int(x) for x in text.split(",")]


def _render() -> int:
  """Renders all pages; returns 1 if a number of a page is not accounted for."""
  wrong = []
  for page in pages.PAGES:
    path = data.ROOT / page
    text = pages.rendered(path.read_text())
    path.write_text(text)
    wrong += pages.unlisted(page, text)
  print(*wrong, sep="\n", end="\n" * bool(wrong))
  return int(bool(wrong))


def _stale(rows: Sequence[data.Row]) -> int:
  """Prints the state of each row, and of the long tests."""
  states = staleness.states(rows or [*data.rows().values()])
  for name, state in states.items():
    print(f"{state:15}  {name}")
  counts = collections.Counter(states.values())
  print(", ".join(f"{count} {state}" for state, count in counts.items()))
  if not rows:
    long.write_stale()
  return 0


if __name__ == "__main__":
  sys.exit(main())
