"""Proximal policy optimisation (PPO).

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp

from seedx import losses, types
from seedx.agents import (
  base,
  minibatches,
  models,
  optimizers,
  policy_gradient,
  policy_model,
)
from seedx.on_cpu import blocks


@dataclasses.dataclass(frozen=True)
class Config(policy_gradient.Config):
  """Hyper-parameters that PPO adds to those of every actor-critic.

  Attributes:
    clip_epsilon: clip range of the probability ratio.
    clip_values: whether the value loss is clipped by `clip_epsilon`, too.
    epochs: passes over the batch in an update.
    minibatches: minibatches in an epoch, one optimizer step each. Feed-forward
      agents shuffle single steps, recurrent agents whole unrolls; the number of
      minibatches must divide the number of steps or unrolls on each core.
    target_kl: limit of `approx_kl`: an update ends at the first minibatch above
      it, without a step on it; 0 for no limit. Usual values are 0.01 to 0.05.
      Stable-Baselines3 multiplies its `target_kl` by 1.5.
  """

  td_lambda: float = 0.95
  entropy_cost: float = 0.005
  clip_epsilon: float = types.setting(0.2, changes="run_time", low=0.0)
  clip_values: bool = False
  epochs: int = types.setting(8, low=1, high=2**20)
  minibatches: int = types.setting(8, low=1, high=2**20)
  target_kl: float = types.setting(0.0, low=0.0)

  def for_images(self) -> Self:
    """Returns a copy for Atari; not measured.

    The values are those of the authors' `ppo2` (`baselines/ppo2/defaults.py`).
    Schulman et al. 2017, table 5, have 3 epochs, and a clip range that falls to
    0 as the learning rate does.
    """
    return dataclasses.replace(
      super().for_images(),
      learning_rate=2.5e-4,
      epochs=4,
      minibatches=4,
      clip_epsilon=0.1,
      entropy_cost=0.01,
    )

  def for_continuous(self) -> Self:
    """Returns a copy for continuous actions, measured on HalfCheetah."""
    return dataclasses.replace(
      super().for_continuous(),
      learning_rate=3e-4,
      epochs=10,
      # With a memory, minibatches consist of whole unrolls, which are few.
      minibatches=4 if self.recurrent else 32,
      normalize_observations=True,
    )

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`.

    `update` computes advantages once, then takes `epochs * minibatches`
    optimizer steps, or fewer if `target_kl` ends it. `gradients` returns the
    gradients of one step on the whole batch.
    """
    ppo_loss = functools.partial(loss, clip_values=self.clip_values)
    return make(spec, self, ppo_loss, axis_name, horizon)


class Entries(NamedTuple):
  """A batch, or a minibatch of it, as N entries of C consecutive steps.

  Attributes:
    inputs: `[C, N, ...]`.
    action: `[C, N, ...]`, the actions taken.
    core_state: `[N, ...]`, state of the network before each entry's first step.
    behaviour_log_prob: `[C, N]`, log mu(a) of the parameters that acted.
    before: `[C, N, ...]`, evaluation with the parameters before the update,
      which in `sync` and `anakin` also acted.
    advantage: `[C, N]`, GAE.
    weight: `[C, N]`, see `losses.Transitions`.
  """

  inputs: types.Inputs
  action: jax.Array
  core_state: types.Tree
  behaviour_log_prob: jax.Array
  before: policy_model.StepEvaluation
  advantage: jax.Array
  weight: jax.Array


class Minibatch(NamedTuple):
  """Entries, with advantages normalized over the minibatch.

  Attributes:
    entries: the N entries.
    advantage: `[C, N]`, advantages of mean 0 and variance 1.
  """

  entries: Entries
  advantage: jax.Array

  @classmethod
  def of(cls, entries: Entries, axis_name: str | None) -> "Minibatch":
    """Normalizes advantages over the entries of all cores of a mesh axis."""
    advantage = _normalized(entries.advantage, entries.weight, axis_name)
    return cls(entries, advantage)


class Loss(Protocol):
  """A loss for `make`, such as PPO's own `loss`.

  A loss is called on each learner core's part of a minibatch. On CPU the part
  may be one block at a time, unless `make` has `separable=False`.
  """

  def __call__(
    self,
    evaluated: policy_model.StepEvaluation,
    minibatch: Minibatch,
    hyperparameters: Mapping[str, jax.Array],
  ) -> losses.ActorCriticLoss:
    """Returns per-step losses `[C, N]` of a minibatch.

    `evaluated` is the minibatch's evaluation with the learned parameters. The
    `hyperparameters` are those of the `AgentState`, each `[]`.
    """


