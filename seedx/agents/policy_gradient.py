"""Actor-critic agents: all that they share except the loss."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx import distributions, losses, networks, types
from seedx.agents import base, optimizers, rewards
from seedx.agents import model as model_lib
from seedx.on_cpu import blocks

# The fields of `Config` that may change at run time.
HYPERPARAMETERS = (
  "learning_rate",
  "discount",
  "td_lambda",
  "value_cost",
  "entropy_cost",
)

# Where the arrays of `types.Unroll` count unrolls, see `blocks`.
AXES = types.Unroll._make(
  0 if name == "core_state" else 1 for name in types.Unroll._fields
)
# Of these diagnostics, the spread over the steps counts.
_SPREAD = ("advantage", "value_target", "value_error")


@dataclasses.dataclass(frozen=True)
class Config(model_lib.Config):
  """Hyper-parameters of actor-critics, beside those of every agent.

  Attributes:
    td_lambda: lambda of TD(lambda), GAE and V-trace. With 0, returns bootstrap
      after one step, with 1 only at the unroll's end.
    value_cost: weight of the value loss.
    entropy_cost: weight of the entropy bonus.
    normalize_rewards: divide rewards by the standard deviation of their
      discounted sums, before they are scaled and clipped; see `rewards`.
    recurrent: add a memory to the network.
    lstm_size: units of the LSTM that is the memory without a `core`.
    core: your own Flax module as the memory instead of the LSTM, see
      `networks.Core`.
    towers: whether policy and value share a torso and a memory, or each has its
      own.
  """

  td_lambda: float = 1.0
  value_cost: float = 0.5
  entropy_cost: float = 0.01
  normalize_rewards: bool = False
  recurrent: bool = False
  lstm_size: int = 128
  core: nn.Module | None = None
  towers: Literal["shared", "apart"] = "shared"

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    super().__post_init__()
    types.check_ranges(
      self,
      td_lambda=(0.0, 1.0),
      value_cost=(0.0, types.MOST),
      entropy_cost=(0.0, types.MOST),
      lstm_size=(1, 2**16),
    )
    types.check_choices(self, towers=("shared", "apart"))
    model_lib.check_core(self.core)
    if self.core is not None and not self.recurrent:
      raise types.ConfigError(
        "expected recurrent True with a core of your own, found False"
      )

  @property
  def memory(self) -> nn.Module | None:
    """The core, or an LSTM, if it is recurrent."""
    if not self.recurrent:
      return None
    return model_lib.memory(self.core, self.lstm_size, self.compute_dtype)

  def for_continuous(self) -> Self:
    """Returns a copy for continuous actions, whose entropy has no bound."""
    return dataclasses.replace(self, entropy_cost=0.0)

  def for_minatar(self) -> Self:
    """Returns a copy for MinAtar's games, whose images are grids of symbols."""
    return dataclasses.replace(
      self,
      learning_rate=5e-3,
      entropy_cost=0.01,
      reward_scale=1.0,
      image_torso="minatar",
    )


class Extras(NamedTuple):
  """What learning needs from acting.

  Attributes:
    log_prob: `[B]` float32, log mu(a) of the behaviour policy mu.
  """

  log_prob: jax.Array


class Evaluated(NamedTuple):
  """Steps, evaluated by some parameters.

  Attributes:
    values: `[T, B]`, V.
    log_prob: `[T, B]`, log pi(a) of the actions taken.
    entropy: `[T, B]`, of pi.
    policy: `[T, B, ...]`, pi; `policy.distribution` is Distrax's.
  """

  values: jax.Array
  log_prob: jax.Array
  entropy: jax.Array
  policy: distributions.Parameterized


class Evaluation(NamedTuple):
  """An unroll, evaluated by the learned parameters.

  Attributes:
    values: `[T + 1, B]`, V of each time step.
    log_prob: `[T, B]`, log pi(a) of the actions taken.
    entropy: `[T, B]`, of pi.
    step_type: `[T + 1, B]` int32.
    reward: `[T + 1, B]`, normalized, scaled and clipped.
    discount: `[T + 1, B]`, the environment's, times gamma.
    policy: `[T, B, ...]`, pi; `policy.distribution` is Distrax's.
  """

  values: jax.Array
  log_prob: jax.Array
  entropy: jax.Array
  step_type: jax.Array
  reward: jax.Array
  discount: jax.Array
  policy: distributions.Parameterized

  @property
  def streams(self) -> Sequence[jax.Array]:
    """All but the policy, as losses of one stream take them; for `jax.vmap`."""
    return self[:-1]

  @property
  def steps(self) -> Evaluated:
    """The T steps without the last time step."""
    return Evaluated(self.values[:-1], self.log_prob, self.entropy, self.policy)


