"""Measures how fast a run is, against what its own work costs.

  seedx benchmark --quick
  seedx benchmark --experiments "seed_vtrace,impala,apex_dqn --hidden-sizes 64"

It measures environments, acting and learning, each alone; the bound that
follows for the env steps per second on this machine's cores; and a run of the
experiment, with the CPU time of its processes. It does all in turn, several
times, and reports medians: a table, and a file with one JSON line per figure.
For growth, name an experiment several times, with other options:

  seedx benchmark --experiments "impala --num-actors 1,impala --num-actors 4"
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from seedx import metrics, types
from seedx.app import command_line, compare
from seedx.app.benchmark import components, own_work, work_sizes

# The share of a run's time for which each part is measured alone.
_PART = 0.25
_QUICK_SECONDS = 8.0


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    experiments: what to measure, A,B; each may have its own options.
    env: name of the environment.
    seconds: of each run, from the first update on; each part alone is measured
      for a quarter of it.
    repetitions: how often all is measured, in turn.
    output: file with one JSON line per figure.
    quick: measure once, for 8 seconds at most, and only the experiments.
    streams: clients that wait for replies at the same time, to measure what a
      server carries; 0 for none.
  """

  experiments: tuple[str, ...] = (
    "seed_vtrace --num-actors 2 --envs-per-actor 1024 --batch-size 1024",
  )
  env: str = "CartPole-v1"
  seconds: float = 20.0
  repetitions: int = 3
  output: str = "benchmark.jsonl"
  quick: bool = False
  streams: int = 0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an option that is out of range."""
    types.check_ranges(
      self,
      seconds=(1.0, types.MOST),
      repetitions=(1, 2**20),
      streams=(0, 2**16),
    )


@dataclasses.dataclass(frozen=True)
class Figure:
  """A number that was measured.

  Attributes:
    of: the experiment with its options, or the component.
    figure: what the number says.
    unit: of the number; empty for a ratio.
    value: the number.
  """

  of: str
  figure: str
  unit: str
  value: float


@dataclasses.dataclass(frozen=True)
class Usage:
  """What a run did in a part of its time.

  Attributes:
    per_second: env steps per second.
    learner: cores that the learner's process kept busy, on average.
    others: cores that all other processes of the run kept busy.
  """

  per_second: float
  learner: float
  others: float


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the benchmark; returns its exit status."""
  return command_line.run(
    _benchmark, Options(), "seedx benchmark", __doc__, argv
  )


def of_work(words: str, work: own_work.OwnWork, cores: int) -> list[Figure]:
  """What an experiment's own work comes to.

  Args:
    words: the experiment and its own options.
    work: what was measured.
    cores: of this machine.
  """
  return [
    Figure(words, "environments alone", "env steps/s", work.alone_per_second),
    Figure(words, "environments", "CPU us/env step", 1e6 * work.environments),
    Figure(words, "acting", "CPU us/env step", 1e6 * work.acting),
    Figure(words, "learning", "CPU us/env step", 1e6 * work.learning),
    Figure(words, "bound", "env steps/s", work.bound(cores)),
  ]


def of_run(
  words: str, work: own_work.OwnWork, usage: Usage, cores: int
) -> list[Figure]:
  """What a run comes to, against its own work.

  Args:
    words: the experiment and its own options.
    work: that the run has to do.
    usage: what the run did.
    cores: of this machine.
  """
  rate = usage.per_second
  learner = usage.learner / rate - (work.total - work.elsewhere)
  others = usage.others / rate - work.elsewhere
  idle = 1.0 - (usage.learner + usage.others) / cores
  found = [
    Figure(words, "run", "env steps/s", rate),
    Figure(words, "run over bound", "", rate / work.bound(cores)),
    Figure(
      words, "run over environments alone", "", rate / work.alone_per_second
    ),
    Figure(words, "idle share of the cores", "", idle),
    Figure(words, "learner beside work", "CPU us/env step", 1e6 * learner),
    Figure(
      words, "other processes beside work", "CPU us/env step", 1e6 * others
    ),
  ]
  if steps := work.sizes.message_steps:
    both = {
      "learner": learner,
      "other processes": others,
      "all processes": learner + others,
    }
    found += [
      Figure(words, f"{name} beside work", "CPU ms/message", 1e3 * cost * steps)
      for name, cost in both.items()
    ]
  return found


def medians(figures: Sequence[Figure]) -> dict[Figure, list[float]]:
  """The figures with the medians over all of the same name, and their values.

  Args:
    figures: of all repetitions, in order.
  """
  values: dict[tuple[str, str, str], list[float]] = {}
  for x in figures:
    values.setdefault((x.of, x.figure, x.unit), []).append(x.value)
  return {
    Figure(*name, statistics.median(found)): found
    for name, found in values.items()
  }


