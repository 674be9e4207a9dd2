"""Results of an arena as text and as JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from seedx.app.arena import ratings


class Pair(NamedTuple):
  """The numbers of one player against another.

  Attributes:
    first: games in which the player moved first.
    second: games in which the player moved second.
  """

  first: ratings.Counts
  second: ratings.Counts

  def both(self) -> ratings.Counts:
    """Returns the numbers of all games."""
    return self.first.plus(self.second)


class Exam(NamedTuple):
  """The numbers of lines of a game, and of those that a player lost."""

  lost_as_first: int
  lines_as_first: int
  lost_as_second: int
  lines_as_second: int


@dataclasses.dataclass(frozen=True)
class Results:
  """Results of all pairs.

  Attributes:
    pairs: results by the names of two players, of the one that is named first.
    elo: ratings by name.
    exams: exams by name.
  """

  pairs: Mapping[tuple[str, str], Pair]
  elo: Mapping[str, ratings.Estimate]
  exams: Mapping[str, Exam]

  @classmethod
  def of(
    cls,
    names: Sequence[str],
    pairs: Mapping[tuple[str, str], Pair],
    exams: Mapping[str, Exam],
  ) -> "Results":
    """Rates the players; the rating of `random`, if it played, is 0."""
    rated = ratings.elo(
      len(names),
      {
        (names.index(a), names.index(b)): x.both()
        for (a, b), x in pairs.items()
      },
      names.index("random") if "random" in names else None,
    )
    return cls(pairs, dict(zip(names, rated, strict=True)), exams)

  def text(self) -> str:
    """Returns the tables in Markdown."""
    tables = [
      _table(
        (
          "player",
          "opponent",
          "moves",
          "won, drawn, lost",
          "lost",
          "score (95% interval)",
        ),
        [
          row
          for names, pair in self.pairs.items()
          for row in _rows(names, pair)
        ],
      ),
      _table(
        ("rank", "player", "Elo", "95% interval"),
        [
          [str(rank), name, f"{x.value:.0f}", f"{x.low:.0f} to {x.high:.0f}"]
          for rank, (name, x) in enumerate(self._ranked(), 1)
        ],
      ),
    ]
    if self.exams:
      tables.append(
        _table(
          ("player", "lines lost as first", "lines lost as second"),
          [
            [name, f"{a} of {b}", f"{c} of {d}"]
            for name, (a, b, c, d) in self.exams.items()
          ],
        )
      )
    return "\n\n".join(tables)

  def record(self) -> dict[str, Any]:
    """Returns the results as JSON."""
    return {
      "pairs": [
        {
          "player": player,
          "opponent": opponent,
          "as_first": _recorded(pair.first),
          "as_second": _recorded(pair.second),
          "both": _recorded(pair.both()),
        }
        for (player, opponent), pair in self.pairs.items()
      ],
      "ranking": [
        {"player": name, "elo": x.value, "elo_low": x.low, "elo_high": x.high}
        for name, x in self._ranked()
      ],
      "exhaustive": [
        {"player": name, **exam._asdict()} for name, exam in self.exams.items()
      ],
    }

  def _ranked(self) -> list[tuple[str, ratings.Estimate]]:
    return sorted(self.elo.items(), key=lambda x: -x[1].value)


def _recorded(counts: ratings.Counts) -> dict[str, Any]:
  score = ratings.score(counts)
  return {
    **counts._asdict(),
    "score": score.value,
    "score_low": score.low,
    "score_high": score.high,
  }


def _rows(names: tuple[str, str], pair: Pair) -> list[list[str]]:
  sides = {"first": pair.first, "second": pair.second, "both": pair.both()}
  return [
    [
      *(names if side == "first" else ("", "")),
      side,
      f"{counts.won}, {counts.drawn}, {counts.lost}",
      f"{counts.lost / sum(counts):.2%}",
      _score(counts),
    ]
    for side, counts in sides.items()
  ]


def _score(counts: ratings.Counts) -> str:
  value, low, high = ratings.score(counts)
  return f"{value:.1%} ({low:.1%} to {high:.1%})"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
  lines = [titles, ["-" * width for width in widths], *rows]
  return "\n".join(
    f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines
  )
