"""Updates that may still be running."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax

from seedx import types
from seedx.agents import base

# How long a checkpoint waits for the update that is under way.
_COMPUTED_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
  """An update that may still be running.

  Attributes:
    before: the state before it; None where it is known to have ended.
    result: `updates.Result` without the state.
    has_batch: whether it is of a batch of this process.
  """

  before: base.AgentState | None
  result: Any
  has_batch: bool


def newest_computed(
  state: base.AgentState, updates: Sequence[Update]
) -> tuple[base.AgentState, list[Update]]:
  """Returns the newest state that is computed, and the updates behind it.

  An update that hangs or has failed is left out.

  Args:
    state: the state after all updates.
    updates: the ones that may still be running, in order.
  """
  behind, patience_seconds = list(updates), _COMPUTED_SECONDS
  while behind and not _is_computed(state, patience_seconds):
    before = behind[-1].before
    if before is None:
      break
    state = before
    behind.pop()
    patience_seconds = 0.0
  return state, behind


def is_ready(nest: types.Tree) -> bool:
  """Returns whether these arrays can be read without waiting."""
  return all(leaf.is_ready() for leaf in jax.tree.leaves(nest))


def _is_computed(state: types.Tree, patience_seconds: float) -> bool:
  """Waits for a state; returns whether it can be read, and has not failed."""
  deadline = time.monotonic() + patience_seconds
  while not is_ready(state):
    if time.monotonic() > deadline:
      return False
    time.sleep(0.001)
  try:
    jax.block_until_ready(jax.tree.leaves(state))
  except jax.errors.JaxRuntimeError:
    return False
  return True
