"""Small implementations of seedx's interfaces, shared by tests."""

import dataclasses
import functools

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


@functools.cache
def adding_agent(period=1):
  """Returns an agent whose update subtracts the gradient.

  Every `period` updates, the target parameters become the previous parameters.
  """

  def start(params, updates):
    numbers = jnp.int32(updates), jnp.float32(0)
    return base.AgentState(params, (), {}, *numbers, params)

  def apply(state, gradients):
    return dataclasses.replace(
      state,
      params=state.params - gradients.params,
      updates=state.updates + 1,
      target_params=jnp.where(
        state.updates % period == 0, state.params, state.target_params
      ),
    )

  return dataclasses.replace(counting_agent(), start=start, apply=apply)
