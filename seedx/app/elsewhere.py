"""A learner on some machine of a cluster, and on another where that dies."""

import functools
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from seedx import checkpoint, files, signals, types
from seedx.app.runs import checkpointer, run_dirs
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

T = TypeVar("T")
Work = Callable[[pathlib.Path, bool, threading.Event, signals.Ending], T]

# How long a learner waits until the one before it has ended, which may have
# lost its cluster but not its machine; and how often it looks.
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
    work: `(run_dir, resumes, stop, ending)`, trains on the machine it is on.
    config: of the cluster.
    run_dir: on a file system that all machines share; nobody trains in it.
    resumes: whether the run is in there, and goes on.
    stop: ends it early.
    ending: the signal that does.

  Returns:
    What the work returns.

  Raises:
    types.ConfigError: it cannot be run there.
    Exception: see `ray_cluster.elsewhere`, and whatever the run fails with.
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
  """Trains on this machine, or goes on with what another has begun."""
  host = socket.gethostname()
  if not run_dir.is_dir():
    raise types.ConfigError(
      "expected a run directory on a file system that all machines of the"
      f" cluster share, found no {run_dir} on {host}"
    )
  _wait_until_left(run_dir, stop)
  folder = files.Folder(run_dir)
  if folder.has(run_dirs.CONFIG) and not resumes:
    saved = checkpoint.Checkpoints(checkpointer.directory(run_dir)).steps()
    if not saved:  # It begins again.
      for name in run_dirs.FILES:
        folder.remove(name)
      folder.remove_folder(checkpointer.DIRECTORY)
    since = f"checkpoint {max(saved)}" if saved else "the beginning"
    print(f"the learner goes on from {since} on {host}", file=sys.stderr)
    resumes = bool(saved)
  return work(run_dir, resumes, stop, ending)


def _wait_until_left(run_dir: pathlib.Path, stop: threading.Event) -> None:
  """Waits until no other learner trains in a directory.

  Raises:
    types.ConfigError: one still does.
  """
  deadline = time.monotonic() + _LEFT_SECONDS
  while True:
    try:
      with run_dirs.claimed(run_dir):
        return
    except types.ConfigError:
      if stop.wait(_LOOK_SECONDS) or time.monotonic() > deadline:
        raise
