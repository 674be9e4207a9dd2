"""A watch over a run: it reports hangs, and ends a process that hangs."""

import contextlib
import math
import os
import pathlib
import sys
import threading
import time
import types as python_types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from seedx import channels, metrics, signals, types
from seedx.runtime import clocks

# Seconds without progress after which the watch records where threads are.
_NOTE_SECONDS = 3.0
# Seconds after which a line of metrics is late, and the watch writes one.
_LATE_SECONDS = 5.0
# Seconds from a signal until threads count as hanging, and until the exit.
_END_SECONDS = 6.0
_LEAVE_SECONDS = 9.0
# Seconds after a signal within which the last checkpoint is saved and the sinks
# are closed, if the threads have ended; a user's logger alone has 60 s.
_CLOSE_SECONDS = 75.0
# Seconds for the `leaving` functions. The processes that these functions stop
# would exit by themselves, too.
_LEAVING_SECONDS = 0.5
# A run that was slow before may make no progress for twice as long at its end,
# but at most for these seconds.
_SLOW_SECONDS = 60.0
_PACKAGE = str(pathlib.Path(__file__).parent.parent)


class Saver(Protocol):
  """The saver of a run's checkpoints."""

  @property
  def is_writing(self) -> bool:
    """Whether a checkpoint is being written to the disk."""

  @property
  def is_saved(self) -> bool:
    """Whether the last checkpoint of the run is on the disk."""

  def rescue(self) -> str:
    """Saves the newest state without the replay; returns a report."""


