"""The progress display: a live status on a terminal, rows of a table else."""

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from seedx.metrics import meters, sinks


class Console:
  """A Sink that shows progress, and which side is the bottleneck.

  On a terminal it keeps one status up to date; anywhere else it prints rows of
  a table, at most one in `interval_seconds` and the last.
  """

  def __init__(
    self,
    total_steps: int,
    stream: TextIO | None = None,
    interval_seconds: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    """Shows nothing until the first line.

    Args:
      total_steps: env steps at which the run ends.
      stream: where to show it, stderr if None.
      interval_seconds: between two rows of the table.
      clock: seconds from any fixed point in time.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    self._view: _Status | _Table = (
      _Status(stream) if terminal else _Table(stream, interval_seconds, clock)
    )
    self._total_steps = total_steps
    self._steps_per_second: float | None = None

  def write(self, line: sinks.Line) -> None:
    """Shows the line; a value that it lacks is shown as a dash."""
    rate = _number(line, "steps_per_second")
    if rate is not None:
      # The time left would jump about with the rate of a single interval.
      past = self._steps_per_second
      self._steps_per_second = rate if past is None else 0.7 * past + 0.3 * rate
    self._view.show(self._progress(line))

  def close(self) -> None:
    """Shows the last line if it was held back, and frees the terminal."""
    self._view.close()

  def _progress(self, line: sinks.Line) -> "_Progress":
    steps = _number(line, "env_steps") or 0.0
    left_steps = max(self._total_steps - steps, 0.0)
    rate = self._steps_per_second
    if left_steps == 0:
      left = "0s"
    else:
      left = _duration(left_steps / rate) if rate else "-"
    side, why = _diagnosis(line)
    return _Progress(
      # Rounded down: 100% is said when all steps are done and not before.
      percent=int(min(100 * steps / max(self._total_steps, 1), 100)),
      steps=_short(steps),
      total=_short(self._total_steps),
      rate=_short(_number(line, "steps_per_second")),
      episode_return=_short(_number(line, "episode_return"), decimals=1),
      policy_lag=_short(_number(line, "policy_lag"), decimals=1),
      left=left,
      bottleneck=side,
      why=why,
    )


@dataclasses.dataclass(frozen=True)
class _Progress:
  """A line of metrics as words."""

  percent: int
  steps: str
  total: str
  rate: str
  episode_return: str
  policy_lag: str
  left: str
  bottleneck: str
  why: str


class _Table:
  """Progress as rows of a table of 79 columns."""

  _ROW = "{:>13} {:>5} {:>12} {:>9} {:>11} {:>10}  {}"
  _HEADER = (
    *("env steps", "done", "env steps/s", "return", "policy lag", "time left"),
    "bottleneck",
  )
  _ROWS_PER_HEADER = 20

  def __init__(
    self, stream: TextIO, interval_seconds: float, clock: Callable[[], float]
  ) -> None:
    self._stream = stream
    self._interval_seconds = interval_seconds
    self._clock = clock
    self._rows = 0
    self._next_time = -math.inf
    self._held: _Progress | None = None

  def show(self, progress: _Progress) -> None:
    """Prints a row now, or holds it back until the next is due."""
    self._held = progress
    now = self._clock()
    if now >= self._next_time:
      self._next_time = now + self._interval_seconds
      self._print()

  def close(self) -> None:
    """Prints what was held back."""
    if self._held is not None:
      self._print()

  def _print(self) -> None:
    progress, self._held = self._held, None
    assert progress is not None
    if self._rows % self._ROWS_PER_HEADER == 0:
      print(self._ROW.format(*self._HEADER), file=self._stream)
    self._rows += 1
    row = self._ROW.format(
      f"{progress.steps}/{progress.total}",
      f"{progress.percent}%",
      progress.rate,
      progress.episode_return,
      progress.policy_lag,
      progress.left,
      progress.bottleneck,
    )
    print(row, file=self._stream, flush=True)


class _Status:
  """Progress as three lines of a terminal that change in place."""

  def __init__(self, stream: TextIO) -> None:
    import rich.console
    import rich.live

    self._live = rich.live.Live(
      console=rich.console.Console(file=stream, highlight=False),
      auto_refresh=False,
    )

  def show(self, progress: _Progress) -> None:
    """Replaces what the terminal shows."""
    import rich.console
    import rich.progress_bar
    import rich.table
    import rich.text

    bar = rich.table.Table.grid(padding=(0, 2))
    bar.add_column()
    bar.add_column(no_wrap=True)
    bar.add_row(
      rich.progress_bar.ProgressBar(
        100, progress.percent, width=32, complete_style="cyan"
      ),
      f"{progress.percent}%  {progress.steps} of {progress.total} env steps",
    )
    figures = (
      f"{progress.rate} env steps/s",
      f"return {progress.episode_return}",
      f"policy lag {progress.policy_lag}",
      f"{progress.left} left",
    )
    lines = (
      rich.text.Text("  ".join(figures)),
      rich.text.Text.assemble(
        "bottleneck: ", (progress.bottleneck, "bold"), progress.why
      ),
    )
    for line in lines:
      # A wrapped line would make the status jump in a narrow terminal.
      line.no_wrap, line.overflow = True, "ellipsis"
    # The cursor is hidden from here on, and so not before there is a status.
    self._live.start()
    self._live.update(rich.console.Group(bar, *lines), refresh=True)

  def close(self) -> None:
    """Gives the terminal back."""
    self._live.stop()


def _diagnosis(line: sinks.Line) -> tuple[str, str]:
  """The bottleneck and the wait that gives it away; a dash if unknown."""
  waits = {
    name: share
    for name in (
      meters.WAIT_ENVIRONMENTS,
      meters.WAIT_LEARNER,
      meters.WAIT_EXPERIENCE,
    )
    if (share := _number(line, name)) is not None
  }
  if len(waits) < 3:
    return "-", ""
  side = meters.bottleneck(waits)
  waiter, wait = {
    "environments": ("inference waits for them", meters.WAIT_ENVIRONMENTS),
    "inference": ("the learner waits for it", meters.WAIT_EXPERIENCE),
    "learner": ("inference waits for it", meters.WAIT_LEARNER),
  }[side]
  return side, f" ({waiter} {waits[wait]:.0%} of the time)"


def _number(line: sinks.Line, name: str) -> float | None:
  value = sinks.finite(line.get(name))
  return float(value) if isinstance(value, int | float) else None


def _short(value: float | None, decimals: int | None = None) -> str:
  """At most six characters, such as 187.3 or -1.23M; a dash for None."""
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
  """At most six characters, such as 42s, 3m07s, 5h02m or 2d03h."""
  if seconds >= 100 * 86400:
    return f"{seconds / 86400:.0f}d" if seconds < 1e4 * 86400 else "years"
  units = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
  for size, unit, part_size, part in units:
    if seconds >= size:
      whole, rest = divmod(int(seconds), size)
      return f"{whole}{unit}{rest // part_size:02d}{part}"
  return f"{int(seconds)}s"
