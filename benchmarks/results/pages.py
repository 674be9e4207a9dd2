"""The tables and numbers of pages, rendered from the data.

A page has a table between two comments, and a number of its text between two
others:

  <!-- results: learned -->
  | command | ... |
  <!-- end -->

  PPO reaches <!--= ppo_cartpole.mean -->500.0<!--/-->.

On the pages that `phrases.toml` names, all other numbers of the text belong to
a phrase that it lists, such as "the last 100 episodes".
"""

import functools
import json
import math
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import control_study, critics, self_play
from benchmarks.results import data

# All pages with rendered parts.
PAGES = (
  "README.md",
  *(
    str(path.relative_to(data.ROOT))
    for path in sorted((data.ROOT / "docs").rglob("*.md"))
    if not path.is_relative_to(data.ROOT / "docs" / "_build")
  ),
)
# The README's other sections have no results.
_SECTION = re.compile(r"^## Results\n.*?(?=^## )", re.DOTALL | re.MULTILINE)
_PHRASES = pathlib.Path(__file__).parent / "phrases.toml"
_TABLE = re.compile(
  r"(?<=<!-- results: )([\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL
)
_VALUE = re.compile(r"<!--= ([\w.-]+) -->(.*?)<!--/-->", re.DOTALL)
_NUMBER = re.compile(r"\d")
_UNITS = ((1_000_000, "M"), (1_000, "k"))


def rendered(text: str) -> str:
  """Returns a page's text with all tables and values rendered anew.

  Markdown takes a line that begins with a value's comment as HTML, so the line
  gets the word before.
  """
  text = _TABLE.sub(lambda x: f"{x[1]}{x[2]}{table(x[1])}\n", text)
  text = re.sub(r" ([^\s<>]+)\n( *)(?=<!--= )", r"\n\2\1 ", text)
  return _VALUE.sub(lambda x: f"<!--= {x[1]} -->{value(x[1])}<!--/-->", text)


def unlisted(page: str, text: str) -> list[str]:
  """Returns what is wrong with the numbers in a page's own text.

  These are numbers outside of all tables, values, commands and listed phrases,
  and listed phrases that the text does not contain.
  """
  if page not in phrases():
    return []
  if page == "README.md":
    (text,) = _SECTION.findall(text)
  own = re.sub(r"<!-- results: .*?<!-- end -->", "", text, flags=re.DOTALL)
  own = re.sub(r"```.*?```", "", _VALUE.sub("", own), flags=re.DOTALL)
  own = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " ", own)
  own = " ".join(own.split())
  wrong = []
  for phrase in sorted(phrases()[page], key=len, reverse=True):
    # A digit beside the phrase makes another number.
    whole = re.compile(rf"(?<![\d.,]){re.escape(phrase)}(?!\d|[.,]\d)")
    if not whole.search(own):
      wrong.append(f"{page} has no {phrase!r}, which phrases.toml lists")
    own = whole.sub(" ", own)
  for match in _NUMBER.finditer(own):
    near = own[max(0, match.start() - 30) : match.end() + 30]
    wrong.append(f"a number that is neither data nor listed: {near!r}")
  return wrong


@functools.cache
def phrases() -> Mapping[str, Sequence[str]]:
  """Reads the phrases whose numbers are not results, by page."""
  return tomllib.loads(_PHRASES.read_text())


def table(name: str) -> str:
  """Renders a table."""
  if name in _FORMS:
    rows = [row for row in data.rows().values() if row.table == name]
    return _markdown(*_FORMS[name](rows))
  if name == "control_study":
    return control_study.table(control_study.read())
  if name in _PROGRAMS:
    path = data.ROOT / "benchmarks" / f"{name}.json"
    origin = f"`python -m benchmarks.{name}`: {_json(path)['machine']}"
    return f"{_PROGRAMS[name](path)}\n\n*Measured by {origin}.*"
  kept = _json(data.TABLES / f"{name}.json")
  cells = [[_filled(cell) for cell in row] for row in kept["rows"]]
  text = _markdown(kept["columns"], cells)
  return text + _origin(kept) if "command" in kept else text


def value(name: str) -> str:
  """Renders a number of a text: `ROW.mean`, or `TABLE.NAME`."""
  first, _, second = name.partition(".")
  if first in data.rows():
    return _value_of_row(data.rows()[first], second)
  return _json(data.TABLES / f"{first}.json")["values"][second]


def _origin(table: Mapping[str, Any]) -> str:
  """Returns a sentence with the command, commit and machine of a table."""
  commit = table.get("commit")
  parts = [f"commit {commit}" if commit else "commit not recorded"]
  parts += [table[name] for name in ("date", "machine") if name in table]
  parts += [f"{k} {v}" for k, v in table.get("versions", {}).items()]
  return f"\n\n*Measured by `{table['command']}`: {', '.join(parts)}.*"


def _filled(cell: str) -> str:
  """Returns a table's cell with the values of names in braces."""
  return re.sub(r"\{([\w.-]+)\}", lambda x: value(x[1]), cell)


def short(number: float) -> str:
  """Returns a number of env steps, such as 428k or 1.25M."""
  for unit, name in _UNITS:
    if number >= unit:
      return f"{number / unit:.3g}{name}"
  return f"{number:g}"


