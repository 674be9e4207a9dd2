"""Compares experiments: the same environment, budget and seeds for each.

  seedx compare --total-steps 300000

This runs the experiments one after the other, each with its own presets. It
writes `comparison.md`, `comparison.png` and a directory for each run. An
experiment may have its own options:

  seedx compare --experiments "impala,impala --agent a2c"
"""

import dataclasses
import importlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seedx import files, metrics, signals, types
from seedx.app import plot
from seedx.app.cli import command_line, experiments
from seedx.app.runs import run_dirs

_POLL_SECONDS = 0.2
_MOST_SAID_BYTES = 2**16  # Of the end of a program's output.
# How long to wait for a run that is told to end.
_PATIENCE_SECONDS = 60.0
# Takes the learner's process id, and the run's lines of metrics so far.
Watch = Callable[[int, Sequence[Mapping[str, Any]]], None]
# What it writes, beside a directory for each experiment.
_NAMES = (run_dirs.CONFIG, "comparison.md", "comparison.png")
# The title, the key in a summary and the decimals of each column of numbers.
_COLUMNS = (
  ("return", "episode_return", 1),
  ("env steps", "env_steps", 0),
  ("seconds", "wall_seconds", 0),
  ("env steps/s", "steps_per_second", 0),
  ("wire bytes/env step", "wire_bytes", 1),
  ("policy lag", "policy_lag", 1),
  ("gradient staleness", "gradient_staleness", 1),
  ("CPU seconds", "cpu_seconds", 0),
)


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    experiments: what to compare, A,B; each may have its own options.
    env: name of the environment, for experiments without --env of their own.
    total_steps: env steps of each run.
    total_seconds: longest time of each run in seconds; 0 for no limit.
    seeds: number of runs of each experiment; their seeds count from 0.
    run_dir: output directory; runs/compare/<time> if empty.
  """

  experiments: tuple[str, ...] = (
    "seed_vtrace",
    "impala",
    "a3c",
    "gorila_dqn",
    "apex_dqn",
  )
  env: str = "CartPole-v1"
  total_steps: int = 300_000
  total_seconds: float = 0.0
  seeds: int = 3
  run_dir: str = ""

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an option that is out of range."""
    types.check_ranges(
      self,
      total_steps=(1, types.MOST),
      total_seconds=(0.0, types.MOST_SECONDS),
      seeds=(1, 2**20),
    )