class Loss(Protocol):
  """The loss of an actor-critic agent."""

  def __call__(
    self,
    evaluation: Evaluation,
    unroll: types.Unroll,
    hyperparameters: Mapping[str, jax.Array],
  ) -> losses.ActorCriticLoss:
    """Per-step losses `[T, B]` of an evaluated unroll.

    Args:
      evaluation: of the unroll by the learned parameters.
      unroll: `[T + 1, B, ...]`.
      hyperparameters: `AgentState.hyperparameters`, each `[]`.
    """


def make(
  spec: types.EnvironmentSpec,
  config: Config,
  loss: Loss,
  axis_name: str | None = None,
  horizon: base.Horizon | None = None,
  *,
  at_run_time: Sequence[str] = (),
  steps_per_update: int = 1,
  separable: bool = True,
) -> base.Agent:
  """Makes an agent from its loss.

  Args:
    spec: the environment's observations and actions.
    config: the hyper-parameters.
    loss: per-step losses of an evaluated unroll.
    axis_name: see `base.Config.make`.
    horizon: see `base.Config.make`.
    at_run_time: fields of the config that may change at run time, beside
      `HYPERPARAMETERS`.
    steps_per_update: optimizer steps in an update.
    separable: whether the loss of each unroll is the same in any batch.

  Raises:
    types.ConfigError: no action distribution fits the action spec.
  """
  policy = Policy.make(spec, config)
  optimizer = optimizers.Optimizer.make(config, horizon, steps_per_update)
  names = (*HYPERPARAMETERS, *at_run_time)
  axes = AXES if separable and policy.in_blocks else None

  def start(params: types.Tree, updates: int | jax.Array) -> base.AgentState:
    return base.AgentState(
      params=params,
      optimizer_state=optimizer.start(params, updates),
      hyperparameters=base.hyperparameters(config, names),
      updates=jnp.int32(updates),
    )

  def init(rng_key: jax.Array) -> base.AgentState:
    variables = policy.init(rng_key)
    return dataclasses.replace(
      start(variables.params, 0), statistics=variables.statistics
    )

  def gradients(
    state: base.AgentState, rng_key: jax.Array, batch: types.Unroll
  ) -> tuple[base.Gradients, types.LossOutput]:
    del rng_key  # The loss is deterministic.
    moments = policy.moments(state.statistics, batch, axis_name)
    deviation = policy.reward_deviation(state, moments)

    def per_step(
      params: types.Tree, part: types.Unroll
    ) -> losses.ActorCriticLoss:
      variables = model_lib.Variables(params, state.statistics)
      evaluation = policy.evaluate(
        variables, part, state.hyperparameters, deviation
      )
      return loss(evaluation, part, state.hyperparameters)

    grads, output = differentiate(
      per_step, batch, axes, state, optimizer, axis_name
    )
    return base.Gradients(grads, moments), output

  def apply(
    state: base.AgentState, gradients: base.Gradients
  ) -> base.AgentState:
    state = optimizer.descend(state, gradients.params)
    return model_lib.count_batch(state, gradients.moments)

  return base.Agent(
    init=init,
    acting=lambda state: model_lib.Variables(state.params, state.statistics),
    initial_core_state=policy.initial_core_state,
    step=policy.step,
    greedy=policy.greedy,
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
    start=start,
  )


