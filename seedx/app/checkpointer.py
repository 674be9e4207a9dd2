"""Saves checkpoints of a run and starts its evaluations."""

import dataclasses
import math
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from seedx import checkpoint, types, wire
from seedx.app import evaluations
from seedx.runtime import process

Read = TypeVar("Read")

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


def newest_first(found: checkpoint.Checkpoints) -> list[int]:
  """The env steps of all checkpoints, the newest first.

  Raises:
    types.ConfigError: there is none.
  """
  steps = found.steps()
  if not steps:
    raise types.ConfigError(
      f"expected a checkpoint in {str(found.directory)!r}, found none yet; a"
      " run saves one every --checkpoint-every-seconds and one at its end"
    )
  return steps[::-1]


def first_whole(
  found: checkpoint.Checkpoints,
  wanted: Callable[[], Sequence[int]],
  read: Callable[[int], Read],
) -> tuple[int, Read]:
  """Reads the first checkpoint that is whole; says which are not.

  Args:
    found: the checkpoints, of a run that may still be training.
    wanted: the env steps of those to try, in this order.
    read: reads the checkpoint of these env steps.

  Returns:
    Its env steps, and what was read.

  Raises:
    types.ConfigError: none of them is whole, or none can be read by this
      program.
  """
  damaged: dict[int, str] = {}
  while True:
    left = [step for step in wanted() if step not in damaged]
    if not left:
      raise types.ConfigError(
        f"{'; '.join(damaged.values())}; no other is left to try"
      )
    try:
      result = read(left[0])
    except checkpoint.Damaged as error:
      # The run, which is still training, may just have removed it.
      if left[0] in found.steps():
        damaged[left[0]] = str(error)
      continue
    for words in damaged.values():
      print(f"{words}; taking checkpoint {left[0]} instead", file=sys.stderr)
    return left[0], result


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
    """Restores the run from its newest checkpoint that is whole.

    Raises:
      types.ConfigError: there is none, or its arrays do not match.
    """
    found = self._checkpoints
    env_steps, _ = first_whole(
      found,
      lambda: newest_first(found),
      lambda step: self._run.restore(
        lambda shapes: found.restore(step, RUN, shapes)
      ),
    )
    for damaged in found.steps():
      if damaged > env_steps:
        path = found.set_aside(damaged)
        print(f"checkpoint {damaged} is kept as {path}", file=sys.stderr)
    if self._evaluation is not None:
      self._evaluation.resume(env_steps)

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
    else:
      print(
        "expected the parameter servers at the end, found one that cannot be"
        " reached: there is no last checkpoint",
        file=sys.stderr,
      )
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