@dataclasses.dataclass(frozen=True)
class Run:
  """The results of a run.

  Attributes:
    experiment: its name and its own options.
    lines: its lines of metrics.
    cpu_seconds: CPU time of all its processes, from start to end.
  """

  experiment: str
  lines: Sequence[Mapping[str, Any]]
  cpu_seconds: float


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the comparison; returns its exit status."""
  return command_line.run(_compare, Options(), "seedx compare", __doc__, argv)


def _compare(options: Options) -> int:
  options = dataclasses.replace(
    options, experiments=experiments_of(options.experiments)
  )
  _check(options)
  own = {_folder_of(words) for words in options.experiments}
  run_dir = run_dirs.new(options.run_dir, "compare", {*_NAMES, *own})
  config = json.dumps(dataclasses.asdict(options), indent=2)
  files.write_file(run_dir / run_dirs.CONFIG, config + "\n")
  runs, status = _run_all(options, run_dir)
  names = [
    x for x in options.experiments if any(x == y.experiment for y in runs)
  ]
  if not names:
    return status
  table = _table(names, runs)
  files.write_file(run_dir / "comparison.md", table + "\n")
  groups = {
    words: [run.lines for run in runs if run.experiment == words]
    for words in names
  }
  plot.draw({options.env: groups}, run_dir / "comparison.png")
  print(table)
  print(f"comparison.md and comparison.png are in {run_dir}", flush=True)
  return status


def _check(options: Options) -> None:
  """Has all command lines be read, before hours of the first."""
  programs = importlib.import_module("seedx.app.cli.programs")
  for words in options.experiments:
    name, *own = words.split()
    module = experiments.load_module(name)
    own = ["--env", options.env, *own]
    own += ["--total-steps", str(options.total_steps)]
    programs.read(module.EXPERIMENT, own, module.__name__)


def _run_all(options: Options, run_dir: pathlib.Path) -> tuple[list[Run], int]:
  """Runs all that can be run.

  Returns:
    The runs, and the exit status: 1 if one has failed, or that of a signal.
  """
  runs: list[Run] = []
  status = 0
  # Seed by seed, so that a slow hour of the machine affects all experiments.
  asked = [(k, x) for k in range(options.seeds) for x in options.experiments]
  start_seconds = time.monotonic()
  for k, (seed, words) in enumerate(asked):
    left = (time.monotonic() - start_seconds) / k * (len(asked) - k) if k else 0
    about = f", about {left / 60:.0f} min left" if k else ""
    print(
      f"{k + 1}/{len(asked)} {words}, seed {seed}{about}",
      file=sys.stderr,
      flush=True,
    )
    try:
      run = train(options, words, seed, run_dir)
    except types.ConfigError as error:
      # The others can be compared all the same.
      print(f"error: {error}", file=sys.stderr, flush=True)
      status = 1
      continue
    if isinstance(run, int):
      return runs, run
    runs.append(run)
  return runs, status


def experiments_of(asked: Sequence[str]) -> tuple[str, ...]:
  """The experiments that `--experiments` names, each with its own options.

  Args:
    asked: what is between its commas; a number belongs to the one before, as in
      `impala --learner-devices 0,1`.

  Raises:
    types.ConfigError: there is none, or one does not come with seedx.
  """
  found: list[str] = []
  for words in asked:
    if found and re.match("[0-9]", words):
      found[-1] += f",{words}"
    else:
      found.append(words)
  if not found:
    raise types.ConfigError("expected --experiments A,B, found none")
  for words in found:
    name, *_ = words.split() or [""]
    if name not in experiments.shipped():
      known = ", ".join(experiments.shipped())
      raise types.ConfigError(f"expected names of {known}, found {words!r}")
  if len(set(map(_folder_of, found))) < len(found):
    raise types.ConfigError(
      f"expected experiments that differ, found one twice: {', '.join(found)}"
    )
  return tuple(found)


def train(
  options: Options,
  words: str,
  seed: int,
  parent: pathlib.Path,
  from_update: bool = False,
  watch: Watch | None = None,
) -> Run | int:
  """Runs an experiment; returns the exit status if a signal ended it.

  Args:
    options: of the comparison.
    words: the experiment and its own options.
    seed: of the run.
    parent: directory for the directory of the run.
    from_update: count `total_seconds` from the first update on, since a program
      may take as long to compile.
    watch: is shown the run a few times a second, where `total_seconds` end it.

  Raises:
    types.ConfigError: the run fails.
  """
  folder = files.Folder(parent).folder(_folder_of(words)).folder(str(seed))
  try:
    run_dir = pathlib.Path(folder.make())
    return _train(options, words, seed, run_dir, from_update, watch)
  except OSError as error:
    raise types.ConfigError(
      f"cannot write in {str(folder)!r} ({error.strerror})"
    ) from error


def _train(
  options: Options,
  words: str,
  seed: int,
  run_dir: pathlib.Path,
  from_update: bool,
  watch: Watch | None,
) -> Run | int:
  """See `train`."""
  name, *own = words.split()
  program = [sys.executable, "-m", "seedx", "train", name]
  program += ["--env", options.env, *own]  # Its own come last, and hold.
  program += ["--total-steps", str(options.total_steps)]
  program += ["--seed", str(seed), "--run-dir", str(run_dir)]
  cpu_seconds = _children_seconds()
  folder = files.Folder(run_dir)
  with folder.open("output.txt", "x") as output:
    stop = threading.Event()
    with signals.stopping(stop) as ending:
      process = subprocess.Popen(program, stdout=output, stderr=output)
      _wait(process, run_dir, options.total_seconds, from_update, stop, watch)
      if ending.status:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)
        return ending.status
  if process.returncode not in (0, signals.status(signal.SIGINT)):
    with folder.open("output.txt") as written:
      written.seek(max(0, written.seek(0, os.SEEK_END) - _MOST_SAID_BYTES))
      last = written.read().decode(errors="replace").splitlines()
    raise types.ConfigError(
      f"{' '.join(program[1:])} ended with status {process.returncode}:"
      f" {last[-1] if last else ''}"
    )
  return Run(words, _lines(run_dir), _children_seconds() - cpu_seconds)


def _wait(
  process: subprocess.Popen[bytes],
  run_dir: pathlib.Path,
  total_seconds: float,
  from_update: bool,
  stop: threading.Event,
  watch: Watch | None = None,
) -> None:
  """Waits for a run, and ends it after `total_seconds` unless they are 0."""
  while process.poll() is None and not stop.is_set():
    lines = _lines(run_dir) if total_seconds else []
    seconds = [
      line["wall_seconds"]
      for line in lines
      if line["learner_steps"] or not from_update
    ]
    first = seconds[0] if seconds and from_update else 0.0
    if seconds and seconds[-1] - first >= total_seconds:
      process.send_signal(signal.SIGINT)
      total_seconds = 0.0
    elif watch is not None and lines:
      watch(process.pid, lines)
    stop.wait(_POLL_SECONDS)


def _folder_of(words: str) -> str:
  """The directory of an experiment's runs, by its name and options."""
  return "-".join(words.replace("--", "").replace("/", "_").split())


