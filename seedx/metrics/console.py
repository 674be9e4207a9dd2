"""A console that shows a run's progress and its bottleneck."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

import numpy as np

from seedx.metrics import lines, meters, sinks

# A row of the table, 79 characters wide, or longer if a message replaces the
# bottleneck, or entries of `info` follow it.
_ROW = (
  "{steps:>13} {percent:>5} {rate:>12} {episode_return:>9} {policy_lag:>11}"
  " {left:>10}  {bottleneck}{info}"
)
_HEADER = {
  "steps": "{unit}",
  "percent": "done",
  "rate": "{unit}/s",
  "episode_return": "return",
  "policy_lag": "policy lag",
  "left": "time left",
  "bottleneck": "bottleneck",
  "info": "",
}
_ROWS_PER_HEADER = 20
# After this time without an env step or an update, a message replaces the
# bottleneck.
_STALLED_SECONDS = 5.0
# Share of time above which acting only waits.
_ONLY_WAITS = 0.9
# For each bottleneck: the side that waits for it, and the name of the wait.
_EVIDENCE = {
  "environments": ("acting waits for them", meters.WAIT_ENVIRONMENTS),
  "acting": ("the learner waits for it", meters.WAIT_EXPERIENCE),
  "learner": ("acting waits for it", meters.WAIT_LEARNER),
}


class Console:
  """A Sink that shows the progress of a run.

  On a terminal, the sink updates a status of three lines in place. Elsewhere,
  for example in a log file, it prints the rows of a table. Before the first
  update, status and table show the reason and the duration of the wait.
  """

  def __init__(
    self,
    total_steps: int,
    stream: TextIO | None = None,
    interval_seconds: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
    others_join: bool = False,
  ) -> None:
    """Chooses a status or a table; shows nothing before the first line.

    Args:
      total_steps: number of steps of the run's clock at which it ends.
      stream: output stream; None for stderr.
      interval_seconds: shortest time between two rows of the table. The last
        line is always printed.
      clock: function that returns a time in seconds, from any fixed start.
      others_join: whether the processes that act are started separately.
    """
    stream = sys.stderr if stream is None else stream
    if stream.isatty() and os.environ.get("TERM") != "dumb":
      from seedx.metrics import status  # It loads Rich.

      self._view: status.Status | _Table = status.Status(stream)
    else:
      self._view = _Table(stream, interval_seconds, clock)
    self._total_steps = total_steps
    self._clock = clock
    self._start_seconds = clock()
    self._steps_per_second: float | None = None
    # Steps, wall time and time to compile in the line before.
    self._clocks: list[float] | None = None
    self._others_join = others_join
    # Steps and updates in the first line; above 0 if the run was resumed.
    self._first_steps: float | None = None
    self._first_updates = 0.0
    self._has_learned = False

  def write(self, line: sinks.Line) -> None:
    """Shows a line of metrics; missing values appear as a dash."""
    updates = _number(line, "learner_steps") or 0.0
    if self._first_steps is None:
      self._first_steps, self._first_updates = _steps(line), updates
    # Lines after an update have these.
    ages = ("policy_lag", "gradient_staleness")
    self._has_learned |= updates > self._first_updates or any(
      _number(line, x) is not None for x in ages
    )
    self._measure_rate(line)
    is_over = (_steps(line) or 0.0) >= self._total_steps
    learning = self._has_learned or is_over
    self._view.show(self._progress(line) if learning else self._startup(line))

  def close(self) -> None:
    """Prints the last row if it is pending, and restores the cursor."""
    self._view.close()

  def _measure_rate(self, line: sinks.Line) -> None:
    """Updates the rate behind the time left, without time to compile."""
    seconds = _number(line, "wall_seconds"), _number(line, "compile_seconds")
    clocks = [x or 0.0 for x in (_steps(line), *seconds)]
    steps, wall, compiling = np.subtract(clocks, self._clocks or clocks)
    self._clocks = clocks
    if compiling >= wall / 2:  # Also in the first line.
      return
    rate, past = steps / (wall - compiling), self._steps_per_second
    # A moving average, so that the time left does not jump.
    self._steps_per_second = rate if past is None else 0.7 * past + 0.3 * rate

  def _startup(self, line: sinks.Line) -> dict[str, str]:
    """Formats a line as `_progress` does, before the first update."""
    unknown = dict.fromkeys(("policy_lag", "left"), "-")
    no_steps = _steps(line) == self._first_steps
    waits = _number(line, meters.WAIT_ENVIRONMENTS) or 0.0
    if self._others_join and no_steps:
      reason = "waiting for others to join"
    elif _number(line, "replay_size") and lines.unit(line) == "env steps":
      reason = "filling the replay"
    else:  # The rate is not meaningful yet.
      reason, unknown = "compiling", unknown | {"rate": "-"}
      if no_steps and waits > _ONLY_WAITS:
        reason = "waiting for the first observation"
    seconds = _duration(self._clock() - self._start_seconds)
    status = {"label": "", "bottleneck": f"{reason} {seconds}", "evidence": ""}
    return self._progress(line) | unknown | status

  def _progress(self, line: sinks.Line) -> dict[str, str]:
    """Formats a line of metrics as texts, by the keys of `_HEADER`."""
    steps = _steps(line) or 0.0
    left_steps = max(self._total_steps - steps, 0.0)
    rate = self._steps_per_second
    if left_steps == 0:
      left = "0s"
    else:
      left = _duration(left_steps / rate) if rate else "-"
    # Rounded down: only a complete run shows 100%.
    percent = int(min(100 * steps / max(self._total_steps, 1), 100))
    label, (bottleneck, evidence) = "bottleneck: ", _diagnosis(line)
    if without := _number(line, "steps_without_episode"):
      label, evidence = "", ""
      bottleneck = f"no episode has ended for {_short(without)} env steps"
    stalled_seconds = _number(line, "stalled_seconds") or 0.0
    if stalled_seconds >= _STALLED_SECONDS:
      label, bottleneck = "", f"no step for {_duration(stalled_seconds)}"
      left, evidence = "-", ""
    score, shown_rate = "episode_return", _number(line, "steps_per_second")
    if (unit := lines.unit(line)) == "updates":  # No environment acts.
      score, shown_rate = "evaluation_return", rate
    return {
      "unit": unit,
      "steps": f"{_short(steps)}/{_short(self._total_steps)}",
      "percent": f"{percent}%",
      "rate": _short(shown_rate),
      "episode_return": _short(_number(line, score), decimals=1),
      "policy_lag": _short(_number(line, "policy_lag"), decimals=1),
      "left": left,
      "label": label,
      "bottleneck": bottleneck,
      "evidence": evidence,
      "info": "".join(
        f"  {name.removeprefix(meters.OF_INFO)} {_short(_number(line, name))}"
        for name in line
        if name.startswith(meters.OF_INFO)
      ),
    }


class _Table:
  """A view of progress as the rows of a table."""

  def __init__(
    self, stream: TextIO, interval_seconds: float, clock: Callable[[], float]
  ) -> None:
    self._stream = stream
    self._interval_seconds = interval_seconds
    self._clock = clock
    self._num_rows = 0
    self._next_time = -math.inf
    self._pending: Mapping[str, str] | None = None

  def show(self, progress: Mapping[str, str]) -> None:
    """Prints a row, or keeps it pending if the last row is too recent."""
    self._pending = progress
    now = self._clock()
    if now >= self._next_time:
      self._next_time = now + self._interval_seconds
      self.close()

  def close(self) -> None:
    if self._pending is None:
      return
    if self._num_rows % _ROWS_PER_HEADER == 0:
      header = {k: x.format(**self._pending) for k, x in _HEADER.items()}
      print(_ROW.format(**header), file=self._stream)
    self._num_rows += 1
    print(_ROW.format(**self._pending), file=self._stream, flush=True)
    self._pending = None


def _diagnosis(line: sinks.Line) -> tuple[str, str]:
  """Returns the bottleneck, "-" if unknown, and the wait that shows it."""
  shares = {name: _number(line, name) for _, name in _EVIDENCE.values()}
  waits = {k: share for k, share in shares.items() if share is not None}
  if len(waits) < len(shares):
    return "-", ""
  slowest = meters.bottleneck(waits)
  behind = _number(line, meters.WAIT_UPDATE) or 0.0
  work = 1.0 - waits[meters.WAIT_ENVIRONMENTS] - waits[meters.WAIT_LEARNER]
  if slowest == "acting" and behind > work / 2:
    number = _number(line, meters.MICRO_BATCHES)
    remedy = f": try --micro-batches {number:.0f}" if number else ""
    evidence = f" (acting waits for them {behind:.0%} of the time)"
    return f"updates{remedy}", evidence
  text, name = _EVIDENCE[slowest]
  return slowest, f" ({text} {waits[name]:.0%} of the time)"


def _steps(line: sinks.Line) -> float | None:
  return _number(line, lines.clock(line))


def _number(line: sinks.Line, name: str) -> float | None:
  value = sinks.finite(line.get(name))
  return float(value) if isinstance(value, int | float) else None


def _short(value: float | None, decimals: int | None = None) -> str:
  """Formats a number: 187.3, -1.23M, "-" for None.

  The text has at most six characters, unless the number is close to 0.
  """
  if value is None:
    return "-"
  if decimals is not None and abs(value) < 999.5:
    return f"{value:.{decimals}f}"
  for suffix in ("", "k", "M", "G", "T"):
    if abs(value) < 999.5:
      return f"{value:.3g}{suffix}"
    value /= 1000
  return f"{value * 1000**5:.0e}"


def _duration(seconds: float) -> str:
  """Formats a time in at most six characters: 42s, 3m07s, 5h02m, 2d03h."""
  if seconds >= 100 * 86400:
    return f"{seconds / 86400:.0f}d" if seconds < 1e4 * 86400 else "years"
  units = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
  for size, unit, part_size, part in units:
    if seconds >= size:
      whole, rest = divmod(int(seconds), size)
      return f"{whole}{unit}{rest // part_size:02d}{part}"
  return f"{int(seconds)}s"
