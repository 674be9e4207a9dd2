"""Measures the speed of seedx on an accelerator in at most ten minutes.

  python -m benchmarks.accelerator --minutes 10 --output-dir accelerator

The program measures EnvPool alone on the CPU's cores. Then it runs
`seed_vtrace` on Atari's Pong for three minutes. Shorter runs follow: other
pipelines on Pong, CartPole with 2^13 environments, and `anakin_ppo` with 2^11
to 2^15. Acting and learning are also measured, each alone on the accelerator.
Runs and other measurements have separate processes with time limits, so that a
failure does not affect the rest. After each measurement, the program rewrites
`table.md` in the output directory.
`benchmarks/accelerator.sh` also installs seedx, within the same ten minutes.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.speed import figures, runs, work
from seedx import files, metrics
from seedx.app import devices
from seedx.app.studies import trials

_CORES = len(os.sched_getaffinity(0))
# Leaves two cores for the learner's process.
_ACTORS = max(2, _CORES - 2)
_PONG = f"--env Pong-v5 --num-actors {_ACTORS} --micro-batches 1"
_SEED = (
  f"seed_vtrace {_PONG} --envs-per-actor 16 --actor-batch-size 16"
  " --unroll-length 32 --batch-size 32 --learning-rate 8e-4"
)
_SYNC = f"ppo --env Pong-v5 --num-envs 256 --env-threads {_CORES}"
_CARTPOLE = "--env seedx:CartPole-v1"
# The first runs, and the seconds that each lasts after its first update.
RUNS = (
  (_SEED, 190),
  (f"impala {_PONG} --envs-per-actor 16 --batch-size 32", 15),
  (_SYNC, 20),
  (
    "seed_vtrace --env CartPole-v1 --num-actors 8 --envs-per-actor 1024"
    " --batch-size 1024",
    12,
  ),
  *((f"anakin_ppo {_CARTPOLE} --num-envs {2**x}", 5) for x in (11, 13, 15)),
  ("anakin_ppo --env seedx:Breakout-MinAtar --num-envs 4096", 8),
)
MORE_RUNS = (
  (f"{_SEED} --image-torso impala --compute-dtype bfloat16", 15),
  (f"{_SEED} --compute-dtype bfloat16", 15),
)
# For acting and learning alone: options, and number of rows for acting.
_ALONE = (
  ("", 128),
  ("", 1024),
  ("--compute-dtype bfloat16", 1024),
  ("--image-torso impala", 128),
  ("--image-torso impala --compute-dtype bfloat16", 128),
)
# Maximum seconds until a run's first update.
_PATIENCE = 100.0
# Maximum seconds of each process that measures one of `_PARTS`.
_PART = 120.0
# Seconds that must remain to begin a measurement.
_MINIMUM = 45.0
# The table has the times at which a run on Pong first reached these returns.
_GOALS = (-15, 0, 15, 18, 20)


@dataclasses.dataclass(frozen=True)
class Row:
  """A line of the table.

  Attributes:
    what: description of the measurement.
    rate: env steps per second.
    busy: share of the time in which the accelerator computed, 0 to 1; None if
      unknown.
    learner: mean number of cores that the learner's process kept busy.
    others: mean number of cores that all other processes of the run kept busy.
    of_environments: `rate` over the highest rate of EnvPool alone on Pong; None
      for other environments.
    note: further observations.
  """

  what: str
  rate: float
  busy: float | None = None
  learner: float | None = None
  others: float | None = None
  of_environments: float | None = None
  note: str = ""

  def cells(self) -> list[str]:
    """Returns the texts of this line's cells."""
    numbers = [
      "-" if x is None else f"{x:.2f}"
      for x in (self.of_environments, self.busy, self.learner, self.others)
    ]
    return [f"`{self.what}`", f"{self.rate:,.0f}", *numbers, self.note]


class Busy:
  """Samples of the utilization of an NVIDIA GPU."""

  def __init__(self) -> None:
    """Starts sampling every 0.2 s if there is an NVIDIA GPU."""
    self._samples: list[tuple[float, float]] = []
    self._process: subprocess.Popen[str] | None = None
    if shutil.which("nvidia-smi"):
      program = ["nvidia-smi", "--query-gpu=utilization.gpu", "-lms", "200"]
      self._process = subprocess.Popen(
        [*program, "--format=csv,noheader,nounits"],
        stdout=subprocess.PIPE,
        text=True,
      )
      threading.Thread(target=self._read, daemon=True).start()

  def share(self, start_seconds: float, end_seconds: float) -> float | None:
    """Returns the mean share in a time span, 0 to 1; None if unknown."""
    shares = [
      share
      for seconds, share in list(self._samples)
      if start_seconds <= seconds <= end_seconds
    ]
    return statistics.fmean(shares) if shares else None

  def close(self) -> None:
    """Stops sampling."""
    if self._process:
      self._process.kill()

  def _read(self) -> None:
    assert self._process is not None and self._process.stdout is not None
    for line in self._process.stdout:
      if line.strip().isdigit():
        self._samples.append((time.monotonic(), float(line) / 100))