def _children_seconds() -> float:
  """CPU time of all processes that have ended below this one, in seconds."""
  times = os.times()
  return times.children_user + times.children_system


def _lines(run_dir: pathlib.Path) -> list[dict[str, Any]]:
  path = run_dir / run_dirs.METRICS
  try:
    return metrics.read_lines(path)
  except FileNotFoundError:
    return []
  except KeyError as error:
    raise types.ConfigError(
      f"expected metrics in {str(path)!r}, found a line without {error}"
    ) from error


def _table(names: Sequence[str], runs: Sequence[Run]) -> str:
  """A Markdown table of medians over the seeds, with a row per experiment."""
  titles = ["experiment", *(title for title, _, _ in _COLUMNS), "bottleneck"]
  rows = [titles, ["---"] * len(titles)]
  for name in names:
    own = [run for run in runs if run.experiment == name]
    summaries = [_summary(run) for run in own]
    cells = [
      _text(_median([summary[key] for summary in summaries]), decimals)
      for _, key, decimals in _COLUMNS
    ]
    side = statistics.mode(_bottleneck(run) for run in own)
    rows.append([f"`{name}`", *cells, side])
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _summary(run: Run) -> dict[str, float | None]:
  """The numbers of a run, by the keys of `_COLUMNS`."""
  last = run.lines[-1]
  wire_bytes = last.get("wire_bytes")
  if wire_bytes is not None:
    wire_bytes /= max(1, last["env_steps"])
  # The first line includes compilation; the last covers a short time.
  rates = [line["steps_per_second"] or None for line in run.lines[:-1]]
  staleness = [line.get("gradient_staleness") for line in run.lines]
  return {
    "episode_return": last["episode_return"],
    "env_steps": last["env_steps"],
    "wall_seconds": last["wall_seconds"],
    "steps_per_second": _median(rates),
    "wire_bytes": wire_bytes,
    "policy_lag": _median([line.get("policy_lag") for line in run.lines]),
    "gradient_staleness": _median(staleness),
    "cpu_seconds": run.cpu_seconds,
  }


def _bottleneck(run: Run) -> str:
  """The side that is the bottleneck in most lines."""
  sides = [metrics.bottleneck(x) for x in run.lines if x["steps_per_second"]]
  return statistics.mode(sides) if sides else "-"


def _median(values: Sequence[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return statistics.median(known) if known else None


def _text(value: float | None, decimals: int) -> str:
  return "-" if value is None else f"{value:,.{decimals}f}"
