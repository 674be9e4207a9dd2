"""Saves checkpoints of a run and starts its evaluations."""

import contextlib
import dataclasses
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax

from seedx import checkpoint, envs, files, metrics, trees, types, wire
from seedx.app.runs import evaluations
from seedx.runtime import memory, parts, process

Read = TypeVar("Read")

# The items of a checkpoint: the state of the run, the part that acts, and the
# replay, which only the newest has.
RUN = "run"
ACTING = "acting"
REPLAY = "replay"
# The name of their directory in that of a run.
DIRECTORY = "checkpoints"
# How many of the newest checkpoints are kept, besides the best.
_KEPT = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How often a run is saved.

  Attributes:
    checkpoint_every_seconds: seconds between two checkpoints; 0 for only one,
      at the end. What is evaluated is saved, too.
    checkpoint_replay_gib: the largest replay that a checkpoint keeps, in GiB of
      all devices; a larger one is empty after a resume.
  """

  checkpoint_every_seconds: float = types.setting(
    60.0, changes="resume", labels=False, low=0.0, high=types.MAX_SECONDS
  )
  checkpoint_replay_gib: float = types.setting(
    1.0, changes="resume", labels=False, low=0.0
  )

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a setting that is out of range."""
    types.check_settings(self)


def directory(run_dir: str | os.PathLike[str]) -> files.Folder:
  """The directory of a run's checkpoints."""
  return files.Folder(run_dir).folder(DIRECTORY)


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
  """Saves checkpoints of a run, and starts its evaluations.

  The score of a checkpoint is the mean return in training; where the run is
  evaluated, that of the checkpoint's evaluation, and unknown without one.
  Checkpoints are written on a thread of their own, one at a time.

  Attributes:
    is_saved: whether the last checkpoint of the run is on the disk.
  """

  def __init__(
    self,
    run: process.Process,
    run_dir: str | os.PathLike[str],
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
    self._newest: Mapping[str, metrics.Value] = {}
    self.is_saved = False
    self._run = run
    self._run_dir = run_dir
    self._checkpoints = checkpoint.Checkpoints(
      directory(run_dir), keep=_KEPT, newest_only=[REPLAY]
    )
    self._config = config
    self._evaluation = evaluation
    # Held while a checkpoint is written.
    self._writing = threading.Lock()
    self._saved_seconds = time.monotonic()
    self._said_too_large = False
    self._thread: threading.Thread | None = None
    self._failure: BaseException | None = None
    # Some are known to be too large before the run begins.
    self._kept_replay()

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
    if self._run.replay is not None:
      # A checkpoint of a run that ended badly may be without it.
      steps = [
        x for x in found.steps() if x <= env_steps and found.has(x, REPLAY)
      ]
      try:
        # Anyone may have written it, with a size that ends this process.
        free = memory.free_bytes(jax.devices("cpu")[0])
        most = math.inf if free is None else free
        newest = steps[-1] if steps else env_steps
        self._run.replay.restore(found.restore(newest, REPLAY, most_bytes=most))
      except checkpoint.Damaged as error:
        print(f"the replay starts empty: {error}", file=sys.stderr)
    if self._evaluation is not None:
      self._evaluation.resume(env_steps)

  def measure(self) -> metrics.Line:
    """The metrics of the last checkpoint; none before the first."""
    return self._newest

  def check(self) -> None:
    """Saves and evaluates if it is time to. Call this regularly.

    Raises:
      BaseException: the error of the last checkpoint, but one of the disk.
    """
    seconds = time.monotonic() - self._saved_seconds
    saves = 0 < self._config.checkpoint_every_seconds <= seconds
    if self._thread is not None and self._thread.is_alive():
      return
    self._rate()
    env_steps = self._run.acted.env_steps
    evaluates = self._evaluation is not None and self._evaluation.due(env_steps)
    if not saves and not evaluates:
      return
    try:
      saved = self._save(evaluates)
    except wire.WireError as error:
      if error.code is not wire.StatusCode.UNAVAILABLE:
        raise
      return  # The parameter server restarts soon.
    if self._evaluation is not None and evaluates:
      self._evaluation.start(self._run.clock(saved), self._run.policy(saved))

  def finish(self, interrupted: bool) -> None:
    """Saves a last checkpoint, and evaluates it unless interrupted."""
    try:
      saved = self._save()
    except wire.WireError as error:
      if not interrupted or error.code is not wire.StatusCode.UNAVAILABLE:
        raise
      print(
        "expected the parameter servers at the end, found one that cannot be"
        " reached: there is no last checkpoint",
        file=sys.stderr,
      )
      return
    self.wait()
    self.is_saved = True
    if self._evaluation is not None:
      acting = self._run.policy(saved)
      self._evaluation.finish(self._run.clock(saved), acting, interrupted)
      self._rate()

  @property
  def is_writing(self) -> bool:
    """Whether a checkpoint is on its way to the disk."""
    return self._writing.locked()

  def rescue(self, has_ended: bool = False) -> str:
    """Saves the newest state, where the run ends badly.

    Args:
      has_ended: whether no thread of the run is left; if not, the replay, which
        one of them may hold, is left out.

    Returns:
      Words on what was saved, and how to continue; empty where no checkpoint
      exists and nothing was there to save.
    """
    why = without = ""
    try:
      replay = self._kept_replay()
      saved = self._run.saved()
      env_steps, before = self._run.clock(saved), self._checkpoints.steps()
      if env_steps > max([0, *before]):
        items = {RUN: saved, ACTING: self._acting(saved)}
        if replay is not None and has_ended:
          items[REPLAY] = replay.saved()()
        elif replay is not None:
          without = " without the newest replay"
        with self._writing:
          self._checkpoints.save(env_steps, items, self._score())
    except Exception as error:  # What ends the run may be the reason.
      why = f"its newest state could not be saved ({envs.in_one_line(error)})"
    found = self._checkpoints.steps()
    if not found:
      return why
    way = f"--resume {self._run_dir} continues from checkpoint {found[-1]}"
    return f"{why}{'; ' if why else ''}{way}{without}"

  def wait(self) -> None:
    """Waits until the last checkpoint is written.

    Raises:
      BaseException: its error, but one of the disk.
    """
    if self._thread is not None:
      self._thread.join()
    if self._failure is not None:
      raise self._failure

  def _rate(self) -> None:
    """Scores the checkpoints whose evaluations have ended."""
    means = self._evaluation.means if self._evaluation else {}
    for env_steps in list(means):
      self._checkpoints.held.discard(env_steps)
      try:
        self._checkpoints.rate(env_steps, means.pop(env_steps))
      except OSError as error:
        print(error, file=sys.stderr, flush=True)

  def _save(self, evaluates: bool = False) -> types.Tree:
    """Starts to write a checkpoint; returns the state of the run in it.

    Args:
      evaluates: whether to keep it until `_rate`.
    """
    self.wait()
    replay = self._kept_replay()
    with replay.paused() if replay else contextlib.nullcontext():
      saved = self._run.saved()
      fetch = replay.saved() if replay else None
    self._saved_seconds = time.monotonic()
    score = self._score()
    if evaluates:
      self._checkpoints.held.add(self._run.clock(saved))
    items = {RUN: saved, ACTING: self._acting(saved)}

    def write() -> None:
      try:
        started = time.monotonic()
        if fetch is not None:
          items[REPLAY] = fetch()
        with self._writing:
          size = self._checkpoints.save(self._run.clock(saved), items, score)
        self._newest = {
          "checkpoint_bytes": size,
          "checkpoint_seconds": time.monotonic() - started,
        }
      except OSError as error:  # The next one may succeed.
        print(error, file=sys.stderr, flush=True)
      except BaseException as failure:
        self._failure = failure

    self._thread = threading.Thread(
      target=write, name="checkpointer", daemon=True
    )
    self._thread.start()
    return saved

  def _score(self) -> float:
    """The score of a checkpoint of now; -inf where it is not known."""
    score = None if self._evaluation else self._run.acted.score()
    return -math.inf if score is None else score

  def _kept_replay(self) -> parts.Replay | None:
    """The replay of the run, if it is not too large for a checkpoint."""
    replay = self._run.replay
    if replay is None:
      return None
    most_bytes = self._config.checkpoint_replay_gib * 2**30
    if replay.num_bytes <= most_bytes:
      return replay
    if not self._said_too_large:
      self._said_too_large = True
      print(
        f"checkpoints are without the replay of {replay.num_bytes / 2**30:.2f}"
        " GiB, which is more than --checkpoint-replay-gib"
        f" {self._config.checkpoint_replay_gib:g}: it is empty after a resume",
        file=sys.stderr,
      )
    return None

  def _acting(self, saved: types.Tree) -> types.Tree:
    """The part that acts; raises RuntimeError if a number is not finite."""
    acting = self._run.policy(saved)
    wrong = trees.non_finite(acting)
    if wrong is not None:
      raise RuntimeError(
        "expected finite parameters in a checkpoint, found a NaN or an infinity"
        f" in {wrong}; the checkpoints before are good, --resume with them"
      )
    return acting
