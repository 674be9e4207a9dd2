"""Updates that may still be running, and the newest state that is computed."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax

from seedx import types
from seedx.agents import base
from seedx.runtime import publication

# Seconds that a checkpoint waits for the running update.
_COMPUTED_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
  """An update that may still be running.

  Attributes:
    before: state before the update; None if the update has ended.
    result: `updates.Result` without the state.
    has_batch: whether the update learns from a batch of this process.
  """

  before: base.AgentState | None
  result: Any
  has_batch: bool

  def has_ended(self) -> bool:
    """Returns whether the update has ended without a failure."""
    return self.before is None or _is_computed(self.result.skipped, 0.0)


def newest_computed(
  state: base.AgentState, updates: Sequence[Update]
) -> tuple[base.AgentState, list[Update]]:
  """Returns the newest computed state, and the updates that led to it.

  Updates that hang or have failed are left out.

  Args:
    state: state after all updates.
    updates: updates that may still be running, in order.
  """
  computed, timeout_seconds = list(updates), _COMPUTED_SECONDS
  while computed and not _is_computed(state, timeout_seconds):
    before = computed[-1].before
    if before is None:
      break
    state = before
    computed.pop()
    timeout_seconds = 0.0
  return state, computed


def _is_computed(state: types.Tree, timeout_seconds: float) -> bool:
  """Waits for a state; returns whether it is computed without a failure."""
  deadline = time.monotonic() + timeout_seconds
  while not publication.is_ready(state):
    if time.monotonic() > deadline:
      return False
    time.sleep(0.001)
  try:
    jax.block_until_ready(jax.tree.leaves(state))
  except jax.errors.JaxRuntimeError:
    return False
  return True
