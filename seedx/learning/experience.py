"""Experience: how new shares become the batches of updates."""

import abc
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax

from seedx import metrics, types


class Batch(NamedTuple):
  """The batch of one update.

  Attributes:
    parts: for each core, its part of what the agent learns from, such as a
      `types.Unroll` of `[L, B / cores, ...]`.
    windows: for each core, the part's windows in the core's replay, if any; see
      `replay.Replay`.
  """

  parts: Sequence[types.Tree]
  windows: Sequence[types.Tree] = ()


class Experience(abc.ABC):
  """Decides what each update learns from.

  The learner calls it on its own thread. Each batch that it yields becomes one
  update, before the next one is asked for.
  """

  @abc.abstractmethod
  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Takes one share per core, and yields any number of batches.

    Each has the shapes of `example`, its parts on the learner's cores.
    """

  @abc.abstractmethod
  def example(self, shares: Sequence[types.Share]) -> Batch:
    """A batch with the shapes and dtypes that such shares lead to."""

  def learned(
    self, windows: Sequence[types.Tree], priorities: Sequence[jax.Array]
  ) -> None:
    """Writes new priorities of a batch, where the agent has computed some.

    Args:
      windows: `Batch.windows` of the batch.
      priorities: for each core, its part of `types.LossOutput.priorities`,
        `[B / cores]`.
    """
    raise NotImplementedError

  def counted(self, env_steps: float, batches: int = 1) -> None:
    """Is called when it is known how many env steps were in batches.

    That is once for each batch, about one update later.

    Args:
      env_steps: number of env steps that were learned from; resets are none.
      batches: number of batches that they were in.
    """
    del env_steps, batches

  def resume(self, updates: int, resets: float) -> None:
    """Continues a run; called once, before the first share.

    Args:
      updates: number of updates so far.
      resets: see `base.AgentState`.
    """
    del updates, resets

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics."""
    return {}


class Once(Experience):
  """Learns from each share once."""

  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Yields the shares as one batch."""
    yield self.example(shares)

  def example(self, shares: Sequence[types.Share]) -> Batch:
    """The shares as a batch."""
    return Batch([share.data for share in shares])
