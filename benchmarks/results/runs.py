"""The runs of rows: training, measuring, and writing an outcome for each."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import watched
from benchmarks.results import data, fingerprints
from seedx import metrics, signals
from seedx.app.runs import run_folders
from seedx.app.studies import pool, trials

_EPISODES = 100
# Folder of the runs, which is not committed.
_RUNS = data.ROOT / "runs" / "results"
# The code that decides what a run computes.
_CODE = ("seedx", "experiments")


def run(
  rows: Sequence[data.Row], seeds: Sequence[int], minutes: float, core: int
) -> int:
  """Runs the rows' seeds that have no outcome with today's fingerprint.

  Runs of the same row follow one another, at the lowest priority. After
  `minutes`, the current run ends with a checkpoint, from which the next call
  continues it.

  Args:
    rows: rows to run, in this order.
    seeds: seeds to run, of those of each row; all if empty.
    minutes: time limit.
    core: the only core to use; -1 for all.

  Returns:
    The exit status: 1 if a run failed.
  """
  if data.git("status", "--porcelain", "--", *_CODE):
    print(f"expected {', '.join(_CODE)} without uncommitted changes")
    return 2
  if core >= 0:
    os.sched_setaffinity(0, {core})
  about = data.provenance()
  end_seconds, failed = time.monotonic() + 60 * minutes, False
  stop = threading.Event()
  start = functools.partial(trials.Running, prepare=watched.use_idle_time)
  places = pool.Pool(_RUNS / about["commit"], stop, start=start, resumes=True)

  def is_over(*_: object) -> bool:
    if time.monotonic() > end_seconds:
      stop.set()
    return stop.is_set()

  with signals.stopping(stop):
    for row in rows:
      if is_over():
        break
      about["fingerprint"] = fingerprints.of_rows([row.name]).get(row.name)
      for group in _groups(row, due(row, seeds, about["fingerprint"])):
        left = end_seconds - time.monotonic()
        if left < min(60.0, 60 * row.minutes):
          break
        name = f"{row.name}/{group[0]}"
        trial = trials.Trial(name, row.words, group[0])
        for _, error in places.train([trial], is_over):
          if error:
            failed = True
          elif not is_over():
            _measure(row, group, about, places.run_dir / name)
  return int(failed)


def reached(
  lines: Sequence[Mapping[str, Any]], at: Sequence[float]
) -> dict[str, list[float]]:
  """Returns the first env steps and seconds at which returns are reached."""
  first = {}
  for goal in at:
    for line in lines:
      mean = line["episode_return"]
      if mean is not None and mean >= goal:
        first[f"{goal:g}"] = [line["env_steps"], line["wall_seconds"]]
        break
  return first


def due(
  row: data.Row, seeds: Sequence[int], fingerprint: str | None
) -> list[int]:
  """Returns those of the seeds (all if empty) without such a fingerprint."""
  kept = {k: x.fingerprint for k, x in row.outcomes.items()}
  return [
    seed
    for seed in row.seeds
    if (not seeds or seed in seeds)
    and (fingerprint is None or kept.get(seed) != fingerprint)
  ]


def _groups(row: data.Row, seeds: Sequence[int]) -> Iterator[Sequence[int]]:
  """Yields the seeds of each run; `--num-seeds` trains all seeds in one."""
  if seeds and "--num-seeds" in row.words:
    yield row.seeds
  else:
    yield from ([seed] for seed in seeds)


def _measure(
  row: data.Row,
  seeds: Sequence[int],
  about: Mapping[str, Any],
  folder: pathlib.Path,
) -> None:
  """Measures the seeds of a run, and writes an outcome for each."""
  lines = metrics.read_lines(folder / run_folders.METRICS)
  for index, seed in enumerate(seeds):
    mean = lines[-1]["episode_return"]
    outcome = data.Outcome(
      seed=seed,
      training=lines[-1].get(f"episode_return_seed_{seed}", mean),
      greedy=_greedy(folder, index) if row.measure == "greedy" else None,
      evaluations=_evaluations(folder),
      reached=reached(lines, row.at if row.measure == "reached" else ()),
      **about,
    )
    outcome.write(row.path(seed))
    print(f"{row.name}, seed {seed}: {outcome}", flush=True)


def _greedy(folder: pathlib.Path, index: int) -> float:
  """Returns the mean return of greedy episodes of a run's training."""
  words = ["evaluate", str(folder), "--episodes", f"{_EPISODES}"]
  if index:
    words += ["--seed-index", f"{index}"]
  program = [sys.executable, "-m", "seedx", *words]
  subprocess.run(
    program, cwd=data.ROOT, preexec_fn=watched.use_idle_time, check=True
  )
  newest = max(
    folder.glob("checkpoints/evaluation-*.json"), key=os.path.getmtime
  )
  return json.loads(newest.read_text())["mean"]


def _evaluations(folder: pathlib.Path) -> dict[str, float]:
  """Returns the mean returns of a run's evaluations, by env steps."""
  path = folder / "evaluations.jsonl"
  lines = path.read_text().splitlines() if path.exists() else []
  read = [json.loads(line) for line in lines]
  return {f"{x['env_steps']}": x["mean"] for x in read}


def cheapest(rows: Sequence[data.Row]) -> list[data.Row]:
  """Returns the rows in the order of their minutes."""
  return sorted(rows, key=lambda row: row.minutes * len(row.seeds))
