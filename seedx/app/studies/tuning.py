"""Trains trials by Ray Tune; importing it needs Ray."""

import logging
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

from ray import tune
from ray_cluster.tune import schedulers

from seedx import files, types
from seedx.app.studies import trials as trials_lib
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

# ASHA judges a trial first after this share of its env steps, then after three
# times that; each time, the best third goes on.
_FIRST_SHARE = 1 / 9
_REDUCTION = 3
# Stands for no return.
_LEAST = -1e30
_PROGRESS_SECONDS = 30.0
# How much of a GPU's memory the trials that share it take.
_MEMORY_SHARE = 0.9
_SETTINGS = {
  # Trials write their own files, and find those that options name.
  "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
  "RAY_CHDIR_TO_TRIAL_DIR": "0",
  # The lines below are all that is said.
  "RAY_AIR_NEW_OUTPUT": "0",
  # What a trial fails with is said in a line.
  "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
  "TUNE_DISABLE_SIGINT_HANDLER": "1",
}


class Pool:
  """Trains as many trials at a time as a cluster has room for.

  Attributes:
    run_dir: the directory of the sweep.
    stop: ends all of them.
  """

  def __init__(
    self,
    config: launch_config.Config,
    run_dir: pathlib.Path,
    stop: threading.Event,
  ) -> None:
    """Connects to the cluster, or starts one.

    Args:
      config: of the cluster, and what a trial needs there.
      run_dir: the directory of the sweep, which its machines share.
      stop: ends all trials.

    Raises:
      types.ConfigError: there is no such cluster.
    """
    self.run_dir = run_dir
    self.stop = stop
    self._needs = {"CPU": config.actor_cpus, **config.actor_resources}
    os.environ.update(_SETTINGS)
    # It looks for files that nobody has written.
    name = "ray.tune.analysis.experiment_analysis"
    logging.getLogger(name).setLevel(logging.ERROR)
    self._cluster = ray_cluster.Cluster(config)

  def train(
    self, asked: Sequence[trials_lib.Trial], asha_steps: int | None = None
  ) -> dict[str, str]:
    """Trains them.

    Args:
      asked: the trials.
      asha_steps: the env steps of each, if those that fall behind end early.

    Returns:
      What those that have failed died of, by their names.

    Raises:
      types.ConfigError: the cluster cannot train them.
    """
    progress = _Progress(asked)
    kind = tune.with_parameters(
      _Trainable, asked=asked, run_dir=self.run_dir, needs=self._needs
    )
    tuner = tune.Tuner(
      tune.with_resources(kind, tune.PlacementGroupFactory([self._needs])),
      param_space={"trial": tune.grid_search(list(range(len(asked))))},
      tune_config=tune.TuneConfig(
        scheduler=_asha(asha_steps) if asha_steps else None
      ),
      run_config=tune.RunConfig(
        name="tune",
        storage_path=str(self.run_dir),
        verbose=0,
        stop=_Stopper(self.stop),
        callbacks=[progress],
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
      ),
    )
    try:
      tuner.fit()
    except tune.TuneError as error:
      raise types.ConfigError(f"Ray cannot train: {error}") from error
    finally:
      files.Folder(self.run_dir).remove_folder("tune")
    return progress.errors

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self._cluster.leave()


def _asha(total_steps: int) -> schedulers.ASHAScheduler:
  return schedulers.ASHAScheduler(
    time_attr="env_steps",
    metric="episode_return",
    mode="max",
    max_t=total_steps,
    grace_period=max(1, int(total_steps * _FIRST_SHARE)),
    reduction_factor=_REDUCTION,
    # They end by themselves, with a checkpoint.
    stop_last_trials=False,
  )


class _Trainable(tune.Trainable):
  """A trial, as Tune calls it."""

  def setup(self, config: dict[str, Any], **given: Any) -> None:
    """Starts it."""
    asked, run_dir = given["asked"], given["run_dir"]
    share = given["needs"].get("GPU", 0)
    if 0 < share < 1:
      memory = f"{_MEMORY_SHARE * share:.3f}"
      os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = memory
    self._training = trials_lib.Training(asked[config["trial"]], run_dir)

  def step(self) -> dict[str, Any]:
    """See `trials_lib.Training`; but ASHA cannot count with infinity."""
    said = self._training.step()
    return {**said, "episode_return": max(said["episode_return"], _LEAST)}

  def cleanup(self) -> None:
    """Ends it in order."""
    self._training.end()
    # Ray may end the process before it has exited; its own handler would write
    # the traceback of a `SystemExit`.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

  def wait(self) -> None:
    """Returns when all calls before it have returned."""


class _Stopper(tune.Stopper):
  """Ends all trials when an event is set."""

  def __init__(self, stop: threading.Event) -> None:
    self._stop = stop

  def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
    return self._stop.is_set()

  def stop_all(self) -> bool:
    """Whether all end."""
    return self._stop.is_set()

  def __reduce__(self) -> Any:
    # Tune saves it, which nobody reads.
    return _Stopper, (None,)


class _Progress(tune.Callback):
  """Says in a line what each trial has reached, and now and then how far it is.

  Attributes:
    errors: what trials died of, by their names.
  """

  def __init__(self, asked: Sequence[trials_lib.Trial]) -> None:
    self.errors: dict[str, str] = {}
    self._asked = asked
    # The actors of Ray in which trials run.
    self._actors: list[Any] = []
    self._ended = 0
    self._said_seconds = time.monotonic()

  def on_trial_start(
    self, iteration: int, trials: list[Any], trial: Any, **_: Any
  ) -> None:
    """Knows its actor."""
    self._actors.append(trial.temporary_state.ray_actor)

  def on_trial_complete(
    self, iteration: int, trials: list[Any], trial: Any, **_: Any
  ) -> None:
    """Says what it has reached."""
    self._end(trial, trial.last_result.get("error", ""))

  def on_trial_error(
    self, iteration: int, trials: list[Any], trial: Any, **_: Any
  ) -> None:
    """Says that its process has died."""
    self._end(trial, trials_lib.cause(str(trial.get_error() or "")))

  def on_step_end(self, iteration: int, trials: list[Any], **_: Any) -> None:
    """Says now and then how far all are; waits for the last to end."""
    running = [
      f"{self._asked[x.config['trial']].name} {_reached(x)}"
      for x in trials
      if x.status == "RUNNING"
    ]
    now = time.monotonic()
    if running and now >= self._said_seconds + _PROGRESS_SECONDS:
      self._said_seconds = now
      print(*running, sep="; ", file=sys.stderr, flush=True)
    if all(x.status in ("TERMINATED", "ERROR") for x in trials):
      # Tune would kill what writes its checkpoint for longer than 5 s.
      for actor in self._actors:
        ray_cluster.ray().wait([actor.wait.remote()])

  def _end(self, trial: Any, error: str) -> None:
    self._ended += 1
    asked = self._asked[trial.config["trial"]]
    words = [f"{self._ended}/{len(self._asked)}", asked.name, asked.described]
    if error:
      self.errors[asked.name] = f"failed: {error}".replace("|", "/")
    end = self.errors.get(asked.name) or _reached(trial)
    print(f"{' '.join(words).strip()}: {end}", file=sys.stderr, flush=True)


def _reached(trial: Any) -> str:
  """What a trial of Tune's has said at last."""
  result = {"env_steps": 0, "episode_return": _LEAST, **trial.last_result}
  found = result["episode_return"]
  text = f"return {found:.1f}" if found > _LEAST else "no return yet"
  return f"{text} after {result['env_steps']:,} env steps"
