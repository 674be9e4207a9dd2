"""TensorBoard's event files. Only runs load this module and tensorboardX."""

import contextlib
import os
import socket
import time
from typing import Any

from tensorboardX import record_writer
from tensorboardX.proto import event_pb2, summary_pb2

from seedx import files
from seedx.metrics import sinks

# The groups of metrics in TensorBoard, by prefixes of their names.
_GROUPS = {
  "episode": ("episode", "evaluation", "info_"),
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
# Shortest time between two flushes, and from an error to the next try.
_FLUSH_SECONDS = 10.0


class TensorBoard:
  """A Sink that writes TensorBoard scalars against `env_steps`."""

  def __init__(self, run_dir: str | os.PathLike[str]) -> None:
    """Prepares event files in `run_dir`; the first line creates one."""
    self._folder = files.Folder(run_dir)
    self._writer: Any = None
    self._flushed_seconds = 0.0
    self._name, self._flushed = "", False
    self._failure: OSError | None = None
    self._retry_seconds = 0.0

  def write(self, line: sinks.Line) -> None:
    """Adds every number except `env_steps`, which is the x-axis.

    A tag is the group and the name of a metric, such as `loss/loss_value`.
    """
    now = time.time()
    if self._failure is not None and time.monotonic() < self._retry_seconds:
      raise self._failure  # Fewer retries leave fewer empty files.
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
      # Readers stop at an incomplete event, so the next try begins a new file.
      self._failure = error
      self._retry_seconds = time.monotonic() + _FLUSH_SECONDS
      writer, self._writer = self._writer, None
      if writer is not None:
        with contextlib.suppress(OSError):
          writer.close()
      if not self._flushed:  # The file has no complete event.
        with contextlib.suppress(OSError):
          self._folder.remove(self._name)
      raise

  def close(self) -> None:
    """Writes pending events and closes the file."""
    if self._writer is not None:
      self._writer.close()

  def _new_writer(self) -> Any:
    # The name is unique, even if a run is started twice in a second.
    suffix = f"{os.getpid()}.{time.monotonic_ns()}"
    self._name = (
      f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{suffix}"
    )
    with self._folder.open(self._name, "x") as file:
      # A SummaryWriter would block for ever once its thread cannot write.
      return record_writer.RecordWriter(f"/dev/fd/{file.fileno()}")


def _tag(name: str) -> str:
  groups = (group for group, x in _GROUPS.items() if name.startswith(x))
  return f"{next(groups, 'run')}/{name}"
