"""Actor-critic agents: everything but the loss."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, Self

import jax
import jax.numpy as jnp

from seedx import distributions, losses, networks, types
from seedx.agents import base, models, optimizers, policy_model
from seedx.on_cpu import blocks

# The batch axis of each array of a `types.Unroll`, see `blocks`.
AXES = types.Unroll._make(
  0 if name == "core_state" else 1 for name in types.Unroll._fields
)
# Diagnostics whose variance over the steps is computed.
_SPREAD = ("advantage", "value_target", "value_error")


@dataclasses.dataclass(frozen=True)
class Config(models.RecurrentConfig):
  """Hyper-parameters that actor-critics add to those of every agent.

  Attributes:
    td_lambda: lambda of TD(lambda), GAE and V-trace. With 0, a return
      bootstraps after one step; with 1, only at the unroll's end.
    value_cost: weight of the value loss.
    entropy_cost: weight of the entropy bonus.
    normalize_rewards: division of rewards by the standard deviation of their
      discounted sums, before they are scaled and clipped; see `rewards`.
    towers: torso and memory, "shared" by policy and value, or "apart" for each
      of them.
  """

  td_lambda: float = types.setting(1.0, changes="run_time", low=0.0, high=1.0)
  value_cost: float = types.setting(0.5, changes="run_time", low=0.0)
  entropy_cost: float = types.setting(0.01, changes="run_time", low=0.0)
  normalize_rewards: bool = False
  towers: Literal["shared", "apart"] = "shared"

  def policy(self, spec: types.EnvironmentSpec) -> policy_model.Policy:
    """Makes the policy for an environment.

    Raises:
      types.ConfigError: no action distribution fits the action spec.
    """
    distribution = distributions.for_spec(spec.action)
    head = networks.PolicyValueHead(distribution.num_parameters)
    towers = 2 if self.towers == "apart" else 1
    model = models.Model.make(spec, self, head, towers)
    return policy_model.Policy(model, distribution, self.normalize_rewards)

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


class Loss(Protocol):
  """The loss of an actor-critic agent."""

  def __call__(
    self,
    evaluation: policy_model.Evaluation,
    unroll: types.Unroll,
    hyperparameters: Mapping[str, jax.Array],
  ) -> losses.ActorCriticLoss:
    """Returns per-step losses `[T, B]` of an unroll `[T + 1, B, ...]`.

    `evaluation` was made with the learned parameters. The `hyperparameters` are
    those of the `AgentState`, each `[]`.
    """


def make(
  spec: types.EnvironmentSpec,
  config: Config,
  loss: Loss,
  axis_name: str | None = None,
  horizon: base.Horizon | None = None,
  *,
  steps_per_update: int = 1,
  separable: bool = True,
) -> base.Agent:
  """Makes an agent from its loss; see also `base.Config.make`.

  An update has `steps_per_update` optimizer steps. The loss is `separable` if
  the losses of an unroll do not depend on other unrolls of its batch.

  Raises:
    types.ConfigError: no action distribution fits the action spec, or the
      environment is self-play.
  """
  base.check_one_player(spec)
  policy = config.policy(spec)
  optimizer = optimizers.Optimizer.make(config, horizon, steps_per_update)
  axes = AXES if separable and policy.in_blocks else None

  init, start = models.beginnings(config, optimizer, policy.init)

  def gradients(
    state: base.AgentState, rng_key: jax.Array, batch: types.Unroll
  ) -> tuple[base.Gradients, types.LossOutput]:
    del rng_key  # The loss is deterministic.
    moments = policy.moments(state.statistics, batch, axis_name)
    deviation = policy.reward_deviation(state, moments)

    def per_step(
      params: types.Tree, part: types.Unroll
    ) -> losses.ActorCriticLoss:
      variables = models.Variables(params, state.statistics)
      evaluation = policy.evaluate(
        variables, part, state.hyperparameters, deviation
      )
      return loss(evaluation, part, state.hyperparameters)

    grads, output = differentiate(
      per_step, batch, axes, state, optimizer, axis_name
    )
    return base.Gradients(grads, moments), output

  apply = functools.partial(models.apply, optimizer)
  return base.Agent(
    init=init,
    acting=lambda state: models.Variables(state.params, state.statistics),
    initial_core_state=policy.initial_core_state,
    step=policy.step,
    greedy=policy.greedy,
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
    needs=base.Needs(unread=tuple(spec.hidden)),
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
  """Returns the gradient of the weighted mean of per-step losses on all cores.

  `per_step` maps parameters and some entries of this core's batch to losses,
  `[T, N]` each. `axes` has each batch array's axis of entries, see
  `blocks.gradient`; None if losses of an entry depend on other entries. The
  weights of the losses are among the state's hyper-parameters.
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
  named = {
    "loss_policy_gradient": steps.policy_gradient,
    "loss_value": steps.value,
    "entropy": -steps.entropy,
  }
  if repeated := named.keys() & steps.diagnostics:
    raise types.ConfigError(
      "expected a loss whose diagnostics have names of their own, found"
      f" {', '.join(sorted(repeated))}, which every loss has"
    )
  named |= steps.diagnostics

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
  metrics = {name: x for name, x in means.items() if name not in variances}
  if "importance_square" in metrics:
    # The effective fraction of the steps: squared mean over mean square.
    square = jnp.maximum(metrics.pop("importance_square"), 1e-8)
    ratio = jnp.square(metrics["importance_weight"]) / square
    metrics["effective_sample_size"] = ratio
  if "advantage" in variances:
    metrics["advantage_mean"] = means["advantage"]
    metrics["advantage_std"] = jnp.sqrt(variances["advantage"])
  if {"value_target", "value_error"} <= set(variances):
    unexplained = variances["value_error"] / (variances["value_target"] + 1e-8)
    # Without a bound, one batch of equal targets would dominate a mean over
    # batches.
    metrics["explained_variance"] = jnp.maximum(1.0 - unexplained, -1.0)
  return metrics