def make(
  spec: types.EnvironmentSpec,
  config: Config,
  loss: Loss,
  axis_name: str | None = None,
  horizon: base.Horizon | None = None,
  *,
  separable: bool = True,
) -> base.Agent:
  """Makes an agent that learns as PPO does; see also `base.Config.make`.

  The loss is `separable` if no loss of an entry depends on other entries of its
  minibatch. A mean over the minibatch would be such a dependence. With
  `target_kl`, the loss must have `approx_kl` among its diagnostics.

  Raises:
    types.ConfigError: no action distribution fits the action spec.
  """
  policy = config.policy(spec)
  steps_per_update = config.epochs * config.minibatches
  optimizer = optimizers.Optimizer.make(config, horizon, steps_per_update)

  def whole_loss(
    evaluation: policy_model.Evaluation,
    unroll: types.Unroll,
    hyperparameters: Mapping[str, jax.Array],
  ) -> losses.ActorCriticLoss:
    entries = _entries(policy, evaluation, unroll, hyperparameters)
    minibatch = Minibatch.of(entries, axis_name)
    return loss(evaluation.steps, minibatch, hyperparameters)

  agent = policy_gradient.make(
    spec,
    config,
    whole_loss,
    axis_name,
    horizon,
    steps_per_update=steps_per_update,
    separable=False,
  )
  needs = dataclasses.replace(
    agent.needs,
    whole_batches=True,
    minibatches=config.minibatches,
    divides_unrolls=config.recurrent,
  )
  axes = _MINIBATCH_AXES if separable and policy.in_blocks else None
  step = _make_step(policy, loss, axes, optimizer, axis_name)
  update = _make_update(policy, config, step, optimizer, axis_name)
  return dataclasses.replace(agent, update=update, needs=needs)


def loss(
  evaluated: policy_model.StepEvaluation,
  minibatch: Minibatch,
  hyperparameters: Mapping[str, jax.Array],
  *,
  clip_values: bool = False,
) -> losses.ActorCriticLoss:
  """Returns PPO's losses `[C, N]`; see `Loss` and `losses.ppo`.

  The `hyperparameters` must have `clip_epsilon`.
  """
  entries = minibatch.entries

  def stream_loss(
    behaviour_values: jax.Array, *stream: jax.Array
  ) -> losses.ActorCriticLoss:
    return losses.ppo(
      *stream,
      clip_epsilon=hyperparameters["clip_epsilon"],
      behaviour_values=behaviour_values if clip_values else None,
    )

  old_values = entries.before.values
  steps = jax.vmap(stream_loss, in_axes=1, out_axes=1)(
    old_values,
    evaluated.values,
    evaluated.log_prob,
    entries.behaviour_log_prob,
    evaluated.entropy,
    minibatch.advantage,
    entries.advantage + old_values,
    entries.weight,
  )
  unnormalized = {"advantage": entries.advantage * entries.weight}
  return steps._replace(diagnostics=steps.diagnostics | unnormalized)


def _make_update(
  policy: policy_model.Policy,
  config: Config,
  step: minibatches.Step[Entries],
  optimizer: optimizers.Optimizer,
  axis_name: str | None,
) -> Callable[
  [base.AgentState, jax.Array, types.Unroll],
  tuple[base.AgentState, types.LossOutput],
]:

  def update(
    state: base.AgentState, rng_key: jax.Array, batch: types.Unroll
  ) -> tuple[base.AgentState, types.LossOutput]:
    moments = policy.moments(state.statistics, batch, axis_name)
    deviation = policy.reward_deviation(state, moments)
    entries = _evaluated(
      policy, state, batch, deviation, in_steps=not config.recurrent
    )
    draw = functools.partial(
      minibatches.shuffled, entries, parts=config.minibatches
    )
    keys = jax.random.split(rng_key, config.epochs)
    if config.target_kl:
      state, taken, metrics = _take_steps_until(
        config.target_kl, step, state, draw, keys
      )
      state = optimizer.skip(state, optimizer.steps_per_update - taken)
      weight = losses.sum_over_cores(jnp.sum(entries.weight), axis_name)
      output = types.LossOutput(weight, metrics)
    else:
      state, output = minibatches.take_all_steps(step, state, draw, keys)
    return models.count_batch(state, moments), output

  return update


def _make_step(
  policy: policy_model.Policy,
  loss: Loss,
  axes: Minibatch | None,
  optimizer: optimizers.Optimizer,
  axis_name: str | None,
) -> minibatches.Step[Entries]:
  def step(
    state: base.AgentState, entries: Entries
  ) -> tuple[base.AgentState, types.LossOutput]:
    def per_step(params: types.Tree, part: Minibatch) -> losses.ActorCriticLoss:
      variables = models.Variables(params, state.statistics)
      steps = part.entries
      evaluated = policy.evaluate_steps(
        variables, steps.inputs, steps.action, steps.core_state
      )
      return loss(evaluated, part, state.hyperparameters)

    gradients, output = policy_gradient.differentiate(
      per_step,
      Minibatch.of(entries, axis_name),
      axes,
      state,
      optimizer,
      axis_name,
    )
    return optimizer.descend(state, gradients), output

  return step


