"""Compares what TD3 and SAC learn with CleanRL's programs, on the same MuJoCo.

  python -m benchmarks.control_study --python ../peers/cleanrl/bin/python \
    --source ../peers/cleanrl-src
  python -m benchmarks.control_study --figure

Both programs train on EnvPool's environments with their own defaults, and play
greedy whole episodes after each `--every` env steps. Runs that already have a
file in `--results` are skipped, so the study can be stopped and started again;
a run that was stopped starts anew. Runs have a core each, one CPU thread and
the lowest priority. `--figure` draws all results, and trains nothing.

`benchmarks/README.md` has the commands that install CleanRL.
"""

import argparse
import concurrent.futures
import datetime
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import control_figure, watched

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = pathlib.Path(__file__).parent / "results" / "control_study"
_RUNNER = _ROOT / "benchmarks" / "peers" / "cleanrl_control.py"
_PICTURE = _ROOT / "experiments" / "figures" / "td3_cleanrl.png"
# In order: algorithm, environment and number of seeds.
_PARTS = (
  ("td3", "HalfCheetah-v4", 5),
  ("td3", "Hopper-v4", 5),
  ("sac", "HalfCheetah-v4", 3),
  ("sac", "Hopper-v4", 3),
)
_NAMES = {"cleanrl": "CleanRL", "seedx": "seedx"}
_PROGRAMS = tuple(_NAMES)
_CLEANRL = {
  "td3": "td3_continuous_action_jax.py",
  "sac": "sac_continuous_action.py",
}
_PACKAGES = ("jax", "envpool", "gymnasium", "torch")
_VERSIONS = """
import importlib.metadata as m, json, sys
found = {x.metadata["Name"].lower(): x.version for x in m.distributions()}
print(json.dumps({x: found.get(x) for x in sys.argv[1:]}))
"""


class Row(NamedTuple):
  """A run of the study.

  Attributes:
    program: "cleanrl" or "seedx".
    algorithm: "td3" or "sac".
    env: name of the EnvPool environment.
    seed: seed of the run.
  """

  program: str
  algorithm: str
  env: str
  seed: int

  @property
  def name(self) -> str:
    """Name of the row's file."""
    return f"{self.algorithm}_{self.env}_{self.seed}_{self.program}"


ROWS = [
  Row(program, algorithm, env, seed)
  for algorithm, env, seeds in _PARTS
  for seed, program in itertools.product(range(seeds), _PROGRAMS)
]


