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
import json
import pathlib
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seedx import files, signals, types
from seedx.app import plot
from seedx.app.cli import command_line, configs
from seedx.app.runs import run_dirs
from seedx.app.studies import search, trials
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

if TYPE_CHECKING:
  from seedx.app.studies import tuning

# Settings with labels that are the same for all trials.
_FIXED = ("env_options", "total_steps")
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
    env: name of the environment, for an experiment without --env of its own.
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
  trials: int = types.setting(16, low=1, high=2**20)
  method: Literal["random", "grid"] = "random"
  scheduler: Literal["asha", "none"] = "asha"
  env: str = ""
  total_steps: int = types.setting(300_000, low=1)
  seed: int = types.setting(0, low=0, high=2**29)
  seeds: int = types.setting(3, low=1, high=2**20)
  trial_cpus: float = types.setting(1.0, low=0.0)
  trial_resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  ray_address: str = "local"
  run_dir: str = ""

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an option that is out of range."""
    types.check_settings(self)
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
  trials.check_name(options.experiment)
  if command_line.asks_for_help(options.experiment.split()):
    raise types.ConfigError("expected no --help in EXPERIMENT")
  words = trials.words_of(options.experiment, options.env, options.total_steps)
  asked = trials.read(words)
  said = command_line.given(asked, options.experiment.split())
  if not said.isdisjoint(_OWN):
    raise types.ConfigError(
      "expected EXPERIMENT without options that a trial has of its own, found"
      f" {', '.join(map(command_line.flag, sorted(said & {*_OWN})))}"
    )
  kinds = {
    name: setting.kind
    for name, setting in configs.recorded(asked).items()
    if setting.about.labels and name not in _FIXED
  }
  space = search.space(options.search, kinds)
  if options.method == "grid":
    values = search.grid(space)
  else:
    values = search.drawn(space, options.trials, options.seed)
  for x in values:  # Before hours of others.
    trials.read([*words, *_words(x)])
  ray_cluster.ray()  # Says what to install.
  from seedx.app.studies import tuning  # It imports Ray.

  run_dir = run_dirs.new(options.run_dir, "sweep", _NAMES).absolute()
  stop = threading.Event()
  with (
    signals.stopping(stop) as ending,
    tuning.Pool(options.cluster, run_dir, stop) as pool,
  ):
    config = json.dumps(dataclasses.asdict(options), indent=2)
    files.write_file(run_dir / run_dirs.CONFIG, config + "\n")
    status = _search(options, words, values, asked.run.env.env, pool)
  return ending.status or status


def _search(
  options: Options,
  words: Sequence[str],
  values: Sequence[Mapping[str, str]],
  env: str,
  pool: "tuning.Pool",
) -> int:
  """Trains all trials, then the best and the default; says what came of it.

  Returns:
    The exit status: 1 if a run has failed.
  """
  run_dir = pool.run_dir
  print(
    f"{len(values)} trials of {words[0]} on {env} | {run_dir}",
    file=sys.stderr,
    flush=True,
  )
  asked = [
    trials.Trial(
      f"trials/{k:03d}",
      [*words, *_words(x)],
      options.seed,
      " ".join(f"{name}={value}" for name, value in x.items()),
    )
    for k, x in enumerate(values)
  ]
  asha = options.total_steps if options.scheduler == "asha" else None
  failed = pool.train(asked, asha)
  found = _results(asked, run_dir, failed)
  of_trial = {trial.name: x for trial, x in zip(asked, values, strict=True)}
  ranked = sorted(found, key=_rank, reverse=True)
  table = _table(of_trial, ranked, options.total_steps)
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
    "default": [trials.Trial(f"default/{seed}", words, seed) for seed in seeds],
    f"best: {ranked[0].trial.label}": [
      dataclasses.replace(ranked[0].trial, name=f"best/{seed}", seed=seed)
      for seed in seeds
    ],
  }
  failed |= pool.train([x for group in again.values() for x in group])
  lines, sentences = {}, []
  for label, group in again.items():
    own = _results(group, run_dir, failed)
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


def _words(values: Mapping[str, str]) -> list[str]:
  """Values of settings as words of a command line."""
  return [
    word
    for name, value in values.items()
    for word in (
      # A switch has no value.
      command_line.option(name, value.lower() == "true")
      if value.lower() in ("true", "false")
      else [command_line.flag(name), value]
    )
  ]


def _results(
  asked: Sequence[trials.Trial],
  run_dir: pathlib.Path,
  failed: Mapping[str, str],
) -> list[trials.Result]:
  """Reads what trials have left, with the errors of those that failed."""
  return [trials.Result.read(x, run_dir, failed.get(x.name, "")) for x in asked]


def _rank(found: trials.Result) -> tuple[bool, float, float]:
  """One that has not died, the last return, the mean over the run."""
  returns = [
    x["episode_return"] for x in found.lines if x["episode_return"] is not None
  ]
  if not returns:
    return not found.error, -np.inf, -np.inf
  return not found.error, returns[-1], float(np.mean(returns))


def _table(
  values: Mapping[str, Mapping[str, str]],
  ranked: Sequence[trials.Result],
  total_steps: int,
) -> str:
  """A Markdown table with a row for each trial, the best first."""
  names = next(iter(values.values()))
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
        *values[found.trial.name].values(),
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
