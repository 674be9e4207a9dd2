"""A study of one experiment: its options, and the places of its trials.

Places are CPUs of this machine, or a Ray cluster.
"""

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from seedx import files, metrics, signals, types
from seedx.app.cli import command_line
from seedx.app.runs import run_folders
from seedx.app.settings import wording
from seedx.app.studies import pool, ray_tasks, trials
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

if TYPE_CHECKING:  # Imports JAX.
  from seedx.app import requests

RETURN = "episode_return"
# The most trials that wait for a cluster's resources.
_MAX_TASKS = 256
# Options that may have other values when a study is resumed.
_MAY_DIFFER = (
  "trials",
  "trial_cpus",
  "trial_resources",
  "ray_address",
  "run_dir",
  "resume",
)
# Options that the study itself sets for its trials, or that no trial can have.
_RESERVED = (
  "seed",
  "total_steps",
  "run_dir",
  "resume",
  "quiet",
  "role",
  "address",
  "launcher",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Options of a study whose trials run at the same time.

  Attributes:
    experiment: experiment to train; it may have its own options.
    search: settings to search, as SETTING=VALUES,SETTING=VALUES; VALUES are
      LOW..HIGH, log:LOW..HIGH, or, in a sweep, A|B|C. If a value has a comma,
      give a JSON object instead.
    env: name of the environment, for an experiment without --env of its own.
    total_steps: steps of each run.
    seed: seed of the draws, and first seed of the trials.
    score: metric whose newest value ranks trials, larger is better:
      episode_return, or an entry that EXPERIMENT logs with --log-info.
    trial_cpus: number of CPUs of a trial; as many trials run at a time as fit.
    trial_resources: other resources of a trial, such as GPU=0.5; needs Ray.
    ray_address: address of a Ray cluster on which trials run; "local" for a new
      one on this machine alone, "auto" for the one in RAY_ADDRESS or on this
      machine; empty for processes of this machine, without Ray.
    run_dir: output directory; runs/STUDY/<time> if empty. All machines of a
      cluster must share this directory.
    resume: whether to continue the study in --run-dir, with the same options;
      only the number of trials and the machines may differ.
  """

  experiment: str = ""
  search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  env: str = ""
  total_steps: int = types.setting(300_000, low=1)
  seed: int = types.setting(0, low=0, high=2**29)
  score: str = RETURN
  trial_cpus: float = types.setting(1.0, low=0.0)
  trial_resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  ray_address: str = ""
  run_dir: str = ""
  resume: bool = False

  def __post_init__(self) -> None:
    types.check_settings(self)
    launch_config.check_resources("trial_resources", self.trial_resources)

  def checked(self, *own: str) -> "tuple[Self, list[str], requests.Request]":
    """Parses the experiment, whose own options come after those of the study.

    Returns:
      The options with the full name of the score; the words of all trials; and
      their config.

    Raises:
      types.ConfigError: there is no such experiment, it has an option that the
        study sets itself, the score is no metric, or the study to resume has
        other options.
    """
    trials.check_name(self.experiment)
    options = self.experiment.split()
    if command_line.asks_for_help(options):
      raise types.ConfigError("expected no --help in EXPERIMENT")
    words = trials.words_of(self.experiment, self.env, self.total_steps)
    words[1:1] = own
    config = trials.read(words)
    if reserved := command_line.given(config, options) & {*_RESERVED}:
      raise types.ConfigError(
        "expected EXPERIMENT without options that a study reserves, found"
        f" {', '.join(map(wording.flag, sorted(reserved)))}"
      )
    score = score_of(self.score, config.run.env.log_info)
    full = dataclasses.replace(self, score=score)
    if self.resume:
      pool.check_resumed(full, _MAY_DIFFER)
    return full, words, config

  def train(
    self,
    study: str,
    names: Collection[str],
    body: Callable[[pool.Pool], int],
    *,
    waits: bool = False,
    resumes: bool = False,
  ) -> int:
    """Makes the directory, and a pool of processes or of a cluster's tasks.

    Args:
      study: name of the study.
      names: files that it writes.
      body: function that trains in the pool, and returns an exit status.
      waits: whether trials that are more than the cluster has room for wait
        there.
      resumes: see `pool.Pool`.

    Returns:
      The exit status.
    """
    uses_ray = bool(self.ray_address or self.trial_resources)
    if uses_ray:
      ray_cluster.ray()  # If Ray is missing, raises an error with the remedy.
    names = () if self.resume else (run_folders.CONFIG, pool.ENDED, *names)
    run_dir = run_folders.new(self.run_dir, study, names).absolute()
    stop, cpus = threading.Event(), len(os.sched_getaffinity(0))
    needs = self.trial_cpus
    start: Callable[..., pool.Job] = trials.Running
    places = max(1, int(cpus / needs)) if needs else cpus
    with signals.stopping(stop) as ending, contextlib.ExitStack() as stack:
      if uses_ray:
        tasks = ray_tasks.Tasks(
          self.ray_address or "local", {"CPU": needs, **self.trial_resources}
        )
        stack.callback(tasks.leave)
        places = _MAX_TASKS if waits else tasks.room()
        start = tasks.start
      text = json.dumps(dataclasses.asdict(self), indent=2)
      files.write_file(run_dir / run_folders.CONFIG, text + "\n")
      status = body(
        pool.Pool(run_dir, stop, places, start, self.score, resumes)
      )
    return ending.status or status


def score_of(name: str, log_info: Sequence[str]) -> str:
  """Returns the metric that `--score` names; ConfigError if trials lack it."""
  metric = f"{metrics.OF_INFO}{name}" if name in log_info else name
  scores = [RETURN, *(f"{metrics.OF_INFO}{x}" for x in log_info)]
  if metric not in scores:
    raise types.ConfigError(
      f"expected --score {' or '.join(scores)}, found {name!r}; an entry of"
      " info is a metric with --log-info in EXPERIMENT, as in"
      ' "ppo --log-info is_success"'
    )
  return metric
