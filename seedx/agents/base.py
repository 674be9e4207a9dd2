"""The contract between agents and pipelines."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
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
    updates: `[]` int32, batches learned from.
    target_params: older parameters that targets are computed with, or ().
    statistics: of observations, see `normalizer`, or ().
  """

  params: types.Tree
  optimizer_state: types.Tree
  hyperparameters: dict[str, jax.Array]
  updates: jax.Array
  target_params: types.Tree = ()
  statistics: types.Tree = ()


class Gradients(NamedTuple):
  """What a batch says; means over it, so that parts of batches add up weighed.

  Attributes:
    params: the gradient of the loss by the parameters.
    moments: of the batch's observations, for `AgentState.statistics`; or ().
  """

  params: types.Tree
  moments: types.Tree = ()


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
    greedy: as `step`, but with the action that it thinks best; None for an
      agent that cannot tell.
    gradients: `(state, rng_key, batch) -> (Gradients, LossOutput)`; a batch is
      a `types.Unroll`, or a `types.Sample` where there is a `window`.
    apply: `(state, Gradients) -> state`.
    update: `(state, rng_key, batch) -> (state, LossOutput)`.
    applies_once: whether `update` is no more than `gradients` and `apply`, so
      that a pipeline may compute these in parts or elsewhere.
    window: time steps of the unrolls that it draws from a replay; None for an
      agent that learns from each unroll once, as it was acted.
    exploration: `(num_envs) -> [num_envs]` float32, `Inputs.exploration` of
      the environments that are acted for together.
    start: `(params, updates) -> AgentState`, without statistics: what `apply`
      goes on from where no more is known than the parameters, or any nest of
      some of them such as a parameter server holds, and how many updates they
      have seen. None for an agent that cannot.
    priorities: `(acting, unroll) -> [S, L - window + 1]` float32, for unrolls
      `[L, S, ...]`: what `LossOutput.priorities` would say of each of their
      windows, if the target parameters were those that act. None for an agent
      without.
  """

  init: Callable[[jax.Array], AgentState]
  acting: Callable[[AgentState], types.Tree]
  initial_core_state: Callable[[int], types.Tree]
  step: Callable[
    [types.Tree, jax.Array, types.Inputs, types.Tree],
    tuple[types.AgentOutput, types.Tree],
  ]
  gradients: Callable[
    [AgentState, jax.Array, types.Tree], tuple[Gradients, types.LossOutput]
  ]
  apply: Callable[[AgentState, Gradients], AgentState]
  update: Callable[
    [AgentState, jax.Array, types.Tree], tuple[AgentState, types.LossOutput]
  ]
  applies_once: bool = True
  window: int | None = None
  exploration: Callable[[int], np.ndarray] = lambda num_envs: np.zeros(
    num_envs, np.float32
  )
  greedy: (
    Callable[
      [types.Tree, jax.Array, types.Inputs, types.Tree],
      tuple[types.AgentOutput, types.Tree],
    ]
    | None
  ) = None
  start: Callable[[types.Tree, int], AgentState] | None = None
  priorities: Callable[[types.Tree, types.Unroll], jax.Array] | None = None


# `(spec, axis_name) -> Agent`.
MakeAgent = Callable[[types.EnvironmentSpec, str | None], Agent]


@dataclasses.dataclass(frozen=True)
class Maker:
  """A pipeline's `make_agent` that can be sent to other processes.

  Attributes:
    make: `(spec, config, axis_name) -> Agent`, such as `vtrace.make`.
    config: what it is called with.
  """

  make: Callable[[types.EnvironmentSpec, Any, str | None], Agent]
  config: Any

  def __call__(
    self, spec: types.EnvironmentSpec, axis_name: str | None
  ) -> Agent:
    """Makes the agent for an environment."""
    return self.make(spec, self.config, axis_name)


class Memory(NamedTuple):
  """What acting carries from step to step.

  Attributes:
    core_state: `[B, ...]`.
    action: `[B, ...]`, the last one.
  """

  core_state: types.Tree
  action: types.Array


class Taken(NamedTuple):
  """A step that was taken.

  Attributes:
    inputs: `[B, ...]`, what the agent saw.
    core_state: `[B, ...]`, before the step.
    output: what it did.
    memory: of the next step.
  """

  inputs: types.Inputs
  core_state: types.Tree
  output: types.AgentOutput
  memory: Memory


def empty_memory(
  agent: Agent, spec: types.EnvironmentSpec, batch_size: int
) -> Memory:
  """The memory of environments that have just begun."""
  return Memory(
    agent.initial_core_state(batch_size),
    trees.zeros(spec.action, (batch_size,)),
  )


def take_step(
  agent: Agent,
  acting: types.Tree,
  rng_key: jax.Array,
  timestep: dm_env.TimeStep,
  memory: Memory,
  exploration: types.Array,
  first: types.Array | None = None,
) -> Taken:
  """One step, where what was before an episode's first one is forgotten.

  Args:
    agent: whose `step` acts.
    acting: the parameters that act.
    rng_key: for this step alone.
    timestep: `[B, ...]`.
    memory: `[B, ...]`.
    exploration: `[B]`, see `types.Inputs`.
    first: `[B]`, where to forget; where `step_type` is FIRST if None.
  """
  if first is None:
    first = timestep.step_type == int(dm_env.StepType.FIRST)
  initial = agent.initial_core_state(timestep.reward.shape[0])
  core_state = jax.tree.map(
    lambda start, past: _where(first, start, past), initial, memory.core_state
  )
  inputs = types.Inputs(
    timestep=timestep,
    action_tm1=_where(first, jnp.zeros_like(memory.action), memory.action),
    exploration=exploration,
  )
  output, next_core_state = agent.step(acting, rng_key, inputs, core_state)
  return Taken(
    inputs, core_state, output, Memory(next_core_state, output.action)
  )


def _where(rows: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
  """`jnp.where` by row: `[B]`, `[B, ...]`, `[B, ...]`."""
  return jnp.where(rows.reshape(-1, *(1,) * (yes.ndim - 1)), yes, no)


def composed_update(
  gradients: Callable[..., tuple[Gradients, types.LossOutput]],
  apply: Callable[[AgentState, Gradients], AgentState],
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
  return types.Inputs(
    timestep=timestep,
    action_tm1=trees.zeros(spec.action, rows),
    exploration=np.zeros(rows, np.float32),
  )
