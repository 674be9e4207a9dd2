"""The interfaces of a process's parts: saved, restored and measured."""

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from seedx import metrics, types
from seedx.agents import base


class Part(Protocol):
  """A part of a process that checkpoints save; any thread may save it."""

  def saved(self) -> types.Tree:
    """Returns the state for a checkpoint, a nest of arrays.

    Raises:
      wire.WireError: UNAVAILABLE, a server cannot be reached now; try again.
    """

  def restore(self, saved: types.Tree) -> None:
    """Continues from a saved state; called before the process runs."""


class PartState(NamedTuple):
  """The saved state of the part `agent` of a process.

  Attributes:
    agent: state of the agent; the leaves of several trainings are stacked.
    counts: the rest, such as the number of updates that were skipped.
  """

  agent: base.AgentState
  counts: types.Tree


class Meter(Protocol):
  """A part that has metrics."""

  def measure(self) -> metrics.Line:
    """Returns the metrics by their names; rates are since the last call."""


class Replay(Protocol):
  """The replays of a process; any thread may save them."""

  @property
  def num_bytes(self) -> int:
    """Approximate number of bytes in a checkpoint; 0 before it is known."""

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Holds the replays and all parts still, so that they are consistent."""

  def saved(self) -> Callable[[], types.Tree]:
    """Takes a snapshot, within `paused`.

    Returns:
      A function that returns the snapshot as a nest of arrays. Any thread may
      call the function, which may wait.
    """

  def restore(self, saved: Mapping[str, np.ndarray]) -> None:
    """Continues from arrays by path, see `checkpoint.Checkpoints.restore`."""
