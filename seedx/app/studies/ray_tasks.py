"""Trials as actors of a Ray cluster. Making one needs Ray."""

import os
import pathlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from seedx.app.studies import trials
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

# Fraction of a GPU's memory that is divided among the trials on it.
_MEMORY_SHARE = 0.9
_LOOK_SECONDS = 0.2


class Tasks:
  """A cluster that trains each trial on a machine with enough resources."""

  def __init__(self, address: str, needs: Mapping[str, float]) -> None:
    """Connects to a cluster; `needs` are a trial's resources, with its CPU."""
    # Trials write their own files, and their options may name relative paths.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    config = launch_config.Config(launcher="ray", ray_address=address)
    self._cluster = ray_cluster.Cluster(config)
    self._needs, resources = needs, dict(needs)
    self._share = float(resources.get("GPU", 0))
    self._options = {
      "num_cpus": resources.pop("CPU"),
      "num_gpus": resources.pop("GPU", 0),
      "resources": resources,
      "max_concurrency": 2,  # `end` does not wait for `next_line`.
    }

  def start(self, trial: trials.Trial, run_dir: pathlib.Path) -> "_Job":
    """Starts a trial as soon as the cluster has room for it."""
    actor = ray_cluster.ray().remote(_Remote).options(**self._options)
    return _Job(actor.remote(trial, run_dir, self._share))

  def room(self) -> int:
    """Returns the number of trials for which the cluster has resources now."""
    total = ray_cluster.ray().cluster_resources()
    fitting = [total.get(k, 0.0) / x for k, x in self._needs.items() if x]
    return max(1, int(min(fitting, default=1)))

  def leave(self) -> None:
    """Disconnects from the cluster."""
    self._cluster.leave()


class _Job:
  """A trial in an actor."""

  def __init__(self, actor: Any) -> None:
    self._actor = actor
    self._error = ""

  def lines(self, stop: threading.Event) -> Iterator[Mapping[str, Any]]:
    ray = ray_cluster.ray()
    line = self._actor.next_line.remote()
    while not stop.is_set():
      ready, _ = ray.wait([line], timeout=_LOOK_SECONDS)
      if not ready:
        continue
      try:
        value = ray.get(line)
      except ray.exceptions.RayError as error:
        self._error = trials.cause(str(error))
        return
      if value is None:
        return
      yield value
      line = self._actor.next_line.remote()

  def end(self) -> None:
    ray = ray_cluster.ray()
    try:
      self._error = self._error or ray.get(self._actor.end.remote())
    except ray.exceptions.RayError as error:
      self._error = trials.cause(str(error))
    ray.kill(self._actor)

  def error(self) -> str:
    return self._error


class _Remote:
  """A trial's process on a machine of the cluster."""

  def __init__(
    self, trial: trials.Trial, run_dir: pathlib.Path, share: float
  ) -> None:
    if 0 < share < 1:
      memory = f"{_MEMORY_SHARE * share:.3f}"
      os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = memory
    self._running = trials.Running(trial, run_dir)
    self._lines = self._running.lines(threading.Event())

  def next_line(self) -> Mapping[str, Any] | None:
    """Waits for the next line of metrics; returns None at the trial's end."""
    return next(self._lines, None)

  def end(self) -> str:
    self._running.end()
    return self._running.error()
