"""Runs of experiments: their rate, and the CPU time of their processes."""

import contextlib
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from seedx import types
from seedx.app.benchmark import own_work, work_sizes
from seedx.app.benchmark.figures import Figure
from seedx.app.studies import compare

# Metrics of a run that are reported, as figures and their units.
_METRICS = {
  "episode_return": ("return", ""),
  "inference_rows": ("observations in a batch", ""),
  "reply_seconds_p50": ("reply, median", "s"),
  "reply_seconds_p99": ("reply, 99th percentile", "s"),
}


@dataclasses.dataclass(frozen=True)
class Usage:
  """What a run did in a part of its time.

  Attributes:
    per_second: env steps per second.
    learner: cores that the learner's process kept busy, on average.
    others: cores that all other processes of the run kept busy.
    metrics: medians of some of its metrics, by their names.
  """

  per_second: float
  learner: float
  others: float
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


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
    Figure(
      of=words,
      figure="learning at the speed of a matrix product",
      unit="",
      value=work.products / work.learning,
    ),
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
  found += [
    Figure(words, *_METRICS[name], value)
    for name, value in usage.metrics.items()
  ]
  if median := usage.metrics.get("reply_seconds_p50"):
    ratio = usage.metrics["reply_seconds_p99"] / median
    found.append(Figure(words, "reply, p99 over median", "", ratio))
  return found


def measure(words: str, env: str, seconds: float) -> Usage | int:
  """What a run does in the later half of its time.

  Args:
    words: the experiment and its own options.
    env: name of the environment, unless the experiment's options have one.
    seconds: of the run, from the first update on.

  Returns:
    What it did, or the exit status if a signal ended it.

  Raises:
    types.ConfigError: the run fails, or is too short.
  """
  options = compare.Options(
    env=env, total_steps=work_sizes.TOTAL_STEPS, total_seconds=seconds, seeds=1
  )
  watch = _Watch(seconds / 2)
  with tempfile.TemporaryDirectory(prefix="seedx-benchmark-") as folder:
    run = compare.train(
      options,
      words,
      seed=0,
      parent=pathlib.Path(folder),
      from_update=True,
      watch=watch,
    )
  return run if isinstance(run, int) else watch.usage(run.lines)


def cpu_seconds(pid: int) -> dict[int, float]:
  """CPU seconds of a process and of all below it, by their ids."""
  found: dict[int, float] = {}
  with contextlib.suppress(psutil.NoSuchProcess):  # It has ended.
    process = psutil.Process(pid)
    for x in (process, *process.children(recursive=True)):
      with contextlib.suppress(psutil.NoSuchProcess):
        times = x.cpu_times()
        found[x.pid] = times.user + times.system
  return found


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
      found = cpu_seconds(pid)
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
    known = {
      name: [x[name] for x in later if x.get(name) is not None]
      for name in ("steps_per_second", *_METRICS)
    }
    found = {k: statistics.median(x) for k, x in known.items() if x}
    return Usage(found.pop("steps_per_second"), learner, sum(others), found)


def _later(
  lines: Sequence[Mapping[str, Any]], after_seconds: float
) -> list[Mapping[str, Any]]:
  """The lines that are at least so many seconds after the first update's."""
  learned = [x for x in lines if x["learner_steps"]]
  if not learned:
    return []
  first = learned[0]["wall_seconds"] + after_seconds
  return [x for x in learned if x["wall_seconds"] >= first]
