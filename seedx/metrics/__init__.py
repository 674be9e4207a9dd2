"""Metrics of a run: meters that measure, sinks that take lines, and files.

A line of metrics is a flat mapping of names to values, which a pipeline makes
and every sink takes unchanged. `events` (TensorBoard's files) and `status` (a
terminal) are not imported here: they load tensorboardX and Rich.
"""

from seedx.metrics.console import Console
from seedx.metrics.lines import is_number, read_lines
from seedx.metrics.meters import (
  OF_SEED,
  WAIT_ENVIRONMENTS,
  WAIT_EXPERIENCE,
  WAIT_LEARNER,
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
)

__all__ = [
  "OF_SEED",
  "WAIT_ENVIRONMENTS",
  "WAIT_EXPERIENCE",
  "WAIT_LEARNER",
  "Background",
  "Callbacks",
  "Console",
  "JsonLines",
  "Latest",
  "Line",
  "MeanOfSeeds",
  "Sink",
  "Value",
  "Waits",
  "bottleneck",
  "is_number",
  "read_lines",
]
