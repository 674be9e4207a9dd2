"""The contract between agents and pipelines."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import sharding, types

# The version of `types.Unroll` at steps that no parameters of the run took.
UNKNOWN_VERSION = -(2**30)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AgentState:
  """Everything in an agent that learning changes; checkpoints save all of it.

  Attributes:
    params: float32 parameters of the network.
    optimizer_state: state of the Optax optimizer.
    hyperparameters: `[]` float32 by name, the settings that may change at run
      time. Learning reads settings here, not from the config; only `rewards`
      uses the config's gamma.
    updates: `[]` int32, number of updates so far.
    resets: `[]` float32, number of resets in all batches so far, divided by the
      number of steps in a batch, less the number of updates that a resume left
      out (see `leave_out`); see `clock`.
    target_params: parameters of the target network, or ().
    statistics: running statistics of observations (see `normalizer`) and of
      discounted returns (see `rewards`), or ().
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
    """`[]`, env steps learned from, divided by the number of steps in a batch.

    Schedules follow the clock, not `updates`, since with short episodes up to
    half of all steps are resets.
    """
    return self.updates - self.resets

  def leave_out(self, updates: float) -> "AgentState":
    """Moves the clock past updates that a run cannot make any more."""
    return dataclasses.replace(self, resets=self.resets - np.float32(updates))

  def count_resets(self, fraction: jax.Array | float) -> "AgentState":
    """Adds a batch's share of resets, 1 - `fraction`; `fraction` is `[]`."""
    return dataclasses.replace(self, resets=self.resets + (1.0 - fraction))


class Gradients(NamedTuple):
  """The contribution of a batch to an update.

  Gradient and moments are means over the batch; those of micro-batches are
  averaged with the weights `LossOutput.weight`.

  Attributes:
    params: gradient of the loss with respect to the parameters.
    moments: moments of observations, for `AgentState.statistics`; or ().
  """

  params: types.Tree
  moments: types.Tree = ()


