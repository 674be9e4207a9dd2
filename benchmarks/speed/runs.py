"""Measurement of an experiment: each part of its work alone, and a run."""

import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.speed import work
from benchmarks.speed.figures import Figure
from seedx import signals, types
from seedx.app import scratch
from seedx.app.studies import trials
from seedx.metrics import cpu_time

# Time to measure each part alone, as a fraction of the time of a run.
_PART = 0.25
# The figure for cores that processes outside the benchmark keep busy. If the
# figure is above its maximum, a run cannot be compared with a bound and has no
# `_RATIOS`.
_OUTSIDE, _MAX_OUTSIDE = "outside processes", 0.1
_RATIOS = (
  "run over bound",
  "run over environments alone",
  "idle share of the cores",
  "reply, p99 over median",
)
# For each metric that becomes a figure: the figure's name and unit.
_METRICS = {
  "episode_return": ("return", ""),
  "compile_seconds": ("compiling", "s"),
  "inference_rows": ("observations in a batch", ""),
  "reply_seconds_p50": ("reply, median", "s"),
  "reply_seconds_p99": ("reply, 99th percentile", "s"),
}


class Sample(NamedTuple):
  """A line of metrics, and the CPU time of the run so far.

  Attributes:
    seconds: `time.monotonic` at which the line was read.
    line: line of metrics.
    cpu_seconds: CPU seconds of each process of the run, by process id.
    outside: CPU seconds of processes outside the benchmark, since a fixed
      time; None if unknown.
  """

  seconds: float
  line: Mapping[str, Any]
  cpu_seconds: Mapping[int, float]
  outside: float | None = None


def measure(words: str, env: str, seconds: float) -> tuple[list[Figure], int]:
  """Measures each part of an experiment's work alone, and then a run.

  Args:
    words: the experiment and its own options.
    env: name of the environment, unless the experiment's options have one.
    seconds: seconds of the run after its first update.

  Returns:
    The figures, and the exit status of the signal that ended the run, or 0.

  Raises:
    types.ConfigError: the run failed, or was too short.
  """
  cores = len(os.sched_getaffinity(0))
  outside = cpu_time.Others()
  costs = work.measure(words, env, _PART * seconds)
  outside_cores = [outside.cores]
  trial = trials.Trial("run", work.words_of(words, env))
  stop = threading.Event()
  with (
    signals.stopping(stop) as ending,
    scratch.folder("seedx-benchmark-") as folder,
  ):
    running = trials.Running(trial, folder)
    samples = sampled(running, seconds, stop)
    if ending.status:
      return [], ending.status
    if error := running.error():
      raise types.ConfigError(error)
  busy = cores_used(running.pid, samples)
  outside_cores.append(outside_used(samples))
  reported = [x for x in outside_cores if x is not None]
  figures = figures_of(costs, samples, busy, cores)
  return with_outside(figures, max(reported, default=None)), 0


def sampled(
  running: trials.Running, seconds: float, stop: threading.Event
) -> list[Sample]:
  """Samples a run in the seconds after its first update, then ends the run.

  Args:
    running: the run.
    seconds: seconds from the first update to the end.
    stop: event that ends the run earlier.

  Returns:
    A sample for each line of metrics in the second half of these seconds.
  """
  first, samples, outside = None, [], cpu_time.Others()
  for line in running.lines(stop):
    if not line["learner_steps"]:
      continue
    first = line["wall_seconds"] if first is None else first
    if line["wall_seconds"] - first >= seconds / 2:
      cpu_seconds = cpu_time.of_tree(running.pid)
      samples.append(
        Sample(time.monotonic(), line, cpu_seconds, outside.seconds)
      )
    if line["wall_seconds"] - first >= seconds:
      break
  running.end()
  return samples


