"""Evaluations of a run during training."""

import dataclasses
import json
import pathlib
import sys
import threading
from collections.abc import Mapping
from typing import Protocol

from seedx import envs, files, metrics, types
from seedx.acting import evaluator
from seedx.app.runs import run_dirs, statistics
from seedx.runtime import process
from seedx.runtime import seeds as seeds_lib

# How long an evaluation that is cancelled may go on.
_CANCEL_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How often a run is evaluated.

  Attributes:
    evaluate_every_steps: env steps between two evaluations; 0 for none.
    evaluate_episodes: number of greedy episodes per evaluation.
  """

  evaluate_every_steps: int = 0
  evaluate_episodes: int = 10

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a setting that is out of range."""
    types.check_ranges(
      self,
      evaluate_every_steps=(0, types.MOST),
      evaluate_episodes=(1, 2**16),
    )


def of(
  run: process.Config, config: Config, run_dir: pathlib.Path
) -> "Periodic | None":
  """Makes the evaluations of a run; None if the config asks for none.

  Args:
    run: config of the pipeline.
    config: how often to evaluate.
    run_dir: directory of the run.
  """
  if not config.evaluate_every_steps:
    return None
  return Periodic(run, config, run_dir)


class Periodic:
  """Evaluates a run at regular intervals of env steps, on its own thread.

  Each evaluation plays different episodes with greedy actions, and appends a
  line to `evaluations.jsonl`. While one is in progress, no other starts.

  Attributes:
    newest: the metrics of the last evaluation; empty before the first.
    means: mean returns, by the env steps of what was evaluated.
    words: a summary of the last evaluation; empty before the first.
  """

  def __init__(
    self, run: process.Config, config: Config, run_dir: pathlib.Path
  ) -> None:
    """Starts no evaluation yet; see `of` for the arguments.

    Raises:
      types.ConfigError: the agent has no `greedy` step.
    """
    self.newest: Mapping[str, metrics.Value] = {}
    self.means: dict[int, float] = {}
    self.words = ""
    self._evaluator = evaluator.Evaluator(
      run.agent.make(envs.spec(run.env)),
      evaluator.Config(run.env, num_episodes=config.evaluate_episodes),
    )
    self._seed = run.seed
    self._config = config
    self._folder = files.Folder(run_dir)
    self._due_steps = self._last_steps = -1
    self._stop = threading.Event()
    self._thread: threading.Thread | None = None
    self._failure: BaseException | None = None

  @property
  def mean(self) -> float | None:
    """The mean return of the last evaluation; None before the first."""
    found = self.newest.get("evaluation_return")
    return found if isinstance(found, float) else None

  def resume(self, env_steps: int) -> None:
    """Skips evaluations that were due at `env_steps` or before."""
    every = self._config.evaluate_every_steps
    self._due_steps = (env_steps // every + 1) * every

  def due(self, env_steps: int) -> bool:
    """Whether it is time for `start`.

    Raises:
      BaseException: the error of the last evaluation, if it failed.
    """
    busy = self._thread is not None and self._thread.is_alive()
    if env_steps < self._due_steps or busy:
      return False
    self._join()
    return True

  def start(self, env_steps: int, acting: types.Tree) -> None:
    """Starts an evaluation of what acts at `env_steps`; does not wait."""
    self.resume(env_steps)
    self._last_steps = env_steps
    self._thread = threading.Thread(
      target=self._run, args=(env_steps, acting), name="evaluator", daemon=True
    )
    self._thread.start()

  def finish(self, env_steps: int, acting: types.Tree, stop: bool) -> None:
    """Evaluates the end of the run, and waits for the result.

    Args:
      env_steps: env steps of the whole run.
      acting: what acts at the end.
      stop: cancel the evaluation in progress instead.

    Raises:
      BaseException: the error of an evaluation that failed.
    """
    if stop:
      self._stop.set()
      if self._thread is not None:
        self._thread.join(_CANCEL_SECONDS)  # Its environments may hang.
      if self._failure is not None:
        raise self._failure
      return
    self._join()
    if env_steps != self._last_steps:
      self.start(env_steps, acting)
      self._join()

  def _join(self) -> None:
    if self._thread is not None:
      self._thread.join()
    if self._failure is not None:
      raise self._failure

  def _run(self, env_steps: int, acting: types.Tree) -> None:
    try:
      config = self._config
      number = config.evaluate_episodes * (
        env_steps // config.evaluate_every_steps
      )
      seed = seeds_lib.evaluation_seed(self._seed, number)
      played = self._evaluator.play(acting, seed, self._stop)
      if self._stop.is_set():
        return
      found = statistics.summary(played.returns)
      line = {"env_steps": env_steps, **found, "cut": played.cut}
      try:
        with self._folder.open(run_dirs.EVALUATIONS, "a") as file:
          file.write((json.dumps(line) + "\n").encode())
      except OSError as error:  # Such as a full disk.
        path = self._folder / run_dirs.EVALUATIONS
        print(f"cannot write {str(path)!r} ({error.strerror})", file=sys.stderr)
      self.newest = {"evaluation_return": found["mean"]}
      self.means[env_steps] = found["mean"]
      self.words = statistics.in_words(found)
    except BaseException as failure:
      self._failure = failure


class HasNewest(Protocol):
  """What happens now and then.

  Attributes:
    newest: the metrics of the last time.
  """

  newest: Mapping[str, metrics.Value]


class Lines:
  """A Sink that adds the newest metrics of what happens now and then."""

  def __init__(self, sink: metrics.Sink, *others: HasNewest | None) -> None:
    """Passes lines to `sink`, with the metrics of `others`."""
    self._sink = sink
    self._others = [other for other in others if other is not None]

  def write(self, line: metrics.Line) -> None:
    """Takes a line of metrics."""
    more = dict(line)
    for other in self._others:
      more |= other.newest
    self._sink.write(more)

  def close(self) -> None:
    """Closes the sink."""
    self._sink.close()