@dataclasses.dataclass(frozen=True)
class Needs:
  """An agent's requirements on the pipeline that trains it.

  A batch is a `types.Unroll`, or a `types.Sample` of windows from a replay. An
  agent that learns from anything else defines a subclass.

  Attributes:
    window: number of time steps in a window sampled from a replay; None for
      an agent without a replay.
    whole_batches: whether the pipeline must call `update` on whole batches,
      because `update` does more than `gradients` and `apply`.
    whole_unrolls: whether a window is a whole unroll, and begins with the core
      state that acting had there. Otherwise a window begins at every step, and
      has no core state: its `core_state` is ().
    learned_steps: number of env steps of a window that are learned from.
    minibatches: number of equal parts into which `update` divides the env steps
      of a batch on each core.
    divides_unrolls: whether minibatches consist of whole unrolls, not of single
      steps.
    extras: whether learning reads `AgentOutput.extras`. If not, only
      `Agent.priorities` reads extras, and no replay stores them.
    unread: keys of the observation that learning does not read.
  """

  window: int | None = None
  whole_batches: bool = False
  whole_unrolls: bool = False
  learned_steps: int = 1
  minibatches: int = 1
  divides_unrolls: bool = False
  extras: bool = True
  unread: Sequence[str] = ()

  def time_steps(self, period: int) -> int:
    """Returns L, the length of an unroll with `period` new env steps.

    Raises:
      types.ConfigError: some of the new steps would never be learned from.
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
    """Returns the unroll without arrays that learning does not read.

    Learning reads extras only if `extras` is True, no core state if windows
    begin at every step, and no entry `unread` of the observation.
    """
    if self.unread:
      timestep = unroll.inputs.timestep
      read = {
        k: x for k, x in timestep.observation.items() if k not in self.unread
      }
      inputs = unroll.inputs._replace(
        timestep=timestep._replace(observation=read)
      )
      unroll = unroll._replace(inputs=inputs)
    if not self.extras:
      unroll = unroll._replace(extras=())
    if self.window is not None and not self.whole_unrolls:
      unroll = unroll._replace(core_state=())
    return unroll

  def origin(self, env: np.ndarray, number: types.Array) -> types.Tree:
    """Returns `types.Share.origin` for an agent with a replay, else ().

    Args:
      env: `[S]` int32, a number that only one environment of the run has.
      number: `[S]` or `[]` int32, number of the environment's unroll.
    """
    if self.window is None:
      return ()
    if isinstance(number, jax.Array):
      return jnp.stack(jnp.broadcast_arrays(env, number), axis=1)
    return np.stack(np.broadcast_arrays(env, np.int32(number)), axis=1)

  @property
  def specs(self) -> types.Tree:
    """Partition specs of a batch over the learner cores."""
    return sharding.UNROLL if self.window is None else sharding.SAMPLE

  def steps(self, batch: types.Tree) -> int:
    """Returns the number of learned steps, with resets, of one core's batch."""
    if self.window is not None:
      return len(batch.importance_weight) * self.learned_steps
    length, size = batch.version.shape
    return (length - 1) * size

  def lag(
    self, batch: types.Tree, version: types.Array
  ) -> tuple[jax.Array, jax.Array] | None:
    """Returns the policy lag of one core's batch.

    The learner's parameters have the `version`, `[]` int32. Resets and steps of
    an `UNKNOWN_VERSION` do not count.

    Returns:
      The lag in updates, summed over env steps, and the number of these steps,
      `[]` float32 each. A subclass returns None if the lag is unknown.
    """
    unroll = batch if self.window is None else batch.unroll
    first = unroll.inputs.timestep.step_type[1:] == int(dm_env.StepType.FIRST)
    counts = ~first & (unroll.version[:-1] != UNKNOWN_VERSION)
    weight = counts.astype(jnp.float32)
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

  With sharded batches, `gradients` and `update` run inside a mesh axis, once
  per learner core, on that core's shard of the batch. They return the same
  values on every core, except for the priorities of the core's own windows.

  Attributes:
    init: `(rng_key) -> AgentState`.
    acting: `(state) -> acting`, the part of the state that `step` needs.
    initial_core_state: `(batch_size) -> core_state` of `[batch_size, ...]`.
    step: `(acting, rng_key, Inputs [B, ...], core_state) -> (AgentOutput,
      core_state)`.
    gradients: `(state, rng_key, batch) -> (Gradients, LossOutput)`; see `Needs`
      for the batch.
    apply: `(state, Gradients) -> state`.
    update: `(state, rng_key, batch) -> (state, LossOutput)`.
    needs: requirements on the pipeline.
    exploration: `(num_envs) -> [num_envs]` float32, a number for each
      environment, such as its minimum epsilon. `step` receives the number in
      `Inputs.exploration`.
    greedy: `step` with the best action instead of a sampled one; None if
      unsupported.
    without_search: `greedy` without its search, by the network alone; None for
      an agent that does not search. Learning reads nothing of the output at an
      unroll's last step, so `at_last_step` uses this there.
    start: `(params, updates) -> AgentState`, a state without statistics, from
      which `apply` continues after `updates` updates. `params` may be the
      subset of the parameters that a parameter server holds. None if
      unsupported.
    priorities: `(acting, unroll) -> [S, L - window + 1]` float32 for unrolls
      `[L, S, ...]`, the initial priority of each window, computed from
      `unroll.extras` with the acting parameters as target parameters. None for
      an agent without priorities.
    targets: `(state) -> Targets`, the part of the state that `label` needs;
      None for an agent without `label`.
    label: `(Targets, rng_key, Sample) -> [L, B]` float32, targets of Q-values
      at the steps of windows, which other processes compute and which learning
      finds as `unroll.extras`; without them, it computes its own. None if
      unsupported.
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
  without_search: Step | None = None
  start: Callable[[types.Tree, int], AgentState] | None = None
  priorities: Callable[[types.Tree, types.Unroll], jax.Array] | None = None
  targets: "Callable[[AgentState], Targets] | None" = None
  label: "Callable[[Targets, jax.Array, types.Sample], jax.Array] | None" = None


class Targets(NamedTuple):
  """The part of an agent's state that its `label` needs.

  Attributes:
    version: `[]` int32, number of updates behind the oldest of the parameters.
    values: nest of the parameters, and whatever else is needed.
  """

  version: jax.Array
  values: types.Tree


