"""Evaluations of a run during training."""

import collections
import dataclasses
import functools
import json
import pathlib
import threading
import time
from collections.abc import Mapping
from typing import Any

from seedx import envs, files, metrics, signals, types
from seedx.acting import evaluator
from seedx.app.runs import run_folders, statistics
from seedx.envs import rendering, spaces
from seedx.runtime import process, seeding

# Seconds to wait for a cancelled evaluation.
_CANCEL_SECONDS = 2.0
# Number of videos that may wait for TensorBoard's sink.
_MAX_VIDEOS = 4
# The option of an environment that changes in a run, see `envs.at`.
_ENV_STEPS = "env_steps"
_setting = functools.partial(types.setting, changes="resume", labels=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Settings of a run's evaluations.

  Attributes:
    evaluate_every_steps: env steps between two evaluations; 0 for none. The
      first evaluation is at the start, the last at the end.
    evaluate_episodes: number of greedy episodes per evaluation.
    evaluate_env_options: options of the environment in evaluations, besides
      those of the training, such as opponent=random or other env_steps.
    record_video: whether each evaluation records a video of one episode.
  """

  evaluate_every_steps: int = _setting(0, low=0)
  evaluate_episodes: int = _setting(10, low=1, high=2**16)
  evaluate_env_options: Mapping[str, Any] = _setting({})
  record_video: bool = _setting(False)

  def __post_init__(self) -> None:
    types.check_settings(self)


def of(
  run: process.Config, config: Config, run_dir: pathlib.Path
) -> "Periodic | None":
  """Returns the evaluations of a run; None if `config` has none."""
  if not config.evaluate_every_steps:
    return None
  return Periodic(run, config, run_dir)


class Periodic:
  """Evaluations of a run at regular intervals of env steps, on a thread.

  Each evaluation plays different episodes with greedy actions, and appends a
  line to `evaluations.jsonl`. Only one evaluation runs at a time.

  Attributes:
    mean: mean return of the last evaluation; None before the first.
    means: mean returns, by the env steps of the evaluated parameters.
    words: summary of the last evaluation; empty before the first.
    videos: the newest videos, until TensorBoard's sink writes them.
    lost: number of lines and of videos that could not be written.
    clock: name of the run's clock, the first entry of each line.
  """

  def __init__(
    self, run: process.Config, config: Config, run_dir: pathlib.Path
  ) -> None:
    """Makes an evaluator, which plays nothing yet.

    Raises:
      types.ConfigError: the agent has no `greedy` step, videos are to be
        recorded of an environment that cannot be rendered, or the environment
        of the evaluations cannot be made, does not fit or is self-play.
    """
    env, spec = _checked(run, config)
    self.videos = collections.deque[metrics.Video](maxlen=_MAX_VIDEOS)
    if config.record_video:
      try:
        rendering.check_render(env)
      except types.ConfigError as error:
        raise types.ConfigError(f"{error}; leave out --record-video") from error
    self._line: Mapping[str, metrics.Value] = {}
    self.mean: float | None = None
    self.means: dict[int, float] = {}
    self.words = ""
    self.lost = collections.Counter[str]()
    self.clock = "env_steps"
    self._evaluator = evaluator.Evaluator(
      run.agent.make(spec),
      evaluator.Config(env, num_episodes=config.evaluate_episodes),
    )
    self._seed, self._env, self._config = run.seed, env, config
    self._folder = files.Folder(run_dir)
    self._due_steps = self._last_steps = -1
    self._stop = threading.Event()
    self._thread: threading.Thread | None = None
    self._failure: BaseException | None = None

  def measure(self) -> metrics.Line:
    """Returns the metrics of the last evaluation; none before the first."""
    return self._line

  def resume(self, env_steps: int) -> None:
    """Skips evaluations that were due at `env_steps` or before."""
    every = self._config.evaluate_every_steps
    self._due_steps = (env_steps // every + 1) * every

  def due(self, env_steps: int) -> bool:
    """Returns whether an evaluation should start now.

    Raises:
      BaseException: the error of the last evaluation, if it failed.
    """
    busy = self._thread is not None and self._thread.is_alive()
    if env_steps < self._due_steps or busy:
      return False
    self._join()
    return True

  def start(self, env_steps: int, acting: types.Tree) -> None:
    """Starts to evaluate acting parameters; does not wait."""
    self.resume(env_steps)
    self._last_steps = env_steps
    self._thread = threading.Thread(
      target=self._run, args=(env_steps, acting), name="evaluator", daemon=True
    )
    self._thread.start()

  def finish(self, env_steps: int, acting: types.Tree, stop: bool) -> None:
    """Evaluates the parameters at the end of a run, and waits for the result.

    With `stop`, cancels the evaluation in progress instead.

    Raises:
      BaseException: the error of an evaluation that failed.
    """
    if stop:
      self._stop.set()
      if self._thread is not None:
        self._thread.join(_CANCEL_SECONDS)  # Environments may hang.
      if self._failure is not None:
        raise self._failure
      return
    self._join()
    if env_steps != self._last_steps:
      self.start(env_steps, acting)
      self._join()

  def _join(self) -> None:
    if self._thread is not None:
      self._thread.join()
    if self._failure is not None:
      raise self._failure

  def _run(self, env_steps: int, acting: types.Tree) -> None:
    try:
      config = self._config
      number = config.evaluate_episodes * (
        env_steps // config.evaluate_every_steps
      )
      seed = seeding.evaluation_seed(self._seed, number)
      at = None if _ENV_STEPS in config.evaluate_env_options else env_steps
      played = self._evaluator.play(acting, seed, self._stop, at)
      if self._stop.is_set():
        return
      recorded = self._record(env_steps, acting, seed)
      summary = statistics.summary(played.returns)
      info = statistics.info_means(self._env.log_info, played.info)
      line = {self.clock: env_steps, **summary, "cut": played.cut, **info}
      try:
        text = json.dumps(line) + "\n"
        self._folder.append(run_folders.EVALUATIONS, text.encode())
      except OSError as error:  # For example, a full disk.
        self._lose(f"line(s) of {run_folders.EVALUATIONS}", error)
      self._line = {
        "evaluation_return": summary["mean"],
        **{f"evaluation_{name}": mean for name, mean in info.items()},
        **recorded,
      }
      self.mean = self.means[env_steps] = summary["mean"]
      self.words = statistics.in_words(summary) + statistics.info_in_words(info)
    except BaseException as failure:
      self._failure = failure

  def _record(
    self, env_steps: int, acting: types.Tree, seed: int
  ) -> Mapping[str, float]:
    """Records a video of the first episode; returns the metric of its time."""
    if not self._config.record_video:
      return {}
    from seedx.app import videos  # It imports Gymnasium.

    started = time.monotonic()
    env = self._env
    if _ENV_STEPS not in self._config.evaluate_env_options:
      env = envs.at(env, env_steps)
    video = videos.record_small(
      env, acting, self._evaluator, seed, env_steps, self._stop
    )
    if self._stop.is_set():
      return {}
    self.videos.append(video)
    folder, name = self._folder.folder(run_folders.VIDEOS), f"{env_steps}.gif"
    try:
      folder.make().write(name, video.gif)
    except OSError as error:  # For example, a full disk.
      self._lose("video(s) of an evaluation", error)
    return {"video_seconds": time.monotonic() - started}

  def _lose(self, what: str, error: OSError) -> None:
    self.lost[what] += 1
    signals.print_at_once(
      f"cannot write {what} in {str(self._folder)!r} ({error.strerror})\n"
    )


def _checked(
  run: process.Config, config: Config
) -> tuple[envs.Config, types.EnvironmentSpec]:
  """Returns the environment of the evaluations, and the spec for the agent."""
  spec = envs.spec(run.env)
  env, played = run.env, spec
  if config.evaluate_env_options:
    options = {**env.env_options, **config.evaluate_env_options}
    env = dataclasses.replace(env, env_options=options)
    played = envs.spec(env)
    spaces.check_same(spec, played, "--evaluate-env-options")
  check_has_opponent(
    played,
    "--evaluate-env-options opponent=random, or leave out"
    " --evaluate-every-steps",
  )
  return env, spec


def check_has_opponent(spec: types.EnvironmentSpec, remedy: str) -> None:
  """Raises types.ConfigError for self-play, whose returns mean nothing."""
  if spec.players > 1:
    raise types.ConfigError(
      "expected an opponent in evaluations, whose returns mean nothing in"
      f" self-play, found none; add {remedy}"
    )
