"""Compares pipelines: the same environment, budget and seeds for each.

  seedx compare --total-steps 300000

runs experiments one after the other, each with its own presets, and leaves
`comparison.md`, `comparison.png` and every run's directory. An experiment may
have options of its own:

  seedx compare --experiments "impala,impala --agent a2c"
"""

import dataclasses
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from seedx import metrics, types
from seedx.app import command_line, experiments, plot
from seedx.runtime import signals

_POLL_SECONDS = 0.2
# How long a run may take to end once it has been told to.
_PATIENCE_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    experiments: what is compared, A,B; each with options of its own if need be.
    env: the environment, of any name that the experiments take.
    total_steps: env steps of each run.
    total_seconds: seconds of each run at most; 0 for any.
    seeds: runs of each experiment, from seed 0 on.
    run_dir: where results go; runs/compare/<time> if empty.
  """

  experiments: tuple[str, ...] = (
    *("seed_vtrace", "impala", "a3c", "gorila_dqn", "apex_dqn"),
  )
  env: str = "CartPole-v1"
  total_steps: int = 300_000
  total_seconds: float = 0.0
  seeds: int = 3
  run_dir: str = ""

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      total_steps=(1, types.MOST),
      total_seconds=(0.0, types.MOST),
      seeds=(1, 2**20),
    )


@dataclasses.dataclass(frozen=True)
class Run:
  """What came out of a run.

  Attributes:
    experiment: its name, and options of its own.
    lines: of its metrics.
    cpu_seconds: of all its processes, from start to end.
  """

  experiment: str
  lines: Sequence[Mapping[str, Any]]
  cpu_seconds: float


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the comparison; returns its exit status."""
  argv = sys.argv[1:] if argv is None else argv
  try:
    return _compare(
      command_line.parse(Options(), argv, "seedx compare", __doc__)
    )
  except types.ConfigError as error:
    command_line.fail(error)


def _compare(given: Options) -> int:
  if not given.experiments:
    raise types.ConfigError("expected --experiments A,B, found none")
  for words in given.experiments:
    name = words.split()[0] if words.split() else ""
    if name not in experiments.shipped():
      known = ", ".join(experiments.shipped())
      raise types.ConfigError(f"expected names of {known}, found {words!r}")
  run_dir = metrics.open_run_dir(
    given.run_dir
    or os.path.join("runs", "compare", time.strftime("%Y%m%d-%H%M%S"))
  )
  metrics.write_config(run_dir, dataclasses.asdict(given))
  runs = []
  # Seed by seed, so that a slow hour of the machine slows all of them.
  for seed in range(given.seeds):
    for words in given.experiments:
      runs.append(_run(given, words, seed, run_dir))
      if runs[-1] is None:
        return signals.INTERRUPTED_STATUS
  finished = [run for run in runs if run is not None]
  table = _table(given.experiments, finished)
  (run_dir / "comparison.md").write_text(table + "\n", encoding="utf-8")
  groups = {
    words: [run.lines for run in finished if run.experiment == words]
    for words in given.experiments
  }
  plot.draw({given.env: groups}, run_dir / "comparison.png")
  print(table)
  print(f"comparison.md and comparison.png are in {run_dir}", flush=True)
  return 0


def _run(
  given: Options, words: str, seed: int, parent: pathlib.Path
) -> Run | None:
  """Runs an experiment to its end; None after Ctrl-C.

  Raises:
    types.ConfigError: it ends with an error.
  """
  run_dir = parent / "-".join(words.replace("--", "").split()) / str(seed)
  run_dir.mkdir(parents=True, exist_ok=True)
  name, *more = words.split()
  program = [sys.executable, "-m", "seedx", "train", name, *more]
  program += ["--env", given.env, "--total-steps", str(given.total_steps)]
  program += ["--seed", str(seed), "--run-dir", str(run_dir)]
  print(f"{words}, seed {seed} ...", file=sys.stderr, flush=True)
  with (run_dir / "output.txt").open("w", encoding="utf-8") as output:
    process = subprocess.Popen(program, stdout=output, stderr=output)
    try:
      status, cpu_seconds = _watched(process, run_dir, given.total_seconds)
    except KeyboardInterrupt:
      process.wait(_PATIENCE_SECONDS)
      return None
  if status not in (0, signals.INTERRUPTED_STATUS):
    last = (run_dir / "output.txt").read_text(encoding="utf-8").splitlines()
    raise types.ConfigError(
      f"{' '.join(program[1:])} ended with status {status}:"
      f" {last[-1] if last else ''}"
    )
  return Run(words, _lines(run_dir), cpu_seconds)


