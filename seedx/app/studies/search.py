"""Search spaces: the values that each setting may have.

learning_rate=log:1e-4..1e-2   number in a range, uniform in its logarithm
discount=0.9..0.999            number in a range
unroll_length=8..64            whole number in a range
entropy_cost=0.001|0.01        one of several values

A space with a comma in a value is a JSON object: {"hidden_sizes": "64|64,64"}.
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
  """A set of values, as words of a command line."""

  values: tuple[str, ...]

  def draw(self, rng: random.Random) -> str:
    """Draws one of the values uniformly."""
    return rng.choice(self.values)


@dataclasses.dataclass(frozen=True)
class Range:
  """A range of numbers, ends included.

  Attributes:
    low: smallest number.
    high: largest number.
    log: whether draws are uniform in the logarithm.
    whole: whether only whole numbers are drawn.
  """

  low: float
  high: float
  log: bool
  whole: bool

  @property
  def values(self) -> tuple[str, ...]:
    """The ends of the range, as words of a command line."""
    return self._word(self.low), self._word(self.high)

  def draw(self, rng: random.Random) -> str:
    """Draws a number, as a word of a command line."""
    low, high = self.low, self.high
    if self.whole:  # Without this, rounding would draw the ends too rarely.
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


def space(texts: Mapping[str, Any], kinds: Mapping[str, Any]) -> Space:
  """Parses a search space.

  Args:
    texts: values of each setting, as the command line has them.
    kinds: type of each setting that can be searched.

  Raises:
    types.ConfigError: a setting cannot be searched, or its values cannot be
      parsed.
  """
  if not texts:
    raise types.ConfigError("expected --search SETTING=VALUES,..., found none")
  spaces: dict[str, Choice | Range] = {}
  for name, text in texts.items():
    name = name.replace("-", "_")
    if name not in kinds:
      raise types.ConfigError(
        f"expected --search of a setting among {', '.join(kinds)}; found {name}"
      )
    spaces[name] = _values(name, str(text), kinds[name])
  return spaces


def drawn(space: Space, count: int, seed: int) -> list[dict[str, str]]:
  """Draws values of all settings `count` times, as words of a command line."""
  rng = random.Random(seed)
  return [{k: x.draw(rng) for k, x in space.items()} for _ in range(count)]


def grid(space: Space) -> list[dict[str, str]]:
  """Returns all combinations of the values, as words of a command line.

  Raises:
    types.ConfigError: a setting has a range of values.
  """
  for name, values in space.items():
    if isinstance(values, Range):
      raise types.ConfigError(
        f"expected --search {name}=A|B with method grid, found"
        f" {'..'.join(values.values)}"
      )
  combinations = itertools.product(*(x.values for x in space.values()))
  return [dict(zip(space, words, strict=True)) for words in combinations]


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
    f"expected --search of {name} as LOW..HIGH, as log:LOW..HIGH with 0 < LOW,"
    f" or as A|B, found {text!r}"
  )
