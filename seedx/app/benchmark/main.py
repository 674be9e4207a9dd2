"""Measures how fast a run is, against what its own work costs.

  seedx benchmark --quick
  seedx benchmark --experiments "seed_vtrace,impala,apex_dqn --hidden-sizes 64"

It measures environments, acting and learning, each alone; the bound that
follows for the env steps per second on this machine's cores; and a run of the
experiment, with the CPU time of its processes. It does all in turn, several
times, and reports medians: a table, and a file with one JSON line per figure.
For growth, name an experiment several times, with other options:

  seedx benchmark --experiments "impala --num-actors 1,impala --num-actors 4"
  seedx benchmark --experiments "impala,impala --learner-devices 0,1"

With XLA_FLAGS=--xla_force_host_platform_device_count=2 in front, a CPU is two
devices.
"""

import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from seedx import files, types
from seedx.app import command_line, compare
from seedx.app.benchmark import (
  components,
  machine,
  own_work,
  runs,
  work_sizes,
)
from seedx.app.benchmark.figures import Figure, json_lines, table

# The share of a run's time for which each part is measured alone.
_PART = 0.25
_QUICK_SECONDS = 8.0


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    experiments: what to measure, A,B; each may have its own options.
    env: name of the environment, for experiments without --env of their own.
    seconds: of each run, from the first update on; each part alone is measured
      for a quarter of it.
    repetitions: how often all is measured, in turn.
    output: file with one JSON line per figure; the first describes the machine.
    quick: measure once, for 8 seconds at most, and only the experiments.
    streams: numbers of clients that wait for replies at the same time, to
      measure what a server carries, such as 1,16,256.
  """

  experiments: tuple[str, ...] = (
    "seed_vtrace --num-actors 2 --envs-per-actor 1024 --batch-size 1024",
  )
  env: str = "CartPole-v1"
  seconds: float = 20.0
  repetitions: int = 3
  output: str = "benchmark.jsonl"
  quick: bool = False
  streams: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an option that is out of range."""
    types.check_ranges(
      self,
      seconds=(1.0, types.MOST_SECONDS),
      repetitions=(1, 2**20),
    )
    for number in self.streams:
      types.check_range("streams", number, 1, 2**16)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the benchmark; returns its exit status."""
  return command_line.run(
    _benchmark, Options(), "seedx benchmark", __doc__, argv
  )


def _benchmark(options: Options) -> int:
  experiments = compare.experiments_of(options.experiments)
  for words in experiments:
    work_sizes.config_of(words, options.env)  # Says what is wrong now.
  if options.quick:
    seconds = min(options.seconds, _QUICK_SECONDS)
    options = dataclasses.replace(options, seconds=seconds, repetitions=1)
  found = _Found(pathlib.Path(options.output))
  status = 0
  for k in range(options.repetitions):
    say = _Progress(f"{k + 1}/{options.repetitions}")
    for words in experiments:
      try:
        ended = _experiment(words, options, found, say)
      except types.ConfigError as error:
        # The others can be measured all the same.
        print(f"error: {error}", file=sys.stderr, flush=True)
        ended, status = 0, 1
      if ended:
        return ended
    part_seconds = options.seconds * _PART
    if not options.quick:
      found.keep(_components(part_seconds, say))
    for number in options.streams:
      say(f"{number} streams")
      found.keep(_streams(number, part_seconds))
  print(table(found.figures))
  print(f"{options.output} has all values", flush=True)
  return status


def _experiment(
  words: str, options: Options, found: "_Found", say: Callable[[str], None]
) -> int:
  """Measures an experiment; returns the status of a signal that ended it."""
  cores = len(os.sched_getaffinity(0))
  part_seconds = options.seconds * _PART
  work = own_work.measure(words, options.env, part_seconds, say)
  found.keep(runs.of_work(words, work, cores))
  say(f"a run of {options.seconds:g} s, {words}")
  usage = runs.measure(words, options.env, options.seconds)
  if isinstance(usage, int):
    return usage
  found.keep(runs.of_run(words, work, usage, cores))
  return 0


class _Found:
  """What was measured so far, in a file that is whole at any time.

  Attributes:
    figures: in order.
  """

  def __init__(self, path: pathlib.Path) -> None:
    """Fails now if the file cannot be written."""
    self._path = path
    self._machine = json.dumps({"machine": machine.described()}) + "\n"
    self.figures: list[Figure] = []
    self.keep([])

  def keep(self, figures: Sequence[Figure]) -> None:
    """Adds figures."""
    self.figures.extend(figures)
    files.write_file(self._path, self._machine + json_lines(self.figures))


class _Progress:
  """Says what is measured next, and since when."""

  def __init__(self, repetition: str) -> None:
    self._repetition = repetition
    self._start_seconds = time.monotonic()

  def __call__(self, what: str) -> None:
    seconds = time.monotonic() - self._start_seconds
    line = f"{self._repetition}, {seconds:.0f} s: {what}"
    print(line, file=sys.stderr, flush=True)


def _components(seconds: float, say: Callable[[str], None]) -> list[Figure]:
  found = []
  for measure in (components.wire_alone, components.replay_alone):
    say(measure.__name__.replace("_", " "))
    costs = own_work.in_process(own_work.as_with_a_server, measure, seconds)
    found += [
      Figure(of, figure, "us", 1e6 * cost)
      for (of, figure), cost in costs.items()
    ]
  return found


def _streams(streams: int, seconds: float) -> list[Figure]:
  arguments = components.streams, streams, seconds
  connect_seconds, per_second = own_work.in_process(*arguments)
  name = f"wire, {streams} streams"
  return [
    Figure(name, "to connect all", "s", connect_seconds),
    Figure(name, "replies", "messages/s", per_second),
  ]


if __name__ == "__main__":
  sys.exit(main())
