"""Measures all that `seedx benchmark` was asked for, in turn."""

import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from seedx import files, types
from seedx.app.benchmark import (
  components,
  machine,
  own_work,
  runs,
  work_sizes,
)
from seedx.app.benchmark.figures import Figure, json_lines, table
from seedx.app.benchmark.options import Options
from seedx.app.studies import compare

# The share of a run's time for which each part is measured alone.
_PART = 0.25
_QUICK_SECONDS = 8.0


def run(options: Options) -> int:
  """Measures, and prints a table; returns the exit status."""
  experiments = compare.experiments_of(options.experiments)
  for words in experiments:
    # A wrong option is refused before anything is measured.
    work_sizes.config_of(words, options.env)
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
