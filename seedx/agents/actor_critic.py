"""What the actor-critic agents share: all but the loss."""

import dataclasses
import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from seedx import distributions, losses, networks, types
from seedx.agents import base


@dataclasses.dataclass(frozen=True)
class Config:
  """Static hyper-parameters.

  Attributes:
    discount: per env step.
    learning_rate: at the start.
    learning_rate_end: as a share of `learning_rate`, after `decay_updates`.
    decay_updates: updates over which the learning rate falls linearly; 0 keeps
      it constant.
    adam_epsilon: Adam's, see Optax.
    max_gradient_norm: gradients with a larger global norm are scaled down.
    value_cost: weight of the value loss.
    entropy_cost: weight of the entropy bonus.
    reward_scale: rewards are multiplied by it in the loss.
    reward_clip: rewards are then clipped to +- this in the loss; 0 for never.
    hidden_sizes: units of the MLP's layers.
    stack_frames: frames that image observations are stacked over.
    compute_dtype: "float32" or "bfloat16"; parameters are float32.
  """

  discount: float = 0.99
  learning_rate: float = 1e-3
  learning_rate_end: float = 1.0
  decay_updates: int = 0
  adam_epsilon: float = 1e-5
  max_gradient_norm: float = 0.5
  value_cost: float = 0.5
  entropy_cost: float = 0.01
  reward_scale: float = 1.0
  reward_clip: float = 0.0
  hidden_sizes: tuple[int, ...] = (64, 64)
  stack_frames: int = 1
  compute_dtype: str = "float32"

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    most = sys.float_info.max
    check_ranges(
      self,
      discount=(0.0, 1.0),
      learning_rate=(0.0, 1e3),
      learning_rate_end=(0.0, 1.0),
      decay_updates=(0, 2**31 - 1),
      adam_epsilon=(0.0, 1.0),
      max_gradient_norm=(1e-12, most),
      value_cost=(0.0, most),
      entropy_cost=(0.0, most),
      reward_scale=(-most, most),
      reward_clip=(0.0, most),
      stack_frames=(1, 64),
    )
    if not self.hidden_sizes or min(self.hidden_sizes) < 1:
      raise types.ConfigError(
        f"expected hidden_sizes of at least 1, found {self.hidden_sizes}"
      )
    if self.compute_dtype not in ("float32", "bfloat16"):
      raise types.ConfigError(
        "expected compute_dtype float32 or bfloat16, found"
        f" {self.compute_dtype}"
      )


def check_ranges(config: object, **ranges: tuple[float, float]) -> None:
  """Checks that fields of a config are from their lowest to highest value.

  Raises:
    types.ConfigError: one is not, or is not a number.
  """
  for name, (low, high) in ranges.items():
    value = getattr(config, name)
    if not low <= value <= high:
      raise types.ConfigError(
        f"expected {name} from {low} to {high}, found {value}"
      )


class Extras(NamedTuple):
  """What learning needs of acting.

  Attributes:
    log_prob: `[B]` float32, log mu(a).
  """

  log_prob: jax.Array


class Evaluation(NamedTuple):
  """An unroll as the learned parameters see it.

  Attributes:
    values: `[T + 1, B]`.
    log_prob: `[T, B]`, log pi(a) of the actions taken.
    entropy: `[T, B]`.
    step_type: `[T + 1, B]` int32.
    reward: `[T + 1, B]`, scaled and clipped.
    discount: `[T + 1, B]`, times the agent's own.
  """

  values: jax.Array
  log_prob: jax.Array
  entropy: jax.Array
  step_type: jax.Array
  reward: jax.Array
  discount: jax.Array


class PerStepLosses(Protocol):
  """Losses of each step, such as `losses.VTraceLoss`."""

  @property
  def policy_gradient(self) -> jax.Array:
    """`[T, B]`."""

  @property
  def value(self) -> jax.Array:
    """`[T, B]`."""

  @property
  def entropy(self) -> jax.Array:
    """`[T, B]`, negative."""

  @property
  def weight(self) -> jax.Array:
    """`[T, B]`, 0 on the steps that are no experience, 1 elsewhere."""


Loss = Callable[[Evaluation, types.Unroll], PerStepLosses]