def _watched(
  process: subprocess.Popen[bytes],
  run_dir: pathlib.Path,
  total_seconds: float,
) -> tuple[int, float]:
  """Waits for a run, and ends it in time.

  Returns:
    Its exit status, and the CPU seconds of it and all that it started.
  """
  while True:
    # Unlike `wait`, this says what the run and its own children used.
    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    if pid:
      process.returncode = os.waitstatus_to_exitcode(status)
      return process.returncode, usage.ru_utime + usage.ru_stime
    lines = _lines(run_dir) if total_seconds else []
    if lines and lines[-1]["wall_seconds"] >= total_seconds:
      process.send_signal(signal.SIGINT)
      total_seconds = 0.0
    time.sleep(_POLL_SECONDS)


def _lines(run_dir: pathlib.Path) -> list[dict[str, Any]]:
  path = run_dir / "metrics.jsonl"
  return metrics.read_lines(path) if path.exists() else []


def _table(names: Sequence[str], runs: Sequence[Run]) -> str:
  """A row of medians over the seeds for each experiment, in Markdown."""
  columns = (
    *("experiment", "return", "env steps", "seconds", "env steps/s"),
    *("wire bytes/env step", "policy lag", "gradient staleness"),
    *("CPU seconds", "bottleneck"),
  )
  rows = [columns, ("---",) * len(columns)]
  for words in names:
    own = [_summary(run) for run in runs if run.experiment == words]
    middle = {
      name: _median([summary[name] for summary in own]) for name in own[0]
    }
    sides = [_bottleneck(run) for run in runs if run.experiment == words]
    rows.append(
      (
        f"`{words}`",
        _text(middle["episode_return"], 1),
        _text(middle["env_steps"]),
        _text(middle["wall_seconds"]),
        _text(middle["steps_per_second"]),
        _text(middle["wire_bytes"], 1),
        _text(middle["policy_lag"], 1),
        _text(middle["gradient_staleness"], 1),
        _text(middle["cpu_seconds"]),
        statistics.mode(sides),
      )
    )
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _summary(run: Run) -> dict[str, float | None]:
  last = run.lines[-1]
  wire_bytes = last.get("wire_bytes")

  def typical(name: str) -> float | None:
    return _median([line.get(name) for line in run.lines])

  return {
    "episode_return": last["episode_return"],
    "env_steps": last["env_steps"],
    "wall_seconds": last["wall_seconds"],
    # The first line has waited for compilers, the last is short.
    "steps_per_second": _median(
      [line["steps_per_second"] or None for line in run.lines[:-1]]
    ),
    "wire_bytes": None
    if wire_bytes is None
    else wire_bytes / max(1, last["env_steps"]),
    "policy_lag": typical("policy_lag"),
    "gradient_staleness": typical("gradient_staleness"),
    "cpu_seconds": run.cpu_seconds,
  }


def _bottleneck(run: Run) -> str:
  """Which side it was in most lines."""
  sides = [metrics.bottleneck(x) for x in run.lines if x["steps_per_second"]]
  return statistics.mode(sides) if sides else "-"


def _median(values: Sequence[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return statistics.median(known) if known else None


def _text(value: float | None, decimals: int = 0) -> str:
  return "-" if value is None else f"{value:,.{decimals}f}"
