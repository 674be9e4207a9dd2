"""The space of a search: values of settings, drawn at random or all of them.

learning_rate=log:1e-4..1e-2   a number between two, uniform in its logarithm
discount=0.9..0.999            a number between two
unroll_length=8..64            a whole number between two
entropy_cost=0.001|0.01        one of some

Where a value has a comma, all is a JSON object: {"hidden_sizes": "64|64,64"}.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from seedx import types

_LOG = "log:"
# Significant digits of a drawn number.
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Choice:
  """One of some values.

  Attributes:
    values: as words of a command line.
  """

  values: tuple[str, ...]

  def draw(self, rng: random.Random) -> str:
    """One of them, each as likely as the others."""
    return rng.choice(self.values)


@dataclasses.dataclass(frozen=True)
class Range:
  """A number between two, which it may be.

  Attributes:
    low: the least.
    high: the largest.
    log: uniform in the logarithm.
    whole: a whole number.
  """

  low: float
  high: float
  log: bool
  whole: bool

  @property
  def values(self) -> tuple[str, ...]:
    """Its ends, as words of a command line."""
    return self._word(self.low), self._word(self.high)

  def draw(self, rng: random.Random) -> str:
    """One of the numbers."""
    low, high = self.low, self.high
    if self.whole:  # Each has an interval of its own, of the same width.
      low, high = low - 0.5, high + 0.5
    if self.log:
      drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
    else:
      drawn = rng.uniform(low, high)
    return self._word(min(max(drawn, self.low), self.high))

  def _word(self, value: float) -> str:
    if self.whole:
      return str(round(value))
    word = f"{value:.{_DIGITS}g}"
    return word if self.low <= float(word) <= self.high else repr(value)


Space = Mapping[str, Choice | Range]


def space(found: Mapping[str, Any], kinds: Mapping[str, Any]) -> Space:
  """Reads what a command line says of a search.

  Args:
    found: settings by their names, as the command line has them.
    kinds: the types of all settings that can be searched, by their names.

  Raises:
    types.ConfigError: there is no such setting, or it cannot be read.
  """
  if not found:
    raise types.ConfigError("expected search SETTING=VALUES,..., found nothing")
  spaces: dict[str, Choice | Range] = {}
  for name, text in found.items():
    name = name.replace("-", "_")
    if name not in kinds:
      raise types.ConfigError(
        f"expected search of settings, which are {', '.join(kinds)}; found"
        f" {name}"
      )
    spaces[name] = _values(name, str(text), kinds[name])
  return spaces


def drawn(space: Space, count: int, seed: int) -> list[dict[str, str]]:
  """Values of each setting as words of a command line, drawn at random.

  Args:
    space: of the settings.
    count: how many times.
    seed: the same one draws the same values.
  """
  rng = random.Random(seed)
  return [{k: x.draw(rng) for k, x in space.items()} for _ in range(count)]


def grid(space: Space) -> list[dict[str, str]]:
  """All combinations of values as words of a command line.

  Raises:
    types.ConfigError: a setting may be any number between two.
  """
  for name, values in space.items():
    if isinstance(values, Range):
      raise types.ConfigError(
        f"expected search of {name} as A|B with method grid, found"
        f" {'..'.join(values.values)}"
      )
  combined = itertools.product(*(x.values for x in space.values()))
  return [dict(zip(space, words, strict=True)) for words in combined]


def _values(name: str, text: str, kind: Any) -> Choice | Range:
  is_log = text.startswith(_LOG)
  words: Sequence[str] = text.removeprefix(_LOG).split("..")
  if len(words) == 2 and kind in (int, float):
    try:
      low, high = (types.number(kind, word) for word in words)
    except ValueError:
      raise _wrong(name, text) from None
    finite = math.isfinite(low) and math.isfinite(high)
    if not finite or not low < high or (is_log and low <= 0):
      raise _wrong(name, text)
    return Range(low, high, is_log, kind is int)
  words = text.split("|")
  if is_log or len(words) < 2 or "" in words or len({*words}) < len(words):
    raise _wrong(name, text)
  return Choice(tuple(words))


def _wrong(name: str, text: str) -> types.ConfigError:
  return types.ConfigError(
    f"expected search of {name} as LOW..HIGH, as log:LOW..HIGH with 0 < LOW, or"
    f" as A|B, found {text!r}"
  )
