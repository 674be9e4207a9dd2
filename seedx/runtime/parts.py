"""What a process asks of its parts: to be saved, restored and measured."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from seedx import metrics, types


class Part(Protocol):
  """A part of a process that checkpoints save; any thread may save it."""

  def saved(self) -> types.Tree:
    """Its state in a checkpoint, a nest of arrays.

    Raises:
      wire.WireError: UNAVAILABLE, a server cannot be reached now; try again.
    """

  def restore(self, saved: types.Tree) -> None:
    """Continues from a saved state; called before the process runs."""


class Measured(Protocol):
  """What has metrics."""

  def measure(self) -> metrics.Line:
    """Returns them by their names, since the last call where they count."""


class Replay(Protocol):
  """The replays of a process; any thread may save them."""

  @property
  def num_bytes(self) -> int:
    """Of what a checkpoint would keep, about; 0 where it is not known yet."""

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Neither they nor the parts of the process change within it."""

  def saved(self) -> Callable[[], types.Tree]:
    """Takes their state, `paused`.

    Returns:
      A function that says the state as a nest of arrays, on any thread; it may
      wait.
    """

  def restore(self, saved: Mapping[str, np.ndarray]) -> None:
    """Continues from a saved state; called before the process runs.

    Args:
      saved: its arrays by their paths, see `checkpoint.Checkpoints.restore`.
    """
