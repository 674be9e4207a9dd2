"""What all agents are built of: hyper-parameters, network, optimizer."""

import copy
import dataclasses
from typing import NamedTuple

import dm_env.specs
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from seedx import networks, types
from seedx.agents import base, normalizer


@dataclasses.dataclass(frozen=True)
class Config:
  """Static hyper-parameters of every agent.

  Attributes:
    discount: per env step.
    learning_rate: at the start.
    learning_rate_end: as a share of `learning_rate`, after `decay_updates`.
    decay_updates: updates over which the learning rate falls linearly; 0 keeps
      it constant.
    optimizer: "adam" or "rmsprop".
    adam_epsilon: Adam's, see Optax.
    rms_decay: RMSProp's, see Optax.
    rms_epsilon: likewise; it is added inside the square root.
    max_gradient_norm: gradients with a larger global norm are scaled down.
    reward_scale: rewards are multiplied by it in the loss.
    reward_clip: rewards are then clipped to +- this in the loss; 0 for never.
    normalize_observations: whether vectors of floats are brought to mean 0 and
      variance 1.
    hidden_sizes: units of the MLP's layers.
    image_torso: the network for images, of `networks.IMAGE_TORSOS`.
    stack_frames: frames that image observations are stacked over.
    lstm_size: units of an LSTM behind the torso; 0 for none.
    torso: a module of one's own in the place of the MLP and the network for
      images, from the observation's nest of `[B, ...]` to features `[B, F]`.
    compute_dtype: "float32" or "bfloat16"; parameters are float32.
  """

  discount: float = 0.99
  learning_rate: float = 1e-3
  learning_rate_end: float = 1.0
  decay_updates: int = 0
  optimizer: str = "adam"
  adam_epsilon: float = 1e-5
  rms_decay: float = 0.99
  rms_epsilon: float = 1e-5
  max_gradient_norm: float = 0.5
  reward_scale: float = 1.0
  reward_clip: float = 0.0
  normalize_observations: bool = False
  hidden_sizes: tuple[int, ...] = (64, 64)
  image_torso: str = "nature"
  stack_frames: int = 1
  lstm_size: int = 0
  torso: nn.Module | None = None
  compute_dtype: str = "float32"

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_ranges(
      self,
      discount=(0.0, 1.0),
      learning_rate=(0.0, 1e3),
      learning_rate_end=(0.0, 1.0),
      decay_updates=(0, 2**31 - 1),
      adam_epsilon=(0.0, 1.0),
      rms_decay=(0.0, 1.0),
      rms_epsilon=(0.0, 1.0),
      max_gradient_norm=(1e-12, types.MOST),
      reward_scale=(-types.MOST, types.MOST),
      reward_clip=(0.0, types.MOST),
      stack_frames=(1, 64),
      lstm_size=(0, 2**16),
    )
    if not self.hidden_sizes or min(self.hidden_sizes) < 1:
      raise types.ConfigError(
        f"expected hidden_sizes of at least 1, found {self.hidden_sizes}"
      )
    for name, choices in (
      ("optimizer", ("adam", "rmsprop")),
      ("compute_dtype", ("float32", "bfloat16")),
      ("image_torso", tuple(networks.IMAGE_TORSOS)),
    ):
      if getattr(self, name) not in choices:
        raise types.ConfigError(
          f"expected {name} {' or '.join(choices)}, found {getattr(self, name)}"
        )


class Variables(NamedTuple):
  """What a model computes with.

  Attributes:
    params: the network's parameters.
    statistics: of observations, see `normalizer`; () where they pass as is.
  """

  params: types.Tree
  statistics: types.Tree


class Output(NamedTuple):
  """What a model says of a stream.

  Attributes:
    head: the head's nest of `[T, B, ...]`.
    action_mask: `[T, B, A]`, not 0 where an action is legal; None if all are.
    core_state: `[B, ...]`, after the last step.
  """

  head: types.Tree
  action_mask: jax.Array | None
  core_state: types.Tree


