"""A learner on a machine of a cluster; if it dies, on another machine."""

import functools
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from seedx import files, signals, types
from seedx.app.runs import resuming, run_folders
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

T = TypeVar("T")
Work = Callable[[pathlib.Path, bool, threading.Event, signals.Ending], T]

# Time to wait for the end of the previous learner, whose machine may be alive
# although the cluster lost it; and the time between two checks.
_LEFT_SECONDS = 180.0
_LOOK_SECONDS = 0.5


def run(
  work: Work[T],
  config: launch_config.Config,
  run_dir: pathlib.Path,
  resumes: bool,
  stop: threading.Event,
  ending: signals.Ending,
) -> T:
  """Trains on a machine of a cluster.

  Args:
    work: function `(run_dir, resumes, stop, ending)` that trains a run.
    config: config of the cluster.
    run_dir: directory that all machines share, and in which no process trains.
    resumes: whether the directory has a run to continue.
    stop: event that ends the run early.
    ending: signal that ended the run, if any.

  Returns:
    The result of `work`.

  Raises:
    types.ConfigError: the run cannot be trained on the cluster.
    Exception: see `ray_cluster.elsewhere`; and any error of the run.
  """
  there = functools.partial(_run_there, work, run_dir.absolute(), resumes)
  return ray_cluster.elsewhere(there, config, stop, ending)


def _run_there(
  work: Work[T],
  run_dir: pathlib.Path,
  resumes: bool,
  stop: threading.Event,
  ending: signals.Ending,
) -> T:
  """Trains on this machine, or continues a run that another machine began."""
  host = socket.gethostname()
  if not run_dir.is_dir():
    raise types.ConfigError(
      "expected a run directory on a file system that all machines of the"
      f" cluster share, found no {run_dir} on {host}"
    )
  _wait_until_left(run_dir, stop)
  folder = files.Folder(run_dir)
  if folder.has(run_folders.CONFIG) and not resumes:
    saved = resuming.saved(run_dir)
    if not saved:  # The run begins again.
      resuming.remove_files(run_dir)
    since = f"checkpoint {max(saved)}" if saved else "the beginning"
    print(f"the learner continues from {since} on {host}", file=sys.stderr)
    resumes = bool(saved)
  return work(run_dir, resumes, stop, ending)


def _wait_until_left(run_dir: pathlib.Path, stop: threading.Event) -> None:
  """Waits for another learner to end; types.ConfigError if it does not."""
  deadline = time.monotonic() + _LEFT_SECONDS
  while True:
    try:
      with run_folders.claimed(run_dir):
        return
    except types.ConfigError:
      if stop.wait(_LOOK_SECONDS) or time.monotonic() > deadline:
        raise
