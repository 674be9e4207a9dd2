"""Clocks of a run: steps, wall time, and the time in which JAX compiles."""

import dataclasses
import threading
import time
from collections.abc import Callable

import jax

from seedx import metrics, types

# Events of JAX: tracing a function, lowering it, and compiling it or reading
# the compiled program from JAX's cache.
_EVENTS = frozenset(
  f"/jax/core/compile/{name}_duration"
  for name in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)


@dataclasses.dataclass(frozen=True)
class Clock:
  """The steps of a run: env steps, or updates of a run without environments.

  Attributes:
    name: name of the metric that counts the steps.
    now: returns the number of steps so far; any thread may call it.
    total: number of steps at which the run is done.
    of: maps the saved parts of a process to their number of steps.
  """

  name: str
  now: Callable[[], int]
  total: float
  of: Callable[[types.Tree], int]

  @property
  def is_over(self) -> bool:
    """Whether the run has made all of its steps."""
    return self.now() >= self.total


class Compiling:
  """A meter of the time in which at least one thread compiled; thread-safe.

  Attributes:
    seconds: seconds so far, without compilations in progress.
  """

  def __init__(self) -> None:
    self.seconds = 0.0
    self._lock = threading.Lock()
    # Disjoint intervals, the oldest first.
    self._intervals: list[tuple[float, float]] = []

  def add(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
    """Counts an event of JAX that has just ended, if it is of `_EVENTS`."""
    if event not in _EVENTS:
      return
    with self._lock:
      end = time.monotonic()
      start = end - duration_secs
      # Events overlap if a function is traced within another one, or if two
      # threads compile.
      while self._intervals and self._intervals[-1][1] > start:
        other_start, other_end = self._intervals.pop()
        self.seconds -= other_end - other_start
        start = min(start, other_start)
      self._intervals.append((start, end))
      self.seconds += end - start


class WallClock:
  """The time of a run, over all of its starts.

  Attributes:
    started_seconds: start of this process's part of the run, a time of
      `time.monotonic`.
    past_seconds: seconds of the run before this start.
  """

  def __init__(self, started_seconds: float | None = None) -> None:
    """Starts a clock at a time of `time.monotonic`; now if None."""
    now = time.monotonic()
    self.started_seconds = now if started_seconds is None else started_seconds
    self.past_seconds = 0.0
    self._compiled_before = _compiling.seconds

  @property
  def wall_seconds(self) -> float:
    """Seconds of the run until now, over this and all earlier starts."""
    return self.past_seconds + time.monotonic() - self.started_seconds

  def restart(self) -> None:
    """Sets the start of this process's part of the run to now."""
    self.started_seconds = time.monotonic()

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the metrics of time; `compile_seconds` counts this start only."""
    return {
      "wall_seconds": self.wall_seconds,
      "compile_seconds": _compiling.seconds - self._compiled_before,
    }


_compiling = Compiling()
jax.monitoring.register_event_duration_secs_listener(_compiling.add)
