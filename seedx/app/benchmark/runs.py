"""Measures an experiment: its own work, and a run of it."""

import os
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from seedx import signals, types
from seedx.app.benchmark import work as work_lib
from seedx.app.benchmark.figures import Figure
from seedx.app.studies import trials

# The share of a run's time for which each part is measured alone.
_PART = 0.25
# Metrics of a run that are reported, as figures and their units.
_METRICS = {
  "episode_return": ("return", ""),
  "inference_rows": ("observations in a batch", ""),
  "reply_seconds_p50": ("reply, median", "s"),
  "reply_seconds_p99": ("reply, 99th percentile", "s"),
}


class Sample(NamedTuple):
  """A line of metrics, and the CPU time until then.

  Attributes:
    seconds: time at which it was read.
    line: the line.
    cpu_seconds: CPU time of each process of the run, by its id.
  """

  seconds: float
  line: Mapping[str, Any]
  cpu_seconds: Mapping[int, float]


def measure(words: str, env: str, seconds: float) -> tuple[list[Figure], int]:
  """Measures the own work of an experiment, and then a run of it.

  Args:
    words: the experiment and its own options.
    env: name of the environment, unless the experiment's options have one.
    seconds: length of the run, from the first update on.

  Returns:
    The figures, and the exit status if a signal ended the run; else 0.

  Raises:
    types.ConfigError: the run fails, or is too short.
  """
  cores = len(os.sched_getaffinity(0))
  work = work_lib.measure(words, env, _PART * seconds)
  trial = trials.Trial("run", work_lib.words_of(words, env))
  stop = threading.Event()
  with (
    signals.stopping(stop) as ending,
    tempfile.TemporaryDirectory(prefix="seedx-benchmark-") as folder,
  ):
    running = trials.Running(trial, folder)
    samples = sampled(running, seconds, stop)
    if ending.status:
      return [], ending.status
    if error := running.error():
      raise types.ConfigError(error)
  busy = cores_used(running.pid, samples)
  return figures_of(work, samples, busy, cores), 0


def sampled(
  running: trials.Running, seconds: float, stop: threading.Event
) -> list[Sample]:
  """Ends a run some time after its first update.

  Args:
    running: the run.
    seconds: the time.
    stop: ends it earlier.

  Returns:
    A sample for each line of metrics of the later half of this time.
  """
  first, samples = None, []
  for line in running.lines(stop):
    if not line["learner_steps"]:
      continue
    first = line["wall_seconds"] if first is None else first
    if line["wall_seconds"] - first >= seconds / 2:
      cpu_seconds = cpu_seconds_of(running.pid)
      samples.append(Sample(time.monotonic(), line, cpu_seconds))
    if line["wall_seconds"] - first >= seconds:
      break
  running.end()
  return samples


def cores_used(learner: int, samples: Sequence[Sample]) -> tuple[float, float]:
  """The cores that the learner and the other processes kept busy, on average.

  Args:
    learner: id of the learner's process.
    samples: of the run.

  Raises:
    types.ConfigError: there are too few.
  """
  known = [x for x in samples if learner in x.cpu_seconds]
  if len(known) < 2:
    raise types.ConfigError(
      "expected a run with several lines of metrics after half of its time,"
      f" found {len(known)}: more --seconds help"
    )
  start, *_, end = known
  used = {
    pid: (cpu_seconds - start.cpu_seconds.get(pid, 0.0))
    / (end.seconds - start.seconds)
    for pid, cpu_seconds in end.cpu_seconds.items()
  }
  return used.pop(learner), sum(used.values())


def figures_of(
  work: work_lib.OwnWork,
  samples: Sequence[Sample],
  busy: tuple[float, float],
  cores: int,
) -> list[Figure]:
  """The figures of an experiment's own work, and of a run of it.

  Args:
    work: the work that the run has to do.
    samples: of the run.
    busy: cores that the learner and the other processes kept busy.
    cores: number of cores of this machine.
  """
  values = {
    name: [x.line[name] for x in samples if x.line.get(name) is not None]
    for name in ("steps_per_second", *_METRICS)
  }
  metrics = {k: statistics.median(x) for k, x in values.items() if x}
  rate, bound = metrics.pop("steps_per_second"), cores / work.total
  learner = busy[0] / rate - (work.total - work.elsewhere)
  others = busy[1] / rate - work.elsewhere
  idle = 1.0 - sum(busy) / cores
  alone = work.alone_per_second
  found = [
    Figure("environments alone", "env steps/s", alone),
    Figure("environments", "CPU us/env step", 1e6 * work.environments),
    Figure("acting", "CPU us/env step", 1e6 * work.acting),
    Figure("learning", "CPU us/env step", 1e6 * work.learning),
    Figure("bound", "env steps/s", bound),
    Figure("run", "env steps/s", rate),
    Figure("run over bound", "", rate / bound),
    Figure("run over environments alone", "", rate / alone),
    Figure("idle share of the cores", "", idle),
    Figure("learner beside work", "CPU us/env step", 1e6 * learner),
    Figure("other processes beside work", "CPU us/env step", 1e6 * others),
  ]
  if steps := work.sizes.message_steps:
    found += [
      Figure(f"{name} beside work", "CPU ms/message", 1e3 * cost * steps)
      for name, cost in (
        ("learner", learner),
        ("other processes", others),
        ("all processes", learner + others),
      )
    ]
  found += [Figure(*_METRICS[k], value) for k, value in metrics.items()]
  if median := metrics.get("reply_seconds_p50"):
    ratio = metrics["reply_seconds_p99"] / median
    found.append(Figure("reply, p99 over median", "", ratio))
  return found


def cpu_seconds_of(pid: int) -> dict[int, float]:
  """CPU seconds of a process and of all below it, by their ids."""
  parents, seconds = {}, {}
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
      # Its name, in brackets, may have anything in it.
      values = path.read_text().rpartition(")")[2].split()
    except OSError:  # It has ended.
      continue
    own = int(path.parent.name)
    parents[own] = int(values[1])
    ticks = int(values[11]) + int(values[12])
    seconds[own] = ticks / os.sysconf("SC_CLK_TCK")
  found = {pid} & seconds.keys()
  while more := {x for x in parents if parents[x] in found} - found:
    found |= more
  return {x: seconds[x] for x in found}
