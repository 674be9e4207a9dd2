"""Searches for settings of an experiment, by many runs of it at a time.

  seedx sweep ppo --search "learning_rate=log:1e-4..1e-2,td_lambda=0.9|0.95"

This draws values of the settings and trains with each of them, as many at a
time as there are CPUs: on this machine, or on a Ray cluster. Trials that fall
behind end early (ASHA). At the end, the best trial and the experiment's own
settings train again, with other seeds: the best of many is partly luck. It
writes `sweep.md`, `sweep.png` and the directory of each run. An experiment may
have its own options: `seedx sweep "impala --agent a2c"`.
"""

import dataclasses
import importlib
import json
import pathlib
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from seedx import files, metrics, signals, types
from seedx.app import plot
from seedx.app.cli import command_line, configs, experiments
from seedx.app.runs import run_dirs
from seedx.app.studies import search, trials
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

# What no trial may have a value of its own of.
_FIXED = (
  "env",
  "env_options",
  "seed",
  "total_steps",
  "log_seconds",
  "hang_seconds",
  *run_dirs.OF_THIS_START,
  *run_dirs.OF_A_PROCESS,
)


# What it writes.
_NAMES = (
  run_dirs.CONFIG,
  "sweep.md",
  "sweep.png",
  "trials",
  "default",
  "best",
  "tune",
)
# What a sweep says to its trials itself, or what none can be.
_OWN = (
  "seed",
  "total_steps",
  "run_dir",
  "resume",
  "quiet",
  "role",
  "address",
  "launcher",
)


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    experiment: what to train; it may have its own options.
    search: the settings to search, as SETTING=VALUES,SETTING=VALUES; VALUES are
      LOW..HIGH, log:LOW..HIGH or A|B|C. Where one has a comma, all is a JSON
      object.
    trials: how many values of them to try, at random.
    method: "random" draws values, "grid" tries all combinations of A|B|C.
    scheduler: "asha" ends trials early that fall behind, "none" does not.
    env: name of the environment; the experiment's own if empty.
    total_steps: env steps of each run.
    seed: of the values and of the trials.
    seeds: runs of the best and of the experiment's own settings at the end,
      with the seeds that follow.
    trial_cpus: CPUs that Ray keeps for a trial.
    trial_resources: what else a trial needs of its machine, such as GPU=0.5.
    ray_address: of a Ray cluster; "local" for a new one of this machine alone,
      "auto" for the one that RAY_ADDRESS names or that runs on this machine.
    run_dir: output directory; runs/sweep/<time> if empty. All machines of a
      cluster have to share it.
  """

  experiment: str = ""
  search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  trials: int = 16
  method: Literal["random", "grid"] = "random"
  scheduler: Literal["asha", "none"] = "asha"
  env: str = ""
  total_steps: int = 300_000
  seed: int = 0
  seeds: int = 3
  trial_cpus: float = 1.0
  trial_resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  ray_address: str = "local"
  run_dir: str = ""

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an option that is out of range."""
    types.check_ranges(
      self,
      trials=(1, 2**20),
      total_steps=(1, types.MOST),
      seed=(0, 2**29),
      seeds=(1, 2**20),
      trial_cpus=(0.0, types.MOST),
    )
    launch_config.check_resources("trial_resources", self.trial_resources)

  @property
  def cluster(self) -> launch_config.Config:
    """Where trials run, and what each of them needs there."""
    return launch_config.Config(
      launcher="ray",
      ray_address=self.ray_address,
      actor_cpus=self.trial_cpus,
      actor_resources=self.trial_resources,
    )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the sweep; returns its exit status."""
  return command_line.run(
    _sweep,
    options=Options(),
    name="seedx sweep",
    description=__doc__,
    argv=argv,
    positional=("experiment",),
  )


def _sweep(options: Options) -> int:
  name, *words = options.experiment.split() or [""]
  if name not in experiments.shipped():
    known = ", ".join(experiments.shipped())
    raise types.ConfigError(f"expected EXPERIMENT of {known}, found {name!r}")
  from seedx.app.cli import programs  # It imports JAX.

  words += ["--env", options.env] if options.env else []
  words += ["--total-steps", str(options.total_steps)]
  module = experiments.load_module(name)
  if not {"-h", "--help"}.isdisjoint(words):
    raise types.ConfigError(f"expected no --help of {name} in EXPERIMENT")
  asked, _ = programs.read(module.EXPERIMENT, words, module.__name__)
  said = command_line.said(asked, options.experiment.split())
  if not said.isdisjoint(_OWN):
    raise types.ConfigError(
      "expected EXPERIMENT without options that a trial has of its own, found"
      f" {', '.join(map(command_line.flag, sorted(said & {*_OWN})))}"
    )
  settings = configs.settings(asked)
  kinds = {k: x.kind for k, x in settings.items() if k not in _FIXED}
  space = search.space(options.search, kinds)
  if options.method == "grid":
    values = search.grid(space)
  else:
    values = search.drawn(space, options.trials, options.seed)
  for x in values:  # Before hours of others.
    own = [*words, *trials.options(x)]
    programs.read(module.EXPERIMENT, own, module.__name__)
  ray_cluster.ray()  # Says what to install.
  tuning: Any = importlib.import_module("seedx.app.studies.tuning")
  run_dir = run_dirs.new(options.run_dir, "sweep", _NAMES).absolute()
  stop = threading.Event()
  with (
    signals.stopping(stop) as ending,
    tuning.Pool(options.cluster, run_dir, stop) as pool,
  ):
    config = json.dumps(dataclasses.asdict(options), indent=2)
    files.write_file(run_dir / run_dirs.CONFIG, config + "\n")
    status = _search(options, name, words, values, asked.run.env.env, pool)
  return ending.status or status


def _search(
  options: Options,
  name: str,
  words: Sequence[str],
  values: Sequence[Mapping[str, str]],
  env: str,
  pool: Any,
) -> int:
  """Trains all trials, then the best and the default; says what came of it.

  Returns:
    The exit status: 1 if a run has failed.
  """
  run_dir = pool.run_dir
  print(
    f"{len(values)} trials of {name} on {env} | {run_dir}",
    file=sys.stderr,
    flush=True,
  )
  asked = [
    trials.Trial(f"trials/{k:03d}", name, words, x, options.seed)
    for k, x in enumerate(values)
  ]
  asha = options.total_steps if options.scheduler == "asha" else None
  failed = pool.train(asked, asha)
  found = [_Found.of(run_dir, trial, failed) for trial in asked]
  ranked = sorted(found, key=_Found.rank, reverse=True)
  table = _table(list(values[0]), ranked, options.total_steps)
  files.write_file(run_dir / "sweep.md", table + "\n")
  print(table, flush=True)
  if pool.stop.is_set() or not ranked[0].lines:
    return 1
  if ranked[0].error:
    print(f"all trials failed; their directories are in {run_dir}", flush=True)
    return 1
  first = options.seed + 1
  seeds = range(first, first + options.seeds)
  again = {
    "default": [
      trials.Trial(f"default/{seed}", name, words, {}, seed) for seed in seeds
    ],
    f"best: {ranked[0].trial.described}": [
      dataclasses.replace(ranked[0].trial, name=f"best/{seed}", seed=seed)
      for seed in seeds
    ],
  }
  failed |= pool.train([x for group in again.values() for x in group])
  lines, sentences = {}, []
  for label, group in again.items():
    own = [_Found.of(run_dir, trial, failed) for trial in group]
    # A run that has failed is no result.
    lines[label] = [x.lines for x in own if x.lines and not x.error]
    sentences += [
      f"{label}: mean return {_mean(lines[label])} with seeds {first} to"
      f" {seeds[-1]}",
      *(f"{label}: {x.trial.name} {x.error}" for x in own if x.error),
    ]
  text = "\n".join(sentences)
  files.write_file(run_dir / "sweep.md", f"{table}\n\n{text}\n")
  plot.draw({env: lines}, run_dir / "sweep.png")
  print(text)
  print(f"sweep.md and sweep.png are in {run_dir}", flush=True)
  return 1 if failed else 0


@dataclasses.dataclass(frozen=True)
class _Found:
  """What a trial has reached.

  Attributes:
    trial: that trained.
    lines: its lines of metrics.
    error: what it died of; empty if it did not.
  """

  trial: trials.Trial
  lines: Sequence[Mapping[str, Any]]
  error: str

  @classmethod
  def of(
    cls,
    run_dir: pathlib.Path,
    trial: trials.Trial,
    failed: Mapping[str, str],
  ) -> "_Found":
    """Reads what a trial has written."""
    try:
      lines = metrics.read_lines(run_dir / trial.name / run_dirs.METRICS)
    except FileNotFoundError:
      lines = []
    return cls(trial, lines, failed.get(trial.name, ""))

  @property
  def last(self) -> Mapping[str, Any]:
    """The last line; empty for none."""
    return self.lines[-1] if self.lines else {}

  def rank(self) -> tuple[bool, float, float]:
    """One that has not died, the last return, the mean over the run."""
    returns = [
      x["episode_return"] for x in self.lines if x["episode_return"] is not None
    ]
    if not returns:
      return not self.error, -np.inf, -np.inf
    return not self.error, returns[-1], float(np.mean(returns))


def _table(
  names: Sequence[str], ranked: Sequence[_Found], total_steps: int
) -> str:
  """A Markdown table with a row for each trial, the best first."""
  titles = ["trial", *names, "return", "env steps", "seconds", "end"]
  rows = [titles, ["---"] * len(titles)]
  for found in ranked:
    steps = found.last.get("env_steps", 0)
    reached = found.last.get("episode_return")
    early = "ended early" if found.lines else "not started"
    end = "done" if steps >= total_steps else early
    rows.append(
      [
        pathlib.PurePath(found.trial.name).name,
        *found.trial.values.values(),
        "-" if reached is None else f"{reached:.1f}",
        f"{steps:,}",
        f"{found.last.get('wall_seconds', 0.0):.0f}",
        found.error or end,
      ]
    )
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mean(runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
  """The mean of what runs have reached, and each of them."""
  last = [run[-1]["episode_return"] for run in runs]
  known = [x for x in last if x is not None]
  if not known:
    return "-"
  each = " ".join(f"{x:.1f}" for x in known)
  return f"{np.mean(known):.1f} ({each})"
