"""The states of all parameter servers, for checkpoints."""

import contextlib
import functools
import math
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from seedx import types, wire
from seedx.agents import base
from seedx.launch import admission
from seedx.pipelines.gorila import parameter_server
from seedx.runtime import process_parts

# Codes of a server that has not started yet, or has died during the call.
_TEMPORARY = (wire.StatusCode.UNAVAILABLE, wire.StatusCode.CANCELLED)
_TIMEOUT_SECONDS = 30.0
_RETRY_SECONDS = 0.2
# Seconds after which a message reports servers that are not restored.
_PATIENCE_SECONDS = 20.0


class SavedShards:
  """The states of all shards, as one part of a checkpoint; not thread-safe."""

  def __init__(
    self,
    agent: base.Agent,
    addresses: admission.Addresses,
    stop: threading.Event,
    security: wire.Security = wire.LOCAL,
  ) -> None:
    """Does not connect; `stop` ends every wait for the servers.

    Raises:
      types.ConfigError: the agent cannot be updated in parts.
    """
    num_params = parameter_server.num_params(agent)
    self._parts = parameter_server.parts(num_params, len(addresses))
    self._form = [
      parameter_server.state_form(agent, part.stop - part.start)
      for part in self._parts
    ]
    self._agent = agent
    self._addresses = addresses
    self._stop = stop
    self._security = security
    # The state that the servers have yet to receive.
    self._restored: base.AgentState | None = None
    # The state of the servers at the end of the run.
    self._last: base.AgentState | None = None

  def form(self) -> process_parts.PartState:
    """Returns the shapes of the state of all shards together."""
    zeros = [
      jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), form)
      for form in self._form
    ]
    return process_parts.PartState(self._joined(zeros), ())

  def saved(self) -> process_parts.PartState:
    """Fetches the states of all shards, one after the other, and joins them.

    If their numbers of updates differ, the smallest is saved.

    Raises:
      wire.WireError: UNAVAILABLE, a server does not answer, or its shard is
        empty; try again.
    """
    if self._last is not None:
      return process_parts.PartState(self._last, ())
    if not self.are_ready():
      raise wire.WireError(
        wire.StatusCode.UNAVAILABLE, "the servers are being restored"
      )
    states = [
      jax.tree.unflatten(
        jax.tree.structure(form),
        self._call(k, parameter_server.SAVE, ()),
      )
      for k, form in enumerate(self._form)
    ]
    return process_parts.PartState(self._joined(states), ())

  def fetch_last(self) -> None:
    """Fetches the last states, because servers end when the learner does."""
    with contextlib.suppress(wire.WireError):  # `saved` tries again.
      self._last = self.saved().agent

  def restore(self, saved: process_parts.PartState) -> None:
    """Takes the state that `give_restored` will send to the servers."""
    self._restored = saved.agent

  def leave_out(self, updates: float) -> None:
    """Moves the restored schedules; see `base.AgentState.leave_out`."""
    assert self._restored is not None
    self._restored = self._restored.leave_out(updates)

  def begin(self, params: types.Tree, statistics: types.Tree) -> None:
    """Replaces the servers' initial states; see `base.begin`."""
    vector, _ = jax.flatten_util.ravel_pytree(params)
    states = [
      base.begin(self._agent, vector[x], statistics) for x in self._parts
    ]
    self._restored = self._joined(states)

  def are_ready(self) -> bool:
    """Returns whether no state is left to send to the servers."""
    return self._restored is None

  def give_restored(self) -> None:
    """Sends every server its restored state; waits for all servers, or a stop.

    Prints one message after a long wait.

    Raises:
      wire.WireError: a server refuses, or its certificate has been wrong for
        30 s.
    """
    patient_until = time.monotonic() + _PATIENCE_SECONDS
    security_check = wire.SecurityCheck("learner", self._security)
    while self._restored is not None and not self._stop.is_set():
      try:
        for k, state in enumerate(self._divided(self._restored)):
          leaves = tuple(map(np.asarray, jax.tree.leaves(state)))
          self._call(k, parameter_server.RESTORE, leaves)
        self._restored = None
      except wire.WireError as error:
        if error.code not in _TEMPORARY:
          raise
        with contextlib.suppress(wire.Refusal):  # Some servers are late.
          security_check.run(self._addresses.all())
        if time.monotonic() > patient_until:
          message = f"cannot restore the parameter servers yet: {error.message}"
          print(message, file=sys.stderr)
          patient_until = math.inf
        self._stop.wait(_RETRY_SECONDS)

  def acting(self, state: base.AgentState) -> types.Tree:
    """Returns the acting parameters of a state."""
    return self._agent.acting(state)

  def _joined(self, states: Sequence[base.AgentState]) -> base.AgentState:
    """Returns the state of the whole agent, with parameters by name.

    What shards have in common, such as counts, is that of the oldest state.
    """
    like = jax.eval_shape(self._agent.init, jax.random.key(0)).params
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    _, unravel = jax.flatten_util.ravel_pytree(zeros)

    def join(form: Any, common: Any, *parts: Any) -> Any:
      return unravel(jnp.concatenate(parts)) if form.ndim else common

    oldest = min(states, key=lambda state: int(state.updates))
    return jax.tree.map(join, self._form[0], oldest, *states)

  def _divided(self, state: base.AgentState) -> list[base.AgentState]:
    def divide(form: Any, nest: Any, part: slice) -> Any:
      return jax.flatten_util.ravel_pytree(nest)[0][part] if form.ndim else nest

    return [
      jax.tree.map(functools.partial(divide, part=part), form, state)
      for form, part in zip(self._form, self._parts, strict=True)
    ]

  def _address(self, shard: int) -> str:
    try:
      return self._addresses.all()[shard]
    except wire.Refusal as refused:
      raise wire.WireError(refused.code, refused.message) from None

  def _call(self, shard: int, method: str, request: types.Tree) -> types.Tree:
    state = parameter_server.state_layout(self._form[shard])
    saving = method == parameter_server.SAVE
    with wire.Client(self._address(shard), self._security) as client:
      return client.call(
        method,
        request,
        inputs=wire.NOTHING if saving else state,
        outputs=state if saving else wire.NOTHING,
        timeout_seconds=_TIMEOUT_SECONDS,
      )
