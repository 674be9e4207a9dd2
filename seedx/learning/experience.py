"""Experience: turns new shares into the batches of updates."""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from seedx import metrics, types
from seedx.runtime import process_parts


class Batch(NamedTuple):
  """The batch of one update.

  Attributes:
    parts: each core's part, such as a `types.Unroll` of `[L, B / cores, ...]`.
    windows: the sampled windows in each core's replay, see `replay.Replay`; ()
      without priorities.
    updates: function `(state, inputs) -> (state, results)` that makes several
      updates, see `Experience.combine`; None for an update from `parts`.
  """

  parts: Sequence[types.Tree]
  windows: Sequence[types.Tree] = ()
  updates: Callable[..., tuple[Any, list[Any]]] | None = None


class Experience(abc.ABC):
  """A source of batches, called on the learner's thread.

  The learner makes one update from each batch before it asks for the next.
  """

  @abc.abstractmethod
  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Takes one share per core, and yields any number of batches.

    All batches have the shapes of `example`, with each part on its core.
    """

  @abc.abstractmethod
  def example(self, shares: Sequence[types.Share]) -> Batch:
    """Returns a batch with the shapes and dtypes that all batches have."""

  def combine(self, update: Callable[..., Any]) -> None:
    """Allows `Batch.updates`: one program with the packed `OnCore.whole`."""
    del update

  def learned(
    self, windows: Sequence[types.Tree], priorities: Sequence[jax.Array]
  ) -> None:
    """Receives a batch's new priorities: `[B / cores]` from each core.

    It is called only if the batch has `windows`.
    """
    raise NotImplementedError

  def counted(self, env_steps: float, batches: int = 1) -> None:
    """Receives the number of env steps, not resets, that were learned from.

    Each batch is counted once, about one update later.
    """
    del env_steps, batches

  def resume(self, updates: int, resets: float) -> None:
    """Continues a run after `updates` updates, before the first share.

    Args:
      updates: number of updates so far.
      resets: resets in all batches so far, see `base.AgentState`.
    """
    del updates, resets

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the source's fields of a line of metrics."""
    return {}

  @property
  def kept(self) -> process_parts.Replay | None:
    """The part that a checkpoint stores; None for nothing."""
    return None


class Once(Experience):
  """Experience that is learned from once, as it arrives."""

  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Yields the shares as one batch."""
    yield self.example(shares)

  def example(self, shares: Sequence[types.Share]) -> Batch:
    """Returns the shares as one batch."""
    return Batch([share.data for share in shares])