def json_lines(figures: Sequence[Figure]) -> str:
  """One line of JSON for each figure, with its median and all its values."""
  return "".join(
    f"{json.dumps({**dataclasses.asdict(x), 'values': found})}\n"
    for x, found in medians(figures).items()
  )


def table(figures: Sequence[Figure]) -> str:
  """A Markdown table of medians for each experiment or component."""
  lines: list[str] = []
  for of, own in itertools.groupby(
    sorted(medians(figures), key=lambda x: x.of), key=lambda x: x.of
  ):
    lines += [f"\n**{of}**\n", "| figure | median | unit |", "|---|---:|---|"]
    lines += [f"| {x.figure} | {_text(x.value)} | {x.unit} |" for x in own]
  return "\n".join(lines)


def _benchmark(options: Options) -> int:
  compare.check_names(options.experiments)
  seconds, repetitions = options.seconds, options.repetitions
  if options.quick:
    seconds, repetitions = min(seconds, _QUICK_SECONDS), 1
  cores = len(os.sched_getaffinity(0))
  found: list[Figure] = []

  def keep(figures: Sequence[Figure]) -> None:
    found.extend(figures)
    metrics.write_file(pathlib.Path(options.output), json_lines(found))

  keep([])  # Fails now if it cannot be written.
  for k in range(repetitions):
    say = _Progress(f"{k + 1}/{repetitions}")
    for words in options.experiments:
      work = own_work.measure(words, options.env, seconds * _PART, say)
      keep(of_work(words, work, cores))
      say(f"a run of {seconds:g} s, {words}")
      usage = _usage(words, options.env, seconds)
      if isinstance(usage, int):
        return usage
      keep(of_run(words, work, usage, cores))
    if not options.quick:
      keep(_components(seconds * _PART, say))
    if options.streams:
      say(f"{options.streams} streams")
      keep(_streams(options.streams, seconds * _PART))
  print(table(found))
  print(f"{options.output} has all values; {cores} cores", flush=True)
  return 0


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
    costs = own_work.in_process(measure, seconds)
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


def _usage(words: str, env: str, seconds: float) -> Usage | int:
  """What a run did in the later half of its time, or the exit status."""
  options = compare.Options(
    env=env, total_steps=work_sizes.TOTAL_STEPS, total_seconds=seconds, seeds=1
  )
  watch = _Watch(seconds / 2)
  with tempfile.TemporaryDirectory(prefix="seedx-benchmark-") as folder:
    run = compare.train(
      *(options, words, 0, pathlib.Path(folder)), from_update=True, watch=watch
    )
  return run if isinstance(run, int) else watch.usage(run.lines)


class _Watch:
  """Notes the CPU time of a run's processes at each of its later lines."""

  def __init__(self, after_seconds: float) -> None:
    """Begins so many seconds after the first update."""
    self._after_seconds = after_seconds
    self._lines = 0
    # The time, and the CPU time of each process, the learner's the first.
    self._noted: list[tuple[float, dict[int, float]]] = []

  def __call__(self, pid: int, lines: Sequence[Mapping[str, Any]]) -> None:
    """Notes the CPU time if there is a new line; see `compare.Watch`."""
    later = _later(lines, self._after_seconds)
    if len(later) > self._lines:
      self._lines = len(later)
      found = _cpu_seconds(pid)
      if pid in found:
        self._noted.append((time.monotonic(), found))

  def usage(self, lines: Sequence[Mapping[str, Any]]) -> Usage:
    """What the run did in this time.

    Raises:
      types.ConfigError: it was too short for that.
    """
    later = _later(lines, self._after_seconds)
    if len(self._noted) < 2:
      raise types.ConfigError(
        "expected a run with several lines of metrics after half of its time,"
        f" found {len(self._noted)}: more --seconds help"
      )
    (start_seconds, first), *_, (end_seconds, last) = self._noted
    learner, *others = (
      (last[pid] - first.get(pid, 0.0)) / (end_seconds - start_seconds)
      for pid in last
    )
    per_second = statistics.median(x["steps_per_second"] for x in later)
    return Usage(per_second, learner, sum(others))


def _later(
  lines: Sequence[Mapping[str, Any]], after_seconds: float
) -> list[Mapping[str, Any]]:
  """The lines that are at least so many seconds after the first update's."""
  learned = [x for x in lines if x["learner_steps"]]
  if not learned:
    return []
  first = learned[0]["wall_seconds"] + after_seconds
  return [x for x in learned if x["wall_seconds"] >= first]


def _cpu_seconds(pid: int) -> dict[int, float]:
  """CPU seconds of a process and of all below it, by their ids."""
  found: dict[int, float] = {}
  with contextlib.suppress(psutil.NoSuchProcess):  # It has ended.
    process = psutil.Process(pid)
    for x in (process, *process.children(recursive=True)):
      with contextlib.suppress(psutil.NoSuchProcess):
        times = x.cpu_times()
        found[x.pid] = times.user + times.system
  return found


def _text(value: float) -> str:
  return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
  sys.exit(main())
