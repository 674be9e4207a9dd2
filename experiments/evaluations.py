"""Evaluations: what a policy reaches in whole episodes, as statistics."""

import json
import pathlib
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import settings
from seedx import envs, metrics, types
from seedx.agents import base
from seedx.runtime import evaluator, leases

_RESAMPLES = 10_000


def summary(returns: np.ndarray) -> dict[str, float | int]:
  """Mean, median, interquartile mean and its 95% bootstrap interval.

  Args:
    returns: `[episodes]`, at least one.
  """
  from scipy import stats

  draws = np.random.default_rng(0).integers(
    len(returns), size=(_RESAMPLES, len(returns))
  )
  means = stats.trim_mean(returns[draws], 0.25, axis=1)
  low, high = np.quantile(means, (0.025, 0.975))
  return {
    "episodes": len(returns),
    "mean": float(np.mean(returns)),
    "median": float(np.median(returns)),
    "iqm": float(stats.trim_mean(returns, 0.25)),
    "iqm_low": float(low),
    "iqm_high": float(high),
  }


def in_words(found: Mapping[str, Any]) -> str:
  """A summary as a line."""
  return (
    f"mean {found['mean']:.1f}, median {found['median']:.1f}, interquartile"
    f" mean {found['iqm']:.1f} (95% interval {found['iqm_low']:.1f} to"
    f" {found['iqm_high']:.1f}) of {found['episodes']} episodes"
  )


class Periodic:
  """Evaluates a run every so many env steps, on a thread beside it.

  Each evaluation plays other episodes, greedily. One that is due while another
  is under way is left out. Each leaves a line in `evaluations.jsonl`.

  Attributes:
    newest: what of the last one joins the lines of metrics.
    words: what it found; empty before the first.
  """

  def __init__(
    self, given: Any, make_agent: base.MakeAgent, run_dir: pathlib.Path
  ) -> None:
    """Evaluates nothing yet.

    Args:
      given: options of `settings.Common`.
      make_agent: of the environment's spec.
      run_dir: where the lines go.

    Raises:
      types.ConfigError: the agent cannot be evaluated.
    """
    env = settings.environment(given)
    config = evaluator.Config(env, num_episodes=given.evaluate_episodes)
    self.newest: Mapping[str, metrics.Value] = {}
    self.words = ""
    self._evaluator = evaluator.Evaluator(
      make_agent(envs.spec(env), None), config
    )
    self._given = given
    self._path = run_dir / "evaluations.jsonl"
    self._due_steps = self._last_steps = -1
    self._stop = threading.Event()
    self._thread: threading.Thread | None = None
    self._failure: BaseException | None = None

  def resume(self, env_steps: int) -> None:
    """The run goes on after so many env steps, which have been evaluated."""
    every = self._given.evaluate_every_steps
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
      given = self._given
      place = given.evaluate_episodes * (
        env_steps // given.evaluate_every_steps
      )
      seed = leases.evaluation_seed(given.seed, place)
      played = self._evaluator.play(acting, seed, self._stop)
      if self._stop.is_set():
        return
      found = summary(played.returns)
      line = {"env_steps": env_steps, **found, "cut": played.cut}
      with self._path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
      self.newest = {"evaluation_return": found["mean"]}
      self.words = in_words(found)
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
