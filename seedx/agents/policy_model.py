"""The policy of an actor-critic: network, action distribution and values."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from seedx import distributions, types
from seedx.agents import base, models, rewards


class Extras(NamedTuple):
  """The extras of `types.AgentOutput`, which learning needs.

  Attributes:
    log_prob: `[B]` float32, log mu(a) of the behaviour policy mu.
  """

  log_prob: jax.Array


class StepEvaluation(NamedTuple):
  """The evaluation of T steps with given parameters.

  Attributes:
    values: `[T, B]`, V.
    log_prob: `[T, B]`, log pi(a) of the actions taken.
    entropy: `[T, B]`, entropy of pi.
    policy: `[T, B, ...]`, pi; `policy.distribution` is a Distrax distribution.
  """

  values: jax.Array
  log_prob: jax.Array
  entropy: jax.Array
  policy: distributions.Parameterized


class Evaluation(NamedTuple):
  """An unroll, evaluated with the learned parameters.

  Attributes:
    values: `[T + 1, B]`, V of each time step.
    log_prob: `[T, B]`, log pi(a) of the actions taken.
    entropy: `[T, B]`, entropy of pi.
    step_type: `[T + 1, B]` int32.
    reward: `[T + 1, B]`, normalized, scaled and clipped.
    discount: `[T + 1, B]`, the environment's discount times gamma.
    policy: `[T, B, ...]`, see `StepEvaluation`.
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
    """All arrays but the policy, in the order of a loss's arguments."""
    return self[:-1]

  @property
  def steps(self) -> StepEvaluation:
    """The T steps, without the last time step."""
    return StepEvaluation(
      self.values[:-1], self.log_prob, self.entropy, self.policy
    )


@dataclasses.dataclass(frozen=True)
class Policy:
  """The model, and the action distribution that its policy head describes.

  Attributes:
    model: model for the environment.
    distribution: kind of distribution.
    normalizes_rewards: whether the core state is a `rewards.CoreState`, and the
      statistics include those of discounted returns.
  """

  model: models.Model
  distribution: distributions.Policy
  normalizes_rewards: bool = False

  @property
  def in_blocks(self) -> bool:
    """Whether a CPU evaluates a batch faster in blocks; see `blocks`.

    Blocks are not faster with a memory, whose steps are sequential in every
    block, or with images, since a few of them already fill a cache.
    """
    network = self.model.network
    images = any(map(types.is_image, network.observation))
    return not network.recurrent and not images

  def init(self, rng_key: jax.Array) -> models.Variables:
    """Returns initial variables."""
    variables = self.model.init(rng_key)
    if not self.normalizes_rewards:
      return variables
    return variables._replace(statistics=rewards.init(variables.statistics))

  def initial_core_state(self, batch_size: int) -> types.Tree:
    """Returns core states at an episode's start, `[batch_size, ...]`."""
    network = self.model.initial_core_state(batch_size)
    if not self.normalizes_rewards:
      return network
    return rewards.CoreState(network, jnp.zeros(batch_size, jnp.float32))

  def network_state(self, core_state: types.Tree) -> types.Tree:
    """Returns the network's part of a core state."""
    return core_state.network if self.normalizes_rewards else core_state

  def moments(
    self, statistics: types.Tree, unroll: types.Unroll, axis_name: str | None
  ) -> types.Tree:
    """Returns a batch's moments, for `AgentState.statistics`; or ()."""
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
    """Returns the divisor of a batch's rewards, `[]`; None for no division."""
    if not self.normalizes_rewards:
      return None
    return rewards.deviation(state.statistics, moments)

  def step(
    self,
    variables: models.Variables,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    """Samples actions for `[B, ...]`; see `base.Agent`."""
    policy, core_state = self._one_step(variables, inputs, core_state)
    action, log_prob = policy.sample_and_log_prob(seed=rng_key)
    return self._output(action, log_prob), core_state

  def greedy(
    self,
    variables: models.Variables,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    """Takes the distribution's mode as action; see `base.Agent`."""
    del rng_key  # The mode is deterministic.
    policy, core_state = self._one_step(variables, inputs, core_state)
    action = policy.mode()
    return self._output(action, policy.log_prob(action)), core_state

  def evaluate(
    self,
    variables: models.Variables,
    unroll: types.Unroll,
    hyperparameters: Mapping[str, jax.Array],
    deviation: jax.Array | None = None,
  ) -> Evaluation:
    """Evaluates an unroll `[T + 1, B, ...]`; see also `reward_deviation`."""
    inputs = unroll.inputs
    normalized = inputs
    if deviation is not None:
      normalized = rewards.divided(inputs, deviation)
    steps = self.evaluate_steps(
      variables, inputs, unroll.action, self.network_state(unroll.core_state)
    )
    return Evaluation(
      values=steps.values,
      log_prob=steps.log_prob[:-1],
      entropy=steps.entropy[:-1],
      step_type=inputs.timestep.step_type.astype(jnp.int32),
      reward=self.model.rewards(normalized),
      discount=self.model.discounts(inputs, hyperparameters["discount"]),
      policy=jax.tree.map(lambda x: x[:-1], steps.policy),
    )

  def evaluate_steps(
    self,
    variables: models.Variables,
    inputs: types.Inputs,
    action: jax.Array,
    core_state: types.Tree,
  ) -> StepEvaluation:
    """Evaluates T steps `[T, B, ...]`; `core_state` is the network's."""
    output = self.model.unroll(variables, inputs, core_state)
    policy = self._policy(output)
    distribution = policy.distribution
    return StepEvaluation(
      values=output.head.value,
      log_prob=distribution.log_prob(action),
      entropy=distribution.entropy(),
      policy=policy,
    )

  def _one_step(
    self,
    variables: models.Variables,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> "tuple[distributions.Distribution, types.Tree]":
    """Returns the distribution of actions `[1, B]`, and the next core state."""
    stream = jax.tree.map(lambda x: x[None], inputs)
    network = self.network_state(core_state)
    output = self.model.unroll(variables, stream, network)
    next_core_state = output.core_state
    if self.normalizes_rewards:
      (returns,) = rewards.discounted(
        stream.timestep, core_state.discounted, self.model.config.discount
      )
      next_core_state = rewards.CoreState(next_core_state, returns)
    return self._policy(output).distribution, next_core_state

  def _output(
    self, action: jax.Array, log_prob: jax.Array
  ) -> types.AgentOutput:
    action = action[0].astype(self.model.spec.action.dtype)
    return types.AgentOutput(action, Extras(log_prob[0]))

  def _policy(self, output: models.Output) -> distributions.Parameterized:
    return distributions.Parameterized(
      self.distribution, output.head.policy, output.action_mask
    )