def main(argv: Sequence[str] | None = None) -> int:
  """Measures until the time is over; returns the number of failures."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--minutes", type=float, default=10.0)
  parser.add_argument("--output-dir", type=pathlib.Path, default="accelerator")
  parser.add_argument(
    "--only",
    default="",
    help="measure only runs and parts whose names contain one of the texts A,B",
  )
  parser.add_argument("--part", help=argparse.SUPPRESS)
  options = parser.parse_args(argv)
  if options.part:
    for row in _PARTS[options.part]():
      print(json.dumps(dataclasses.asdict(row)), flush=True)
    return 0
  only = [x for x in options.only.split(",") if x]
  return _Session(options.output_dir, options.minutes, only).run()


class _Session:
  def __init__(
    self, output_dir: pathlib.Path, minutes: float, only: Sequence[str]
  ) -> None:
    self._start = time.monotonic()
    self._end = self._start + 60 * minutes
    self._only = only
    self._dir = output_dir
    self._dir.mkdir(parents=True, exist_ok=True)
    self._runs = pathlib.Path(tempfile.mkdtemp(prefix="seedx-accelerator-"))
    self._rows: list[Row] = []
    # Highest rate of EnvPool alone on Pong, in env steps per second.
    self._alone = 0.0
    self._failed = 0
    # Shares compiled programs between the processes.
    cache = str(self._runs / "cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache)
    self._machine = json.dumps(figures.machine())
    self._busy = Busy()

  def run(self) -> int:
    try:
      self._keep("environments alone", self._in_process("environments alone"))
      self._alone = max((x.rate for x in self._rows), default=0.0)
      for words, seconds in RUNS:
        self._keep(words, self._run(words, seconds))
      self._keep("parts alone", self._in_process("parts alone"))
      for words, seconds in MORE_RUNS:
        self._keep(words, self._run(words, seconds))
    finally:
      self._busy.close()
      shutil.rmtree(self._runs)
    return self._failed

  def share(self, words: str, rate: float) -> float | None:
    """Returns `rate` over EnvPool's rate alone on Pong; None if unknown."""
    is_known = self._alone and "Pong" in words
    return rate / self._alone if is_known else None

  def _keep(self, name: str, rows: Iterable[Row]) -> None:
    """Measures and writes rows, if `--only` selects them and time is left."""
    if self._only and not any(x in name for x in self._only):
      return
    now = time.monotonic()
    left = self._end - now
    text = name if left > _MINIMUM else f"no time left for {name}"
    print(f"{now - self._start:.0f} s: {text}", file=sys.stderr, flush=True)
    if left <= _MINIMUM:
      return
    try:
      for row in rows:
        self._rows.append(row)
        self._write()
    except Exception as error:  # Other rows can still be measured.
      self._failed += 1
      print(f"FAILED: {error}", file=sys.stderr, flush=True)

  def _write(self) -> None:
    titles = ["what", "env steps/s", "of EnvPool alone", "accelerator busy"]
    titles += ["learner's cores", "other cores", "note"]
    lines = [titles, ["---"] * len(titles), *(x.cells() for x in self._rows)]
    table = "\n".join(f"| {' | '.join(x)} |" for x in lines)
    text = f"{self._machine}\n\n{table}\n"
    files.write_file(self._dir / "table.md", text)

  def _in_process(self, part: str) -> Iterator[Row]:
    program = [sys.executable, "-m", "benchmarks.accelerator", "--part", part]
    with subprocess.Popen(
      program, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
      assert process.stdout is not None
      left = self._end - time.monotonic()
      timer = threading.Timer(min(_PART, left), _kill_group, [process.pid])
      timer.start()
      for line in process.stdout:
        yield Row(**json.loads(line))
      timer.cancel()
    if process.returncode:
      raise RuntimeError(f"{part!r} ended with status {process.returncode}")

  def _run(self, words: str, seconds: float) -> Iterator[Row]:
    """Runs for `seconds` after the first update; measures the second half."""
    trial = trials.Trial(
      f"{len(self._rows)}-{self._failed}", work.words_of(words, "")
    )
    stop = threading.Event()
    # Ends a run whose first update takes too long.
    timer = threading.Timer(_PATIENCE + seconds, stop.set)
    running = trials.Running(trial, self._runs)
    timer.start()
    samples = runs.sampled(running, seconds, stop)
    timer.cancel()
    if error := running.error():
      raise RuntimeError(error)
    busy = runs.cores_used(running.pid, samples)
    lines = metrics.read_lines(running.run_dir / "metrics.jsonl")
    if words == _SEED:
      shutil.copy(running.run_dir / "metrics.jsonl", self._dir / "pong.jsonl")
    rate = _rate(samples)
    yield Row(
      words,
      rate,
      self._busy.share(samples[0].seconds, samples[-1].seconds),
      *busy,
      self.share(words, rate),
      _note(lines, _GOALS if "Pong" in words else ()),
    )


def _rate(samples: Sequence[runs.Sample]) -> float:
  first, last = samples[0].line, samples[-1].line
  elapsed = last["wall_seconds"] - first["wall_seconds"]
  return (last["env_steps"] - first["env_steps"]) / elapsed


def _note(lines: Sequence[Mapping[str, Any]], goals: Sequence[float]) -> str:
  """Returns medians of metrics, and when each goal was reached, as text."""
  last = lines[-1]
  first = next(x for x in lines if x["learner_steps"])
  notes = [
    f"first update after {first['wall_seconds']:.1f} s",
    f"{last['learner_steps']:,} updates",
  ]
  for name in (
    "reply_seconds_p50",
    "reply_seconds_p99",
    "inference_rows",
    "policy_lag",
    "acting_wait_environments",
    "acting_wait_device",
    "acting_wait_update",
    "micro_batches_advised",
    "acting_wait_learner",
    "learning_wait_experience",
  ):
    half = lines[len(lines) // 2 :]
    if values := [x[name] for x in half if x.get(name) is not None]:
      notes.append(f"{name} {statistics.median(values):.3g}")
  notes.append(
    f"{last['env_steps']:,} env steps, return {last['episode_return']}"
  )
  for goal in goals:
    for line in lines:
      reached = line["episode_return"]
      if reached is not None and reached >= goal:
        steps, seconds = line["env_steps"] / 1e6, line["wall_seconds"]
        notes.append(f"{goal} after {steps:.2f}M, {seconds:.0f} s")
        break
  return "; ".join(notes)


def _kill_group(pid: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(pid, signal.SIGKILL)


def _environments_alone() -> Iterator[Row]:
  """Measures EnvPool with random actions, and with the sizes of two runs."""
  for words in (_SEED, _SYNC):
    config = work.config_of(words, "")
    sizes = work.sizes_of(config)
    rate, cost = work.environments(config, sizes, 4.0)
    what = f"EnvPool alone, Pong, {sizes.pools} x {sizes.envs} environments"
    what += f", {sizes.threads} threads"
    yield Row(what, rate, note=f"{1e6 * cost:.0f} us of CPU a step")


def _parts_alone() -> Iterator[Row]:
  devices.compute_on_own_threads()
  for words, rows in _ALONE:
    yield _acting(words, rows)
  for words in dict.fromkeys(words for words, _ in _ALONE):
    yield _learning(words)


def _acting(words: str, rows: int) -> Row:
  config = work.config_of(f"seed_vtrace {_PONG} {words}", "")
  sizes = work.sizes_of(config)
  sizes = dataclasses.replace(sizes, rows=rows, slots=2 * rows)
  act, _ = work.actor(config, sizes)
  note, seconds = _timed(act, lambda: None)
  what = f"acting alone, {rows} rows {words}".strip()
  return Row(what, rows / seconds, note=note)


def _learning(words: str, unrolls: int = 32) -> Row:
  experiment = f"seed_vtrace {_PONG} {words} --batch-size {unrolls}"
  config = work.config_of(experiment, "")
  sizes = work.sizes_of(config)
  learner = work.learning_functions(config, sizes)
  note, seconds = _timed(learner.learn, learner.finish)
  what = f"learning alone, {unrolls} x {sizes.period} steps {words}".strip()
  return Row(what, unrolls * sizes.period / seconds, note=note)


def _timed(
  call: Callable[[], object], finish: Callable[[], object]
) -> tuple[str, float]:
  """Returns a note on the cost of a call, and its mean seconds."""
  first = time.monotonic()
  for _ in range(5):  # The first two calls may compile.
    call()
  finish()
  start, start_cpu, calls = time.monotonic(), time.process_time(), 0
  while time.monotonic() < start + 2.0:
    call()
    calls += 1
  finish()
  seconds = (time.monotonic() - start) / calls
  cpu_seconds = (time.process_time() - start_cpu) / calls
  note = f"{1e3 * seconds:.2f} ms a call, {1e3 * cpu_seconds:.2f} ms of CPU;"
  return f"{note} compiled in {start - first:.1f} s", seconds


_PARTS: dict[str, Callable[[], Iterator[Row]]] = {
  "parts alone": _parts_alone,
  "environments alone": _environments_alone,
}

if __name__ == "__main__":
  sys.exit(main())