def _value_of_row(row: data.Row, name: str) -> str:
  """Renders the returns, what was reached, or the number of seeds."""
  returns = [*row.values(row.at[-1] if row.at else 0.0).values()]
  texts: Mapping[str, Callable[[], str]] = {
    "mean": lambda: _number(row, data.mean_and_deviation(returns)[0]),
    "low": lambda: _number(row, min(returns)),
    "high": lambda: _number(row, max(returns)),
    "steps": lambda: _range(row, 0, short),
    "seconds": lambda: _range(row, 1, lambda x: f"{x:,.0f}"),
    "published": lambda: _published(row, None),
    "seeds": lambda: f"{len(returns or row.outcomes)} seeds",
  }
  return texts[name]()


def _returns(rows: Sequence[data.Row]) -> tuple[list[str], list[list[str]]]:
  """Renders rows with the mean return, and the return of each seed."""
  columns = ["command", "env steps", "mean", "seeds", "published", "commit"]
  lines = []
  for row in rows:
    for at in row.at or (0.0,):
      returns = row.values(at)
      lines.append(
        [
          f"`{_command(row)}`" + (f" ({row.note})" if row.note else ""),
          short(at or row.env_steps),
          _mean(row, [*returns.values()]),
          _seeds(row, returns),
          _published(row, at or None) or "-",
          _commit(row),
        ]
      )
  return columns, lines


def _reached(rows: Sequence[data.Row]) -> tuple[list[str], list[list[str]]]:
  """Renders rows with the env steps and seconds to a return."""
  columns = ["command", "return", "seeds", "env steps", "seconds", "commit"]
  lines = [
    [
      f"`{_command(row)}`",
      f"{row.at[-1]:g}",
      _numbers([*row.outcomes]) if row.outcomes else "-",
      _range(row, 0, short),
      _range(row, 1, lambda x: f"{x:,.0f}"),
      _commit(row),
    ]
    for row in rows
  ]
  return columns, lines


def _command(row: data.Row) -> str:
  """Returns the command without options that a column or the page states."""
  command = (
    row.command.replace(f" {row.noted}", "") if row.noted else row.command
  )
  return re.sub(r" --(total-steps|evaluate-[\w-]+) \d+", "", command)


def _mean(row: data.Row, returns: Sequence[float]) -> str:
  if not returns:
    return "not measured"
  mean, deviation = data.mean_and_deviation(returns)
  text = _number(row, mean)
  return (
    text if math.isnan(deviation) else f"{text} ± {_number(row, deviation)}"
  )


def _seeds(row: data.Row, returns: Mapping[int, float]) -> str:
  if not returns:
    return "-"
  text = ", ".join(_number(row, x) for x in returns.values())
  return f"{text} ({_numbers([*returns])})"


def _numbers(seeds: Sequence[int]) -> str:
  """Returns seeds as a range, such as 0-4, or as 0, 2 if one is missing."""
  seeds = sorted(seeds)
  if len(seeds) > 1 and seeds == [*range(seeds[0], seeds[-1] + 1)]:
    return f"{seeds[0]}-{seeds[-1]}"
  return ", ".join(map(str, seeds))


def _number(row: data.Row, number: float) -> str:
  return f"{number:,.{row.digits}f}"


def _range(row: data.Row, part: int, text: Callable[[float], str]) -> str:
  """Renders the lowest and highest env steps, or seconds, to the last goal."""
  goal = f"{row.at[-1]:g}"
  outcomes = row.outcomes.values()
  numbers = [x.reached[goal][part] for x in outcomes if goal in x.reached]
  if not numbers:
    return "not measured"
  low, high = text(min(numbers)), text(max(numbers))
  spread = low if low == high else f"{low}-{high}"
  if len(numbers) == len(outcomes):
    return spread
  return f"{spread} ({len(numbers)} of {len(outcomes)} seeds)"


def _published(row: data.Row, at: float | None) -> str:
  """Renders the published figures, in the order of the data."""
  texts = []
  for x in row.published:
    if x.at not in (None, at):
      continue
    text = f"[{x.by}]({x.source}) {x.value:,}"
    if x.deviation is not None:
      text += f" ± {x.deviation:,}"
    text += f" at {x.env_steps}" if x.env_steps else ""
    texts.append(text + (f" ({x.note})" if x.note else ""))
  return "; ".join(texts)


def _commit(row: data.Row) -> str:
  """Renders the commits of a row, and whether the row is old."""
  if not row.outcomes:
    return "-"
  commits = [f"`{x}`" if x else "not recorded" for x in row.commits]
  is_old = not all(x.fingerprint for x in row.outcomes.values())
  return ("old: " if is_old else "") + ", ".join(commits)


_FORMS = {
  "reached": _reached,
  "learned": _returns,
  "atari": _returns,
  "control": _returns,
  "mujoco": _returns,
  "mujoco_1m": _returns,
}


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  lines = [columns, ["---"] * len(columns), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@functools.cache
def _json(path: pathlib.Path) -> Mapping[str, Any]:
  return json.loads(path.read_text())


# Tables of programs with data of their own.
_PROGRAMS: Mapping[str, Callable[[pathlib.Path], str]] = {
  "critics": lambda path: critics.table(
    {k: x for k, x in _json(path).items() if k != "machine"}
  ),
  "self_play": lambda path: self_play.table(self_play.Results(path)),
}
