"""TensorBoard's event files. Only a run loads this module and tensorboardX."""

import contextlib
import os
import socket
import time
from typing import Any

from tensorboardX import record_writer
from tensorboardX.proto import event_pb2, summary_pb2

from seedx import files
from seedx.metrics import sinks

# How TensorBoard groups them: by how their names begin.
_GROUPS = {
  "episode": ("episode", "evaluation"),
  "loss": (
    "loss",
    "td_error",
    "q_",
    "explained_variance",
    "gradient_norm",
    "learning_rate",
  ),
  "policy": (
    "entropy",
    "approx_kl",
    "clip_",
    "importance_",
    "advantage",
    "epsilon",
    "effective_sample_size",
    "policy_lag",
  ),
  "replay": ("replay", "priorit"),
  "time": ("steps_per_second", "wall_", "acting_wait", "learning_wait"),
}
# A file of events is written at the latest after this long.
_FLUSH_SECONDS = 10.0


class TensorBoard:
  """A Sink that writes TensorBoard scalars against `env_steps`."""

  def __init__(self, run_dir: str | os.PathLike[str]) -> None:
    """Creates no file before the first line.

    Args:
      run_dir: the directory for the event files.
    """
    self._folder = files.Folder(run_dir)
    self._writer: Any = None
    self._flushed_seconds = 0.0
    self._name, self._flushed = "", False
    self._failure: OSError | None = None
    self._retry_seconds = 0.0

  def write(self, line: sinks.Line) -> None:
    """Adds every number except `env_steps`, which is the x-axis.

    Its tag is its name behind its group's, such as `loss/loss_value`.
    """
    now = time.time()
    if self._failure is not None and time.monotonic() < self._retry_seconds:
      raise self._failure  # Each try may leave an empty file.
    values = {
      name: value
      for name, value in ((name, sinks.finite(x)) for name, x in line.items())
      if name != "env_steps" and isinstance(value, int | float)
    }
    summary = summary_pb2.Summary(
      value=[
        summary_pb2.Summary.Value(tag=_tag(name), simple_value=value)
        for name, value in values.items()
      ]
    )
    event = event_pb2.Event(
      wall_time=now, step=sinks.finite(line["env_steps"]), summary=summary
    )
    try:
      if self._writer is None:
        self._flushed = False
        self._writer = self._new_writer()
        first = event_pb2.Event(wall_time=now, file_version="brain.Event:2")
        self._writer.write(first.SerializeToString())
      self._writer.write(event.SerializeToString())
      if time.monotonic() - self._flushed_seconds >= _FLUSH_SECONDS:
        self._writer.flush()
        self._flushed, self._flushed_seconds = True, time.monotonic()
    except OSError as error:
      # After half an event nothing is read; the next try begins a new file.
      self._failure = error
      self._retry_seconds = time.monotonic() + _FLUSH_SECONDS
      writer, self._writer = self._writer, None
      if writer is not None:
        with contextlib.suppress(OSError):
          writer.close()
      if not self._flushed:  # It has nothing that can be read.
        with contextlib.suppress(OSError):
          self._folder.remove(self._name)
      raise

  def close(self) -> None:
    """Writes pending events and closes the file."""
    if self._writer is not None:
      self._writer.close()

  def _new_writer(self) -> Any:
    """Makes a file of events."""
    # A run that is resumed, or begun twice in a second, has another name.
    part = f"{os.getpid()}.{time.monotonic_ns()}"
    self._name = (
      f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{part}"
    )
    with self._folder.open(self._name, "x") as file:
      # A SummaryWriter blocks for ever once its thread cannot write.
      return record_writer.RecordWriter(f"/dev/fd/{file.fileno()}")


def _tag(name: str) -> str:
  groups = (group for group, x in _GROUPS.items() if name.startswith(x))
  return f"{next(groups, 'run')}/{name}"
