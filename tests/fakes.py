"""Small implementations of seedx's interfaces, shared by tests."""

import jax.numpy as jnp

from seedx import types
from seedx.agents import base


def counting_agent() -> base.Agent:
  """Makes an agent whose core state sums the observations of an episode.

  The action is `round(core state)` modulo 2. Each step also adds the acting
  parameters, so that the sum shows which parameters acted. The agent cannot
  learn.
  """

  def step(acting, rng_key, inputs, core_state):
    del rng_key
    observed = inputs.timestep.observation.sum(axis=-1)
    core_state = core_state + observed + acting
    action = jnp.int32(jnp.round(core_state)) % 2
    return types.AgentOutput(action, {"sum": core_state}), core_state

  def refuse(*_):
    raise NotImplementedError

  return base.Agent(
    init=lambda rng_key: jnp.float32(0),
    acting=lambda state: state,
    initial_core_state=lambda batch_size: jnp.zeros(batch_size, jnp.float32),
    step=step,
    gradients=refuse,
    apply=refuse,
    update=refuse,
  )