class Watch:
  """A watch over a run, from a thread that is not part of the run.

  An env step or an update is progress. Nothing counts as a hang before the
  first update of this start, while programs are compiled.

  Attributes:
    saver: saver of the run; None before there is anything to save.
    leaving: functions that end the processes that this process has started.
      These functions are called, the last one first, if this process ends
      without waiting for threads that hang.
  """

  def __init__(
    self,
    ending: signals.Ending | None = None,
    hang_seconds: float = 120.0,
    leaves: bool = False,
  ) -> None:
    """Makes a watch that is idle until `begin`.

    Args:
      ending: has the time of a signal; its thread calls `look`.
      hang_seconds: seconds without progress after which the threads of the run
        are reported.
      leaves: whether to end the process about 10 seconds after a signal, even
        if a thread hangs. Saving, closing sinks and earlier pauses of the run
        prolong this time.
    """
    self.saver: Saver | None = None
    self.leaving: list[Callable[[], None]] = []
    self._ending = ending or signals.Ending()
    self._hang_seconds = hang_seconds
    self._leaves = leaves
    self._clock: clocks.Clock | None = None
    self._write: Callable[[metrics.Line], object] = lambda line: None
    self._threads: Callable[[], Mapping[int, str]] = dict
    self._first: metrics.Line | None = None
    self._line: metrics.Line = {}
    # The times of the last line of metrics and of the last progress.
    self._written_seconds = self._moved_seconds = time.monotonic()
    # The longest time without progress that was not reported as a hang.
    self._longest_seconds = 0.0
    self._progress: tuple[object, object] = (None, None)
    self._has_learned = self._is_over = False
    # Seconds without progress at which the hang is reported next.
    self._next_seconds = hang_seconds
    # By name of a thread: its place in the code, and since when it is there.
    self._places: dict[str, tuple[str, float]] = {}
    self._is_closing, self._closed_seconds = False, -math.inf
    # Held by the thread that ends the run: the watch's or the main thread.
    self._end_lock, self._is_closed = threading.Lock(), False
    self._ending.watch = self.look

  def begin(
    self,
    clock: clocks.Clock,
    threads: Callable[[], Mapping[int, str]],
    write: Callable[[metrics.Line], object],
  ) -> None:
    """Starts to watch.

    Args:
      clock: clock of the run.
      threads: returns the names of the threads of the run by their identifiers.
      write: writes a line of metrics, without waiting.
    """
    self._clock, self._threads, self._write = clock, threads, write
    self._written_seconds = self._moved_seconds = time.monotonic()

  def end(self) -> None:
    """Stops reporting hangs, because the threads of the run have ended."""
    self._is_over = True

  @contextlib.contextmanager
  def closing(self, sinks: Sequence[metrics.Sink]) -> Iterator[None]:
    """Closes sinks at the end; they may take longer than threads."""
    try:
      yield
    finally:
      self._is_closing = True
      try:
        for sink in sinks:
          sink.close()
      finally:
        self._is_closing, self._closed_seconds = False, time.monotonic()

  def close(self) -> None:
    """Ends the watch, because everything is saved."""
    with self._end_lock:
      self._ending.watch, self._is_closed = None, True

  def noted(self, line: metrics.Line) -> dict[str, metrics.Value]:
    """Records a line of metrics; returns it with `stalled_seconds`."""
    self._first = self._first or line
    updates = line.get("learner_steps")
    self._has_learned |= updates != self._first.get("learner_steps")
    self._line, self._written_seconds = line, time.monotonic()
    return {**line, "stalled_seconds": round(self._stalled_seconds(), 1)}

  def look(self) -> None:
    """Checks whether the run hangs; called about once a second."""
    now = time.monotonic()
    if self._leaves and now > self._ending.seconds + _END_SECONDS:
      if self._hangs_at_end(now):
        self._leave()
      return
    if self._is_over:
      return
    stalled = self._stalled_seconds()
    if stalled < _NOTE_SECONDS:
      self._places, self._next_seconds = {}, self._hang_seconds
      return
    self._note_places()
    if stalled >= self._next_seconds:
      self._next_seconds = 2 * stalled
      _print(
        f"no env step and no update for {stalled:.0f} s"
        f"{types.see('nothing-moves')}\n{self._described()}"
      )
    late = max(_LATE_SECONDS, 2 * self._longest_seconds)
    if now > self._written_seconds + late and self._line:
      self._write(self._late_line())

  def _stalled_seconds(self) -> float:
    """Returns the seconds since the last progress; 0 before any update."""
    steps = self._clock.now() if self._clock else 0
    progress = steps, self._line.get("learner_steps")
    now = time.monotonic()
    stalled = now - self._moved_seconds
    if progress == self._progress and self._has_learned:
      return stalled
    if self._has_learned and stalled < self._hang_seconds:
      self._longest_seconds = max(self._longest_seconds, stalled)
    self._progress, self._moved_seconds = progress, now
    return 0.0

  def _hangs_at_end(self, now: float) -> bool:
    if self.saver is not None and self.saver.is_writing:
      return False  # A slow disk is not a hang.
    if self.saver is not None and self.saver.is_saved and not self._is_closing:
      return now > self._closed_seconds + _END_SECONDS
    if self._is_over:
      return now > self._ending.seconds + _CLOSE_SECONDS
    slow = min(2 * self._longest_seconds, _SLOW_SECONDS)
    return now > self._moved_seconds + max(_END_SECONDS, slow)

  def _late_line(self) -> metrics.Line:
    """Returns the last line with a later time, for a run that writes none."""
    late = time.monotonic() - self._written_seconds
    wall_seconds = self._line.get("wall_seconds")
    line = dict(self._line)
    if isinstance(wall_seconds, int | float):
      line["wall_seconds"] = wall_seconds + late
    return {**line, "steps_per_second": 0.0}

  def _note_places(self) -> None:
    now, frames = time.monotonic(), sys._current_frames()
    places = {}
    for identifier, name in self._threads().items():
      if identifier in frames:
        place = _place(frames[identifier])
        last_place, since = self._places.get(name, ("", 0.0))
        places[name] = place, since if place == last_place else now
    self._places = places

  def _described(self) -> str:
    now = time.monotonic()
    return "\n".join(
      f"  {name}: for {now - since:.0f} s in {place}"
      for name, (place, since) in self._places.items()
    )

  def _leave(self) -> None:
    """Saves what can be saved, and ends the process although threads hang."""
    self._ending.watch = None
    self._note_places()
    seconds = time.monotonic() - self._ending.seconds
    _print(
      f"the run has not ended {seconds:.0f} s after the signal"
      f"{types.see('nothing-moves')}\n{self._described()}"
    )
    rescue = threading.Thread(target=self._rescue, daemon=True)
    rescue.start()
    patience = _LEAVE_SECONDS - _END_SECONDS
    deadline = time.monotonic() + patience
    while rescue.is_alive() and (
      time.monotonic() < deadline or (self.saver and self.saver.is_writing)
    ):
      rescue.join(0.05)
    if rescue.is_alive():
      _print("the newest state could not be saved in time")
    for leave in reversed(self.leaving):
      threading.Thread(target=leave, daemon=True).start()
    time.sleep(_LEAVING_SECONDS)
    with self._end_lock:
      if not self._is_closed:
        self._ending.leave()

  def _rescue(self) -> None:
    if self._line and self._clock:
      steps = {self._clock.name: self._clock.now()}
      self._write({**self._late_line(), **steps})
    if self.saver is not None:
      _print(self.saver.rescue())


def _place(frame: python_types.FrameType) -> str:
  """Describes the innermost function of seedx in a stack.

  The description ends with the first line of the function's docstring. For a
  function of `channels`, the function that called it is described.
  """
  inner: python_types.FrameType | None = frame
  while inner is not None and not _is_reported(inner.f_code.co_filename):
    inner = inner.f_back
  reported = frame if inner is None else inner
  code = reported.f_code
  path = os.path.relpath(code.co_filename, os.path.dirname(_PACKAGE))
  place = f"{code.co_qualname}, {path}:{reported.f_lineno}"
  words = code.co_consts[0] if code.co_consts else None
  if not isinstance(words, str) or not words[:1].isupper():
    return place  # The function has no docstring.
  return f"{place} ({words.splitlines()[0].rstrip('.')})"


def _is_reported(filename: str) -> bool:
  return filename.startswith(_PACKAGE) and filename != channels.__file__


def _print(text: str) -> None:
  if text:
    signals.print_at_once(f"{text}\n")