def make(
  spec: types.EnvironmentSpec,
  config: Config,
  loss: Loss,
  axis_name: str | None = None,
) -> base.Agent:
  """Makes an actor-critic agent from its loss.

  Args:
    spec: what the environment takes and gives.
    config: the hyper-parameters.
    loss: per-step losses `[T, B]` of an evaluated unroll.
    axis_name: the mesh axis over which batches are sharded; None if they are
      not.

  Raises:
    types.ConfigError: no policy is known for the action spec.
  """
  policy = _Policy.for_spec(spec, config)
  optimizer = _optimizer(config)

  def loss_share(
    params: types.Tree, state: base.AgentState, unroll: types.Unroll
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    steps = loss(policy.evaluate(params, unroll), unroll)
    parts = {
      name: losses.mean_share(getattr(steps, name), steps.weight, axis_name)
      for name in ("policy_gradient", "value", "entropy")
    }
    total = (
      parts["policy_gradient"]
      + config.value_cost * parts["value"]
      + state.hyperparameters["entropy_cost"] * parts["entropy"]
    )
    return total, parts | {"weight": jnp.sum(steps.weight)}

  def gradients(
    state: base.AgentState, rng_key: jax.Array, batch: types.Unroll
  ) -> tuple[types.Tree, types.LossOutput]:
    del rng_key  # Nothing is drawn.
    shares = jax.grad(loss_share, has_aux=True)(state.params, state, batch)
    summed, parts = losses.sum_over_cores(shares, axis_name)
    weight = parts.pop("weight")
    metrics = {f"loss_{name}": value for name, value in parts.items()}
    return summed, types.LossOutput(weight, metrics)

  def apply(state: base.AgentState, gradients: types.Tree) -> base.AgentState:
    updates, optimizer_state = optimizer.update(
      gradients, state.optimizer_state, state.params
    )
    rate = state.hyperparameters["learning_rate"]
    updates = jax.tree.map(lambda update: -rate * update, updates)
    return dataclasses.replace(
      state,
      params=optax.apply_updates(state.params, updates),
      optimizer_state=optimizer_state,
      updates=state.updates + 1,
    )

  return base.Agent(
    init=lambda rng_key: _init(rng_key, policy, optimizer, config),
    acting=lambda state: state.params,
    initial_core_state=policy.network.initial_core_state,
    step=policy.step,
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
  )


@dataclasses.dataclass(frozen=True)
class _Policy:
  """The network and what its outputs mean; functions of the parameters."""

  network: networks.ActorCritic
  distribution: Callable[[jax.Array], distrax.Distribution]
  spec: types.EnvironmentSpec
  config: Config

  @classmethod
  def for_spec(cls, spec: types.EnvironmentSpec, config: Config) -> "_Policy":
    """The policy for an environment."""
    distribution = distributions.for_spec(spec.action)
    network = networks.ActorCritic(
      observation=tuple(jax.tree.leaves(spec.observation)),
      num_policy_parameters=distribution.num_parameters,
      sizes=config.hidden_sizes,
      stack_frames=config.stack_frames,
      dtype=jnp.dtype(config.compute_dtype),
    )
    return cls(network, distribution, spec, config)

  def step(
    self,
    params: types.Tree,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    """One step of `[B, ...]`; see `base.Agent`."""
    stream = jax.tree.map(lambda x: x[None], inputs)
    output, core_state = self.network.apply(params, stream, core_state)
    policy = self.distribution(output.policy[0])
    action, log_prob = policy.sample_and_log_prob(seed=rng_key)
    action = action.astype(self.spec.action.dtype)
    return types.AgentOutput(action, Extras(log_prob)), core_state

  def evaluate(self, params: types.Tree, unroll: types.Unroll) -> Evaluation:
    """What the learned parameters say of an unroll."""
    inputs = unroll.inputs
    output, _ = self.network.apply(params, inputs, unroll.core_state)
    policy = self.distribution(output.policy[:-1])
    reward = inputs.timestep.reward * self.config.reward_scale
    if self.config.reward_clip:
      limit = self.config.reward_clip
      reward = jnp.clip(reward, -limit, limit)
    return Evaluation(
      values=output.value,
      log_prob=policy.log_prob(unroll.action[:-1]),
      entropy=policy.entropy(),
      step_type=inputs.timestep.step_type.astype(jnp.int32),
      reward=reward,
      discount=inputs.timestep.discount * self.config.discount,
    )


def _init(
  rng_key: jax.Array,
  policy: _Policy,
  optimizer: optax.GradientTransformation,
  config: Config,
) -> base.AgentState:
  stream = jax.tree.map(
    lambda x: jnp.asarray(x)[None], base.zero_inputs(policy.spec, 1)
  )
  core_state = policy.network.initial_core_state(1)
  params = policy.network.init(rng_key, stream, core_state)
  return base.AgentState(
    params=params,
    optimizer_state=optimizer.init(params),
    hyperparameters={
      "learning_rate": jnp.float32(config.learning_rate),
      "entropy_cost": jnp.float32(config.entropy_cost),
    },
    updates=jnp.int32(0),
  )


def _optimizer(config: Config) -> optax.GradientTransformation:
  """Clipped Adam whose updates still have to be multiplied by -rate."""
  schedule: optax.Schedule = optax.constant_schedule(np.float32(1.0))
  if config.decay_updates:
    schedule = optax.linear_schedule(
      1.0, config.learning_rate_end, config.decay_updates
    )
  return optax.chain(
    optax.clip_by_global_norm(config.max_gradient_norm),
    optax.scale_by_adam(eps=config.adam_epsilon),
    optax.scale_by_schedule(schedule),
  )
