"""`resume="auto"`: the same command begins a run and later continues it.

A scheduler that starts a job again repeats its command.
"""

import contextlib
import os
import sys

from seedx import checkpoint, files, types
from seedx.app.runs import checkpointer, records, run_folders


def directory(resume: str, run_dir: str) -> str:
  """Returns the directory of the run to resume; empty for a new run.

  Args:
    resume: directory of a run, `run_folders.AUTO`, or empty.
    run_dir: directory of the run that AUTO begins or continues.

  Raises:
    types.ConfigError: `run_dir` is empty with AUTO.
  """
  if resume != run_folders.AUTO:
    return resume
  if not run_dir:
    raise types.ConfigError(
      "expected --run-dir with --resume auto, found none; add --run-dir DIR"
    )
  return run_dir if saved(run_dir) else ""


def forget_unsaved(run_dir: str | os.PathLike[str], name: str | None) -> None:
  """Removes the files of a run that ended before its first checkpoint.

  This process has locked the directory. `name` is that of the experiment; None
  for a script.

  Raises:
    types.ConfigError: the run is not one of this experiment.
  """
  if files.Folder(run_dir).has(run_folders.CONFIG) and not saved(run_dir):
    record = records.read(run_dir)
    records.check_experiment(record, name, os.fspath(run_dir))
    remove_files(run_dir)
    with contextlib.suppress(OSError):  # stderr may be on a full disk.
      print(
        f"the run in {os.fspath(run_dir)} ended without a checkpoint; it begins"
        " again",
        file=sys.stderr,
        flush=True,
      )


def remove_files(run_dir: str | os.PathLike[str]) -> None:
  """Removes the files of a run, so that another one may begin."""
  folder = files.Folder(run_dir)
  for name in run_folders.FILES:
    folder.remove(name)
  for name in (checkpointer.DIRECTORY, run_folders.VIDEOS):
    folder.remove_folder(name)


def saved(run_dir: str | os.PathLike[str]) -> list[int]:
  """Returns the env steps of a run's checkpoints."""
  return checkpoint.Checkpoints(checkpointer.directory(run_dir)).steps()
