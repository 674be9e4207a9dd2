"""Training of trials by Ray Tune. Importing this module needs Ray."""

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
from ray.tune import schedulers

from seedx import files, metrics, types
from seedx.app.studies import trials as trials_lib
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

# ASHA first compares trials after this fraction of their env steps, then after
# three times as many, and so on. The best third continues each time.
_FIRST_SHARE = 1 / 9
_REDUCTION = 3
# Value that stands for a missing score, since ASHA cannot rank infinities.
_NO_SCORE = -1e30
_PROGRESS_SECONDS = 30.0
# Fraction of a GPU's memory that is divided among the trials on it.
_MEMORY_SHARE = 0.9
_SETTINGS = {
  # Trials write their own files, and their options may name relative paths.
  "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
  "RAY_CHDIR_TO_TRIAL_DIR": "0",
  # `_Progress` prints one line per trial instead of Ray's reports and errors.
  "RAY_AIR_NEW_OUTPUT": "0",
  "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
  "TUNE_DISABLE_SIGINT_HANDLER": "1",
}


class Pool:
  """A cluster that trains as many trials at a time as it has resources for."""

  def __init__(
    self,
    config: launch_config.Config,
    run_dir: pathlib.Path,
    stop: threading.Event,
    score: str = "episode_return",
  ) -> None:
    """Connects to the cluster, or starts one.

    Args:
      config: the cluster, and the resources of a trial.
      run_dir: directory of the sweep, which the cluster's machines share.
      stop: event that ends all trials.
      score: metric that ranks trials; larger is better.

    Raises:
      types.ConfigError: there is no such cluster.
    """
    self.run_dir = run_dir
    self.stop = stop
    self._score = score
    self._needs = {"CPU": config.actor_cpus, **config.actor_resources}
    os.environ.update(_SETTINGS)
    # Ray warns about files that trials of seedx do not write.
    name = "ray.tune.analysis.experiment_analysis"
    logging.getLogger(name).setLevel(logging.ERROR)
    self._cluster = ray_cluster.Cluster(config)

  def train(
    self, trials: Sequence[trials_lib.Trial], asha_steps: int | None = None
  ) -> dict[str, str]:
    """Trains trials.

    Args:
      trials: the trials.
      asha_steps: env steps of a whole trial, if trials that fall behind end
        early; None to train all to their end.

    Returns:
      The error of each failed trial, by the trial's name.

    Raises:
      types.ConfigError: the cluster cannot train the trials.
    """
    progress = _Progress(trials, self._score)
    kind = tune.with_parameters(
      _Trainable,
      trials=trials,
      run_dir=self.run_dir,
      needs=self._needs,
      score=self._score,
    )
    tuner = tune.Tuner(
      tune.with_resources(kind, tune.PlacementGroupFactory([self._needs])),
      param_space={"trial": tune.grid_search(list(range(len(trials))))},
      tune_config=tune.TuneConfig(
        scheduler=_asha(asha_steps, self._score) if asha_steps else None
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


def _asha(total_steps: int, score: str) -> schedulers.ASHAScheduler:
  return schedulers.ASHAScheduler(
    time_attr="env_steps",
    metric=score,
    mode="max",
    max_t=total_steps,
    grace_period=max(1, int(total_steps * _FIRST_SHARE)),
    reduction_factor=_REDUCTION,
    # A trial ends by itself, with a checkpoint.
    stop_last_trials=False,
  )


class _Trainable(tune.Trainable):
  """A trial as an actor of Ray Tune."""

  def setup(self, config: dict[str, Any], **parameters: Any) -> None:
    """Starts the trial's process; Tune calls this method in the actor."""
    trials, run_dir = parameters["trials"], parameters["run_dir"]
    share = parameters["needs"].get("GPU", 0)
    if 0 < share < 1:
      memory = f"{_MEMORY_SHARE * share:.3f}"
      os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = memory
    self._running = trials_lib.Running(trials[config["trial"]], run_dir)
    self._lines = self._running.lines(threading.Event())
    self._score = parameters.get("score", "episode_return")
    self._result: dict[str, Any] = {"env_steps": 0, self._score: _NO_SCORE}

  def step(self) -> dict[str, Any]:
    """Waits for the next line of metrics, or for the trial's end."""
    line = next(self._lines, None)
    if line is None:
      return {**self._result, "done": True, "error": self._running.error()}
    self._result["env_steps"] = line[metrics.clock(line)]
    if line[self._score] is not None:
      self._result[self._score] = line[self._score]
    return {**self._result, "done": False, "error": ""}

  def cleanup(self) -> None:
    """Ends the trial with a checkpoint."""
    self._running.end()
    # If Ray terminates this process before it exits, Ray's own handler would
    # print the traceback of a `SystemExit`.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

  def wait(self) -> None:
    """Does nothing: when it returns, the actor's earlier calls have ended."""


class _Stopper(tune.Stopper):
  """A stopper that ends all trials when an event is set."""

  def __init__(self, stop: threading.Event) -> None:
    self._stop = stop

  def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
    return self._stop.is_set()

  def stop_all(self) -> bool:
    """Returns whether to end all trials."""
    return self._stop.is_set()

  def __reduce__(self) -> Any:
    # Tune pickles the stopper, but the copy is never used.
    return _Stopper, (None,)


class _Progress(tune.Callback):
  """A callback that prints the progress and the end of trials."""

  def __init__(self, trials: Sequence[trials_lib.Trial], score: str) -> None:
    # Errors of failed trials, by the name of the trial.
    self.errors: dict[str, str] = {}
    self._trials = trials
    self._score = score
    # Ray's actors, in which the trials run.
    self._actors: list[Any] = []
    self._ended = 0
    self._printed_seconds = time.monotonic()

  def on_trial_start(
    self, iteration: int, trials: list[Any], trial: Any, **_: Any
  ) -> None:
    """Keeps the trial's actor, to wait for it at the end."""
    self._actors.append(trial.temporary_state.ray_actor)

  def on_trial_complete(
    self, iteration: int, trials: list[Any], trial: Any, **_: Any
  ) -> None:
    """Counts a trial that has ended."""
    self._end(trial, trial.last_result.get("error", ""))

  def on_trial_error(
    self, iteration: int, trials: list[Any], trial: Any, **_: Any
  ) -> None:
    """Counts a trial that has failed."""
    self._end(trial, trials_lib.cause(str(trial.get_error() or "")))

  def on_step_end(self, iteration: int, trials: list[Any], **_: Any) -> None:
    """Prints progress from time to time; at the end, waits for the actors."""
    running = [
      f"{self._trials[x.config['trial']].name} {_progress(x, self._score)}"
      for x in trials
      if x.status == "RUNNING"
    ]
    now = time.monotonic()
    if running and now >= self._printed_seconds + _PROGRESS_SECONDS:
      self._printed_seconds = now
      print(*running, sep="; ", file=sys.stderr, flush=True)
    if all(x.status in ("TERMINATED", "ERROR") for x in trials):
      # Tune would kill an actor that takes longer than 5 s for its checkpoint.
      for actor in self._actors:
        ray_cluster.ray().wait([actor.wait.remote()])

  def _end(self, tune_trial: Any, error: str) -> None:
    self._ended += 1
    trial = self._trials[tune_trial.config["trial"]]
    words = [f"{self._ended}/{len(self._trials)}", trial.name, trial.label]
    if error:
      self.errors[trial.name] = f"failed: {error}".replace("|", "/")
    end = self.errors.get(trial.name) or _progress(tune_trial, self._score)
    print(f"{' '.join(words).strip()}: {end}", file=sys.stderr, flush=True)


def _progress(tune_trial: Any, score: str) -> str:
  result = {"env_steps": 0, score: _NO_SCORE, **tune_trial.last_result}
  value = result[score]
  title = "return" if score == "episode_return" else score
  text = f"{title} {value:.4g}" if value > _NO_SCORE else f"no {title} yet"
  return f"{text} after {result['env_steps']:,} env steps"