def differentiate(
  per_step: Callable[[types.Tree, Any], losses.ActorCriticLoss],
  batch: Any,
  axes: Any,
  state: base.AgentState,
  optimizer: optimizers.Optimizer,
  axis_name: str | None,
) -> tuple[types.Tree, types.LossOutput]:
  """The gradient of the weighted mean of per-step losses, over all cores.

  Args:
    per_step: maps parameters and some entries of the batch to their losses,
      `[T, N]` each, which no other entry changes.
    batch: this core's share.
    axes: of the entries in it, see `blocks.gradient`; None if entries change
      the losses of others.
    state: has the parameters, and the weights of the losses.
    optimizer: will take the step.
    axis_name: the mesh axis over which the batch is sharded, or None.
  """
  costs = state.hyperparameters

  def total(
    params: types.Tree, part: Any
  ) -> tuple[jax.Array, losses.ActorCriticLoss]:
    steps = per_step(params, part)
    values = (
      steps.policy_gradient
      + costs["value_cost"] * steps.value
      + costs["entropy_cost"] * steps.entropy
    )
    return jnp.sum(values * steps.weight), steps

  gradients, steps = blocks.gradient(total, state.params, batch, axes)
  named = steps.diagnostics | {
    "loss_policy_gradient": steps.policy_gradient,
    "loss_value": steps.value,
    "entropy": -steps.entropy,
  }

  def summed(values: jax.Array) -> jax.Array:
    return jnp.sum(values * steps.weight)

  def mean(sums: types.Tree) -> types.Tree:
    return jax.tree.map(lambda x: x / jnp.maximum(weight, 1e-8), sums)

  sums = gradients, jax.tree.map(summed, named), jnp.sum(steps.weight)
  *sums, weight = losses.sum_over_cores(sums, axis_name)
  gradients, means = mean(sums)
  squares = {
    name: summed(jnp.square(named[name] - means[name]))
    for name in _SPREAD
    if name in named
  }
  variances = mean(losses.sum_over_cores(squares, axis_name))
  metrics = _diagnosed(means, variances) | optimizer.measure(state, gradients)
  return gradients, types.LossOutput(weight, metrics)


