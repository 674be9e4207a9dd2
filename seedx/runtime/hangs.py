"""Notices that a run hangs, reports where, and ends what does not end."""

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

# From so many seconds without progress on, threads are looked at.
_LOOK_SECONDS = 3.0
# A line of metrics is late after so many seconds, and is written from here.
_LATE_SECONDS = 5.0
# After a signal, the time that threads have to end, and that the process has.
_END_SECONDS = 6.0
_LEAVE_SECONDS = 9.0
# And that their sinks have, once all is saved; a user's logger has 60 s.
_CLOSE_SECONDS = 75.0
# For the processes that were started; they end by themselves, too.
_LEAVING_SECONDS = 0.5
# A run is as slow as it was, up to this, and does not hang.
_SLOW_SECONDS = 60.0
_PACKAGE = str(pathlib.Path(__file__).parent.parent)


class Kept(Protocol):
  """What saves a run.

  Attributes:
    is_writing: whether a checkpoint is on its way to the disk.
    is_saved: whether the last checkpoint of the run is there.
  """

  @property
  def is_writing(self) -> bool:
    """See above."""

  @property
  def is_saved(self) -> bool:
    """See above."""

  def rescue(self) -> str:
    """Saves the newest state without the replay; returns what was done."""


class Watch:
  """Watches a run from a thread that takes no part in it.

  An env step or an update is progress. Nothing counts as a hang before the
  first update of this start, while programs are compiled.

  Attributes:
    kept: what saves the run; None before there is anything to save.
    leaving: functions that end what the process has started, the last one
      first, for an end that does not wait for threads that hang.
  """

  def __init__(
    self,
    ending: signals.Ending | None = None,
    hang_seconds: float = 120.0,
    leaves: bool = False,
  ) -> None:
    """Watches nothing before `begin`.

    Args:
      ending: tells of a signal, and calls `look`.
      hang_seconds: seconds without progress after which the threads of the run
        are reported.
      leaves: whether to end the process 10 seconds after a signal, even where a
        thread hangs.
    """
    self.kept: Kept | None = None
    self.leaving: list[Callable[[], None]] = []
    self._ending = ending or signals.Ending()
    self._hang_seconds = hang_seconds
    self._leaves = leaves
    self._env_steps: Callable[[], int] = lambda: 0
    self._write: Callable[[metrics.Line], object] = lambda line: None
    self._threads: Callable[[], Mapping[int, str]] = dict
    self._first: metrics.Line | None = None
    self._line: metrics.Line = {}
    self._written_seconds = self._moved_seconds = time.monotonic()
    # The longest time without progress, except where the run was reported.
    self._longest_seconds = 0.0
    self._progress: tuple[object, object] = (None, None)
    self._has_learned = self._is_over = False
    self._next_seconds = hang_seconds
    # Where each thread is, by its name, and since when.
    self._places: dict[str, tuple[str, float]] = {}
    self._is_closing, self._closed_seconds = False, -math.inf
    # Held by who ends the run, this or the main thread.
    self._closing, self._is_closed = threading.Lock(), False
    self._ending.watch = self.look

  def begin(
    self,
    env_steps: Callable[[], int],
    threads: Callable[[], Mapping[int, str]],
    write: Callable[[metrics.Line], object],
  ) -> None:
    """Begins to watch.

    Args:
      env_steps: returns the env steps so far, at once.
      threads: returns the names of the threads of the run by their identifiers.
      write: writes a line of metrics, at once.
    """
    self._env_steps, self._threads, self._write = env_steps, threads, write
    self._written_seconds = self._moved_seconds = time.monotonic()

  def end(self) -> None:
    """Has no hang reported any more: the threads of the run have ended."""
    self._is_over = True

  @contextlib.contextmanager
  def closing(self, sinks: Sequence[metrics.Sink]) -> Iterator[None]:
    """Closes sinks at the end, which may take them longer than the rest."""
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
    """Ends it: all is saved."""
    with self._closing:
      self._ending.watch, self._is_closed = None, True

  def noted(self, line: metrics.Line) -> dict[str, metrics.Value]:
    """Takes note of a line of metrics; returns it with `stalled_seconds`."""
    self._first = self._first or line
    updates = line.get("learner_steps")
    self._has_learned |= updates != self._first.get("learner_steps")
    self._line, self._written_seconds = line, time.monotonic()
    return {**line, "stalled_seconds": round(self._stalled_seconds(), 1)}

  def look(self) -> None:
    """Looks whether the run hangs; called about once a second."""
    now = time.monotonic()
    if self._leaves and now > self._ending.seconds + _END_SECONDS:
      if self._hangs_at_end(now):
        self._leave()
      return
    if self._is_over:
      return
    stalled = self._stalled_seconds()
    if stalled < _LOOK_SECONDS:
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
    """Seconds since the last progress; 0 before the first update."""
    progress = self._env_steps(), self._line.get("learner_steps")
    now = time.monotonic()
    stalled = now - self._moved_seconds
    if progress == self._progress and self._has_learned:
      return stalled
    if self._has_learned and stalled < self._hang_seconds:
      self._longest_seconds = max(self._longest_seconds, stalled)
    self._progress, self._moved_seconds = progress, now
    return 0.0

  def _hangs_at_end(self, now: float) -> bool:
    """Whether what is left to do after a signal hangs."""
    if self.kept is not None and self.kept.is_writing:
      return False  # However slow the disk is.
    if self.kept is not None and self.kept.is_saved and not self._is_closing:
      return now > self._closed_seconds + _END_SECONDS
    if self._is_over:
      return now > self._ending.seconds + _CLOSE_SECONDS
    slow = min(2 * self._longest_seconds, _SLOW_SECONDS)
    return now > self._moved_seconds + max(_END_SECONDS, slow)

  def _late_line(self) -> metrics.Line:
    """A line in place of one that the run does not come to write."""
    late = time.monotonic() - self._written_seconds
    wall_seconds = self._line.get("wall_seconds")
    line = dict(self._line)
    if isinstance(wall_seconds, int | float):
      line["wall_seconds"] = wall_seconds + late
    return {**line, "steps_per_second": 0.0}

  def _note_places(self) -> None:
    """Takes note of where each thread is."""
    now, frames = time.monotonic(), sys._current_frames()
    places = {}
    for identifier, name in self._threads().items():
      if identifier in frames:
        place = _place(frames[identifier])
        before, since = self._places.get(name, ("", 0.0))
        places[name] = place, since if place == before else now
    self._places = places

  def _described(self) -> str:
    """Lines that name each thread, where it is, and for how long."""
    now = time.monotonic()
    return "\n".join(
      f"  {name}: for {now - since:.0f} s in {place}"
      for name, (place, since) in self._places.items()
    )

  def _leave(self) -> None:
    """Saves what can be saved, and ends the process without its threads."""
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
      time.monotonic() < deadline or (self.kept and self.kept.is_writing)
    ):
      rescue.join(0.05)
    if rescue.is_alive():
      _print("its newest state could not be saved in time")
    for leave in reversed(self.leaving):
      threading.Thread(target=leave, daemon=True).start()
    time.sleep(_LEAVING_SECONDS)
    with self._closing:
      if not self._is_closed:
        self._ending.leave()

  def _rescue(self) -> None:
    if self._line:
      self._write({**self._late_line(), "env_steps": self._env_steps()})
    if self.kept is not None:
      _print(self.kept.rescue())


def _place(frame: python_types.FrameType) -> str:
  """Where a thread is: the innermost function of seedx, and its first line.

  Of a thread at a channel, the function that uses the channel.
  """
  inner: python_types.FrameType | None = frame
  while inner is not None and not _is_told(inner.f_code.co_filename):
    inner = inner.f_back
  found = frame if inner is None else inner
  code = found.f_code
  path = os.path.relpath(code.co_filename, os.path.dirname(_PACKAGE))
  where = f"{code.co_qualname}, {path}:{found.f_lineno}"
  words = code.co_consts[0] if code.co_consts else None
  if not isinstance(words, str) or not words[:1].isupper():
    return where  # It has no docstring.
  return f"{where} ({words.splitlines()[0].rstrip('.')})"


def _is_told(filename: str) -> bool:
  return filename.startswith(_PACKAGE) and filename != channels.__file__


def _print(text: str) -> None:
  if text:
    signals.print_at_once(f"{text}\n")
