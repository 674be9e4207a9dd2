"""Metrics of a run: meters that measure them, and sinks that write them.

A line of metrics is a flat mapping of names to values; the first is that of the
run's clock. Every sink receives the line that a pipeline makes. `events`
(TensorBoard's files) and `status` (a terminal) are not imported here, since
they load tensorboardX and Rich.
"""

from seedx.metrics.console import Console
from seedx.metrics.lines import clock, is_number, read_lines, unit
from seedx.metrics.meters import (
  MICRO_BATCHES,
  OF_INFO,
  OF_MEMBER,
  OF_SEED,
  WAIT_ENVIRONMENTS,
  WAIT_EXPERIENCE,
  WAIT_LEARNER,
  WAIT_UPDATE,
  Latest,
  MeanOfSeeds,
  Waits,
  bottleneck,
)
from seedx.metrics.sinks import (
  Background,
  Callbacks,
  JsonLines,
  Line,
  Sink,
  Value,
  Video,
)

__all__ = [
  "MICRO_BATCHES",
  "OF_INFO",
  "OF_MEMBER",
  "OF_SEED",
  "WAIT_ENVIRONMENTS",
  "WAIT_EXPERIENCE",
  "WAIT_LEARNER",
  "WAIT_UPDATE",
  "Background",
  "Callbacks",
  "Console",
  "JsonLines",
  "Latest",
  "Line",
  "MeanOfSeeds",
  "Sink",
  "Value",
  "Video",
  "Waits",
  "bottleneck",
  "clock",
  "is_number",
  "read_lines",
  "unit",
]
