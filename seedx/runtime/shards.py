"""All parameter servers together, as whoever keeps checkpoints sees them."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.flatten_util
import numpy as np

from seedx import types, wire
from seedx.agents import base
from seedx.runtime import parameter_server, protocol

_TIMEOUT_SECONDS = 30.0


class Shards:
  """The states of all shards; one thread at a time may use it.

  Attributes:
    form: of each shard, its state's shapes.
  """

  def __init__(self, agent: base.Agent, addresses: Sequence[str]) -> None:
    """Connects to nothing yet.

    Raises:
      types.ConfigError: the agent cannot be updated in parts.
    """
    num_params = parameter_server.num_params(agent)
    parts = parameter_server.parts(num_params, len(addresses))
    self.form = [
      parameter_server.state_form(agent, part.stop - part.start)
      for part in parts
    ]
    self._agent = agent
    self._addresses = list(addresses)

  def save(self) -> list[base.AgentState]:
    """Every shard's state, each as it is when it is asked.

    Raises:
      wire.WireError: UNAVAILABLE, one is not there, or empty; try again.
    """
    return [
      jax.tree.unflatten(
        jax.tree.structure(form),
        [leaf[0] for leaf in self._call(k, parameter_server.SAVE, ())],
      )
      for k, form in enumerate(self.form)
    ]

  def restore(self, states: Sequence[base.AgentState]) -> None:
    """Gives every shard its state.

    Raises:
      wire.WireError: UNAVAILABLE, one is not there; try again.
    """
    for k, state in enumerate(states):
      leaves = tuple(np.asarray(leaf)[None] for leaf in jax.tree.leaves(state))
      self._call(k, parameter_server.RESTORE, leaves)

  def acting(self, states: Sequence[base.AgentState]) -> types.Tree:
    """What acts by the parameters of all shards."""
    agent = self._agent
    assert agent.start is not None
    like = jax.eval_shape(agent.init, jax.random.key(0))
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    _, unravel = jax.flatten_util.ravel_pytree(zeros.params)
    vector = np.concatenate([np.asarray(state.params) for state in states])
    updates = min(int(state.updates) for state in states)
    whole = agent.start(unravel(jax.numpy.asarray(vector)), updates)
    return agent.acting(dataclasses.replace(whole, statistics=zeros.statistics))

  def _call(self, shard: int, method: str, request: types.Tree) -> types.Tree:
    state = parameter_server.state_layout(self.form[shard])
    saving = method == parameter_server.SAVE
    client = wire.Client(self._addresses[shard])
    try:
      return client.call(
        method,
        request,
        inputs=protocol.NOTHING if saving else state,
        outputs=state if saving else protocol.NOTHING,
        timeout_seconds=_TIMEOUT_SECONDS,
      )
    finally:
      client.close()
