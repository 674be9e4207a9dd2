"""Compares the speed of a run with the cost of its parts.

  python -m benchmarks.speed --quick
  python -m benchmarks.speed --experiments "seed_vtrace,dqn --hidden-sizes 64"

The benchmark measures environments, acting and learning, each alone. The costs
of these parts set an upper bound on this machine's env steps per second. Then
the benchmark measures a run of the experiment, with the CPU time of the run's
processes. All of this is repeated several times; medians are reported, in a
table and in a file with one JSON line per figure. A repetition has no ratios if
processes outside the benchmark kept more than 0.1 cores busy. To measure how a
pipeline scales, name an experiment several times, with different options:

  python -m benchmarks.speed --experiments "impala,impala --num-actors 4"
  python -m benchmarks.speed --experiments "impala,impala --learner-devices 0,1"

The environment variable XLA_FLAGS=--xla_force_host_platform_device_count=2
makes JAX treat a CPU as two devices.
"""

import dataclasses
import sys
from collections.abc import Sequence

from seedx import types
from seedx.app.cli import command_line
from seedx.app.studies import trials

_QUICK_SECONDS = 8.0


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the program.

  Attributes:
    experiments: experiments to measure, as A,B; each may have its own options.
    env: name of the environment, for experiments without --env of their own.
    seconds: seconds of each run after its first update; each part alone is
      measured for a quarter of this time.
    repetitions: number of rounds; each round measures every experiment.
    output: file with one JSON line per figure; its first line describes the
      machine.
    quick: whether to measure only once, with runs of at most 8 seconds.
  """

  experiments: tuple[str, ...] = (
    "seed_vtrace --num-actors 2 --envs-per-actor 1024 --batch-size 1024",
  )
  env: str = "CartPole-v1"
  seconds: float = types.setting(20.0, low=1.0, high=types.MAX_SECONDS)
  repetitions: int = types.setting(3, low=1, high=2**20)
  output: str = "benchmark.jsonl"
  quick: bool = False

  def __post_init__(self) -> None:
    """Raises types.ConfigError if an option is out of range."""
    types.check_settings(self)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the benchmark; returns its exit status."""
  return command_line.run(
    _benchmark, Options(), "python -m benchmarks.speed", __doc__, argv
  )


def _benchmark(options: Options) -> int:
  experiments = trials.experiments_of(options.experiments)
  from benchmarks.speed import figures, runs, work  # These import JAX.

  for words in experiments:
    # Refuses a wrong option before anything is measured.
    work.config_of(words, options.env)
  if options.quick:
    seconds = min(options.seconds, _QUICK_SECONDS)
    options = dataclasses.replace(options, seconds=seconds, repetitions=1)
  results, status = figures.Figures(options.output), 0
  disturbed: list[str] = []
  for k in range(options.repetitions):
    for words in experiments:
      progress = f"{k + 1}/{options.repetitions}, {words}"
      print(progress, file=sys.stderr, flush=True)
      try:
        measured, ended = runs.measure(words, options.env, options.seconds)
      except types.ConfigError as error:
        # The other experiments can still be measured.
        print(f"error: {error}", file=sys.stderr, flush=True)
        status = 1
        continue
      if ended:
        return ended
      results.add(words, measured)
      if reason := runs.why_no_ratios(measured):
        disturbed.append(f"{progress}: {reason}")
  print(results.table(), *disturbed, sep="\n")
  print(f"{options.output} has all values", flush=True)
  return status


if __name__ == "__main__":
  sys.exit(main())
