"""Places for the trials of a study: CPUs of this machine, or a Ray cluster."""

import contextlib
import dataclasses
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from seedx import types
from seedx.app.studies import pool, ray_tasks, trials
from seedx.launch import config as launch_config

# The most trials that wait for a cluster's resources.
_MAX_TASKS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Options of a study whose trials run at the same time.

  Attributes:
    trial_cpus: number of CPUs of a trial; as many trials run at a time as fit.
    trial_resources: other resources of a trial, such as GPU=0.5; needs Ray.
    ray_address: address of a Ray cluster on which trials run; "local" for a new
      one on this machine alone, "auto" for the one in RAY_ADDRESS or on this
      machine; empty for processes of this machine, without Ray.
  """

  trial_cpus: float = types.setting(1.0, low=0.0)
  trial_resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  ray_address: str = ""

  def __post_init__(self) -> None:
    types.check_settings(self)
    launch_config.check_resources("trial_resources", self.trial_resources)

  @property
  def uses_ray(self) -> bool:
    """Whether trials run as tasks of a Ray cluster."""
    return bool(self.ray_address or self.trial_resources)

  @contextlib.contextmanager
  def opened(
    self,
    run_dir: pathlib.Path,
    stop: threading.Event,
    *,
    waits: bool,
    **options: Any,
  ) -> Iterator[pool.Pool]:
    """Yields a pool of trials: of processes here, or of a cluster's tasks.

    Trials that are more than the cluster has room for wait there if `waits`.
    The other arguments are those of `pool.Pool`.
    """
    places, needs = len(os.sched_getaffinity(0)), self.trial_cpus
    if needs:
      places = max(1, int(places / needs))
    with contextlib.ExitStack() as stack:
      options["start"] = trials.Running
      if self.uses_ray:
        tasks = ray_tasks.Tasks(
          self.ray_address or "local", {"CPU": needs, **self.trial_resources}
        )
        stack.callback(tasks.leave)
        places = _MAX_TASKS if waits else tasks.room()
        options["start"] = tasks.start
      yield pool.Pool(run_dir, stop, places, **options)
