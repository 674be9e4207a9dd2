"""Composes the lines of metrics that a run leaves."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from seedx import metrics
from seedx.runtime import progress


class Learning(Protocol):
  """What is counted of learning, as `learner.Learner` does."""

  @property
  def steps(self) -> int:
    """Updates so far."""

  @property
  def learned_steps(self) -> float:
    """Env steps learned from."""

  @property
  def metrics(self) -> Mapping[str, float]:
    """The newest update's scalars by name."""


class Shares(Protocol):
  """Timed waits, as `metrics.Waits` counts them."""

  def shares(self) -> Mapping[str, float]:
    """Each wait's share of the time since the last call."""


class Monitor:
  """Reads what the roles count, and tells every sink.

  Any sink takes the lines; see `metrics`.
  """

  def __init__(
    self,
    counts: progress.Progress,
    learning: Learning,
    waits: Shares,
    frames_per_step: int,
    sinks: Sequence[metrics.Sink],
    more: Callable[[], metrics.Line] = dict,
  ) -> None:
    """Writes nothing before `write`; `more` adds to each line."""
    self._progress = counts
    self._learner = learning
    self._waits = waits
    self._frames_per_step = frames_per_step
    self._sinks = list(sinks)
    self._more = more
    self._last: tuple[float, int] | None = None
    self._made_seconds = time.monotonic()

  def write(self) -> dict[str, metrics.Value]:
    """Writes a line to every sink, and returns it."""
    now, env_steps = time.monotonic(), self._progress.env_steps
    then, env_steps_then = self._last or (
      self._made_seconds,
      self._progress.first_env_steps,
    )
    self._last = (now, env_steps)
    line: dict[str, metrics.Value] = {
      "wall_seconds": self._progress.wall_seconds,
      "env_steps": env_steps,
      "env_frames": env_steps * self._frames_per_step,
      "learner_steps": self._learner.steps,
      "steps_per_second": (env_steps - env_steps_then) / (now - then),
      "episodes": self._progress.returns.count,
      "episode_return": self._progress.returns.mean(),
      "policy_lag": None,
      "learned_steps": int(self._learner.learned_steps),
      "unrolls_discarded": self._progress.unrolls_discarded,
      **self._learner.metrics,
      **self._waits.shares(),
      **self._more(),
    }
    for sink in self._sinks:
      sink.write(line)
    return line

  def close(self) -> None:
    """Closes all sinks."""
    for sink in self._sinks:
      sink.close()
