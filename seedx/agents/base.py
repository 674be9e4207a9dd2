"""The contract between agents and pipelines."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from seedx import types


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AgentState:
  """All that evolves in an agent: one pytree, and all that a checkpoint saves.

  Attributes:
    params: the network's parameters, float32.
    optimizer_state: Optax's.
    hyperparameters: `[]` float32 by name, those that may change at run time:
      learning reads them here, and never from a config.
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
  """What a batch says; means over it, so that parts of batches add up weighted.

  Attributes:
    params: the gradient of the loss by the parameters.
    moments: of the batch's observations, for `AgentState.statistics`; or ().
  """

  params: types.Tree
  moments: types.Tree = ()


@dataclasses.dataclass(frozen=True)
class Needs:
  """What an agent needs of the pipeline that trains it.

  Attributes:
    window: time steps of the windows that it draws from a replay; None for an
      agent that learns from each unroll once, as it was acted.
    whole_batches: whether its `update` is more than `gradients` and `apply`,
      so that no pipeline may compute these in parts or elsewhere.
  """

  window: int | None = None
  whole_batches: bool = False

  def unroll_length(self, period: int) -> int:
    """L, time steps of unrolls that each bring `period` new env steps."""
    return period + (1 if self.window is None else self.window - 1)


def _no_exploration(num_envs: int) -> np.ndarray:
  return np.zeros(num_envs, np.float32)


Step = Callable[
  [types.Tree, jax.Array, types.Inputs, types.Tree],
  tuple[types.AgentOutput, types.Tree],
]


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
    gradients: `(state, rng_key, batch) -> (Gradients, LossOutput)`; a batch is
      a `types.Unroll`, or a `types.Sample` for an agent that needs windows.
    apply: `(state, Gradients) -> state`.
    update: `(state, rng_key, batch) -> (state, LossOutput)`.
    needs: what a pipeline must give it.
    exploration: `(num_envs) -> [num_envs]` float32, `Inputs.exploration` of
      the environments that are acted for together.
    greedy: as `step`, but with the action that it thinks best; None for an
      agent that cannot tell.
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
  step: Step
  gradients: Callable[
    [AgentState, jax.Array, types.Tree], tuple[Gradients, types.LossOutput]
  ]
  apply: Callable[[AgentState, Gradients], AgentState]
  update: Callable[
    [AgentState, jax.Array, types.Tree], tuple[AgentState, types.LossOutput]
  ]
  needs: Needs = Needs()
  exploration: Callable[[int], np.ndarray] = _no_exploration
  greedy: Step | None = None
  start: Callable[[types.Tree, int], AgentState] | None = None
  priorities: Callable[[types.Tree, types.Unroll], jax.Array] | None = None


@dataclasses.dataclass(frozen=True)
class Horizon:
  """How long a run is, for what changes over all of it.

  Attributes:
    env_steps: that it makes.
    updates: that it makes, if no step is a reset. Resets take some of an
      unroll's steps, so that a schedule over it ends a little before the run.
  """

  env_steps: int
  updates: int

  @classmethod
  def of(cls, env_steps: int, steps_per_update: float) -> "Horizon":
    """Of a run whose updates come after so many env steps each."""
    return cls(env_steps, max(1, round(env_steps / steps_per_update)))


class Config(Protocol):
  """An agent's hyper-parameters, of which a pipeline makes the agent.

  A frozen dataclass, which can be pickled for other processes.
  """

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: Horizon | None = None,
  ) -> Agent:
    """Makes the agent for an environment.

    Args:
      spec: what the environment takes and gives.
      axis_name: the mesh axis over which batches are sharded; None if they are
        not.
      horizon: of the run; None leaves what would change over it as it is at
        the start (learning rate) or in the end (exploration).

    Raises:
      types.ConfigError: it cannot be made for such an environment.
    """
    ...


def check_gradients_can_be_shared(agent: Agent) -> None:
  """Checks that gradients can be computed apart from where they are applied.

  Raises:
    types.ConfigError: they cannot.
  """
  if agent.needs.whole_batches:
    raise types.ConfigError(
      "expected an agent that applies the gradients of an unroll once: one"
      " that takes several steps on it, as PPO does, has none to share"
    )


def hyperparameters(config: Any, names: Sequence[str]) -> dict[str, jax.Array]:
  """Those fields of a config that may change at run time, as arrays."""
  return {name: jnp.float32(getattr(config, name)) for name in names}


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
