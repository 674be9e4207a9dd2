"""Directories of runs: their names, locks and files."""

import contextlib
import itertools
import os
import pathlib
import time
from collections.abc import Collection, Iterable, Iterator

from seedx import files, types

# Files of a run.
CONFIG = "config.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
CURVE = "learning_curve.png"
# File with the changes of a population of runs.
LINEAGE = "lineage.jsonl"
# Directory of the videos of a run's evaluations.
VIDEOS = "videos"
FILES = (CONFIG, METRICS, EVALUATIONS, CURVE)
# Exit status of a run whose last checkpoint could not be saved.
UNSAVED = os.EX_IOERR
# Limits of a search for runs: levels of directories; directories of a level,
# and entries of a directory.
_MAX_DEPTH = 3
_MAX_ENTRIES = 10_000
# The value of `resume` that continues the run in `run_dir`, or begins it.
AUTO = "auto"


def new(path: str, name: str, names: Collection[str] = ()) -> pathlib.Path:
  """Makes the directory of a new run or study.

  Args:
    path: directory that the user named; runs/<name>/<time> if empty.
    name: name of the experiment or study.
    names: files that will be written there.

  Raises:
    types.ConfigError: one of these files exists, or the directory is not
      writable; nothing has been made.
  """
  if path:
    return pathlib.Path(files.open_folder(path, names))
  now = time.strftime("%Y%m%d-%H%M%S")
  return pathlib.Path(files.open_new_folder(pathlib.Path("runs", name), now))


@contextlib.contextmanager
def claimed(run_dir: str | os.PathLike[str]) -> Iterator[None]:
  """Locks a directory for training; other processes may still read it.

  Raises:
    types.ConfigError: another process trains there, or opening fails.
  """
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(files.Folder(run_dir).locked())
    except BlockingIOError as error:
      raise types.ConfigError(
        f"another process is training in {str(run_dir)!r}; wait until it ends,"
        f" or stop it{types.see('another-process-is-training')}"
      ) from error
    except OSError as error:
      raise types.ConfigError(
        f"cannot use the directory {str(run_dir)!r} ({error.strerror}); choose"
        " another"
      ) from error
    yield


def inside(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
  """Returns the runs with metrics in a directory, such as a sweep's, sorted.

  Directories below that of a run are not searched, and links not followed.
  """
  runs: list[pathlib.Path] = []
  level = [files.Folder(folder)]
  for _ in range(_MAX_DEPTH):
    below, level = itertools.islice(_below(level), _MAX_ENTRIES), []
    for inner, is_run in below:
      if is_run:
        runs.append(pathlib.Path(inner))
      else:
        level.append(inner)
  return sorted(runs)


def _below(
  level: Iterable[files.Folder],
) -> Iterator[tuple[files.Folder, bool]]:
  """Yields the directories in others, and whether each is readable as a run."""
  for folder in level:
    with contextlib.suppress(OSError):
      for inner in folder.folders(_MAX_ENTRIES):
        is_run = False
        with contextlib.suppress(OSError):
          is_run = inner.has(METRICS)
        yield inner, is_run
