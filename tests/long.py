"""Runs the tests marked `long`, file by file, and writes a table of results.

  .ci/long                      runs the parts that did not pass at this commit
  .ci/long --only tests/chaos/chaos_test.py --only coverage

Two other parts repeat the fast set with XLA's default settings, as users run
it, and measure the lines of the package that the fast and the slow set execute.
The part with the oldest result comes first. The table is written after each
part, so that an interrupted run continues with the next one.

  .ci/long --ages    prints the number of commits since each part passed

A part is stale if the files that it covers changed more than 100 commits ago,
after it passed. `python -m benchmarks.results stale` marks it in the table.
"""

import argparse
import datetime
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

ROOT = pathlib.Path(__file__).parent.parent
TABLE = ROOT / ".ci" / "long.md"
_PYTEST = [sys.executable, "-m", "pytest"]
_COVERAGE = [sys.executable, "-m", "coverage"]
_HEAD = """\
# The long set

Written by `.ci/long`: the newest run of each part. CONTRIBUTING.md describes
the sets of tests. "stale" marks a part whose files changed more than 100
commits ago, after it passed.

| part | passed | result | minutes | when (UTC) | commit |
|---|---|---|---|---|---|
"""
_STALE = " (stale)"
_STALE_COMMITS = 100
# The files that each part covers, beside its own file; by default, all code.
_CODE = ("seedx", "experiments")
_COVERED = {
  "tests/agents/own_network_test.py": ("seedx/agents", "seedx/networks"),
  "tests/repository/colab_test.py": (*_CODE, "colab"),
  "tests/repository/install_test.py": (*_CODE, "setup.py", "docker"),
  "tests/repository/packages_test.py": (*_CODE, "setup.py"),
  "tests/repository/readme_test.py": (*_CODE, "README.md", "docs"),
  "tests/wire/security_test.py": ("seedx/wire",),
}


def main() -> int:
  parser = argparse.ArgumentParser(prog=".ci/long")
  parser.add_argument("--only", action="append", metavar="PART")
  parser.add_argument("--list", action="store_true", help="print the parts")
  parser.add_argument("--ages", action="store_true", help="print their ages")
  options = parser.parse_args()
  if options.ages:
    print(*ages(), sep="\n")
    return 0
  parts = ["as users", "coverage", *_files()]
  unknown = {*(options.only or ())} - {*parts}
  if unknown:
    parser.error(f"expected parts of {parts}, found {sorted(unknown)}")
  if options.list:
    print(*parts, sep="\n")
    return 0
  rows, commit = _read(), _commit()
  rows = {part: row for part, row in rows.items() if part in parts}
  if options.only:
    due = options.only
  else:
    due = [x for x in parts if rows.get(x, [""] * 6)[1::4] != ["yes", commit]]
    due.sort(key=lambda part: rows[part][4] if part in rows else "")
  for part in due:
    print(f"+ {part}", flush=True)
    rows[part] = [part, *_run(part), commit]
    TABLE.write_text(_HEAD + _lines(rows[part] for part in sorted(rows)))
    print(_lines([rows[part]]), end="", flush=True)
  return 0 if all(rows[part][1] == "yes" for part in due) else 1


def ages() -> list[str]:
  """Returns a line for each part: the number of commits since it passed.

  A part whose newest run failed has "failed" instead.
  """
  return [
    f"{_age(row) if row[1] != 'NO' else 'failed':>7}  {part}, {row[2]}"
    f"{_STALE * _is_stale(row)}"
    for part, row in sorted(_read().items())
  ]


def write_stale() -> None:
  """Marks the stale parts in the table, and prints them."""
  rows = _read()
  for part, row in rows.items():
    row[1] = row[1].removesuffix(_STALE)
    if _is_stale(row):
      row[1] += _STALE
      print(f"{part} is stale: ran {_age(row)} commits ago")
  TABLE.write_text(_HEAD + _lines(rows[part] for part in sorted(rows)))


def _age(row: Sequence[str]) -> str:
  """Returns the number of commits since the row's; "unknown" without it."""
  _, text = _output(
    ["git", "rev-list", "--count", f"{row[5].strip('+')}..HEAD"]
  )
  return text.strip() or "unknown"


def _is_stale(row: Sequence[str]) -> bool:
  """Returns whether its files changed, after it passed, too long ago."""
  part, commit = row[0], row[5].strip("+")
  covered = _COVERED.get(part, _CODE)
  own = [part] if part.endswith(".py") else ["tests"]
  words = ["git", "rev-list", f"{commit}..HEAD", "--", *covered, *own]
  status, changes = _output(words)
  if status:
    return True  # An unknown commit.
  if not changes.split():
    return False
  first = changes.split()[-1]
  _, count = _output(["git", "rev-list", "--count", f"{first}..HEAD"])
  return int(count) >= _STALE_COMMITS


def _files() -> list[str]:
  command = [*_PYTEST, "--collect-only", "-m", "long", "-n", "0"]
  process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  names = re.findall(r"^(tests/.*?\.py)::", process.stdout, re.MULTILINE)
  assert names, process.stdout + process.stderr
  return sorted({*names})


def _run(part: str) -> tuple[str, str, str, str]:
  """Runs a part; returns the cells of its row except the first and last."""
  start = time.monotonic()
  if part == "as users":
    passed, result = _tests([], SEEDX_TESTS_AS_USERS="1")
  elif part == "coverage":
    words = ["-m", "not long and not alone"]
    passed, result = _tests(words, [*_COVERAGE, "run", "-m", "pytest"])
    _output([*_COVERAGE, "combine", "-q"])
    _, total = _output([*_COVERAGE, "report", "--format=total"])
    result = f"{total.strip()}% of lines; {result}"
  else:
    passed, result = _tests([part, "-m", "long", "-n", "0"])
  minutes = f"{(time.monotonic() - start) / 60:.1f}"
  now = datetime.datetime.now(datetime.UTC)
  return "yes" if passed else "NO", result, minutes, f"{now:%Y-%m-%d %H:%M}"


def _tests(
  words: Sequence[str],
  command: Sequence[str] = _PYTEST,
  **environment: str,
) -> tuple[bool, str]:
  status, text = _output([*command, *words], show=True, **environment)
  counts = re.findall(r"^(\d+ \w+(?:, \d+ \w+)*) in ", text, re.MULTILINE)
  return status == 0, counts[-1] if counts else f"exit status {status}"


def _output(
  command: Sequence[str], show: bool = False, **environment: str
) -> tuple[int, str]:
  process = subprocess.Popen(
    command,
    cwd=ROOT,
    env=os.environ | environment,
    stdout=subprocess.PIPE,
    text=True,
  )
  lines = []
  assert process.stdout is not None
  for line in process.stdout:
    lines.append(line)
    if show:
      print(line, end="", flush=True)
  return process.wait(), "".join(lines)


def _commit() -> str:
  """Returns the current commit, with a `+` if files differ from it."""
  _, commit = _output(["git", "rev-parse", "--short=9", "HEAD"])
  words = ["git", "status", "--porcelain", "--", ".", ":!.ci/long.md"]
  return commit.strip() + ("+" if _output(words)[1] else "")


def _read() -> dict[str, list[str]]:
  """Reads the rows of the table, by the names of their parts."""
  text = TABLE.read_text() if TABLE.exists() else ""
  rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
  return {x[0]: x for x in rows if len(x) == 6 and x[0] != "part"}


def _lines(rows: Iterable[Sequence[str]]) -> str:
  return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
  sys.exit(main())