@dataclasses.dataclass(frozen=True)
class Horizon:
  """The length of a run, for schedules, which begin when learning begins.

  Attributes:
    env_steps: number of env steps in the run.
    updates: number of updates in the run if no step is a reset, as
      `AgentState.clock` counts them.
    unlearned_steps: number of env steps before the first update, which only
      fill a replay, and after the last one.
    counts_updates: whether `updates` is the length of the run, and not the
      number of updates that follows from its env steps.
  """

  env_steps: int
  updates: int
  unlearned_steps: int = 0
  counts_updates: bool = False

  @classmethod
  def of(
    cls, env_steps: int, steps_per_update: float, unlearned_steps: int = 0
  ) -> "Horizon":
    """Returns the horizon for one update per `steps_per_update` env steps."""
    horizon = cls(env_steps, 1, unlearned_steps)
    updates = max(1, int(horizon.learned_steps / steps_per_update))
    return dataclasses.replace(horizon, updates=updates)

  @property
  def learned_steps(self) -> int:
    """Number of env steps from the first update to the last, at least 1."""
    return max(1, self.env_steps - self.unlearned_steps)

  def with_windows(self, learned_steps: int) -> "Horizon":
    """Returns the horizon if `learned_steps` of each window are learned from.

    At a given replay ratio, updates that learn from more steps are fewer.
    """
    if self.counts_updates:
      return self
    updates = max(1, self.updates // learned_steps)
    return dataclasses.replace(self, updates=updates)


class Config(Protocol):
  """An agent's hyper-parameters, from which a pipeline makes the agent.

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
      axis_name: mesh axis that shards batches; None for unsharded batches.
      horizon: length of the run if one step of each window is learned from; see
        `Horizon.with_windows`. With None, the learning rate keeps its initial
        value, and exploration its final one.

    Raises:
      types.ConfigError: the agent does not support such an environment.
    """
    ...


def begin(
  agent: Agent, params: types.Tree, statistics: types.Tree
) -> AgentState:
  """Returns the state of a run that begins with given parameters.

  Target parameters are equal to these; optimizer and counts are fresh.

  Raises:
    types.ConfigError: the agent has no `start`.
  """
  if agent.start is None:
    raise types.ConfigError(
      "expected an agent that can begin with given parameters, found one"
      " without `start`; see base.Agent"
    )
  return dataclasses.replace(agent.start(params, 0), statistics=statistics)


def check_one_player(spec: types.EnvironmentSpec) -> None:
  """Raises types.ConfigError for self-play, which needs a search's agent."""
  if spec.players > 1:
    raise types.ConfigError(
      "expected an environment of one player, found self-play: choose an"
      " opponent with --env-options opponent=random, or opponent=run:DIR for a"
      " trained run; or train AlphaZero, which plays itself"
    )


def check_gradients_can_be_shared(agent: Agent) -> None:
  """Raises types.ConfigError if the agent needs whole batches."""
  if agent.needs.whole_batches:
    raise types.ConfigError(
      "expected an agent that applies the gradients of an unroll once, found"
      " one that takes several steps on each unroll, as PPO does"
    )


def priorities(
  agent: Agent,
) -> Callable[[types.Tree, types.Unroll], types.Tree]:
  """Returns the agent's jitted `priorities`, which return () if it has none."""
  if agent.priorities is not None:
    return jax.jit(agent.priorities)
  return lambda acting, unroll: ()


def at_last_step(agent: Agent) -> Agent:
  """Returns the agent that acts at an unroll's last step, without a search.

  That action is never taken: the next unroll begins with the same step.
  """
  return dataclasses.replace(agent, step=agent.without_search or agent.step)


def without_priorities(agent: Agent) -> Agent:
  """Returns the agent without priorities and extras that only they need."""
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


def hyperparameters(config: Any) -> dict[str, jax.Array]:
  """Returns the settings that change at run time, `[]` float32 by name."""
  about = types.about(config)
  return {
    field.name: jnp.float32(getattr(config, field.name))
    for field in dataclasses.fields(config)
    if field.init and about[field.name].changes == "run_time"
  }


def composed_update(
  gradients: Callable[..., tuple[Gradients, types.LossOutput]],
  apply: Callable[[AgentState, Gradients], AgentState],
) -> Callable[..., tuple[AgentState, types.LossOutput]]:
  """Returns an `update` that computes gradients and applies them once."""

  def update(
    state: AgentState, rng_key: jax.Array, batch: types.Tree
  ) -> tuple[AgentState, types.LossOutput]:
    grads, output = gradients(state, rng_key, batch)
    return apply(state, grads), output

  return update
