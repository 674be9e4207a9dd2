"""Spaces of settings: the values that settings may have, and draws of them.

learning_rate=log:1e-4..1e-2   number in a range, uniform in its logarithm
discount=0.9..0.999            number in a range
unroll_length=8..64            whole number in a range
entropy_cost=0.001|0.01        one of several values

A space with a comma in a value is a JSON object: {"hidden_sizes": "64|64,64"}.
"""

import contextlib
import dataclasses
import math
import random
from collections.abc import Mapping
from typing import Any

from seedx import types

_LOG = "log:"
# Significant digits of a drawn number.
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Choice:
  """A set of values, as words of a command line."""

  values: tuple[str, ...]

  def draw(self, rng: random.Random) -> str:
    """Draws one of the values uniformly."""
    return rng.choice(self.values)


@dataclasses.dataclass(frozen=True)
class Range:
  """A range of numbers, ends included.

  With `log`, draws are uniform in the logarithm; with `whole`, they are whole.
  """

  low: float
  high: float
  log: bool
  whole: bool

  @property
  def values(self) -> tuple[str, ...]:
    """The ends of the range, as words of a command line."""
    return self.word(self.low), self.word(self.high)

  def draw(self, rng: random.Random) -> str:
    """Draws a number, as a word of a command line."""
    low, high = self.low, self.high
    if self.whole:  # Without this, rounding would draw the ends too rarely.
      low, high = low - 0.5, high + 0.5
    if self.log:
      drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
    else:
      drawn = rng.uniform(low, high)
    return self.word(min(max(drawn, self.low), self.high))

  def word(self, value: float) -> str:
    """Returns a number as a word of a command line."""
    if self.whole:
      return str(round(value))
    word = f"{value:.{_DIGITS}g}"
    return word if self.low <= float(word) <= self.high else repr(value)


Space = Mapping[str, Choice | Range]


def space(
  texts: Mapping[str, Any], kinds: Mapping[str, Any], flag: str = "--search"
) -> Space:
  """Parses values of settings; `kinds` are the types of those that may vary.

  `flag` is their option.

  Raises:
    types.ConfigError: a setting cannot be searched, or its values cannot be
      parsed.
  """
  if not texts:
    raise types.ConfigError(f"expected {flag} SETTING=VALUES,..., found none")
  spaces: dict[str, Choice | Range] = {}
  for name, text in texts.items():
    name = name.replace("-", "_")
    if name not in kinds:
      raise types.ConfigError(
        f"expected {flag} of a setting among {', '.join(kinds)}; found {name}"
      )
    spaces[name] = _values(name, str(text), kinds[name], flag)
  return spaces


def drawn(space: Space, count: int, seed: int) -> list[dict[str, str]]:
  """Draws values of all settings `count` times, as words of a command line."""
  rng = random.Random(seed)
  return [{k: x.draw(rng) for k, x in space.items()} for _ in range(count)]


def _values(name: str, text: str, kind: Any, flag: str) -> Choice | Range:
  is_log = text.startswith(_LOG)
  ends, words = text.removeprefix(_LOG).split(".."), text.split("|")
  if len(ends) == 2 and kind in (int, float):
    with contextlib.suppress(ValueError):
      low, high = (types.number(kind, word) for word in ends)
      if -math.inf < low < high < math.inf and (low > 0 or not is_log):
        return Range(low, high, is_log, kind is int)
  elif not is_log and 1 < len(words) == len({*words}) and "" not in words:
    return Choice(tuple(words))
  raise types.ConfigError(
    f"expected {flag} of {name} as LOW..HIGH, as log:LOW..HIGH with 0 < LOW,"
    f" or as A|B, found {text!r}"
  )
