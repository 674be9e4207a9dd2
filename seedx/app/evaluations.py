"""Evaluations of a run while it goes on."""

import dataclasses
import json
import pathlib
import threading
from collections.abc import Mapping
from typing import Any

from seedx import envs, metrics, types
from seedx.acting import evaluator, sessions
from seedx.app import statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How often a run is evaluated.

  Attributes:
    evaluate_every_steps: env steps between two evaluations; 0 for none.
    evaluate_episodes: greedy episodes of each of them.
  """

  evaluate_every_steps: int = 0
  evaluate_episodes: int = 10

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be."""
    types.check_ranges(
      self,
      evaluate_every_steps=(0, types.MOST),
      evaluate_episodes=(1, 2**16),
    )


def of(run: Any, config: Config, run_dir: pathlib.Path) -> "Periodic | None":
  """The evaluations of a run, if there are to be any.

  Args:
    run: the pipeline's config.
    config: how often.
    run_dir: where their lines go.
  """
  if not config.evaluate_every_steps:
    return None
  return Periodic(run, config, run_dir)


class Periodic:
  """Evaluates a run every so many env steps, on a thread beside it.

  Each evaluation plays other episodes, greedily. One that is due while another
  is under way is left out. Each leaves a line in `evaluations.jsonl`.

  Attributes:
    newest: what of the last one joins the lines of metrics.
    words: what it found; empty before the first.
  """

  def __init__(self, run: Any, config: Config, run_dir: pathlib.Path) -> None:
    """Evaluates nothing yet; see `of`.

    Raises:
      types.ConfigError: the agent cannot be evaluated.
    """
    self.newest: Mapping[str, metrics.Value] = {}
    self.words = ""
    self._evaluator = evaluator.Evaluator(
      run.agent.make(envs.spec(run.env)),
      evaluator.Config(run.env, num_episodes=config.evaluate_episodes),
    )
    self._seed = run.seed
    self._config = config
    self._path = run_dir / "evaluations.jsonl"
    self._due_steps = self._last_steps = -1
    self._stop = threading.Event()
    self._thread: threading.Thread | None = None
    self._failure: BaseException | None = None

  def resume(self, env_steps: int) -> None:
    """The run goes on after so many env steps, which have been evaluated."""
    every = self._config.evaluate_every_steps
    self._due_steps = (env_steps // every + 1) * every

  def due(self, env_steps: int) -> bool:
    """Whether `start` should be called now.

    Raises:
      BaseException: what the last evaluation failed with.
    """
    busy = self._thread is not None and self._thread.is_alive()
    if env_steps < self._due_steps or busy:
      return False
    self._join()
    return True

  def start(self, env_steps: int, acting: types.Tree) -> None:
    """Evaluates what acts after so many env steps; returns at once."""
    self.resume(env_steps)
    self._last_steps = env_steps
    self._thread = threading.Thread(
      target=self._run, args=(env_steps, acting), name="evaluator", daemon=True
    )
    self._thread.start()

  def finish(self, env_steps: int, acting: types.Tree, stop: bool) -> None:
    """Ends with an evaluation of what was learned in the end.

    Args:
      env_steps: of the whole run.
      acting: what acts then.
      stop: give up the evaluation under way instead.
    """
    if stop:
      self._stop.set()
    self._join()
    if not stop and env_steps != self._last_steps:
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
      seed = sessions.evaluation_seed(self._seed, number)
      played = self._evaluator.play(acting, seed, self._stop)
      if self._stop.is_set():
        return
      found = statistics.summary(played.returns)
      line = {"env_steps": env_steps, **found, "cut": played.cut}
      with self._path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
      self.newest = {"evaluation_return": found["mean"]}
      self.words = statistics.in_words(found)
    except BaseException as failure:
      self._failure = failure


class Lines:
  """A sink whose lines also say what the newest evaluation found."""

  def __init__(self, sink: metrics.Sink, evaluation: Periodic | None) -> None:
    """Passes lines on to `sink`."""
    self._sink = sink
    self._evaluation = evaluation

  def write(self, line: metrics.Line) -> None:
    """Takes one line."""
    newest = self._evaluation.newest if self._evaluation else {}
    self._sink.write({**line, **newest})

  def close(self) -> None:
    """Closes the sink."""
    self._sink.close()
