"""Checkpoints of a run, and the start of its evaluations."""

import contextlib
import dataclasses
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from seedx import checkpoint, envs, files, metrics, signals, trees, types, wire
from seedx.app.runs import evaluations
from seedx.runtime import memory, process, process_parts

Read = TypeVar("Read")

# Items of a checkpoint: the state of the run, the acting parameters, and the
# replay, which only the newest checkpoint has.
RUN = "run"
ACTING = "acting"
REPLAY = "replay"
# Directory of the checkpoints in a run's directory.
DIRECTORY = "checkpoints"
_setting = functools.partial(types.setting, changes="resume", labels=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Settings of a run's checkpoints.

  Attributes:
    checkpoint_every_seconds: seconds between two checkpoints; 0 for only one,
      at the end. Each evaluation saves a checkpoint, too.
    checkpoint_replay_gib: size of the largest replay that a checkpoint keeps,
      in GiB over all devices; a larger one is empty after a resume.
    keep_checkpoints: number of newest checkpoints that are kept, besides the
      best one.
    keep_every_steps: env steps after which a checkpoint is written that is
      kept, too; 0 for none.
  """

  checkpoint_every_seconds: float = _setting(
    60.0, low=0.0, high=types.MAX_SECONDS
  )
  checkpoint_replay_gib: float = _setting(1.0, low=0.0)
  keep_checkpoints: int = _setting(2, low=1)
  keep_every_steps: int = _setting(0, low=0)

  def __post_init__(self) -> None:
    types.check_settings(self)


def directory(run_dir: str | os.PathLike[str]) -> files.Folder:
  """Returns the directory of a run's checkpoints."""
  return files.Folder(run_dir).folder(DIRECTORY)


def newest_first(checkpoints: checkpoint.Checkpoints) -> list[int]:
  """Returns the env steps of all checkpoints, newest first.

  Raises:
    types.ConfigError: there is no checkpoint.
  """
  steps = checkpoints.steps()
  if not steps:
    raise types.ConfigError(
      f"expected a checkpoint in {str(checkpoints.directory)!r}, found none yet"
      "; a run saves one every --checkpoint-every-seconds and one at its end"
    )
  return steps[::-1]


def chosen(
  checkpoints: checkpoint.Checkpoints, which: str, flag: str = "--checkpoint"
) -> list[int]:
  """Returns the env steps of the checkpoints that `which` allows, in order.

  Args:
    checkpoints: the checkpoints of a run.
    which: "latest", "best", or the env steps of a checkpoint.
    flag: option in the error.

  Raises:
    types.ConfigError: there is no such checkpoint.
  """
  if which == "latest":
    return newest_first(checkpoints)
  if which == "best":
    return checkpoints.ranked()
  steps = checkpoints.steps()
  with contextlib.suppress(ValueError):
    if types.number(int, which) in steps:
      return [types.number(int, which)]
  raise types.ConfigError(
    f"expected {flag} latest, best or one of {', '.join(map(str, steps))},"
    f" found {which!r}"
  )


def first_whole(
  checkpoints: checkpoint.Checkpoints,
  wanted: Callable[[], Sequence[int]],
  read: Callable[[int], Read],
) -> tuple[int, Read]:
  """Returns the first undamaged checkpoint's env steps, and what was read.

  Reports the damaged ones before it.

  Args:
    checkpoints: the checkpoints; the run may still be training.
    wanted: returns the env steps of the checkpoints to try, in order.
    read: reads the checkpoint at these env steps; raises `checkpoint.Damaged`
      to try the next one.

  Raises:
    types.ConfigError: no checkpoint can be read.
  """
  damaged: dict[int, str] = {}
  while True:
    left = [step for step in wanted() if step not in damaged]
    if not left:
      raise types.ConfigError(
        f"{'; '.join(damaged.values())}; no other checkpoint is left to try"
      )
    try:
      result = read(left[0])
    except checkpoint.Damaged as error:
      # A run that is still training may have just removed the checkpoint.
      if left[0] in checkpoints.steps():
        damaged[left[0]] = str(error)
      continue
    for message in damaged.values():
      print(f"{message}; taking checkpoint {left[0]} instead", file=sys.stderr)
    return left[0], result


def arrays(
  checkpoints: checkpoint.Checkpoints, env_steps: int, item: str
) -> Mapping[str, np.ndarray]:
  """Reads an item of any structure, and returns its arrays by path.

  Anyone may have written the item, so it may be larger than memory.

  Raises:
    checkpoint.Damaged: the item is damaged, or larger than the free memory.
    types.ConfigError: an older version of seedx wrote it.
  """
  free = memory.free_bytes(jax.devices("cpu")[0])
  max_bytes = math.inf if free is None else free
  read: Mapping[str, np.ndarray] = checkpoints.restore(
    env_steps, item, max_bytes=max_bytes
  )
  return read


class Checkpointer:
  """Writer of a run's checkpoints, which also starts its evaluations.

  The score of a checkpoint is the mean return in training. In a run with
  evaluations, the score is the mean return of the checkpoint's evaluation, if
  any. A thread writes the checkpoints, one at a time.

  Attributes:
    is_saved: whether the last checkpoint of the run is on the disk.
    unwritten: names of what could not be written: the last checkpoint, scores.
  """

  def __init__(
    self,
    run: process.Process,
    run_dir: str | os.PathLike[str],
    config: Config,
    evaluation: evaluations.Periodic | None,
  ) -> None:
    self._line: Mapping[str, metrics.Value] = {}
    self.is_saved = False
    self.unwritten: list[str] = []
    self._run = run
    self._run_dir = run_dir
    self._checkpoints = checkpoint.Checkpoints(
      directory(run_dir),
      config.keep_checkpoints,
      config.keep_every_steps,
      newest_only=[REPLAY],
    )
    self._config = config
    self._evaluation = evaluation
    if evaluation is not None:
      evaluation.clock = run.clock.name
    # Held while a checkpoint is written.
    self._writing = threading.Lock()
    self._saved_seconds, self._saved_steps = time.monotonic(), 0
    self._reported_too_large = False
    self._thread: threading.Thread | None = None
    self._failure: BaseException | None = None
    # Reports as early as possible that a replay is too large.
    self._kept_replay()

  def restore(self) -> None:
    """Restores the run from its newest undamaged checkpoint.

    Raises:
      types.ConfigError: no checkpoint exists, or its arrays do not fit the run.
    """
    checkpoints = self._checkpoints
    env_steps, _ = first_whole(
      checkpoints,
      lambda: newest_first(checkpoints),
      lambda step: self._run.restore(
        lambda shapes: checkpoints.restore(step, RUN, shapes)
      ),
    )
    for damaged in checkpoints.steps():
      if damaged > env_steps:
        path = checkpoints.set_aside(damaged)
        print(f"checkpoint {damaged} was moved to {path}", file=sys.stderr)
    self._saved_steps = env_steps
    if not self._restore_replay(env_steps):
      self._run.refill(env_steps)
    if self._evaluation is not None:
      self._evaluation.resume(env_steps)

  def measure(self) -> metrics.Line:
    """Returns the metrics of the last checkpoint; none before the first."""
    return self._line

  def check(self) -> None:
    """Saves or evaluates the run if that is due. Call this regularly.

    Raises:
      BaseException: the error of the last checkpoint or the last evaluation.
        An OSError of a checkpoint, such as a full disk, is only printed.
    """
    seconds = time.monotonic() - self._saved_seconds
    saves = 0 < self._config.checkpoint_every_seconds <= seconds
    if self._thread is not None and self._thread.is_alive():
      return
    self._rate()
    env_steps = self._run.clock.now()
    if every := self._config.keep_every_steps:
      saves |= env_steps // every > self._saved_steps // every
    evaluates = self._evaluation is not None and self._evaluation.due(env_steps)
    if not saves and not evaluates:
      return
    try:
      steps, acting = self._save(evaluates)
    except wire.WireError as error:
      if error.code is not wire.StatusCode.UNAVAILABLE:
        raise
      return  # The parameter server restarts; a later check saves.
    if self._evaluation is not None and evaluates:
      self._evaluation.start(steps, acting)

  def finish(self, interrupted: bool) -> None:
    """Saves a last checkpoint, and evaluates it unless interrupted.

    After an OSError, such as a full disk, `is_saved` is False.
    """
    try:
      env_steps, acting = self._save()
    except wire.WireError as error:
      if not interrupted or error.code is not wire.StatusCode.UNAVAILABLE:
        raise
      self.unwritten.append("the last checkpoint")
      print(
        "the last checkpoint could not be saved: a parameter server cannot be"
        " reached",
        file=sys.stderr,
      )
      return
    self.wait()
    with contextlib.suppress(OSError):
      self.is_saved = env_steps in self._checkpoints.steps()
    if not self.is_saved:
      self.unwritten.append(f"checkpoint {env_steps}")
    if self._evaluation is not None:
      self._evaluation.finish(env_steps, acting, interrupted)
      self._rate()

  @property
  def is_writing(self) -> bool:
    """Whether a checkpoint is being written to the disk."""
    return self._writing.locked()

  def rescue(self, has_ended: bool = False, resumes: bool = True) -> str:
    """Saves the newest state of a run that ends with an error.

    Args:
      has_ended: whether all threads of the run have ended. If not, the replay
        is not saved, since a thread may be using it.
      resumes: whether the run could continue from its newest state.

    Returns:
      A message about what was saved and how to continue; empty if there is no
      checkpoint and nothing to save.
    """
    failure = omission = ""
    try:
      replay = self._kept_replay()
      saved = self._run.saved()
      env_steps = self._run.clock.of(saved)
      if env_steps > max([0, *self._checkpoints.steps()]):
        items = {RUN: saved, ACTING: self._acting(saved)}
        if replay is not None and has_ended:
          items[REPLAY] = replay.saved()()
        elif replay is not None:
          omission = " without the newest replay"
        with self._writing:
          self._checkpoints.save(env_steps, items, self._score())
    except Exception as error:  # Perhaps the same error ends the run.
      failure = (
        f"its newest state could not be saved ({envs.in_one_line(error)})"
      )
    steps = self._checkpoints.steps()
    if not steps:
      return failure
    resume = f"--resume {self._run_dir} continues from checkpoint {steps[-1]}"
    if not resumes:
      omission = ""
      resume = (
        f"--init-from {self._run_dir} begins a new run with the parameters of"
        f" checkpoint {steps[-1]}"
      )
    return f"{failure}{'; ' if failure else ''}{resume}{omission}"

  def wait(self) -> None:
    """Waits until the last checkpoint is written.

    Raises:
      BaseException: the error of writing; an OSError is only printed.
    """
    if self._thread is not None:
      self._thread.join()
    if self._failure is not None:
      raise self._failure

  def _restore_replay(self, env_steps: int) -> bool:
    """Restores the newest replay of a run; returns False if there is none."""
    replay, checkpoints = self._run.replay, self._checkpoints
    if replay is None:
      return False
    # A checkpoint of a run that crashed may lack its replay.
    steps = [
      x
      for x in checkpoints.steps()
      if x <= env_steps and checkpoints.has(x, REPLAY)
    ]
    try:
      if steps:
        replay.restore(arrays(checkpoints, steps[-1], REPLAY))
        return True
      reason = "it was not saved, see --checkpoint-replay-gib"
    except (checkpoint.Damaged, types.ConfigError) as error:
      reason = str(error)
    print(f"the replay starts empty: {reason}", file=sys.stderr)
    return False

  def _rate(self) -> None:
    """Scores the checkpoints whose evaluations have ended."""
    means = self._evaluation.means if self._evaluation else {}
    for env_steps in list(means):
      self._checkpoints.held.discard(env_steps)
      try:
        self._checkpoints.rate(env_steps, means.pop(env_steps))
      except OSError as error:
        score = f"the score of checkpoint {env_steps}"
        self.unwritten.append(score)
        signals.print_at_once(f"cannot write {score} ({error.strerror})\n")

  def _save(self, evaluates: bool = False) -> tuple[int, types.Tree]:
    """Starts to write a checkpoint; returns its steps and acting parameters."""
    self.wait()
    replay = self._kept_replay()
    with replay.paused() if replay else contextlib.nullcontext():
      saved = self._run.saved()
      fetch = replay.saved() if replay else None
    self._saved_seconds = time.monotonic()
    self._saved_steps = self._run.clock.now()
    score, steps = self._score(), self._run.clock.of(saved)
    if evaluates:
      # Keeps the checkpoint until `_rate` scores it.
      self._checkpoints.held.add(steps)
    acting = self._acting(saved)
    items = {RUN: saved, ACTING: acting}

    def write() -> None:
      try:
        started = time.monotonic()
        if fetch is not None:
          items[REPLAY] = fetch()
        with self._writing:
          size = self._checkpoints.save(steps, items, score)
        self._line = {
          "checkpoint_bytes": size,
          "checkpoint_seconds": time.monotonic() - started,
        }
      except OSError as error:  # The next checkpoint may succeed.
        signals.print_at_once(f"{error}\n")
      except BaseException as failure:
        self._failure = failure

    self._thread = threading.Thread(
      target=write, name="checkpointer", daemon=True
    )
    self._thread.start()
    return steps, acting

  def _score(self) -> float:
    """Returns the score with which a checkpoint is saved; -inf if unknown."""
    score = None if self._evaluation else self._run.acted.score()
    return -math.inf if score is None else score

  def _kept_replay(self) -> process_parts.Replay | None:
    """Returns the replay, unless it is too large for a checkpoint."""
    replay = self._run.replay
    if replay is None:
      return None
    max_bytes = self._config.checkpoint_replay_gib * 2**30
    if replay.num_bytes <= max_bytes:
      return replay
    if not self._reported_too_large:
      self._reported_too_large = True
      print(
        "checkpoints do not include the replay, which is empty after a resume:"
        f" it has {replay.num_bytes / 2**30:.2f} GiB, more than"
        f" --checkpoint-replay-gib {self._config.checkpoint_replay_gib:g}",
        file=sys.stderr,
      )
    return None

  def _acting(self, saved: types.Tree) -> types.Tree:
    """Returns the acting parameters; RuntimeError if they are not finite."""
    acting = self._run.policy(saved)
    wrong = trees.non_finite(acting)
    if wrong is not None:
      raise RuntimeError(
        "expected finite parameters in a checkpoint, found a NaN or an infinity"
        f" in {wrong}; --resume continues from an earlier checkpoint"
      )
    return acting
