"""Parallelised Q-networks (PQN): Q(lambda) without a replay or target network.

Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning",
https://arxiv.org/abs/2407.04811.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from seedx import distributions, losses, networks, types
from seedx.agents import base, epsilon_greedy, minibatches, models, optimizers


@dataclasses.dataclass(frozen=True)
class Config(models.RecurrentConfig):
  """Hyper-parameters that PQN adds to those of every agent.

  Attributes:
    td_lambda: lambda of Q(lambda). With 0, a return bootstraps after one step;
      with 1, only at the unroll's end.
    epsilon_end: final epsilon, the probability of a random action.
    epsilon_steps: env steps over which epsilon decays linearly from 1; 0 for no
      decay.
    epochs: passes over the batch in an update.
    minibatches: minibatches in an epoch, one optimizer step each. Feed-forward
      agents shuffle single steps, recurrent agents whole unrolls; the number of
      minibatches must divide the number of steps or unrolls on each core.
  """

  learning_rate: float = 5e-4
  optimizer: Literal["adam", "radam", "rmsprop", "sgd"] = "radam"
  max_gradient_norm: float = 10.0
  hidden_sizes: tuple[int, ...] = (128, 128)
  activation: Literal["tanh", "relu"] = "relu"
  layer_norm: bool = True
  td_lambda: float = types.setting(0.95, changes="run_time", low=0.0, high=1.0)
  epsilon_end: float = types.setting(
    0.01, changes="run_time", low=0.0, high=1.0
  )
  epsilon_steps: int = types.setting(100_000, low=0)
  epochs: int = types.setting(4, low=1, high=2**20)
  minibatches: int = types.setting(16, low=1, high=2**20)

  def for_images(self) -> Self:
    """Returns a copy for Atari, as in Gallici et al. 2024; not measured."""
    return dataclasses.replace(
      super().for_images(),
      learning_rate=2.5e-4,
      td_lambda=0.65,
      epsilon_end=0.001,
      epsilon_steps=1_000_000,
      epochs=2,
      minibatches=32,
    )

  def for_minatar(self) -> Self:
    """Returns a copy for MinAtar's games, whose images are grids of symbols."""
    return dataclasses.replace(
      self,
      td_lambda=0.65,
      epsilon_steps=1_000_000,
      epochs=2,
      minibatches=32,
      image_torso="minatar",
    )

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`.

    `update` computes targets once, then takes `epochs * minibatches` optimizer
    steps. `gradients` returns the gradients of one step on the whole batch.

    Raises:
      types.ConfigError: the actions are not discrete, or the environment is
        self-play.
    """
    epsilon_greedy.check_discrete(spec)
    base.check_one_player(spec)
    head = networks.QHead(int(spec.action.num_values))
    model = models.Model.make(spec, self, head)
    steps_per_update = self.epochs * self.minibatches
    optimizer = optimizers.Optimizer.make(self, horizon, steps_per_update)
    init, start = models.beginnings(self, optimizer, model.init)
    q_network = _QNetwork(
      model,
      optimizer,
      epsilon_greedy.decay_updates(self.epsilon_steps, horizon),
      axis_name,
    )
    return base.Agent(
      init=init,
      acting=q_network.acting,
      initial_core_state=model.initial_core_state,
      step=functools.partial(_step, model, greedy=False),
      greedy=functools.partial(_step, model, greedy=True),
      gradients=q_network.gradients,
      apply=q_network.apply,
      update=_make_update(q_network, self),
      needs=base.Needs(
        whole_batches=True,
        minibatches=self.minibatches,
        divides_unrolls=self.recurrent,
        extras=False,
        unread=tuple(spec.hidden),
      ),
      start=start,
    )


class Acting(NamedTuple):
  """The acting parameters.

  Attributes:
    variables: variables of the model.
    epsilon: `[]`, current epsilon; an environment whose `Inputs.exploration` is
      larger uses its exploration instead.
  """

  variables: models.Variables
  epsilon: jax.Array


class Entries(NamedTuple):
  """A batch, or a minibatch of it, as N entries; see `minibatches.Entries`.

  Attributes:
    inputs: `[C, N, ...]`.
    action: `[C, N]` int32, the actions taken.
    core_state: `[N, ...]`, state of the network before each entry's first step.
    target: `[C, N]`, targets of Q(lambda).
    weight: `[C, N]`, 0 on resets, 1 elsewhere.
  """

  inputs: types.Inputs
  action: jax.Array
  core_state: types.Tree
  target: jax.Array
  weight: jax.Array


def _step(
  model: models.Model,
  acting: Acting,
  rng_key: jax.Array,
  inputs: types.Inputs,
  core_state: types.Tree,
  *,
  greedy: bool,
) -> tuple[types.AgentOutput, types.Tree]:
  stream = jax.tree.map(lambda x: x[None], inputs)
  output = model.unroll(acting.variables, stream, core_state)
  mask = None if output.action_mask is None else output.action_mask[0]
  q_values = distributions.only_legal(output.head[0], mask)
  if greedy:
    action = jnp.argmax(q_values, axis=-1)
  else:
    epsilon = jnp.maximum(acting.epsilon, inputs.exploration)
    explore_key, action_key = jax.random.split(rng_key)
    action = epsilon_greedy.explore(
      explore_key, action_key, q_values, mask, epsilon
    )
  action = action.astype(model.spec.action.dtype)
  return types.AgentOutput(action, ()), output.core_state


@dataclasses.dataclass(frozen=True)
class _QNetwork:
  model: models.Model
  optimizer: optimizers.Optimizer
  decay_updates: float
  axis_name: str | None

  def acting(self, state: base.AgentState) -> Acting:
    variables = models.Variables(state.params, state.statistics)
    return Acting(variables, self._epsilon(state))

  def _epsilon(self, state: base.AgentState) -> jax.Array:
    end = state.hyperparameters["epsilon_end"]
    return epsilon_greedy.epsilon(state, end, self.decay_updates)

  def entries(self, state: base.AgentState, unroll: types.Unroll) -> Entries:
    """Returns a batch as entries of whole unrolls, with their targets."""
    variables = models.Variables(state.params, state.statistics)
    inputs, values = unroll.inputs, state.hyperparameters
    output = self.model.unroll(variables, inputs, unroll.core_state)
    step_type = inputs.timestep.step_type.astype(jnp.int32)
    target = functools.partial(
      losses.q_lambda_returns, lambda_=values["td_lambda"]
    )
    return Entries(
      inputs=jax.tree.map(lambda x: x[:-1], inputs),
      action=unroll.action[:-1].astype(jnp.int32),
      core_state=unroll.core_state,
      target=jax.vmap(target, in_axes=1, out_axes=1)(
        distributions.only_legal(output.head, output.action_mask),
        step_type,
        self.model.rewards(inputs),
        self.model.discounts(inputs, values["discount"]),
      ),
      weight=jax.vmap(losses.weights, in_axes=1, out_axes=1)(step_type),
    )

  def differentiate(
    self, state: base.AgentState, entries: Entries
  ) -> tuple[types.Tree, types.LossOutput]:
    """Returns the gradient of the mean loss over the entries of all cores."""

    def share(params: types.Tree) -> tuple[jax.Array, dict[str, jax.Array]]:
      variables = models.Variables(params, state.statistics)
      output = self.model.unroll(variables, entries.inputs, entries.core_state)
      taken = jnp.take_along_axis(output.head, entries.action[..., None], -1)
      error = entries.target - taken[..., 0]
      metrics = {
        "loss": 0.5 * jnp.square(error),
        "q_mean": taken[..., 0],
        "td_error": jnp.abs(error),
      }
      weight, axis_name = entries.weight, self.axis_name
      shares = {
        name: losses.mean_share(x, weight, axis_name)
        for name, x in metrics.items()
      }
      return shares["loss"], shares | {"weight": jnp.sum(weight)}

    gradients, metrics = losses.sum_over_cores(
      jax.grad(share, has_aux=True)(state.params), self.axis_name
    )
    weight = metrics.pop("weight")
    metrics |= self.optimizer.measure(state, gradients)
    metrics["epsilon"] = self._epsilon(state)
    return gradients, types.LossOutput(weight, metrics)

  def gradients(
    self, state: base.AgentState, rng_key: jax.Array, batch: types.Unroll
  ) -> tuple[base.Gradients, types.LossOutput]:
    del rng_key  # The loss is deterministic.
    moments = self.moments(state, batch)
    gradients, output = self.differentiate(state, self.entries(state, batch))
    return base.Gradients(gradients, moments), output

  def moments(self, state: base.AgentState, batch: types.Unroll) -> types.Tree:
    return self.model.moments(state.statistics, batch.inputs, self.axis_name)

  def apply(
    self, state: base.AgentState, gradients: base.Gradients
  ) -> base.AgentState:
    state = self.optimizer.descend(state, gradients.params)
    return models.count_batch(state, gradients.moments)


def _make_update(
  q_network: _QNetwork, config: Config
) -> Callable[
  [base.AgentState, jax.Array, types.Unroll],
  tuple[base.AgentState, types.LossOutput],
]:
  def step(
    state: base.AgentState, entries: Entries
  ) -> tuple[base.AgentState, types.LossOutput]:
    gradients, output = q_network.differentiate(state, entries)
    return q_network.optimizer.descend(state, gradients), output

  def update(
    state: base.AgentState, rng_key: jax.Array, batch: types.Unroll
  ) -> tuple[base.AgentState, types.LossOutput]:
    moments = q_network.moments(state, batch)
    entries = q_network.entries(state, batch)
    if not config.recurrent:
      variables = models.Variables(state.params, state.statistics)
      entries = minibatches.single_steps(q_network.model, variables, entries)
    draw = functools.partial(
      minibatches.shuffled, entries, parts=config.minibatches
    )
    keys = jax.random.split(rng_key, config.epochs)
    state, output = minibatches.take_all_steps(step, state, draw, keys)
    return models.count_batch(state, moments), output

  return update
