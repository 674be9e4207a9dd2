"""A pool that trains trials: as processes here, or as tasks of a cluster."""

import dataclasses
import json
import pathlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from seedx import files, metrics, types
from seedx.app.runs import run_folders
from seedx.app.settings import wording
from seedx.app.studies import trials

# Whether a trial is to end early, from its newest line of metrics.
Ends = Callable[[trials.Trial, Mapping[str, Any]], bool]

# File with the name and the error of each trial that has ended.
ENDED = "ended.jsonl"
_PROGRESS_SECONDS = 30.0


class Job(Protocol):
  """A trial that has started; see `trials.Running`."""

  def lines(self, stop: threading.Event) -> Iterator[Mapping[str, Any]]:
    """Yields lines of metrics as they are written, until the end or `stop`."""

  def end(self) -> None:
    """Ends the run with a checkpoint."""

  def error(self) -> str:
    """Waits for the end; returns the error in one line, empty for none."""


def never(*_: Any) -> bool:
  """Lets each trial train to its end."""
  return False


class Pool:
  """Places in which trials of one study are trained.

  Attributes:
    places: number of trials at a time.
    prepare: function that returns what is started in place of a trial, by
      default the trial; it may raise types.ConfigError.
  """

  def __init__(
    self,
    run_dir: pathlib.Path,
    stop: threading.Event,
    places: int = 1,
    start: Callable[[trials.Trial, pathlib.Path], Job] = trials.Running,
    score: str = "episode_return",
    resumes: bool = False,
  ) -> None:
    """Makes a pool.

    Args:
      run_dir: directory of the study.
      stop: event that ends all trials.
      places: number of trials at a time.
      start: function that starts a trial in the directory of the study.
      score: metric that progress shows.
      resumes: whether the directory may have trials of an earlier pool: those
        that have ended without an error are not trained again, others are
        continued.
    """
    self.run_dir = run_dir
    self.stop = stop
    self.places = places
    self._start = start
    self.prepare: Callable[[trials.Trial], trials.Trial] = lambda x: x
    self._score = score
    self._resumes = resumes
    self._record = Record(run_dir, ENDED)
    past = self._record.lines() if resumes else []
    self._ended = {x.get("name") for x in past if not x.get("error")}
    self._newest: dict[str, str] = {}
    self._printed_seconds = time.monotonic()

  def results(
    self, planned: Iterable[trials.Trial], ends: Ends = never
  ) -> Iterator[tuple[trials.Trial, str]]:
    """Trains trials; yields each at its end, with its error or "".

    The next trial is taken when there is a place for it.
    """
    source = iter(planned)
    if self.places == 1:
      for trial in source:
        if self.stop.is_set():
          return
        yield trial, self._train(trial, ends)
      return
    lock = threading.Lock()
    ended = queue.SimpleQueue[tuple[trials.Trial, str] | None]()

    def work() -> None:
      while not self.stop.is_set():
        with lock:
          trial = next(source, None)
        if trial is None:
          break
        ended.put((trial, self._train(trial, ends)))
      ended.put(None)

    for _ in range(self.places):
      threading.Thread(target=work, daemon=True).start()
    for _ in range(self.places):
      yield from iter(ended.get, None)

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
    if trial.name in self._ended:
      for line in trials.Result.read(trial, self.run_dir).lines:
        self._note(trial, line)
        ends(trial, line)  # It compares other trials with this one.
      return ""
    if self._resumes:
      trial = dataclasses.replace(trial, resumes=True)
    try:
      job = self._start(self.prepare(trial), self.run_dir)
    except types.ConfigError as error:
      return str(error)
    try:
      for line in job.lines(self.stop):
        self._note(trial, line)
        if ends(trial, line):
          break
    finally:
      job.end()
    failure = job.error()
    if not self.stop.is_set():
      self._record.add({"name": trial.name, "error": failure})
    return failure

  def _note(self, trial: trials.Trial, line: Mapping[str, Any]) -> None:
    """Prints the progress of all trials from time to time."""
    title = "return" if self._score == "episode_return" else self._score
    value, clock = line.get(self._score), metrics.clock(line)
    text = f"no {title} yet" if value is None else f"{title} {value:.4g}"
    steps = f"{line[clock]:,} {clock.replace('_', ' ')}"
    self._newest[trial.name] = f"{text} after {steps}"
    now = time.monotonic()
    if self.places > 1 and now >= self._printed_seconds + _PROGRESS_SECONDS:
      self._printed_seconds = now
      _print(f"{trial.name} {self._newest[trial.name]}")


def check_resumed(options: Any, may_differ: Collection[str]) -> None:
  """Checks that only options in `may_differ` changed before a study resumes.

  Raises:
    types.ConfigError: there is no study, or its options differ.
  """
  try:
    past = json.loads(files.Folder(options.run_dir).read(run_folders.CONFIG))
  except (OSError, ValueError) as error:
    raise types.ConfigError(
      f"expected --run-dir of the study to resume, found {options.run_dir!r}"
      f" ({error})"
    ) from error
  now = json.loads(json.dumps(dataclasses.asdict(options)))
  names = [x for x in now if x not in may_differ and now[x] != past.get(x)]
  if names:
    raise types.ConfigError(
      "expected the options of the study to resume, found another value of"
      f" {', '.join(map(wording.flag, names))}"
    )


class Record:
  """A file of a study to which threads add lines of JSON."""

  def __init__(self, run_dir: pathlib.Path, name: str) -> None:
    self._folder, self._name = files.Folder(run_dir), name
    self._lock = threading.Lock()

  def add(self, line: Mapping[str, Any]) -> None:
    """Adds a line."""
    with self._lock, self._folder.open(self._name, "a") as file:
      file.write(f"{json.dumps(line)}\n".encode())

  def lines(self) -> list[Mapping[str, Any]]:
    """Returns all lines; none if there is no file.

    Raises:
      types.ConfigError: a line is not a JSON object.
    """
    if not self._folder.has(self._name):
      return []
    text = self._folder.read(self._name)
    try:
      return [dict(json.loads(line)) for line in text.splitlines()]
    except (TypeError, ValueError) as error:
      raise types.ConfigError(
        f"expected a JSON object in each line of {self._name!r} ({error})"
      ) from error


def _print(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
