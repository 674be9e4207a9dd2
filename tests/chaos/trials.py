"""Runs pipelines while their processes, peers and disk fail.

  python -m tests.chaos --pipelines seed,a3c --minutes 10

Actors, workers, servers and the learner are killed, paused and restarted at
random. Hostile peers send damaged or false messages to the learner's port, or
nothing at all, and open many connections. For some seconds, nothing can be
written, environments stand still, or an update does not return. The program
exits with 1 if

* the learner learned from a step that no environment produced, or twice from
  the same step;
* a reported return is wrong;
* a parameter is not finite;
* the run hangs or ends;
* memory grows;
* or processes, files or a server are left behind.
"""

import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seedx import files, types
from seedx.app.cli import command_line
from tests.chaos import trial

# Experiment of each pipeline, and options that suit a small machine.
_SMALL_REPLAY = ("--replay-capacity", "20000", "--replay-ratio", "1")
_ACTORS = ("--envs-per-actor", "16")
PIPELINES: Mapping[str, tuple[str, Sequence[str]]] = {
  "seed": ("seed_vtrace", _ACTORS),
  "impala": ("impala", _ACTORS),
  "pool": ("pool_vtrace", _ACTORS),
  "apex": ("apex_dqn", _SMALL_REPLAY),
  "qt_opt": ("qt_opt", (*_SMALL_REPLAY, "--envs-per-actor", "4")),
  "evolution": (
    "es",
    ("--num-workers", "2", "--pairs-per-worker", "2", "--lease-seconds", "5"),
  ),
  # Workers' replays are not in a checkpoint, so they must fill up again.
  "gorila": ("gorila_dqn", _SMALL_REPLAY),
  # A fault of an environment ends these runs at once, to test resuming.
  "a3c": ("a3c", ("--env-restarts", "0")),
  "sync": ("ppo", ("--env-restarts", "0")),
}
_ALWAYS = (
  "--total-steps",
  "10000000000",
  "--checkpoint-every-seconds",
  "5",
  "--hang-seconds",
  "8",
)
# Pipelines whose run ends with a fault of an environment.
_IN_PROCESS = ("a3c", "sync")
# A shorter trial does not allow a judgment of rates and memory.
_MINIMUM_MINUTES = 4.0
_MAXIMUM_GROWTH = {"memory": 1.05, "threads": 20.0, "files": 20.0}
# Maximum time until the rate recovers from a fault of one process.
_ACTOR_SECONDS = 5.0
# Maximum time until the rate recovers from a fault of the whole run, as a
# multiple of the cold start.
_COLD_STARTS = 1.5


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of `python -m tests.chaos`.

  Attributes:
    pipelines: pipelines to run one after the other, as A,B.
    minutes: minutes of each pipeline.
    seed: seed of the faults.
    output: JSON file for the results; none if empty.
  """

  pipelines: tuple[str, ...] = tuple(PIPELINES)
  minutes: float = types.setting(10.0, low=0.1)
  seed: int = types.setting(0, low=0, high=2**31)
  output: str = ""

  def __post_init__(self) -> None:
    types.check_settings(self)
    for name in self.pipelines:
      if name not in PIPELINES:
        raise types.ConfigError(
          f"expected pipelines of {', '.join(PIPELINES)}, found {name!r}"
        )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the trials; returns 1 if there are violations."""
  return command_line.run(
    run, Options(), "python -m tests.chaos", __doc__, argv
  )


def plan(pipeline: str, minutes: float, seed: int) -> trial.Plan:
  """Returns the faults of a pipeline's trial of some minutes."""
  experiment, options = PIPELINES[pipeline]
  alone = pipeline in _IN_PROCESS
  if alone:
    # About two faults per minute at 20,000 env steps per second.
    options = (*options, "--env-options", "mean_steps_to_fault=600000.0")
  return trial.Plan(
    experiment,
    seconds=60.0 * minutes,
    seed=seed,
    kills=0 if alone else round(2.2 * minutes),
    environment_kills=round((0.5 if alone else 0.3) * minutes),
    pauses=round(0.6 * minutes),
    learner_kills=max(2, round((1.0 if alone else 0.5) * minutes)),
    full_disks=max(1, round(0.1 * minutes)),
    hangs=max(1, round(0.1 * minutes)),
    # Updates of Gorila and A3C are in many threads or processes.
    hanging_updates=0 if pipeline in ("gorila", "a3c") else 1,
    idle_connections=0 if alone else 1,
    streams_per_second=0.6,
    environments_fail=alone,
    options=(*_ALWAYS, *options),
  )


def run(options: Options) -> int:
  summaries = {}
  for number, pipeline in enumerate(options.pipelines):
    trial_plan = plan(pipeline, options.minutes, options.seed + number)
    with tempfile.TemporaryDirectory(prefix="seedx-chaos-") as folder:
      done = trial.Trial(trial_plan, pathlib.Path(folder))
      try:
        done.run()
      finally:
        alone = pipeline in _IN_PROCESS
        summaries[pipeline] = _summary(done, alone, options.minutes)
        _show(pipeline, summaries[pipeline], done)
        if options.output:
          text = json.dumps(summaries, indent=2) + "\n"
          files.write_file(pathlib.Path(options.output), text)
  return int(any(summary["violations"] for summary in summaries.values()))


def _summary(done: trial.Trial, alone: bool, minutes: float) -> dict[str, Any]:
  of_all = ("learner", trial.SERVER, *([trial.ENVIRONMENT] * alone))
  actors, learners = trial.recoveries(done, of_all)
  growth = trial.growth(done)
  cold_start = trial.cold_start(done)
  violations = list(done.violations)
  if minutes >= _MINIMUM_MINUTES:
    violations += [
      f"{name} has grown by {more:.2f} since minute 2"
      for name, more in growth.items()
      if more > _MAXIMUM_GROWTH[name]
    ]
    violations += [
      f"the rate recovered {seconds:.1f} s after the {fault.kind} of"
      f" {fault.target}"
      for recoveries, maximum in (
        (actors, _ACTOR_SECONDS),
        (learners, _COLD_STARTS * cold_start),
      )
      for fault, seconds in recoveries
      if seconds > maximum
    ]
  if not done.audited:
    violations.append("the learner learned from no window")
  kinds = [fault.kind for fault in done.faults]
  return {
    "violations": violations,
    "faults": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
    "hostile_streams": done.statuses,
    "audited_windows": done.audited,
    "env_steps": done.samples[-1].env_steps if done.samples else 0,
    "cold_start_seconds": round(cold_start, 1),
    "recovery_seconds_after_actor": _quantiles(actors),
    "recovery_seconds_after_learner": _quantiles(learners),
    "recoveries": [
      f"{seconds:.1f} s after {fault.kind} of {fault.target} at"
      f" {fault.seconds:.0f} s"
      for fault, seconds in sorted(actors + learners)
    ],
    "growth_since_minute_2": {k: round(x, 3) for k, x in growth.items()},
  }


def _quantiles(
  recoveries: Sequence[tuple[trial.Fault, float]],
) -> list[float]:
  values = [seconds for _, seconds in recoveries]
  if not values:
    return []
  return [round(float(np.median(values)), 1), round(max(values), 1)]


def _show(pipeline: str, summary: Mapping[str, Any], done: trial.Trial) -> None:
  words = "no violation"
  if summary["violations"]:
    words = "; ".join(summary["violations"])
    print(*done.stderr, sep="\n", file=sys.stderr)
  print(f"{pipeline}: {words}")
  for name, value in summary.items():
    if name != "violations":
      print(f"  {name}: {value}", flush=True)
