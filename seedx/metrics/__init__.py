"""What a run measures and where it goes: waits, returns, sinks and files.

A line of metrics is a flat mapping of names to numbers. The pipeline composes
it, and every sink takes it as it is. Rich, TensorBoard and Matplotlib are
imported where they are used, so that this package costs no start-up time.
"""

from seedx.metrics.console import Console
from seedx.metrics.files import (
  open_run_dir,
  read_lines,
  time_unit,
  write_config,
)
from seedx.metrics.meters import (
  WAIT_ENVIRONMENTS,
  WAIT_EXPERIENCE,
  WAIT_LEARNER,
  EpisodeReturns,
  Waits,
  bottleneck,
)
from seedx.metrics.sinks import JsonLines, Line, Sink, TensorBoard, Value

__all__ = [
  "WAIT_ENVIRONMENTS",
  "WAIT_EXPERIENCE",
  "WAIT_LEARNER",
  "Console",
  "EpisodeReturns",
  "JsonLines",
  "Line",
  "Sink",
  "TensorBoard",
  "Value",
  "Waits",
  "bottleneck",
  "open_run_dir",
  "read_lines",
  "time_unit",
  "write_config",
]
