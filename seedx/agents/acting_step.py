"""One acting step, which first resets the core state if an episode starts."""

import dataclasses
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import trees, types
from seedx.agents import base


class ActingState(NamedTuple):
  """The state that acting carries from step to step.

  Attributes:
    core_state: `[B, ...]`, core state of the agent.
    action: `[B, ...]`, the last action.
  """

  core_state: types.Tree
  action: types.Array


class StepResult(NamedTuple):
  """The result of one acting step.

  Attributes:
    inputs: `[B, ...]`, the network's inputs.
    core_state: `[B, ...]`, core state that the step received, after resets.
    output: the action and its extras.
    acting_state: `[B, ...]`, state for the next step.
  """

  inputs: types.Inputs
  core_state: types.Tree
  output: types.AgentOutput
  acting_state: ActingState


def initial_state(
  agent: base.Agent, spec: types.EnvironmentSpec, batch_size: int
) -> ActingState:
  """Returns the acting state before the first step, `[batch_size, ...]`."""
  return ActingState(
    agent.initial_core_state(batch_size),
    trees.zeros(spec.action, (batch_size,)),
  )


def take(
  agent: base.Agent,
  acting: types.Tree,
  rng_key: jax.Array,
  timestep: dm_env.TimeStep,
  acting_state: ActingState,
  exploration: types.Array,
  first: types.Array | None = None,
) -> StepResult:
  """Takes one step, and resets the acting state where an episode starts.

  `timestep` and `acting_state` are `[B, ...]`, and `exploration` is `[B]`, see
  `types.Inputs`. `first`, `[B]` bool, marks the rows to reset. If `first` is
  None, the rows whose `step_type` is FIRST are reset.
  """
  if first is None:
    first = timestep.step_type == int(dm_env.StepType.FIRST)
  initial = agent.initial_core_state(timestep.reward.shape[0])
  core_state = jax.tree.map(
    lambda start, past: _where(first, start, past),
    initial,
    acting_state.core_state,
  )
  inputs = types.Inputs(
    timestep=timestep,
    action_tm1=_where(
      first, jnp.zeros_like(acting_state.action), acting_state.action
    ),
    exploration=exploration,
  )
  output, next_core_state = agent.step(acting, rng_key, inputs, core_state)
  return StepResult(
    inputs, core_state, output, ActingState(next_core_state, output.action)
  )


def per_row(agent: base.Agent) -> base.Agent:
  """Returns an agent with acting parameters `[B, ...]`, a set for each row."""

  def one(acting: types.Tree, rng_key: Any, inputs: Any, core: Any) -> Any:
    batch = jax.tree.map(lambda x: x[None], (inputs, core))
    return jax.tree.map(lambda x: x[0], agent.step(acting, rng_key, *batch))

  def each(acting: types.Tree, rng_key: Any, inputs: Any, core: Any) -> Any:
    keys = jax.random.split(rng_key, len(inputs.timestep.reward))
    return jax.vmap(one)(acting, keys, inputs, core)

  return dataclasses.replace(agent, step=each)


def zero_inputs(spec: types.EnvironmentSpec, batch_size: int) -> types.Inputs:
  """Returns `[batch_size, ...]` zeros with the dtypes of real inputs."""
  rows = (batch_size,)
  timestep = dm_env.TimeStep(
    step_type=np.zeros(rows, np.uint8),
    reward=np.zeros(rows, np.float32),
    discount=np.zeros(rows, np.float32),
    observation=trees.zeros(spec.observation, rows),
  )
  return types.Inputs(
    timestep=timestep,
    action_tm1=trees.zeros(spec.action, rows),
    exploration=np.zeros(rows, np.float32),
  )


def _where(rows: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
  """Selects rows: `rows` is `[B]`, `yes` and `no` are `[B, ...]`."""
  return jnp.where(rows.reshape(-1, *(1,) * (yes.ndim - 1)), yes, no)
