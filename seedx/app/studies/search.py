"""Searches: which values a sweep tries next, and which trials end early."""

import importlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seedx import metrics, search_spaces, types
from seedx.app.studies import trials

# Trials are first compared after this part of their steps, then after
# `_REDUCTION` times as many, and so on; the best of `_REDUCTION` continues.
_FIRST, _REDUCTION = 9, 3


def grid(space: search_spaces.Space) -> list[dict[str, str]]:
  """Returns all combinations of the values, as words of a command line.

  Raises:
    types.ConfigError: a setting has a range of values.
  """
  for name, values in space.items():
    if isinstance(values, search_spaces.Range):
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
    space: search_spaces.Space,
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
      if isinstance(values, search_spaces.Choice)
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
          if isinstance(values, search_spaces.Choice)
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
        if isinstance(values, search_spaces.Range)
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
