"""TensorBoard's event files. Only runs load this module and tensorboardX."""

import collections
import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from tensorboardX import record_writer
from tensorboardX.proto import event_pb2, plugin_hparams_pb2, summary_pb2

from seedx import files
from seedx.metrics import lines, sinks

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
    "temperature",
  ),
  "replay": ("replay", "priorit"),
  "time": ("steps_per_second", "wall_", "acting_wait", "learning_wait"),
}
# TensorBoard shows the values of this tag in its tab HPARAMS.
_HPARAMS_TAG = "_hparams_/session_start_info"
_VIDEO_TAG = "episode/evaluation_video"
# Shortest time from an error to the next try.
_RETRY_SECONDS = 10.0


class TensorBoard:
  """A Sink that writes TensorBoard scalars against the run's clock."""

  def __init__(
    self,
    run_dir: str | os.PathLike[str],
    hyperparameters: Mapping[str, Any] | None = None,
    videos: "collections.deque[sinks.Video] | None" = None,
  ) -> None:
    """Prepares event files in `run_dir`; the first line creates one.

    Args:
      run_dir: directory of the run.
      hyperparameters: values of settings by name, as JSON; None for none.
      videos: videos to write, which other threads append; None for none.
    """
    self._folder = files.Folder(run_dir)
    self._hyperparameters = hyperparameters
    self._videos = collections.deque() if videos is None else videos
    self._writer: Any = None
    self._name, self._flushed = "", False
    self._failure: OSError | None = None
    self._retry_seconds = 0.0

  def write(self, line: sinks.Line) -> None:
    """Adds every number except the clock's, which is the x-axis.

    A tag is the group and the name of a metric, such as `loss/loss_value`.
    """
    if self._failure is not None and time.monotonic() < self._retry_seconds:
      raise self._failure  # Fewer retries leave fewer empty files.
    clock = lines.clock(line)
    values = {
      name: value
      for name, value in ((name, sinks.finite(x)) for name, x in line.items())
      if name != clock and isinstance(value, int | float)
    }
    summary = summary_pb2.Summary(
      value=[
        summary_pb2.Summary.Value(tag=_tag(name), simple_value=value)
        for name, value in values.items()
      ]
    )
    step = sinks.finite(line[clock])
    try:
      if self._writer is None:
        self._flushed = False
        self._writer = self._new_writer()
        self._add(event_pb2.Event(file_version="brain.Event:2"))
        if self._hyperparameters:
          summary_of_all = _hparams(self._hyperparameters)
          self._add(event_pb2.Event(summary=summary_of_all))
      self._add(event_pb2.Event(step=step, summary=summary))
      self._add_videos()
      self._writer.flush()  # So that a full disk loses only this line.
      self._flushed = True
    except OSError as error:
      # Readers stop at an incomplete event, so the next try begins a new file.
      self._failure = error
      self._retry_seconds = time.monotonic() + _RETRY_SECONDS
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
      self._add_videos()
      self._writer.close()

  def _add(self, event: Any) -> None:
    event.wall_time = time.time()
    self._writer.write(event.SerializeToString())

  def _add_videos(self) -> None:
    while self._videos:
      video = self._videos.popleft()
      height, width = video.size
      image = summary_pb2.Summary.Image(
        height=height,
        width=width,
        colorspace=3,  # RGB.
        encoded_image_string=video.gif,
      )
      value = summary_pb2.Summary.Value(tag=_VIDEO_TAG, image=image)
      summary = summary_pb2.Summary(value=[value])
      self._add(event_pb2.Event(step=video.env_steps, summary=summary))

  def _new_writer(self) -> Any:
    # The name is unique, even if a run is started twice in a second.
    suffix = f"{os.getpid()}.{time.monotonic_ns()}"
    self._name = (
      f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{suffix}"
    )
    with self._folder.open(self._name, "x") as file:
      # A SummaryWriter would block for ever once its thread cannot write.
      return record_writer.RecordWriter(f"/dev/fd/{file.fileno()}")


def _hparams(values: Mapping[str, Any]) -> Any:
  """Returns the summary with which the tab HPARAMS compares runs.

  Without a summary of the experiment (`_hparams_/experiment`), TensorBoard
  compares all settings and scalars that it finds in any run; with one, only
  those of the first run.
  """
  start = plugin_hparams_pb2.SessionStartInfo(start_time_secs=time.time())
  for name, value in values.items():
    if isinstance(value, bool):
      start.hparams[name].bool_value = value
    elif isinstance(value, int | float) and math.isfinite(value):
      start.hparams[name].number_value = value
    else:
      text = value if isinstance(value, str) else json.dumps(value)
      start.hparams[name].string_value = text
  content = plugin_hparams_pb2.HParamsPluginData(session_start_info=start)
  plugin_data = summary_pb2.SummaryMetadata.PluginData(
    plugin_name="hparams", content=content.SerializeToString()
  )
  metadata = summary_pb2.SummaryMetadata(plugin_data=plugin_data)
  value = summary_pb2.Summary.Value(tag=_HPARAMS_TAG, metadata=metadata)
  return summary_pb2.Summary(value=[value])


def _tag(name: str) -> str:
  groups = (group for group, x in _GROUPS.items() if name.startswith(x))
  return f"{next(groups, 'run')}/{name}"