def cores_used(learner: int, samples: Sequence[Sample]) -> tuple[float, float]:
  """Returns the mean numbers of cores kept busy by the learner, and by others.

  Args:
    learner: id of the learner's process.
    samples: samples of the run.

  Raises:
    types.ConfigError: fewer than two samples include the learner's process.
  """
  alive = [x for x in samples if learner in x.cpu_seconds]
  if len(alive) < 2:
    raise types.ConfigError(
      "expected several lines of metrics in the second half of a run, found"
      f" {len(alive)}; increase --seconds"
    )
  start, *_, end = alive
  used = {
    pid: (cpu_seconds - start.cpu_seconds.get(pid, 0.0))
    / (end.seconds - start.seconds)
    for pid, cpu_seconds in end.cpu_seconds.items()
  }
  return used.pop(learner), sum(used.values())


def outside_used(samples: Sequence[Sample]) -> float | None:
  """Returns the mean number of cores that outside processes kept busy."""
  start, *_, end = samples
  if start.outside is None or end.outside is None:
    return None
  return (end.outside - start.outside) / (end.seconds - start.seconds)


def with_outside(
  figures: Sequence[Figure], cores: float | None
) -> list[Figure]:
  """Adds the figure of outside processes; drops ratios if it is too high.

  Args:
    figures: figures of a run and of its parts.
    cores: number of cores that outside processes kept busy; None if unknown.
  """
  if cores is None:
    return [*figures]
  if cores > _MAX_OUTSIDE:
    figures = [x for x in figures if x.figure not in _RATIOS]
  return [*figures, Figure(_OUTSIDE, "cores", cores)]


def why_no_ratios(figures: Sequence[Figure]) -> str:
  """Returns the reason why ratios are left out; "" if they are not."""
  for figure in figures:
    if figure.figure == _OUTSIDE and figure.value > _MAX_OUTSIDE:
      return (
        "no ratios, because processes outside the benchmark kept"
        f" {figure.value:.2f} cores busy, more than {_MAX_OUTSIDE}"
      )
  return ""


def figures_of(
  costs: work.OwnWork,
  samples: Sequence[Sample],
  busy: tuple[float, float],
  cores: int,
) -> list[Figure]:
  """Returns the figures of an experiment's parts, and of a run.

  Args:
    costs: costs of the experiment's parts.
    samples: samples of the run.
    busy: result of `cores_used`.
    cores: number of cores of this machine.
  """
  values = {
    name: [x.line[name] for x in samples if x.line.get(name) is not None]
    for name in ("steps_per_second", *_METRICS)
  }
  metrics = {k: statistics.median(x) for k, x in values.items() if x}
  rate, bound = metrics.pop("steps_per_second"), cores / costs.total
  learner = busy[0] / rate - (costs.total - costs.elsewhere)
  others = busy[1] / rate - costs.elsewhere
  idle = 1.0 - sum(busy) / cores
  alone = costs.alone_per_second
  figures = [
    Figure("environments alone", "env steps/s", alone),
    Figure("environments", "CPU us/env step", 1e6 * costs.environments),
    Figure("acting", "CPU us/env step", 1e6 * costs.acting),
    Figure("learning", "CPU us/env step", 1e6 * costs.learning),
    Figure("bound", "env steps/s", bound),
    Figure("run", "env steps/s", rate),
    Figure("run over bound", "", rate / bound),
    Figure("run over environments alone", "", rate / alone),
    Figure("idle share of the cores", "", idle),
    Figure("learner beside work", "CPU us/env step", 1e6 * learner),
    Figure("other processes beside work", "CPU us/env step", 1e6 * others),
  ]
  if steps := costs.sizes.message_steps:
    figures += [
      Figure(f"{name} beside work", "CPU ms/message", 1e3 * cost * steps)
      for name, cost in (
        ("learner", learner),
        ("other processes", others),
        ("all processes", learner + others),
      )
    ]
  figures += [Figure(*_METRICS[k], value) for k, value in metrics.items()]
  if median := metrics.get("reply_seconds_p50"):
    ratio = metrics["reply_seconds_p99"] / median
    figures.append(Figure("reply, p99 over median", "", ratio))
  return figures
