"""The contract between agents and pipelines."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import sharding, types


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AgentState:
  """Everything in an agent that learning changes; a checkpoint saves all of it.

  Attributes:
    params: the network's parameters, float32.
    optimizer_state: Optax's.
    hyperparameters: `[]` float32 by name: the ones that may change at run time.
      Learning reads them here, never from a config.
    updates: `[]` int32, updates so far.
    resets: `[]` float32, resets in all batches so far, in batches: their number
      over the steps of one batch; see `clock`.
    target_params: the target network's parameters, or ().
    statistics: running statistics of observations, see `normalizer`, and of
      discounted returns, see `rewards`; or ().
  """

  params: types.Tree
  optimizer_state: types.Tree
  hyperparameters: dict[str, jax.Array]
  updates: jax.Array
  resets: jax.Array = dataclasses.field(default_factory=lambda: jnp.float32(0))
  target_params: types.Tree = ()
  statistics: types.Tree = ()

  @property
  def clock(self) -> jax.Array:
    """Env steps learned from, in updates of batches without resets; `[]`.

    Schedules go by it: with short episodes, resets are half of all steps.
    """
    return self.updates - self.resets

  def counted(self, share: jax.Array | float) -> "AgentState":
    """The state after an update whose resets have been counted.

    Args:
      share: `[]`, env steps of the batch over those of one without resets.
    """
    return dataclasses.replace(self, resets=self.resets + (1.0 - share))


class Gradients(NamedTuple):
  """What a batch contributes to an update.

  Attributes:
    params: the gradient of the loss with respect to the parameters, a mean over
      the batch: those of micro-batches are averaged with `LossOutput.weight`.
    moments: of the batch's observations, for `AgentState.statistics`; or (). A
      mean, and averaged so, too.
  """

  params: types.Tree
  moments: types.Tree = ()


@dataclasses.dataclass(frozen=True)
class Needs:
  """What an agent needs from the pipeline that trains it.

  Its batches are of unrolls, `types.Unroll`, or of windows from a replay,
  `types.Sample`. An agent that learns from anything else has a subclass.

  Attributes:
    window: time steps of the windows that it samples from a replay; None for
      an agent that learns from each unroll once.
    whole_batches: whether `update` does more than `gradients` and `apply`. If
      so, a pipeline must call `update` on whole batches.
    whole_unrolls: whether a window is a whole unroll, so that it has the core
      state that acting had at its first step; else a window starts at each
      step, and all but those at an unroll's start have a core state of zeros.
    learned_steps: env steps of a window that are learned from.
    minibatches: equal parts into which `update` divides the env steps of a
      batch on each core.
    divides_unrolls: whether these parts are of whole unrolls.
    extras: whether learning reads `AgentOutput.extras`; if not, only
      `Agent.priorities` does, and no replay stores them.
  """

  window: int | None = None
  whole_batches: bool = False
  whole_unrolls: bool = False
  learned_steps: int = 1
  minibatches: int = 1
  divides_unrolls: bool = False
  extras: bool = True

  def time_steps(self, period: int) -> int:
    """Returns L, the time steps of an unroll with T = `period` new env steps.

    Raises:
      types.ConfigError: some of these would never be learned from.
    """
    if self.window is None:
      return period + 1
    if not self.whole_unrolls:
      return period + self.window - 1
    if period > self.learned_steps:
      raise types.ConfigError(
        f"expected unroll_length of at most {self.learned_steps}, the steps of"
        f" a sequence that are learned from, found {period}"
      )
    return self.window

  def stored(self, unroll: types.Unroll) -> types.Unroll:
    """An unroll without what learning does not read."""
    return unroll if self.extras else unroll._replace(extras=())

  @property
  def specs(self) -> types.Tree:
    """The partition specs of a batch over the learner cores."""
    return sharding.UNROLL if self.window is None else sharding.SAMPLE

  def steps(self, batch: types.Tree) -> int:
    """Returns the number of env steps learned from in a batch without resets.

    Args:
      batch: of one core.
    """
    if self.window is not None:
      return len(batch.importance_weight) * self.learned_steps
    length, size = batch.version.shape
    return (length - 1) * size

  def lag(
    self, batch: types.Tree, version: types.Array
  ) -> tuple[jax.Array, jax.Array] | None:
    """Returns how old the parameters are that acted, for `policy_lag`.

    Args:
      batch: of one core.
      version: `[]` int32, updates before this one.

    Returns:
      `[]` float32, updates since then, summed over env steps; and the number of
      these. None where it is not known.
    """
    unroll = batch if self.window is None else batch.unroll
    first = unroll.inputs.timestep.step_type[1:] == int(dm_env.StepType.FIRST)
    weight = 1.0 - first.astype(jnp.float32)
    lag = (version - unroll.version[:-1]).astype(jnp.float32)
    return jnp.sum(lag * weight), jnp.sum(weight)


def _no_exploration(num_envs: int) -> np.ndarray:
  return np.zeros(num_envs, np.float32)


Step = Callable[
  [types.Tree, jax.Array, types.Inputs, types.Tree],
  tuple[types.AgentOutput, types.Tree],
]


@dataclasses.dataclass(frozen=True)
class Agent:
  """Pure functions over an `AgentState`; all of them can be jitted.

  With sharded batches, `gradients` and `update` run once per learner core, on
  that core's share of the batch, inside a mesh axis. They return the same on
  every core, except priorities, which are the core's own.

  Attributes:
    init: `(rng_key) -> AgentState`.
    acting: `(state) -> acting`, the acting parameters: the part of the state
      that `step` needs.
    initial_core_state: `(batch_size) -> core_state` of `[batch_size, ...]`.
    step: `(acting, rng_key, Inputs [B, ...], core_state) -> (AgentOutput,
      core_state)`.
    gradients: `(state, rng_key, batch) -> (Gradients, LossOutput)`; a batch is
      a `types.Unroll`, or a `types.Sample` for an agent that needs windows.
    apply: `(state, Gradients) -> state`.
    update: `(state, rng_key, batch) -> (state, LossOutput)`.
    needs: what the pipeline must provide.
    exploration: `(num_envs) -> [num_envs]` float32, each environment's
      `Inputs.exploration`.
    greedy: as `step`, but with the best action; None if the agent has no
      greedy step.
    start: `(params, updates) -> AgentState`, without statistics: the state from
      which `apply` goes on after so many updates. `params` may be a subset of
      the parameters, as a parameter server holds it. None if unsupported.
    priorities: `(acting, unroll) -> [S, L - window + 1]` float32 for unrolls
      `[L, S, ...]`: the initial priority of each window, computed from
      `unroll.extras` with the acting parameters as target parameters. None for
      an agent without priorities.
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
  """The length of a run, for schedules, which begin when learning does.

  Attributes:
    env_steps: env steps of the run.
    updates: updates of the run if no step is a reset; the unit is that of
      `AgentState.clock`.
  """

  env_steps: int
  updates: int

  @classmethod
  def of(cls, env_steps: int, steps_per_update: float) -> "Horizon":
    """The horizon of a run with one update every `steps_per_update`."""
    return cls(env_steps, max(1, round(env_steps / steps_per_update)))

  def with_windows(self, learned_steps: int) -> "Horizon":
    """The horizon of an agent that learns from so many steps of a window."""
    updates = max(1, round(self.updates / learned_steps))
    return dataclasses.replace(self, updates=updates)


