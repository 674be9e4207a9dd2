"""An agent state that the workers of one process update asynchronously."""

import functools
import threading

import jax
import numpy as np

from seedx import types
from seedx.agents import base
from seedx.learning import updates
from seedx.runtime import process_parts, progress


class Shared:
  """The agent state that workers share; any thread may use it.

  Workers compute gradients in parallel, and apply them one after another.

  Attributes:
    learned: counts of the applied gradients.
  """

  def __init__(
    self, agent: base.Agent, state: base.AgentState, device: jax.Device
  ) -> None:
    self.learned = progress.Progress()
    self._agent = agent
    self._compute = jax.jit(functools.partial(updates.compute_gradients, agent))
    self._apply = jax.jit(functools.partial(updates.apply_gradients, agent))
    self._device = device
    self._lock = threading.Lock()
    self._state = jax.device_put(state, device)
    self._version = 0

  def newest(self) -> tuple[base.AgentState, np.int32]:
    """Returns the newest state, which is immutable, and its version."""
    with self._lock:
      return self._state, np.int32(self._version)

  def learn(
    self,
    state: base.AgentState,
    version: np.int32,
    rng_key: jax.Array,
    batch: types.Tree,
  ) -> None:
    """Computes a worker's gradients, and applies them to the newest state.

    Args:
      state: state that `newest` returned.
      version: version of that state.
      rng_key: random key of the worker.
      batch: batch to learn from.

    Raises:
      RuntimeError: many updates in a row were skipped.
    """
    key = jax.random.fold_in(rng_key, version)
    gradients, fraction, output = self._compute(state, key, batch)
    # Without this, other workers would wait for these gradients at the lock.
    jax.block_until_ready(gradients)
    with self._lock:
      self._state, skipped = self._apply(self._state, gradients, fraction)
      staleness = self._version - int(version)
      self._version += 1
    weight, values = jax.device_get((output.weight, output.metrics))
    if skipped:
      self.learned.skip(1)
      self.learned.check()
      return
    line = {name: float(value) for name, value in values.items()}
    line["policy_lag"] = staleness
    self.learned.add(float(weight), staleness, line)

  def begin(self, params: types.Tree, statistics: types.Tree) -> None:
    """Replaces the initial state before learning starts; see `base.begin`."""
    state = base.begin(self._agent, params, statistics)
    self.restore(process_parts.PartState(state, ()))

  def saved(self) -> process_parts.PartState:
    """Returns the state for a checkpoint."""
    return process_parts.PartState(self.newest()[0], ())

  def restore(self, saved: process_parts.PartState) -> None:
    """Restores what `saved` returned."""
    with self._lock:
      self._state = jax.device_put(saved.agent, self._device)
      self._version = int(saved.agent.updates)
