"""The settings of a run's directory."""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Self

from seedx import files as files_lib
from seedx import types
from seedx.app.runs import (
  checkpointer,
  evaluations,
  records,
  resuming,
  run_folders,
  warm_start,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(checkpointer.Config, evaluations.Config, warm_start.Config):
  """A run's directory, and when the run is logged, saved, evaluated and ended.

  Attributes:
    run_dir: directory for the run's files; runs/<experiment>/<time> if empty.
    resume: directory of a run to resume; or auto, which resumes the run in
      --run-dir if that has a checkpoint, and else begins it there.
    trust: whether to run the code that the resumed directory names, or that of
      an opponent.
    stop_at: mean return at which the run ends early: the mean of an evaluation,
      or, in a run without evaluations, of the last 100 episodes.
    quiet: whether to hide the progress.
    log_every: shortest time between two rows of progress, in seconds; a
      terminal has a status instead, which changes in place.
    sink: MODULE:FACTORY of your own logger; it is called with the run's
      directory and options, and returns a `metrics.Sink`.
    profile: seconds of learning to record for XProf or Perfetto; 0 for none.
    compilation_cache: directory of compiled programs, with which the next run
      starts faster; seedx/compiled in the user's cache if empty, none if "off".
  """

  run_dir: str = types.setting("", changes="start")
  resume: str = types.setting("", changes="start")
  trust: bool = types.setting(False, changes="start")
  stop_at: float = types.setting(
    math.inf, changes="start", low=-types.MAX_VALUE, high=math.inf
  )
  quiet: bool = types.setting(False, changes="start")
  log_every: float = types.setting(
    10.0, changes="start", low=0.0, high=types.MAX_SECONDS
  )
  sink: str = types.setting("", changes="start")
  profile: float = types.setting(
    0.0, changes="start", low=0.0, high=types.MAX_SECONDS
  )
  compilation_cache: str = types.setting("", changes="start")

  def __post_init__(self) -> None:
    types.check_settings(self)
    for name in ("run_dir", "resume", "init_from", "compilation_cache"):
      if "\0" in os.fspath(getattr(self, name)):
        raise types.ConfigError(
          f"expected {name} without a NUL character, found"
          f" {getattr(self, name)!r}"
        )
    warm_start.check(self)
    if self.record_video and not self.evaluate_every_steps:
      raise types.ConfigError(
        "expected --record-video with --evaluate-every-steps, whose evaluations"
        " it records, found it alone; add --evaluate-every-steps 100000"
      )

  @property
  def resumed(self) -> str:
    """The directory of the run to resume; empty for a new run."""
    return "" if self.resume == run_folders.AUTO else self.resume

  def resolved(self) -> Self:
    """Returns the config with the directory that resume="auto" stands for.

    If that directory has no checkpoint, "auto" is left, which begins a run.

    Raises:
      types.ConfigError: `resume` is "auto", and `run_dir` is empty.
    """
    directory = resuming.directory(self.resume, self.run_dir)
    if self.resume != run_folders.AUTO or not directory:
      return self
    return dataclasses.replace(self, resume=directory, run_dir="")


@contextlib.contextmanager
def opened(files: Config, record: records.Record) -> Iterator[pathlib.Path]:
  """Makes and locks the directory of a run."""
  path = os.path.expanduser(files.resumed or files.run_dir)
  if path:
    if not files.resumed and os.path.isdir(path):
      # Checked before anything is written there.
      with run_folders.claimed(path):
        if files.resume:
          resuming.forget_unsaved(path, record.experiment)
        _check_free(path)
    run_dir = pathlib.Path(files_lib.open_folder(path))
  else:
    run_dir = run_folders.new("", record.name)
  with run_folders.claimed(run_dir):
    if not files.resumed:
      _check_free(run_dir)  # Another run may have begun and ended meanwhile.
    try:
      yield run_dir
    except types.ConfigError:
      folder = files_lib.Folder(run_dir)
      if not files.resumed and not folder.has(run_folders.METRICS):
        folder.remove(run_folders.CONFIG)  # The run has not begun.
      raise


def _check_free(run_dir: str | os.PathLike[str]) -> None:
  folder = files_lib.Folder(run_dir)
  if folder.has(run_folders.CONFIG):
    # A run that failed early has no checkpoint.
    saved = resuming.saved(run_dir)
    remedy = "continue it with --resume" if saved else "remove it"
    raise types.ConfigError(
      f"--run-dir {str(run_dir)!r} already has a run; {remedy}, or choose"
      " another directory"
    )
  folders = checkpointer.DIRECTORY, run_folders.VIDEOS
  files_lib.check_free(run_dir, {*run_folders.FILES, *folders})
