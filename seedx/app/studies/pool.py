"""A pool that trains trials: as processes here, or as tasks of a cluster."""

import pathlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from seedx import metrics, types
from seedx.app.studies import trials

# Whether a trial is to end early, from its newest line of metrics.
Ends = Callable[[trials.Trial, Mapping[str, Any]], bool]

_PROGRESS_SECONDS = 30.0


class Job(Protocol):
  """A trial that has started; see `trials.Running`."""

  def lines(self, stop: threading.Event) -> Iterator[Mapping[str, Any]]:
    """Yields lines of metrics as they are written, until the end or `stop`."""

  def end(self) -> None:
    """Ends the run with a checkpoint."""

  def error(self) -> str:
    """Waits for the end; returns the error in one line, empty for none."""


def never(trial: trials.Trial, line: Mapping[str, Any]) -> bool:
  """Lets each trial train to its end."""
  del trial, line
  return False


class Pool:
  """Places in which trials of one study are trained.

  Attributes:
    run_dir: directory of the study.
    stop: event that ends all trials.
  """

  def __init__(
    self,
    run_dir: pathlib.Path,
    stop: threading.Event,
    places: int = 1,
    start: Callable[[trials.Trial, pathlib.Path], Job] = trials.Running,
    score: str = "episode_return",
  ) -> None:
    """Makes a pool.

    Args:
      run_dir: directory of the study.
      stop: event that ends all trials.
      places: number of trials at a time.
      start: function that starts a trial in the directory of the study.
      score: metric that progress shows.
    """
    self.run_dir = run_dir
    self.stop = stop
    self._places = places
    self._start = start
    self._score = score
    self._newest: dict[str, str] = {}
    self._printed_seconds = time.monotonic()

  def results(
    self, planned: Iterable[trials.Trial], ends: Ends = never
  ) -> Iterator[tuple[trials.Trial, str]]:
    """Trains trials; yields each at its end, with its error or "".

    The next trial is taken when there is a place for it.
    """
    source = iter(planned)
    if self._places == 1:
      for trial in source:
        if self.stop.is_set():
          return
        yield trial, self._train(trial, ends)
      return
    lock = threading.Lock()
    ended: queue.SimpleQueue[tuple[trials.Trial, str] | None] = (
      queue.SimpleQueue()
    )

    def work() -> None:
      while not self.stop.is_set():
        with lock:
          trial = next(source, None)
        if trial is None:
          break
        ended.put((trial, self._train(trial, ends)))
      ended.put(None)

    for _ in range(self._places):
      threading.Thread(target=work, daemon=True).start()
    left = self._places
    while left:
      result = ended.get()
      if result is None:
        left -= 1
      else:
        yield result

  def train(
    self,
    planned: Iterable[trials.Trial],
    ends: Ends = never,
    total: int | None = None,
  ) -> Iterator[tuple[trials.Trial, str]]:
    """Trains trials as `results` does, and prints a line at each end."""
    for k, (trial, error) in enumerate(self.results(planned, ends), 1):
      number = f"{k}/{total}" if total else f"{k}"
      failure = f"failed: {error}".replace("|", "/") if error else ""
      end = failure or self._newest.get(trial.name, "no metrics")
      _print(f"{' '.join([number, trial.name, trial.label]).strip()}: {end}")
      yield trial, failure

  def _train(self, trial: trials.Trial, ends: Ends) -> str:
    """Trains a trial; returns its error, empty for none."""
    try:
      job = self._start(trial, self.run_dir)
    except types.ConfigError as error:
      return str(error)
    try:
      for line in job.lines(self.stop):
        self._note(trial, line)
        if ends(trial, line):
          break
    finally:
      job.end()
    return job.error()

  def _note(self, trial: trials.Trial, line: Mapping[str, Any]) -> None:
    """Prints the progress of all trials from time to time."""
    title = "return" if self._score == "episode_return" else self._score
    value, steps = line.get(self._score), line[metrics.clock(line)]
    text = f"no {title} yet" if value is None else f"{title} {value:.4g}"
    self._newest[trial.name] = f"{text} after {steps:,} env steps"
    now = time.monotonic()
    if self._places > 1 and now >= self._printed_seconds + _PROGRESS_SECONDS:
      self._printed_seconds = now
      _print(f"{trial.name} {self._newest[trial.name]}")


def _print(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
