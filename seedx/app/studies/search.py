"""Searches: the values that settings may have, and which are tried next.

learning_rate=log:1e-4..1e-2   number in a range, uniform in its logarithm
discount=0.9..0.999            number in a range
unroll_length=8..64            whole number in a range
entropy_cost=0.001|0.01        one of several values

A space with a comma in a value is a JSON object: {"hidden_sizes": "64|64,64"}.
"""

import contextlib
import dataclasses
import importlib
import itertools
import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seedx import metrics, types
from seedx.app.studies import trials

_LOG = "log:"
# Significant digits of a drawn number.
_DIGITS = 6
# Trials are first compared after this part of their steps, then after
# `_REDUCTION` times as many, and so on; the best of `_REDUCTION` continues.
_FIRST, _REDUCTION = 9, 3


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


def space(texts: Mapping[str, Any], kinds: Mapping[str, Any]) -> Space:
  """Parses values of settings; `kinds` are the types of those that may vary.

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


class Draws:
  """The values that a sweep tries; these do not depend on scores.

  Attributes:
    examples: values to check before any training.
  """

  def __init__(self, examples: Sequence[Mapping[str, str]]) -> None:
    self.examples = examples

  def __len__(self) -> int:
    return len(self.examples)

  def __iter__(self) -> Iterator[Mapping[str, str]]:
    """Yields the values of each draw when there is a place for its trials."""
    return iter(self.examples)

  def receive(self, draw: int, score: float | None) -> None:
    """Receives the score of a draw; None if it has failed."""


class TpeDraws(Draws):
  """Draws near those with high scores: Optuna's TPE sampler.

  Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization".
  """

  def __init__(
    self,
    space: Space,
    count: int,
    seed: int,
    past: Sequence[Mapping[str, str]] = (),
  ) -> None:
    """Makes `count` draws, the first of which may be those of a past sweep.

    Raises:
      types.ConfigError: Optuna is not installed.
    """
    # The ends of ranges, and all choices.
    longest = max(len(x.values) for x in space.values())
    super().__init__(
      [
        {k: x.values[min(i, len(x.values) - 1)] for k, x in space.items()}
        for i in range(longest)
      ]
    )
    library = _optuna()
    sampler = library.samplers.TPESampler(seed=seed)
    self._study = library.create_study(direction="maximize", sampler=sampler)
    self._failed = library.trial.TrialState.FAIL
    kinds = library.distributions
    self._distributions = {
      name: kinds.CategoricalDistribution(values.values)
      if isinstance(values, Choice)
      else kinds.IntDistribution(
        round(values.low), round(values.high), values.log
      )
      if values.whole
      else kinds.FloatDistribution(values.low, values.high, values.log)
      for name, values in space.items()
    }
    for words in past:
      self._study.enqueue_trial(
        {
          name: words[name]
          if isinstance(values, Choice)
          else types.number(int if values.whole else float, words[name])
          for name, values in space.items()
        }
      )
    self._space, self._count = space, count
    self._trials: list[Any] = []

  def __len__(self) -> int:
    return self._count

  def __iter__(self) -> Iterator[Mapping[str, str]]:
    for _ in range(self._count):
      trial = self._study.ask(self._distributions)
      self._trials.append(trial)
      yield {
        name: values.word(trial.params[name])
        if isinstance(values, Range)
        else trial.params[name]
        for name, values in self._space.items()
      }

  def receive(self, draw: int, score: float | None) -> None:
    """Reports the score of a draw to the sampler; None if it has failed."""
    state = self._failed if score is None else None
    self._study.tell(self._trials[draw], score, state=state)


class Halving:
  """Ends trials that fall behind: asynchronous successive halving.

  Trials are compared after a ninth and after a third of their env steps. The
  best third of those that have come so far continue. Li et al. 2020,
  https://arxiv.org/abs/1810.05934, by Optuna's pruner.
  """

  def __init__(self, total_steps: int, score: str) -> None:
    """Compares by a metric; types.ConfigError if Optuna is not installed."""
    library = _optuna()
    pruner = library.pruners.SuccessiveHalvingPruner(
      min_resource=max(1, total_steps // _FIRST), reduction_factor=_REDUCTION
    )
    self._study = library.create_study(direction="maximize", pruner=pruner)
    self._pruned = library.trial.TrialState.PRUNED
    self._total_steps, self._score = total_steps, score
    self._trials: dict[str, Any] = {}
    self._lock = threading.Lock()

  def __call__(self, trial: trials.Trial, line: Mapping[str, Any]) -> bool:
    """Returns whether a trial ends now; see `pool.Ends`."""
    value, steps = line.get(self._score), line[metrics.clock(line)]
    if value is None or steps >= self._total_steps:
      return False
    with self._lock:
      if trial.name not in self._trials:
        self._trials[trial.name] = self._study.ask()
      compared = self._trials[trial.name]
      compared.report(value, steps)
      if not compared.should_prune():
        return False
      self._study.tell(compared, state=self._pruned)
      return True


def _optuna() -> Any:
  try:
    library: Any = importlib.import_module("optuna")
  except ImportError as error:
    raise types.ConfigError(
      f'expected Optuna, found none ({error}); pip install "seedx[sweep]"'
    ) from error
  library.logging.set_verbosity(library.logging.ERROR)
  return library


def _values(name: str, text: str, kind: Any) -> Choice | Range:
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
    f"expected --search of {name} as LOW..HIGH, as log:LOW..HIGH with 0 < LOW,"
    f" or as A|B, found {text!r}"
  )