class Config(Protocol):
  """An agent's hyper-parameters; a pipeline makes the agent from them.

  A frozen dataclass that can be pickled for other processes.
  """

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: Horizon | None = None,
  ) -> Agent:
    """Makes the agent for an environment.

    Args:
      spec: the environment's observations and actions.
      axis_name: the mesh axis over which batches are sharded; None if they are
        not.
      horizon: length of the run, as of an agent that learns from one step of a
        window, see `Horizon.with_windows`. None keeps the learning rate at its
        initial value, and exploration at its final one.

    Raises:
      types.ConfigError: the agent does not support such an environment.
    """
    ...


def check_gradients_can_be_shared(agent: Agent) -> None:
  """Checks that one process can compute gradients and another apply them.

  Raises:
    types.ConfigError: the agent needs whole batches.
  """
  if agent.needs.whole_batches:
    raise types.ConfigError(
      "expected an agent that applies the gradients of an unroll once, found"
      " one that takes several steps on each unroll, as PPO does"
    )


def priorities(
  agent: Agent,
) -> Callable[[types.Tree, types.Unroll], types.Tree]:
  """The agent's `priorities`, jitted; they are () for an agent without."""

  def none(acting: types.Tree, unroll: types.Unroll) -> types.Tree:
    del acting, unroll
    return ()

  return jax.jit(agent.priorities or none)


def without_priorities(agent: Agent) -> Agent:
  """An agent without priorities, nor extras that only they need."""
  if agent.needs.extras:
    return dataclasses.replace(agent, priorities=None)

  def step(
    acting: types.Tree,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    output, core_state = agent.step(acting, rng_key, inputs, core_state)
    return output._replace(extras=()), core_state

  return dataclasses.replace(agent, priorities=None, step=step)


def hyperparameters(config: object) -> dict[str, jax.Array]:
  """The settings that change at run time, as `[]` float32 arrays by name."""
  return {
    name: jnp.float32(getattr(config, name))
    for name, about in types.about(config).items()
    if about.changes == "run_time"
  }


def composed_update(
  gradients: Callable[..., tuple[Gradients, types.LossOutput]],
  apply: Callable[[AgentState, Gradients], AgentState],
) -> Callable[..., tuple[AgentState, types.LossOutput]]:
  """An `update` that computes gradients and applies them once."""

  def update(
    state: AgentState, rng_key: jax.Array, batch: types.Tree
  ) -> tuple[AgentState, types.LossOutput]:
    grads, output = gradients(state, rng_key, batch)
    return apply(state, grads), output

  return update