def _take_steps_until(
  target_kl: float,
  step: minibatches.Step[Entries],
  state: base.AgentState,
  draw: Callable[[jax.Array], Entries],
  keys: jax.Array,
) -> tuple[base.AgentState, jax.Array, dict[str, jax.Array]]:
  """Takes steps until a minibatch has a KL above the target.

  The KL is a mean over all cores, so all cores end at the same minibatch.

  Returns:
    The state; the number of steps taken, `[]` int32; and means of the metrics
    of all minibatches evaluated, including the one above the target.
  """
  Carry = tuple[base.AgentState, jax.Array]
  Tried = tuple[jax.Array, dict[str, jax.Array]]

  def limited(carry: Carry, entries: Entries) -> tuple[Carry, Tried]:
    old_state, had_ended = carry
    _, shapes = jax.eval_shape(step, old_state, entries)
    if "approx_kl" not in shapes.metrics:
      raise types.ConfigError(
        "expected a loss with approx_kl among its diagnostics, for target_kl,"
        f" found only {', '.join(sorted(shapes.metrics))}"
      )
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    new_state, output = jax.lax.cond(
      had_ended, lambda state, _: (state, zeros), step, old_state, entries
    )
    has_ended = had_ended | (output.metrics["approx_kl"] > target_kl)
    state = jax.tree.map(
      lambda old, new: jnp.where(has_ended, old, new), old_state, new_state
    )
    return (state, has_ended), (~had_ended, output.metrics)

  def epoch(carry: Carry, rng_key: jax.Array) -> tuple[Carry, Tried]:
    return jax.lax.scan(limited, carry, draw(rng_key))

  start = state, jnp.bool_(False)
  (state, has_ended), (tried, metrics) = jax.lax.scan(epoch, start, keys)
  num_tried = jnp.sum(tried, dtype=jnp.int32)
  taken = num_tried - has_ended
  means = {name: x.sum() / num_tried for name, x in metrics.items()}
  return state, taken, means | {"optimizer_steps": jnp.float32(taken)}


# Each array's axis of entries, see `blocks.gradient`.
_ENTRIES_AXES = Entries._make(
  0 if name == "core_state" else 1 for name in Entries._fields
)
_MINIBATCH_AXES = Minibatch._make(
  _ENTRIES_AXES if name == "entries" else 1 for name in Minibatch._fields
)


def _evaluated(
  policy: policy_model.Policy,
  state: base.AgentState,
  batch: types.Unroll,
  deviation: jax.Array | None,
  *,
  in_steps: bool,
) -> Entries:
  """Returns a batch as entries of single steps, or of whole unrolls."""
  variables = models.Variables(state.params, state.statistics)
  evaluate = functools.partial(
    policy.evaluate,
    variables,
    hyperparameters=state.hyperparameters,
    deviation=deviation,
  )
  axes = policy_gradient.AXES if policy.in_blocks else None
  evaluation = blocks.outputs(evaluate, batch, axes)
  entries = _entries(policy, evaluation, batch, state.hyperparameters)
  if not in_steps:
    return entries
  return minibatches.single_steps(policy.model, variables, entries)


def _entries(
  policy: policy_model.Policy,
  evaluation: policy_model.Evaluation,
  unroll: types.Unroll,
  hyperparameters: Mapping[str, jax.Array],
) -> Entries:
  """Returns a batch as entries of whole unrolls, `[T, B, ...]`."""
  values = jax.lax.stop_gradient(evaluation.values)
  rest = evaluation.step_type, evaluation.reward, evaluation.discount
  estimate = functools.partial(losses.gae, lambda_=hyperparameters["td_lambda"])
  return Entries(
    inputs=jax.tree.map(lambda x: x[:-1], unroll.inputs),
    action=unroll.action[:-1],
    core_state=policy.network_state(unroll.core_state),
    behaviour_log_prob=unroll.extras.log_prob[:-1],
    before=jax.lax.stop_gradient(evaluation.steps),
    advantage=jax.vmap(estimate, in_axes=1, out_axes=1)(values, *rest),
    weight=jax.vmap(losses.transitions, in_axes=1, out_axes=1)(
      *rest, values
    ).weight,
  )


def _normalized(
  values: jax.Array, weights: jax.Array, axis_name: str | None
) -> jax.Array:
  """Normalizes values to weighted mean 0 and variance 1 over all cores."""

  def mean(values: jax.Array) -> jax.Array:
    share = losses.mean_share(values, weights, axis_name)
    return losses.sum_over_cores(share, axis_name)

  centred = values - mean(values)
  return centred * jax.lax.rsqrt(mean(jnp.square(centred)) + 1e-8)
