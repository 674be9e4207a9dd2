"""Saves checkpoints of a run and starts its evaluations."""

import dataclasses
import math
import pathlib
import sys
import time

from seedx import checkpoint, types, wire
from seedx.app import evaluations
from seedx.runtime import process

# The items of a checkpoint: the state of the run, and the part that acts.
RUN = "run"
ACTING = "acting"
# How many of the newest checkpoints are kept, besides the best.
_KEPT = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How often a run is saved.

  Attributes:
    checkpoint_every_seconds: seconds between two checkpoints; 0 for only one,
      at the end.
  """

  checkpoint_every_seconds: float = 60.0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a setting that is out of range."""
    types.check_ranges(self, checkpoint_every_seconds=(0.0, types.MOST))


def directory(run_dir: pathlib.Path) -> pathlib.Path:
  """The directory of a run's checkpoints."""
  return run_dir / "checkpoints"


def latest(found: checkpoint.Checkpoints) -> int:
  """The env steps of the newest checkpoint.

  Raises:
    types.ConfigError: there is none.
  """
  steps = found.steps()
  if not steps:
    raise types.ConfigError(
      f"expected a checkpoint in {str(found.directory)!r}, found none yet; a"
      " run saves one every --checkpoint-every-seconds and one at its end"
    )
  return steps[-1]


class Checkpointer:
  """Saves checkpoints of a run, and starts its evaluations."""

  def __init__(
    self,
    run: process.Process,
    run_dir: pathlib.Path,
    config: Config,
    evaluation: evaluations.Periodic | None,
  ) -> None:
    """Saves nothing yet.

    Args:
      run: the process to save.
      run_dir: directory of the run.
      config: how often to save.
      evaluation: evaluates the run; None for never.
    """
    self._run = run
    self._checkpoints = checkpoint.Checkpoints(directory(run_dir), keep=_KEPT)
    self._every_seconds = config.checkpoint_every_seconds
    self._evaluation = evaluation
    self._saved_seconds = time.monotonic()

  def restore(self) -> None:
    """Restores the run from its newest checkpoint.

    Raises:
      types.ConfigError: there is no checkpoint, or its arrays do not match.
    """
    newest = latest(self._checkpoints)
    self._run.restore(lambda like: self._checkpoints.restore(newest, RUN, like))
    if self._evaluation is not None:
      self._evaluation.resume(newest)

  def check(self) -> None:
    """Saves and evaluates if it is time to. Call this regularly."""
    seconds = time.monotonic() - self._saved_seconds
    saves = 0 < self._every_seconds <= seconds
    env_steps = self._run.acted.env_steps
    evaluates = self._evaluation is not None and self._evaluation.due(env_steps)
    if not saves and not evaluates:
      return
    saved = self._saved()
    if saved is None:
      return  # The parameter server restarts soon.
    if self._evaluation is not None and evaluates:
      self._evaluation.start(_env_steps(saved), self._run.policy(saved))
    if saves:
      self._save(saved)

  def finish(self, interrupted: bool) -> None:
    """Saves a last checkpoint, and evaluates it unless interrupted."""
    saved = self._saved() if interrupted else self._run.saved()
    if saved is not None:
      self._save(saved)
    self._checkpoints.close()
    if self._evaluation is not None and saved is not None:
      acting = self._run.policy(saved)
      self._evaluation.finish(_env_steps(saved), acting, interrupted)

  def _saved(self) -> types.Tree | None:
    """The state of the run; None if a parameter server is not reachable."""
    try:
      return self._run.saved()
    except wire.WireError as error:
      if error.code is not wire.StatusCode.UNAVAILABLE:
        raise
      return None

  def _save(self, saved: types.Tree) -> None:
    score = self._run.acted.returns.mean()
    try:
      self._checkpoints.save(
        _env_steps(saved),
        {RUN: saved, ACTING: self._run.policy(saved)},
        -math.inf if score is None else score,
      )
    except OSError as error:  # The next one may succeed.
      print(error, file=sys.stderr, flush=True)
    self._saved_seconds = time.monotonic()


def _env_steps(saved: types.Tree) -> int:
  return int(saved["acted"]["env_steps"])