def _diagnosed(
  means: Mapping[str, jax.Array], variances: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
  """Metrics from means and variances."""
  metrics = {name: x for name, x in means.items() if name not in variances}
  if "importance_square" in metrics:
    # Of n steps, as many as n times this would count if all weighed the same.
    square = jnp.maximum(metrics.pop("importance_square"), 1e-8)
    ratio = jnp.square(metrics["importance_weight"]) / square
    metrics["effective_sample_size"] = ratio
  if "advantage" in variances:
    metrics["advantage_mean"] = means["advantage"]
    metrics["advantage_std"] = jnp.sqrt(variances["advantage"])
  if {"value_target", "value_error"} <= set(variances):
    unexplained = variances["value_error"] / (variances["value_target"] + 1e-8)
    # Where targets hardly vary, it would hide all others in a mean.
    metrics["explained_variance"] = jnp.maximum(1.0 - unexplained, -1.0)
  return metrics


@dataclasses.dataclass(frozen=True)
class Policy:
  """The model, and the action distribution that its policy head describes.

  Attributes:
    model: the network, for the environment.
    distribution: the kind of distribution.
    normalizes_rewards: whether the core state is a `rewards.CoreState`, and the
      statistics are of discounted returns, too.
  """

  model: model_lib.Model
  distribution: distributions.Policy
  normalizes_rewards: bool = False

  @classmethod
  def make(cls, spec: types.EnvironmentSpec, config: Config) -> "Policy":
    """Makes the policy for an environment."""
    distribution = distributions.for_spec(spec.action)
    head = networks.PolicyValueHead(distribution.num_parameters)
    towers = 2 if config.towers == "apart" else 1
    model = model_lib.Model.make(spec, config, head, towers)
    return cls(model, distribution, config.normalize_rewards)

  @property
  def in_blocks(self) -> bool:
    """Whether blocks of a batch are faster on CPU; see `blocks`.

    A memory's steps come one after another, in each block again, and few images
    fill a cache.
    """
    network = self.model.network
    images = any(map(networks.is_image, network.observation))
    return not network.recurrent and not images

  def init(self, rng_key: jax.Array) -> model_lib.Variables:
    """Initial variables."""
    variables = self.model.init(rng_key)
    if not self.normalizes_rewards:
      return variables
    return variables._replace(statistics=rewards.init(variables.statistics))

  def initial_core_state(self, batch_size: int) -> types.Tree:
    """The core state at the start of an episode, `[batch_size, ...]`."""
    network = self.model.initial_core_state(batch_size)
    if not self.normalizes_rewards:
      return network
    return rewards.CoreState(network, jnp.zeros(batch_size, jnp.float32))

  def network_state(self, core_state: types.Tree) -> types.Tree:
    """The part of a core state that is the network's."""
    return core_state.network if self.normalizes_rewards else core_state

  def moments(
    self, statistics: types.Tree, unroll: types.Unroll, axis_name: str | None
  ) -> types.Tree:
    """A batch's moments, for `AgentState.statistics`; () without any."""
    inputs = unroll.inputs
    if not self.normalizes_rewards:
      return self.model.moments(statistics, inputs, axis_name)
    observed = rewards.observed(statistics)
    return rewards.measure(
      statistics,
      self.model.moments(observed, inputs, axis_name),
      inputs.timestep,
      unroll.core_state.discounted,
      self.model.config.discount,
      axis_name,
    )

  def reward_deviation(
    self, state: base.AgentState, moments: types.Tree
  ) -> jax.Array | None:
    """The divisor of a batch's rewards, `[]`; None where none is used."""
    if not self.normalizes_rewards:
      return None
    return rewards.deviation(state.statistics, moments, state.updates)

  def step(
    self,
    variables: model_lib.Variables,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    """One step of `[B, ...]`; see `base.Agent`."""
    policy, core_state = self._one_step(variables, inputs, core_state)
    action, log_prob = policy.sample_and_log_prob(seed=rng_key)
    return self._output(action, log_prob), core_state

  def greedy(
    self,
    variables: model_lib.Variables,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    """One step of `[B, ...]` with the distribution's mode as action."""
    del rng_key  # The mode is deterministic.
    policy, core_state = self._one_step(variables, inputs, core_state)
    action = policy.mode()
    return self._output(action, policy.log_prob(action)), core_state

  def evaluate(
    self,
    variables: model_lib.Variables,
    unroll: types.Unroll,
    hyperparameters: Mapping[str, jax.Array],
    deviation: jax.Array | None = None,
  ) -> Evaluation:
    """Evaluates an unroll `[T + 1, B, ...]`.

    Args:
      variables: the learned ones.
      unroll: what to evaluate.
      hyperparameters: `AgentState.hyperparameters`.
      deviation: see `reward_deviation`.
    """
    inputs = unroll.inputs
    rewarded = inputs
    if deviation is not None:
      rewarded = rewards.divided(inputs, deviation)
    steps = self.evaluate_steps(
      variables, inputs, unroll.action, self.network_state(unroll.core_state)
    )
    return Evaluation(
      values=steps.values,
      log_prob=steps.log_prob[:-1],
      entropy=steps.entropy[:-1],
      step_type=inputs.timestep.step_type.astype(jnp.int32),
      reward=self.model.rewards(rewarded),
      discount=self.model.discounts(inputs, hyperparameters["discount"]),
      policy=jax.tree.map(lambda x: x[:-1], steps.policy),
    )

  def evaluate_steps(
    self,
    variables: model_lib.Variables,
    inputs: types.Inputs,
    action: jax.Array,
    core_state: types.Tree,
  ) -> Evaluated:
    """Evaluates T steps `[T, B, ...]`; `core_state` is the network's."""
    output = self.model.unroll(variables, inputs, core_state)
    policy = self._policy(output)
    distribution = policy.distribution
    return Evaluated(
      values=output.head.value,
      log_prob=distribution.log_prob(action),
      entropy=distribution.entropy(),
      policy=policy,
    )

  def _one_step(
    self,
    variables: model_lib.Variables,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[distributions.Distribution, types.Tree]:
    """The distribution over actions `[1, B]`, and the next core state."""
    stream = jax.tree.map(lambda x: x[None], inputs)
    network = self.network_state(core_state)
    output = self.model.unroll(variables, stream, network)
    after = output.core_state
    if self.normalizes_rewards:
      (returns,) = rewards.discounted(
        stream.timestep, core_state.discounted, self.model.config.discount
      )
      after = rewards.CoreState(after, returns)
    return self._policy(output).distribution, after

  def _output(
    self, action: jax.Array, log_prob: jax.Array
  ) -> types.AgentOutput:
    action = action[0].astype(self.model.spec.action.dtype)
    return types.AgentOutput(action, Extras(log_prob[0]))

  def _policy(self, output: model_lib.Output) -> distributions.Parameterized:
    return distributions.Parameterized(
      self.distribution, output.head.policy, output.action_mask
    )
