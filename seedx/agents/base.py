"""The contract between agents and pipelines."""

import dataclasses
from collections.abc import Callable

import dm_env
import jax
import numpy as np

from seedx import trees, types


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AgentState:
  """All that evolves in an agent: one pytree, and all that a checkpoint saves.

  Attributes:
    params: the network's parameters, float32.
    optimizer_state: Optax's.
    hyperparameters: scalars by name that may change at run time.
    updates: `[]` int32, how often `apply` has run.
  """

  params: types.Tree
  optimizer_state: types.Tree
  hyperparameters: dict[str, jax.Array]
  updates: jax.Array


@dataclasses.dataclass(frozen=True)
class Agent:
  """Pure functions over an `AgentState`; all of them can be jitted.

  Those that learn run once per learner core, on that core's share of the batch,
  inside a mesh axis; what they return is the same on every core.

  Attributes:
    init: `(rng_key) -> AgentState`.
    acting: `(state) -> acting`, the part of the state that `step` needs.
    initial_core_state: `(batch_size) -> core_state` of `[batch_size, ...]`.
    step: `(acting, rng_key, Inputs [B, ...], core_state) -> (AgentOutput,
      core_state)`.
    gradients: `(state, rng_key, batch) -> (gradients, LossOutput)`.
    apply: `(state, gradients) -> state`.
    update: `(state, rng_key, batch) -> (state, LossOutput)`.
  """

  init: Callable[[jax.Array], AgentState]
  acting: Callable[[AgentState], types.Tree]
  initial_core_state: Callable[[int], types.Tree]
  step: Callable[
    [types.Tree, jax.Array, types.Inputs, types.Tree],
    tuple[types.AgentOutput, types.Tree],
  ]
  gradients: Callable[
    [AgentState, jax.Array, types.Tree], tuple[types.Tree, types.LossOutput]
  ]
  apply: Callable[[AgentState, types.Tree], AgentState]
  update: Callable[
    [AgentState, jax.Array, types.Tree], tuple[AgentState, types.LossOutput]
  ]


def composed_update(
  gradients: Callable[..., tuple[types.Tree, types.LossOutput]],
  apply: Callable[[AgentState, types.Tree], AgentState],
) -> Callable[..., tuple[AgentState, types.LossOutput]]:
  """The update of an agent that applies its gradients once."""

  def update(
    state: AgentState, rng_key: jax.Array, batch: types.Tree
  ) -> tuple[AgentState, types.LossOutput]:
    grads, output = gradients(state, rng_key, batch)
    return apply(state, grads), output

  return update


def zero_inputs(spec: types.EnvironmentSpec, batch_size: int) -> types.Inputs:
  """Inputs of `[batch_size, ...]` zeros, with the types that inference sees."""
  rows = (batch_size,)
  timestep = dm_env.TimeStep(
    step_type=np.zeros(rows, np.uint8),
    reward=np.zeros(rows, np.float32),
    discount=np.zeros(rows, np.float32),
    observation=trees.zeros(spec.observation, rows),
  )
  return types.Inputs(timestep, trees.zeros(spec.action, rows))
