"""Proximal policy optimisation: many small steps on each batch."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from seedx import losses, types
from seedx.agents import actor_critic, base, model


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
  """Static hyper-parameters, beside those of every actor-critic.

  Attributes:
    lambda_: of the advantage estimates, see `losses.gae`.
    clip_epsilon: see `losses.ppo`.
    clip_values: whether the value loss is clipped as well.
    epochs: how often an update goes through its batch.
    minibatches: parts of an epoch, each of which takes a step. A feed-forward
      agent shuffles single steps, a recurrent one whole unrolls.
  """

  lambda_: float = 0.95
  clip_epsilon: float = 0.2
  clip_values: bool = False
  epochs: int = 4
  minibatches: int = 4

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    super().__post_init__()
    types.check_ranges(
      self,
      lambda_=(0.0, 1.0),
      clip_epsilon=(0.0, types.MOST),
      epochs=(1, 2**20),
      minibatches=(1, 2**20),
    )


class Items(NamedTuple):
  """What minibatches are drawn from: pieces of C consecutive steps.

  Attributes:
    inputs: `[C, N, ...]`.
    action: `[C, N, ...]`.
    core_state: `[N, ...]`, before the first step of each.
    behaviour_log_prob: `[C, N]`.
    values: `[C, N]`, from before the update.
    advantage: `[C, N]`.
    weight: `[C, N]`.
  """

  inputs: types.Inputs
  action: jax.Array
  core_state: types.Tree
  behaviour_log_prob: jax.Array
  values: jax.Array
  advantage: jax.Array
  weight: jax.Array


def make(
  spec: types.EnvironmentSpec, config: Config, axis_name: str | None = None
) -> base.Agent:
  """Makes the agent for an environment; see `actor_critic.make`.

  Its `update` computes advantages once, then takes `epochs * minibatches`
  steps. Its `gradients` are those of one step on the whole batch.
  """
  policy = actor_critic.Policy.make(spec, config)
  steps_per_update = config.epochs * config.minibatches
  optimizer = model.optimizer(config, steps_per_update)

  def whole_loss(
    evaluation: actor_critic.Evaluation, unroll: types.Unroll
  ) -> losses.ActorCriticLoss:
    items = _items(evaluation, unroll, config)
    evaluated = evaluation.values[:-1], evaluation.log_prob, evaluation.entropy
    return _loss(evaluated, items, config, axis_name)

  def step(
    state: base.AgentState, items: Items
  ) -> tuple[base.AgentState, types.LossOutput]:
    def per_step(params: types.Tree) -> losses.ActorCriticLoss:
      variables = model.Variables(params, state.statistics)
      evaluated = policy.evaluate_steps(
        variables, items.inputs, items.action, items.core_state
      )
      return _loss(evaluated, items, config, axis_name)

    gradients, output = actor_critic.differentiate(
      per_step, state, config, axis_name
    )
    return model.descend(state, optimizer, gradients), output

  def update(
    state: base.AgentState, rng_key: jax.Array, batch: types.Unroll
  ) -> tuple[base.AgentState, types.LossOutput]:
    variables = model.Variables(state.params, state.statistics)
    items = _items(policy.evaluate(variables, batch), batch, config)
    if not config.lstm_size:
      items = _single_steps(policy, variables, items)

    def epoch(
      state: base.AgentState, rng_key: jax.Array
    ) -> tuple[base.AgentState, types.LossOutput]:
      minibatches = _shuffled(items, rng_key, config.minibatches)
      return jax.lax.scan(step, state, minibatches)

    keys = jax.random.split(rng_key, config.epochs)
    state, outputs = jax.lax.scan(epoch, state, keys)
    metrics = {name: x.mean() for name, x in outputs.metrics.items()}
    weight = outputs.weight.sum() / config.epochs
    moments = policy.network.moments(state.statistics, batch.inputs, axis_name)
    state = model.count_batch(state, moments)
    return state, types.LossOutput(weight, metrics)

  agent = actor_critic.make(
    spec, config, whole_loss, axis_name, steps_per_update
  )
  return dataclasses.replace(agent, update=update, applies_once=False)


def _loss(
  evaluated: tuple[jax.Array, jax.Array, jax.Array],
  items: Items,
  config: Config,
  axis_name: str | None,
) -> losses.ActorCriticLoss:
  """The losses of items, given `Policy.evaluate_steps` of them."""

  def stream_loss(
    behaviour_values: jax.Array, *stream: jax.Array
  ) -> losses.ActorCriticLoss:
    return losses.ppo(
      *stream,
      clip_epsilon=config.clip_epsilon,
      behaviour_values=behaviour_values if config.clip_values else None,
    )

  values, log_prob, entropy = evaluated
  return jax.vmap(stream_loss, in_axes=1, out_axes=1)(
    items.values,
    values,
    log_prob,
    items.behaviour_log_prob,
    entropy,
    _normalized(items.advantage, items.weight, axis_name),
    items.advantage + items.values,
    items.weight,
  )


def _items(
  evaluation: actor_critic.Evaluation, unroll: types.Unroll, config: Config
) -> Items:
  """A batch as pieces as long as its unrolls, `[T, B, ...]`."""
  values, step_type, reward, discount = jax.lax.stop_gradient(
    (
      evaluation.values,
      evaluation.step_type,
      evaluation.reward,
      evaluation.discount,
    )
  )
  estimate = functools.partial(losses.gae, lambda_=config.lambda_)
  return Items(
    inputs=jax.tree.map(lambda x: x[:-1], unroll.inputs),
    action=unroll.action[:-1],
    core_state=unroll.core_state,
    behaviour_log_prob=unroll.extras.log_prob[:-1],
    values=values[:-1],
    advantage=jax.vmap(estimate, in_axes=1, out_axes=1)(
      values, step_type, reward, discount
    ),
    weight=jax.vmap(losses.transitions, in_axes=1, out_axes=1)(
      step_type, reward, discount, values
    ).weight,
  )


def _single_steps(
  policy: actor_critic.Policy, variables: model.Variables, items: Items
) -> Items:
  """Cuts pieces `[T, B, ...]` into `[1, T * B, ...]`."""

  def carry_on(
    core_state: types.Tree, inputs: types.Inputs
  ) -> tuple[types.Tree, types.Tree]:
    stream = jax.tree.map(lambda x: x[None], inputs)
    output = policy.network.unroll(variables, stream, core_state)
    return output.core_state, core_state

  core_state = items.core_state
  if jax.tree.leaves(core_state):
    # What the head says is not used, and so is not computed.
    _, core_state = jax.lax.scan(carry_on, core_state, items.inputs)
  merged = jax.tree.map(
    lambda x: jax.lax.collapse(x, 0, 2), items._replace(core_state=core_state)
  )
  steps = jax.tree.map(lambda x: x[None], merged._replace(core_state=()))
  return steps._replace(core_state=merged.core_state)


def _shuffled(items: Items, rng_key: jax.Array, parts: int) -> Items:
  """Random minibatches of the items, with a first axis for them."""
  size = items.weight.shape[1]
  if size % parts:
    raise types.ConfigError(
      f"expected minibatches to divide the {size} items that each core has,"
      f" found {parts} of them"
    )
  order = jax.random.permutation(rng_key, size).reshape(parts, -1)

  def draw(leaf: jax.Array) -> jax.Array:
    return jnp.moveaxis(jnp.take(leaf, order, axis=1), 1, 0)

  drawn = jax.tree.map(draw, items._replace(core_state=()))
  return drawn._replace(
    core_state=jax.tree.map(lambda leaf: leaf[order], items.core_state)
  )


def _normalized(
  values: jax.Array, weights: jax.Array, axis_name: str | None
) -> jax.Array:
  """Values less their weighed mean, by standard deviation, over all cores."""

  def mean(values: jax.Array) -> jax.Array:
    share = losses.mean_share(values, weights, axis_name)
    return losses.sum_over_cores(share, axis_name)

  centred = values - mean(values)
  return centred * jax.lax.rsqrt(mean(jnp.square(centred)) + 1e-8)
