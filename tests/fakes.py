"""Small real implementations that tests share."""

import jax.numpy as jnp

from seedx import types
from seedx.agents import base


def counting_agent() -> base.Agent:
  """An agent whose core state adds up observations since the episode began.

  The action is `round(core state)` modulo 2; `acting` is added to every sum,
  so that it shows which parameters acted. It learns nothing.
  """

  def step(acting, rng_key, inputs, core_state):
    del rng_key
    seen = inputs.timestep.observation.sum(axis=-1)
    core_state = core_state + seen + acting
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
