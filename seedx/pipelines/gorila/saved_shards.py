"""The states of all parameter servers, for checkpoints."""

import contextlib
import dataclasses
import math
import sys
import threading
import time
from collections.abc import Sequence

import jax
import jax.flatten_util
import numpy as np

from seedx import types, wire
from seedx.agents import base
from seedx.launch import admission
from seedx.pipelines.gorila import parameter_server

# A server is not there yet, or stopped during the call; it is started again.
_PASSING = (wire.StatusCode.UNAVAILABLE, wire.StatusCode.CANCELLED)
_TIMEOUT_SECONDS = 30.0
_RETRY_SECONDS = 0.2
# A message names servers that have not been restored after this time.
_PATIENCE_SECONDS = 20.0


class SavedShards:
  """The states of all shards, as a part of a checkpoint.

  One thread at a time may use it.
  """

  def __init__(
    self,
    agent: base.Agent,
    addresses: admission.Addresses,
    stop: threading.Event,
    security: wire.Security = wire.LOCAL,
  ) -> None:
    """Does not connect.

    Args:
      agent: the agent that is updated.
      addresses: addresses of the parameter servers, in order.
      stop: event that ends the wait for them.
      security: how they authenticate each other.

    Raises:
      types.ConfigError: the agent cannot be updated in parts.
    """
    num_params = parameter_server.num_params(agent)
    parts = parameter_server.parts(num_params, len(addresses))
    self._form = [
      parameter_server.state_form(agent, part.stop - part.start)
      for part in parts
    ]
    self._agent = agent
    self._addresses = addresses
    self._stop = stop
    self._security = security
    # The state to give to the servers.
    self._restored: Sequence[base.AgentState] | None = None
    # The servers' state when the run ended.
    self._last: list[base.AgentState] | None = None

  def form(self) -> list[base.AgentState]:
    """The shapes of each shard's state."""
    return self._form

  def saved(self) -> list[base.AgentState]:
    """Every shard's state, each as it is when it is asked.

    Raises:
      wire.WireError: UNAVAILABLE, one is not there, or empty; try again.
    """
    if self._last is not None:
      return self._last
    if not self.are_ready():
      raise wire.WireError(
        wire.StatusCode.UNAVAILABLE, "the servers are being restored"
      )
    return [
      jax.tree.unflatten(
        jax.tree.structure(form),
        self._call(k, parameter_server.SAVE, ()),
      )
      for k, form in enumerate(self._form)
    ]

  def fetch_last(self) -> None:
    """Fetches what is saved from now on: servers leave with the learner."""
    with contextlib.suppress(wire.WireError):  # The last `saved` raises it.
      self._last = self.saved()

  def restore(self, saved: Sequence[base.AgentState]) -> None:
    """Takes what `give_restored` gives the servers."""
    self._restored = saved

  def are_ready(self) -> bool:
    """Whether the servers have what was restored, if anything was."""
    return self._restored is None

  def give_restored(self) -> None:
    """Gives every server its state; waits until all are there, or a stop.

    Prints once what it waits for where that takes long.

    Raises:
      wire.WireError: one refuses, or has had a wrong certificate for 30 s.
    """
    patient_until = time.monotonic() + _PATIENCE_SECONDS
    security_check = wire.SecurityCheck("learner", self._security)
    while self._restored is not None and not self._stop.is_set():
      try:
        for k, state in enumerate(self._restored):
          leaves = tuple(map(np.asarray, jax.tree.leaves(state)))
          self._call(k, parameter_server.RESTORE, leaves)
        self._restored = None
      except wire.WireError as error:
        if error.code not in _PASSING:
          raise
        with contextlib.suppress(wire.Refused):  # Some have not joined yet.
          security_check.run(self._addresses.all())
        if time.monotonic() > patient_until:
          words = f"cannot restore the parameter servers yet: {error.message}"
          print(words, file=sys.stderr)
          patient_until = math.inf
        self._stop.wait(_RETRY_SECONDS)

  def acting(self, states: Sequence[base.AgentState]) -> types.Tree:
    """What acts by the parameters of all shards."""
    agent = self._agent
    assert agent.start is not None
    like = jax.eval_shape(agent.init, jax.random.key(0)).params
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    _, unravel = jax.flatten_util.ravel_pytree(zeros)
    vector = np.concatenate([np.asarray(state.params) for state in states])
    updates = min(int(state.updates) for state in states)
    whole = agent.start(unravel(jax.numpy.asarray(vector)), updates)
    resets = min(jax.numpy.asarray(state.resets) for state in states)
    return agent.acting(dataclasses.replace(whole, resets=resets))

  def _address(self, shard: int) -> str:
    try:
      return self._addresses.all()[shard]
    except wire.Refused as refused:
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
