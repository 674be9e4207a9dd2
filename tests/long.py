"""Runs the tests marked `long`, file by file, and writes a table of results.

  .ci/long                      runs the parts that did not pass at this commit
  .ci/long --only tests/chaos/chaos_test.py --only coverage

Two other parts repeat the fast set with XLA's default settings, as users run
it, and measure the lines of the package that the fast and the slow set execute.
The part with the oldest result comes first. The table is written after each
part, so that an interrupted run continues with the next one.
"""

import argparse
import datetime
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parent.parent
TABLE = ROOT / ".ci" / "long.md"
_PYTEST = [sys.executable, "-m", "pytest"]
_COVERAGE = [sys.executable, "-m", "coverage"]
_HEAD = """\
# The long set

Written by `.ci/long`: the newest run of each part. CONTRIBUTING.md describes
the sets of tests.

| part | passed | result | minutes | when (UTC) | commit |
|---|---|---|---|---|---|
"""


def main():
  parser = argparse.ArgumentParser(prog=".ci/long")
  parser.add_argument("--only", action="append", metavar="PART")
  parser.add_argument("--list", action="store_true", help="print the parts")
  options = parser.parse_args()
  parts = ["as users", "coverage", *_files()]
  unknown = {*(options.only or ())} - {*parts}
  if unknown:
    parser.error(f"expected parts of {parts}, found {sorted(unknown)}")
  if options.list:
    print(*parts, sep="\n")
    return 0
  rows, commit = _read(parts), _commit()
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


def _files():
  command = [*_PYTEST, "--collect-only", "-m", "long", "-n", "0"]
  process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  names = re.findall(r"^(tests/.*?\.py)::", process.stdout, re.MULTILINE)
  assert names, process.stdout + process.stderr
  return sorted({*names})


def _run(part):
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


def _tests(words, command=_PYTEST, **environment):
  status, text = _output([*command, *words], show=True, **environment)
  counts = re.findall(r"^(\d+ \w+(?:, \d+ \w+)*) in ", text, re.MULTILINE)
  return status == 0, counts[-1] if counts else f"exit status {status}"


def _output(command, show=False, **environment):
  process = subprocess.Popen(
    command,
    cwd=ROOT,
    env=os.environ | environment,
    stdout=subprocess.PIPE,
    text=True,
  )
  lines = []
  for line in process.stdout:
    lines.append(line)
    if show:
      print(line, end="", flush=True)
  return process.wait(), "".join(lines)


def _commit():
  """Returns the current commit, with a `+` if files differ from it."""
  _, commit = _output(["git", "rev-parse", "--short=9", "HEAD"])
  words = ["git", "status", "--porcelain", "--", ".", ":!.ci/long.md"]
  return commit.strip() + ("+" if _output(words)[1] else "")


def _read(parts):
  """Reads the rows of the table, by the names of their parts."""
  text = TABLE.read_text() if TABLE.exists() else ""
  rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
  return {row[0]: row for row in rows if row[0] in parts and len(row) == 6}


def _lines(rows):
  return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
  sys.exit(main())
