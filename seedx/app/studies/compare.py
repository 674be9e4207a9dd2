"""Compares experiments, all with the same environment, budget and seeds.

  seedx compare --total-steps 300000

The experiments run one after the other, each with its own presets. The output
is `comparison.md`, `comparison.png` and a directory for each run. An experiment
may have its own options:

  seedx compare --experiments "impala,impala --agent a2c"
"""

import dataclasses
import json
import os
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from seedx import files, metrics, signals, types
from seedx.app import plot
from seedx.app.cli import command_line
from seedx.app.runs import run_folders
from seedx.app.studies import pool, trials

# Files of the output, beside a directory for each experiment.
_NAMES = (run_folders.CONFIG, "comparison.md", "comparison.png", pool.ENDED)
# Options that may have other values when a comparison is resumed.
_MAY_DIFFER = ("experiments", "seeds", "run_dir", "resume")


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of `seedx compare`.

  Attributes:
    experiments: experiments to compare, as A,B; each may have its own options.
    env: name of the environment, for experiments without --env of their own.
    total_steps: env steps of each run.
    total_seconds: maximum duration of each run in seconds; 0 for no limit.
    seeds: number of runs of each experiment, with seeds 0, 1, 2 and so on.
    run_dir: output directory; runs/compare/<time> if empty.
    resume: whether to continue the comparison in --run-dir: runs that have
      ended are not trained again.
  """

  experiments: tuple[str, ...] = (
    "seed_vtrace",
    "impala",
    "a3c",
    "gorila_dqn",
    "apex_dqn",
  )
  env: str = "CartPole-v1"
  total_steps: int = types.setting(300_000, low=1)
  total_seconds: float = types.setting(0.0, low=0.0, high=types.MAX_SECONDS)
  seeds: int = types.setting(3, low=1, high=2**20)
  run_dir: str = ""
  resume: bool = False

  def __post_init__(self) -> None:
    types.check_settings(self)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the comparison; returns its exit status."""
  return command_line.run(_compare, Options(), "seedx compare", __doc__, argv)


def _compare(options: Options) -> int:
  options = dataclasses.replace(
    options, experiments=trials.experiments_of(options.experiments)
  )
  for words in options.experiments:
    trials.read(trials.words_of(words, options.env, options.total_steps))
  folders = {trials.folder_of(words) for words in options.experiments}
  taken = {*_NAMES, *folders}
  if options.resume:
    taken = set()
    pool.check_resumed(options, _MAY_DIFFER)
  run_dir = run_folders.new(options.run_dir, "compare", taken)
  config = json.dumps(dataclasses.asdict(options), indent=2)
  files.write_file(run_dir / run_folders.CONFIG, config + "\n")
  runs, status = _run_all(options, run_dir)
  groups = {words: group for words, group in runs.items() if group}
  if not groups:
    return status
  table = _table(groups)
  files.write_file(run_dir / "comparison.md", table + "\n")
  lines = {k: [run.lines for run in group] for k, group in groups.items()}
  plot.draw({options.env: lines}, run_dir / "comparison.png")
  print(table)
  print(f"comparison.md and comparison.png are in {run_dir}", flush=True)
  return status