class Study:
  """Runs rows that have no result yet, each on a core of its own."""

  def __init__(self, options: argparse.Namespace) -> None:
    self._options = options
    rows = [row for row in ROWS if re.search(options.only, row.name)]
    self._rows = [row for row in rows if not self._path(row).exists()]
    self._deadline = time.monotonic() + 60 * options.minutes
    self._lock = threading.Lock()
    self._processes: set[subprocess.Popen[bytes]] = set()

  def run(self) -> bool:
    """Runs all rows; returns whether none has failed."""
    cores = sorted(os.sched_getaffinity(0))
    cores = cores[: self._options.jobs]
    with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
      try:
        return all([*pool.map(self._work, cores)])
      except BaseException:
        with self._lock:
          self._rows.clear()
          for process in self._processes:
            process.kill()
        raise

  def _work(self, core: int) -> bool:
    """Runs rows, one after another, on a core."""
    succeeded = True
    while time.monotonic() < self._deadline:
      with self._lock:
        if not self._rows:
          break
        row = self._rows.pop(0)
      succeeded &= self._run(row, core)
    return succeeded

  def _run(self, row: Row, core: int) -> bool:
    """Runs a row and writes its file; returns whether it succeeded."""
    start_seconds = time.monotonic()
    about = _about(row, self._options)
    with tempfile.TemporaryDirectory(prefix="seedx-study-") as folder:
      log = pathlib.Path(folder) / "log"
      status = self._execute(row, core, folder, log)
      evaluations = _evaluations(pathlib.Path(folder))
      end = log.read_text(errors="replace")[-2000:]
    minutes = (time.monotonic() - start_seconds) / 60
    total = self._options.total_steps
    if status or not evaluations or evaluations[-1][0] < total:
      _print(f"{row.name} failed with status {status}:\n{end}")
      return False
    result = {
      **about,
      "evaluations": evaluations,
      "episodes": self._options.episodes,
      "minutes": round(minutes, 1),
    }
    path = self._path(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(path)
    _print(f"{row.name}: {evaluations} in {minutes:.1f} minutes")
    return True

  def _execute(
    self, row: Row, core: int, folder: str, log: pathlib.Path
  ) -> int:
    """Runs a row's command in a folder; returns its exit status."""
    command = [*_prefix(core), *_command(row, self._options, folder)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "PJRT_NPROC"), "1")
    paths = {"PYTHONPATH": str(_ROOT)} if row.program == "seedx" else {}
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **threads, **paths}
    with log.open("wb") as file, self._lock:
      process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=file,
        stderr=file,
        preexec_fn=watched.use_idle_time,
      )
      self._processes.add(process)
    try:
      return process.wait()
    finally:
      with self._lock:
        self._processes.discard(process)

  def _path(self, row: Row) -> pathlib.Path:
    return pathlib.Path(self._options.results) / f"{row.name}.json"


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study, or draws it; returns the exit status."""
  options = _parser().parse_args(argv)
  if options.figure:
    results = read(pathlib.Path(options.results))
    control_figure.draw(results, pathlib.Path(options.picture))
    return 0
  for name in ("python", "source"):
    # Runs have folders of their own; a link leads to the environment.
    setattr(options, name, os.path.abspath(getattr(options, name)))
  return 0 if Study(options).run() else 1


def read(folder: pathlib.Path = _RESULTS) -> list[dict[str, Any]]:
  """Returns the contents of all files of results."""
  return [
    json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))
  ]


def table(results: Sequence[Mapping[str, Any]]) -> str:
  """Returns a Markdown table of the mean returns after half of a run and all.

  `±` is the sample standard deviation over seeds.
  """
  lines = []
  for algorithm, env, _ in _PARTS:
    for program in _PROGRAMS:
      key = {"algorithm": algorithm, "environment": env, "program": program}
      runs = [x for x in results if key.items() <= x.items()]
      if runs:
        seeds = ", ".join(str(x["seed"]) for x in runs)
        curves = [x["evaluations"] for x in runs]
        half = _mean([_nearest(x, x[-1][0] / 2) for x in curves])
        end = _mean([curve[-1] for curve in curves])
        commit = ", ".join(sorted({x["commit"] for x in runs}))
        name = f"{_NAMES[program]} `{algorithm}`"
        lines.append([name, env, seeds, half, end, commit])
  header = (
    "program",
    "environment",
    "seeds",
    "50k env steps",
    "100k",
    "commit",
  )
  return watched.table(header, lines)


def _nearest(
  curve: Sequence[Sequence[float]], env_steps: float
) -> Sequence[float]:
  """Returns the evaluation that is nearest to a number of env steps."""
  return min(curve, key=lambda x: abs(x[0] - env_steps))


def _mean(evaluations: Sequence[Sequence[float]]) -> str:
  returns = [mean for _, mean in evaluations]
  text = f"{statistics.fmean(returns):,.0f}"
  if len(returns) > 1:
    text += f" ± {statistics.stdev(returns):,.0f}"
  return text


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--python",
    default="../peers/cleanrl/bin/python",
    help="interpreter with the packages of CleanRL",
  )
  parser.add_argument(
    "--source", default="../peers/cleanrl-src", help="checkout of CleanRL"
  )
  parser.add_argument(
    "--only", default="", help="pattern of names, such as td3_Hopper"
  )
  parser.add_argument("--minutes", type=float, default=float("inf"))
  parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
  parser.add_argument("--total-steps", type=int, default=100_000)
  parser.add_argument("--every", type=int, default=25_000)
  parser.add_argument("--episodes", type=int, default=20)
  parser.add_argument("--results", default=str(_RESULTS))
  parser.add_argument("--figure", action="store_true")
  parser.add_argument("--picture", default=str(_PICTURE))
  return parser


def _prefix(core: int) -> list[str]:
  """Returns the words before a command that give it one core."""
  # The run also ends when the study is killed.
  return ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(core)]


def _command(
  row: Row, options: argparse.Namespace, folder: str
) -> Sequence[str]:
  seed, total = str(row.seed), str(options.total_steps)
  if row.program == "seedx":
    words = f"-m seedx train {row.algorithm} --env {row.env} --run-dir run"
    words += f" --total-steps {total} --seed {seed}"
    words += f" --evaluate-every-steps {options.every}"
    words += f" --evaluate-episodes {options.episodes}"
    return [sys.executable, *words.split()]
  settings = {
    "env": row.env,
    "seed": row.seed,
    "every": options.every,
    "episodes": options.episodes,
    "output": f"{folder}/evaluations.jsonl",
  }
  program = f"{options.source}/cleanrl/{_CLEANRL[row.algorithm]}"
  words = f"--env-id {row.env} --seed {seed} --total-timesteps {total}"
  runner = [options.python, str(_RUNNER), json.dumps(settings)]
  return [*runner, program, *words.split()]


def _evaluations(folder: pathlib.Path) -> list[list[float]]:
  """Returns env steps and mean return of each evaluation of a run."""
  paths = [*folder.glob("evaluations.jsonl"), *folder.glob("run/eval*.jsonl")]
  lines = [
    json.loads(line) for path in paths for line in path.read_text().splitlines()
  ]
  return [[line["env_steps"], round(line["mean"], 2)] for line in lines]


def _about(row: Row, options: argparse.Namespace) -> Mapping[str, Any]:
  """Returns what a row's file has beside its evaluations."""
  is_own = row.program == "seedx"
  python = sys.executable if is_own else options.python
  source = str(_ROOT) if is_own else options.source
  versions = _output([python, "-c", _VERSIONS, *_PACKAGES])
  processor = re.search(
    r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()
  )
  return {
    "program": row.program,
    "algorithm": row.algorithm,
    "environment": row.env,
    "seed": row.seed,
    "commit": _output(["git", "-C", source, "rev-parse", "--short", "HEAD"]),
    "date": str(datetime.date.today()),
    "versions": json.loads(versions),
    "machine": f"{os.cpu_count()} cores, {processor and processor[1]}",
  }


def _output(command: Sequence[str]) -> str:
  process = subprocess.run(command, capture_output=True, text=True, check=True)
  return process.stdout.strip()


def _print(text: str) -> None:
  print(f"{datetime.datetime.now():%m-%d %H:%M} {text}", flush=True)


if __name__ == "__main__":
  watched.end_on_signals()
  sys.exit(main())