@dataclasses.dataclass(frozen=True)
class Model:
  """A network for an environment; functions of its variables.

  Attributes:
    spec: what the environment takes and gives.
    config: the hyper-parameters.
    network: what sees the observation, less its action mask.
  """

  spec: types.EnvironmentSpec
  config: Config
  network: networks.Network

  @classmethod
  def make(
    cls, spec: types.EnvironmentSpec, config: Config, head: nn.Module
  ) -> "Model":
    """The model with a head for an environment.

    Raises:
      types.ConfigError: an option would do nothing for such observations.
    """
    observation, _ = _without_mask(spec, spec.observation)
    _check_use(config, jax.tree.leaves(observation))
    network = networks.Network(
      observation=tuple(jax.tree.leaves(observation)),
      action=spec.action,
      head=head,
      sizes=config.hidden_sizes,
      image_torso=config.image_torso,
      stack_frames=config.stack_frames,
      lstm_size=config.lstm_size,
      # From another process it may come with the id of a module made here,
      # for which Flax would take it; a copy gets ids of its own.
      torso=copy.deepcopy(config.torso),
      dtype=jnp.dtype(config.compute_dtype),
    )
    return cls(spec, config, network)

  def init(self, rng_key: jax.Array) -> Variables:
    """Initial variables."""
    inputs = jax.tree.map(
      lambda x: jnp.asarray(x)[None], base.zero_inputs(self.spec, 1)
    )
    observation, _ = _without_mask(self.spec, inputs.timestep.observation)
    timestep = inputs.timestep._replace(observation=observation)
    params = self.network.init(
      rng_key,
      inputs._replace(timestep=timestep),
      self.network.initial_core_state(1),
    )
    statistics: types.Tree = ()
    if self.config.normalize_observations:
      spec, _ = _without_mask(self.spec, self.spec.observation)
      statistics = normalizer.init(spec)
    return Variables(params, statistics)

  def initial_core_state(self, batch_size: int) -> types.Tree:
    """The core state before an episode, `[batch_size, ...]`."""
    return self.network.initial_core_state(batch_size)

  def unroll(
    self, variables: Variables, inputs: types.Inputs, core_state: types.Tree
  ) -> Output:
    """What the network says of `[T, B, ...]` inputs."""
    observation, mask = _without_mask(self.spec, inputs.timestep.observation)
    if self.config.normalize_observations:
      spec, _ = _without_mask(self.spec, self.spec.observation)
      observation = normalizer.normalize(
        variables.statistics, spec, observation
      )
    timestep = inputs.timestep._replace(observation=observation)
    head, core_state = self.network.apply(
      variables.params, inputs._replace(timestep=timestep), core_state
    )
    return Output(head, mask, core_state)

  def moments(
    self, statistics: types.Tree, inputs: types.Inputs, axis_name: str | None
  ) -> types.Tree:
    """Of the observations of a batch; () where they pass as they are."""
    if not self.config.normalize_observations:
      return ()
    spec, _ = _without_mask(self.spec, self.spec.observation)
    observation, _ = _without_mask(self.spec, inputs.timestep.observation)
    return normalizer.measure(statistics, spec, observation, axis_name)

  def rewards(self, inputs: types.Inputs) -> jax.Array:
    """`[T, B]`, scaled and clipped."""
    reward = inputs.timestep.reward * self.config.reward_scale
    limit = self.config.reward_clip
    return jnp.clip(reward, -limit, limit) if limit else reward

  def discounts(self, inputs: types.Inputs) -> jax.Array:
    """`[T, B]`, the environment's times the agent's own."""
    return inputs.timestep.discount * self.config.discount


def optimizer(
  config: Config, steps_per_update: int = 1
) -> optax.GradientTransformation:
  """The optimizer, whose updates still have to be multiplied by -rate."""
  schedule: optax.Schedule = optax.constant_schedule(np.float32(1.0))
  if config.decay_updates:
    schedule = optax.linear_schedule(
      1.0, config.learning_rate_end, config.decay_updates * steps_per_update
    )
  scale = {
    "adam": optax.scale_by_adam(eps=config.adam_epsilon),
    "rmsprop": optax.scale_by_rms(config.rms_decay, config.rms_epsilon),
  }
  return optax.chain(
    optax.clip_by_global_norm(config.max_gradient_norm),
    scale[config.optimizer],
    optax.scale_by_schedule(schedule),
  )


def start_optimizer(
  by: optax.GradientTransformation, params: types.Tree, steps: int | jax.Array
) -> types.Tree:
  """The state of `optimizer` for parameters that took some steps before."""
  *scales, schedule = by.init(params)
  return (*scales, schedule._replace(count=jnp.int32(steps)))


def descend(
  state: base.AgentState,
  by: optax.GradientTransformation,
  gradients: types.Tree,
) -> base.AgentState:
  """One step of `optimizer` with the state's learning rate."""
  updates, optimizer_state = by.update(
    gradients, state.optimizer_state, state.params
  )
  rate = state.hyperparameters["learning_rate"]
  updates = jax.tree.map(lambda update: -rate * update, updates)
  return dataclasses.replace(
    state,
    params=optax.apply_updates(state.params, updates),
    optimizer_state=optimizer_state,
  )


def count_batch(state: base.AgentState, moments: types.Tree) -> base.AgentState:
  """The state after a batch: statistics with its moments, one update more."""
  statistics = state.statistics
  if statistics:
    statistics = normalizer.merge(statistics, moments, state.updates)
  return dataclasses.replace(
    state, statistics=statistics, updates=state.updates + 1
  )


def _check_use(config: Config, observation: list[dm_env.specs.Array]) -> None:
  """Refuses what would do nothing, in silence, for some observations."""
  if config.stack_frames > 1 and not any(map(networks.is_image, observation)):
    raise types.ConfigError(
      "expected stack_frames 1 for observations without images (bytes of rank"
      f" 3), found {config.stack_frames}; an LSTM remembers them all"
    )
  if config.normalize_observations and not any(
    np.issubdtype(spec.dtype, np.floating) for spec in observation
  ):
    raise types.ConfigError(
      "expected normalize_observations False for observations without floats,"
      " found True; images are standardized, discrete parts are one-hot"
    )


def _without_mask(
  spec: types.EnvironmentSpec, observation: types.Tree
) -> tuple[types.Tree, types.Tree | None]:
  """An observation, or its specs, apart from its action mask."""
  if spec.action_mask is None:
    return observation, None
  rest = {k: v for k, v in observation.items() if k != spec.action_mask}
  return rest, observation[spec.action_mask]
