"""Composes the lines of metrics that a run leaves."""

import time
from collections.abc import Sequence

from seedx import metrics
from seedx.runtime import learner, progress


class Monitor:
  """Reads what the roles count, and tells every sink.

  Any sink takes the lines; see `metrics`.
  """

  def __init__(
    self,
    counts: progress.Progress,
    learning: learner.Learner,
    waits: metrics.Waits,
    frames_per_step: int,
    sinks: Sequence[metrics.Sink],
  ) -> None:
    """Writes nothing before `write`."""
    self._progress = counts
    self._learner = learning
    self._waits = waits
    self._frames_per_step = frames_per_step
    self._sinks = list(sinks)
    self._last = (time.monotonic(), 0)

  def write(self) -> dict[str, metrics.Value]:
    """Writes a line to every sink, and returns it."""
    now, env_steps = time.monotonic(), self._progress.env_steps
    then, env_steps_then = self._last
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
    }
    for sink in self._sinks:
      sink.write(line)
    return line

  def close(self) -> None:
    """Closes all sinks."""
    for sink in self._sinks:
      sink.close()