def _run_all(
  options: Options, run_dir: pathlib.Path
) -> tuple[dict[str, list[trials.Result]], int]:
  """Runs every experiment with every seed; returns runs and exit status."""
  runs: dict[str, list[trials.Result]] = {x: [] for x in options.experiments}
  status = 0
  # Seed by seed, so that a slow hour of the machine affects all experiments.
  order = [(k, x) for k in range(options.seeds) for x in options.experiments]
  start_seconds = time.monotonic()
  stop = threading.Event()

  def planned() -> Iterator[trials.Trial]:
    for k, (seed, words) in enumerate(order):
      left = (time.monotonic() - start_seconds) / (k or 1) * (len(order) - k)
      remaining = f", about {left / 60:.0f} min left" if k else ""
      print(
        f"{k + 1}/{len(order)} {words}, seed {seed}{remaining}",
        file=sys.stderr,
        flush=True,
      )
      trial_words = trials.words_of(words, options.env, options.total_steps)
      name = f"{trials.folder_of(words)}/{seed}"
      yield trials.Trial(name, trial_words, seed, label=words)

  def ends(trial: trials.Trial, line: Mapping[str, Any]) -> bool:
    return bool(0 < options.total_seconds <= line["wall_seconds"])

  cpu_seconds = _children_seconds()
  with signals.stopping(stop) as ending:
    places = pool.Pool(run_dir, stop, resumes=options.resume)
    for trial, error in places.results(planned(), ends):
      if stop.is_set():
        return runs, ending.status
      cpu_seconds, before = _children_seconds(), cpu_seconds
      if error:  # The other runs can still be compared.
        print(f"error: {error}", file=sys.stderr, flush=True)
        status = 1
        continue
      used = cpu_seconds - before
      run = trials.Result.read(trial, run_dir, cpu_seconds=used)
      runs[trial.label].append(run)
  return runs, ending.status if stop.is_set() else status


def _children_seconds() -> float:
  """Returns the CPU seconds of this process's descendants that have ended."""
  times = os.times()
  return times.children_user + times.children_system


def _table(groups: Mapping[str, Sequence[trials.Result]]) -> str:
  logged = {
    name: None
    for group in groups.values()
    for run in group
    for name in run.last
    if name.startswith(metrics.OF_INFO)
  }
  columns: list[_Column] = [
    _COLUMNS[0],
    *((x, lambda run, x=x: run.last.get(x), 3) for x in logged),
    *_COLUMNS[1:],
  ]
  titles = ["experiment", *(title for title, _, _ in columns), "bottleneck"]
  rows = [titles, ["---"] * len(titles)]
  for name, same in groups.items():
    cells = [
      _text(_median(map(value, same)), decimals)
      for _, value, decimals in columns
    ]
    bottleneck = statistics.mode(_bottleneck(run) for run in same)
    rows.append([f"`{name}`", *cells, bottleneck])
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _bytes_per_step(run: trials.Result) -> float | None:
  wire_bytes = run.last.get("wire_bytes")
  return None if wire_bytes is None else wire_bytes / max(1, run.steps)


def _rate(run: trials.Result) -> float | None:
  # A median, since the first line includes compilation. The last line is left
  # out, since it covers a short time.
  return _median(line["steps_per_second"] or None for line in run.lines[:-1])


def _median_of(run: trials.Result, name: str) -> float | None:
  return _median(line.get(name) for line in run.lines)


def _bottleneck(run: trials.Result) -> str:
  bottlenecks = [
    metrics.bottleneck(x) for x in run.lines if x["steps_per_second"]
  ]
  return statistics.mode(bottlenecks) if bottlenecks else "-"


def _median(values: Iterable[float | None]) -> float | None:
  numbers = [value for value in values if value is not None]
  return statistics.median(numbers) if numbers else None


def _text(value: float | None, decimals: int) -> str:
  return "-" if value is None else f"{value:,.{decimals}f}"


# A column of numbers: title, function that returns a run's value, decimals.
_Column = tuple[str, Callable[[trials.Result], float | None], int]
_COLUMNS: Sequence[_Column] = (
  ("return", lambda run: run.last["episode_return"], 1),
  ("env steps", lambda run: run.steps, 0),
  ("seconds", lambda run: run.last["wall_seconds"], 0),
  ("compiling", lambda run: run.last.get("compile_seconds"), 0),
  ("env steps/s", _rate, 0),
  ("wire bytes/env step", _bytes_per_step, 1),
  ("policy lag", lambda run: _median_of(run, "policy_lag"), 1),
  ("gradient staleness", lambda run: _median_of(run, "gradient_staleness"), 1),
  ("CPU seconds", lambda run: run.cpu_seconds, 0),
)
