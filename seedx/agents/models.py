"""The hyper-parameters and the model that all agents share."""

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self

import dm_env.specs
import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx import networks, types
from seedx.agents import acting_step, base, normalizer, optimizers
from seedx.on_cpu import random_keys

_MAX_LAYERS = 32
# Device arrays of more elements need other indices than int32.
_MAX_PARAMETERS = 2**31


@dataclasses.dataclass(frozen=True)
class Config(optimizers.Config):
  """Hyper-parameters that every agent has in addition to its optimizer's.

  Attributes:
    discount: discount factor (gamma) per env step.
    reward_scale: factor of rewards in the loss; reported returns stay raw.
    reward_clip: largest absolute value of scaled rewards in the loss; 0 for no
      clipping.
    normalize_observations: normalization of vectors of floats to mean 0 and
      variance 1.
    hidden_sizes: units of the MLP's layers; none (`--hidden-sizes ,`) for a
      head that is linear in the observation.
    activation: function after each of these layers.
    layer_norm: layer normalization before each activation of the MLP, of
      critics, and of networks for images; not in a torso of your own.
    image_torso: network for images, "nature" (DQN's CNN; two smaller
      convolutions for images of less than 36 pixels a side), "impala" (ResNet),
      or "minatar" (one convolution, for grids of symbols).
    stack_frames: frames stacked in an observation; for images only.
    torso: your own Flax module instead of the MLP and the image network, from
      the observation's nest of `[B, ...]` to features `[B, F]`.
    compute_dtype: dtype of the network's activations; parameters are float32,
      and so are the activations of actors with a copy of the parameters.
  """

  discount: float = types.setting(0.99, changes="run_time", low=0.0, high=1.0)
  reward_scale: float = types.setting(1.0, low=-types.MAX_VALUE)
  reward_clip: float = types.setting(0.0, low=0.0)
  normalize_observations: bool = False
  hidden_sizes: tuple[int, ...] = types.setting((64, 64), low=1, high=2**20)
  activation: Literal["tanh", "relu"] = "tanh"
  layer_norm: bool = False
  image_torso: Literal["nature", "impala", "minatar"] = "nature"
  stack_frames: int = types.setting(1, low=1, high=64)
  torso: nn.Module | None = None
  # On an H200, bfloat16 took 15% off an update of the Nature CNN, but nothing
  # off acting (`benchmarks/accelerator.md`); XLA multiplies in TF32 there.
  compute_dtype: Literal["float32", "bfloat16"] = "float32"

  def for_images(self) -> Self:
    """Returns a copy for Atari: stacked frames, and rewards clipped to 1."""
    return dataclasses.replace(
      self, reward_scale=1.0, reward_clip=1.0, stack_frames=4
    )

  def for_small(self) -> Self:
    """Returns a copy for small tasks, see `envs.games`: smaller rewards.

    A pole that is balanced for ever has a discounted return of 100, times 0.1.
    """
    return dataclasses.replace(self, reward_scale=0.1)

  @property
  def memory(self) -> nn.Module | None:
    """The network's core, see `networks.Core`; None for no memory."""
    return None


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(Config):
  """Hyper-parameters of agents that may have a memory.

  Attributes:
    recurrent: whether the network has a memory.
    lstm_size: units of the LSTM, the memory if there is no `core`.
    core: your own Flax module as the memory, see `networks.Core`.
  """

  recurrent: bool = False
  lstm_size: int = types.setting(128, low=1, high=2**16)
  core: nn.Module | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    check_core(self.core)
    if self.core is not None and not self.recurrent:
      raise types.ConfigError(
        "expected recurrent True with a core of your own, found False"
      )

  @property
  def memory(self) -> nn.Module | None:
    """The core, or an LSTM; None if the network is not recurrent."""
    if not self.recurrent:
      return None
    return memory(self.core, self.lstm_size, self.compute_dtype)


class Variables(NamedTuple):
  """The variables of a model.

  Attributes:
    params: parameters of the network.
    statistics: statistics of observations, see `normalizer`; () without
      normalization.
  """

  params: types.Tree
  statistics: types.Tree


class Output(NamedTuple):
  """A model's outputs for a stream.

  Attributes:
    head: the head's outputs, a nest of `[T, B, ...]`.
    action_mask: `[T, B, ...]`, not 0 where an action is legal; None if all are.
    core_state: `[B, ...]`, core state after the last step.
  """

  head: types.Tree
  action_mask: jax.Array | None
  core_state: types.Tree


@dataclasses.dataclass(frozen=True)
class Model:
  """A network for an environment; its methods are functions of `Variables`.

  Attributes:
    spec: the environment's actions, and the parts of its observations that the
      network sees. Inputs may have other parts, too.
    config: hyper-parameters.
    network: network, which does not see the action mask.
  """

  spec: types.EnvironmentSpec
  config: Config
  network: networks.Network

  @classmethod
  def make(
    cls,
    spec: types.EnvironmentSpec,
    config: Config,
    head: nn.Module,
    towers: int = 1,
  ) -> "Model":
    """Makes a model with a number of towers, each a torso and perhaps a core.

    The `head` maps the features of all towers to the agent's outputs.
    `types.EnvironmentSpec.without` hides parts of observations.

    Raises:
      types.ConfigError: an option has no effect on the observations, or there
        are too many layers.
    """
    observation, _ = without_mask(spec, spec.observation)
    leaves = tuple(jax.tree.leaves(observation))
    _check_use(config, leaves)
    network = networks.Network(
      observation=leaves,
      action=spec.action,
      head=head,
      towers=tuple(_tower(config, leaves, i) for i in range(towers)),
      stack_frames=config.stack_frames,
      dtype=jnp.dtype(config.compute_dtype),
    )
    return cls(spec, config, network)

  def init(
    self, rng_key: jax.Array, action: jax.Array | None = None
  ) -> Variables:
    """Returns initial variables; a critic has an action `[1, 1, ...]`.

    Raises types.ConfigError, also when traced, if the network is too large, or
    has state or random numbers of its own.
    """
    inputs = jax.tree.map(
      lambda x: jnp.asarray(x)[None], acting_step.zero_inputs(self.spec, 1)
    )
    observation, _ = without_mask(self.spec, inputs.timestep.observation)
    timestep = inputs.timestep._replace(observation=observation)
    arguments = (
      inputs._replace(timestep=timestep),
      self.network.initial_core_state(1),
      None,
      action,
    )
    # Unrolled keys draw the same numbers, but compile in a third of the time.
    params = self.network.init(random_keys.unrolled(rng_key), *arguments)
    if self.config.torso is not None or self.config.memory is not None:
      _check_variables(self.network, params, *arguments)
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
    if size > _MAX_PARAMETERS:
      raise types.ConfigError(
        f"expected a network of at most {_MAX_PARAMETERS:,} parameters, found"
        f" {size:,}; make its layers smaller, see hidden_sizes"
      )
    statistics: types.Tree = ()
    if self.config.normalize_observations:
      spec, _ = without_mask(self.spec, self.spec.observation)
      statistics = normalizer.init(spec)
    return Variables(params, statistics)

  def initial_core_state(self, batch_size: int) -> types.Tree:
    """Returns core states at an episode's start, `[batch_size, ...]`."""
    return self.network.initial_core_state(batch_size)

  def unroll(
    self,
    variables: Variables,
    inputs: types.Inputs,
    core_state: types.Tree,
    rng_key: jax.Array | None = None,
    at: jax.Array | None = None,
    action: jax.Array | None = None,
  ) -> Output:
    """Returns the network's outputs for inputs `[T, B, ...]`.

    The core state `[B, ...]` precedes the first step. Without `rng_key`, noisy
    layers have no noise. With `at`, `[K, B]`, only the outputs of these steps
    are computed (see `networks.Network`). A head such as a critic's takes an
    action `[T, B, ...]`, or `[K, B, ...]` for these steps.
    """
    observation, mask = without_mask(self.spec, inputs.timestep.observation)
    if self.config.normalize_observations:
      spec, _ = without_mask(self.spec, self.spec.observation)
      observation = normalizer.normalize(
        variables.statistics, spec, observation
      )
    timestep = inputs.timestep._replace(observation=observation)
    head, core_state = self.network.apply(
      variables.params,
      inputs._replace(timestep=timestep),
      core_state,
      at,
      action,
      rngs=None if rng_key is None else {networks.NOISE: rng_key},
    )
    if at is not None:
      mask = networks.steps_at(mask, at)
    return Output(head, mask, core_state)

  def moments(
    self, statistics: types.Tree, inputs: types.Inputs, axis_name: str | None
  ) -> types.Tree:
    """Returns moments of inputs `[T + 1, B, ...]`; () without normalization.

    The last observation of each episode and of each unroll is left out, since
    no step is learned from it.
    """
    if not self.config.normalize_observations:
      return ()
    spec, _ = without_mask(self.spec, self.spec.observation)
    observation, _ = without_mask(self.spec, inputs.timestep.observation)
    first = inputs.timestep.step_type[1:] == int(dm_env.StepType.FIRST)
    return normalizer.measure(
      statistics,
      spec,
      jax.tree.map(lambda leaf: leaf[:-1], observation),
      1.0 - first.astype(jnp.float32),
      axis_name,
    )

  def rewards(self, inputs: types.Inputs) -> jax.Array:
    """Returns rewards `[T, B]`, scaled and clipped."""
    reward = inputs.timestep.reward * self.config.reward_scale
    limit = self.config.reward_clip
    return jnp.clip(reward, -limit, limit) if limit else reward

  def discounts(
    self, inputs: types.Inputs, discount: jax.Array | float
  ) -> jax.Array:
    """Returns discounts `[T, B]`, the environment's times gamma."""
    return inputs.timestep.discount * discount


def on_cpu(config: base.Config) -> base.Config:
  """Returns the config of an agent that acts on a CPU, in float32.

  On a CPU, the image network "nature" takes 1.5 times as long in bfloat16.
  """
  if not isinstance(config, Config):
    return config
  return dataclasses.replace(config, compute_dtype="float32")


def memory(
  core: nn.Module | None, lstm_size: int, dtype: str
) -> nn.Module | None:
  """Returns the user's core, or else an LSTM; None if `lstm_size` is 0."""
  if core is not None or not lstm_size:
    return core
  return networks.LSTM(lstm_size, jnp.dtype(dtype))


def check_core(core: nn.Module | None) -> None:
  """Raises types.ConfigError if the user's core is not a `networks.Core`."""
  _check_module("core", core)
  if core is not None and not hasattr(core, "initial_state"):
    raise types.ConfigError(
      "expected a core with a method initial_state(batch_size), see"
      f" networks.Core, found {type(core).__name__}"
    )


def beginnings(
  config: Config,
  optimizer: optimizers.Optimizer,
  init: Callable[[jax.Array], Variables],
  targets: Callable[[types.Tree], types.Tree] = lambda params: (),
) -> tuple[
  Callable[[jax.Array], base.AgentState],
  Callable[[types.Tree, int], base.AgentState],
]:
  """Returns `base.Agent.init`, from that of a model, and `base.Agent.start`.

  `targets` maps parameters to those of the target network.
  """

  def start(params: types.Tree, updates: int) -> base.AgentState:
    return base.AgentState(
      params=params,
      optimizer_state=optimizer.start(params, updates),
      hyperparameters=base.hyperparameters(config),
      updates=jnp.int32(updates),
      target_params=targets(params),
    )

  def begin(rng_key: jax.Array) -> base.AgentState:
    variables = init(rng_key)
    state = start(variables.params, 0)
    return dataclasses.replace(state, statistics=variables.statistics)

  return begin, start


def apply(
  optimizer: optimizers.Optimizer,
  state: base.AgentState,
  gradients: base.Gradients,
) -> base.AgentState:
  """Takes one optimizer step, and counts the batch; see `base.Agent.apply`."""
  after = optimizer.descend(state, gradients.params)
  return count_batch(after, gradients.moments)


def count_batch(state: base.AgentState, moments: types.Tree) -> base.AgentState:
  """Merges a batch's moments into the statistics, and counts one update."""
  statistics = state.statistics
  if statistics:
    statistics = normalizer.merge(statistics, moments)
  return dataclasses.replace(
    state, statistics=statistics, updates=state.updates + 1
  )


def _tower(
  config: Config, observation: tuple[dm_env.specs.Array, ...], index: int
) -> networks.Tower:
  """Makes the modules of a tower, with names that no other tower has.

  The user's modules are copied: a module unpickled from another process may
  have the id of a module made here, and Flax would confuse the two.
  """
  _check_module("torso", config.torso)
  torso: nn.Module = networks.Torso(
    observation=observation,
    sizes=config.hidden_sizes,
    image_torso=config.image_torso,
    dtype=jnp.dtype(config.compute_dtype),
    activation=config.activation,
    layer_norm=config.layer_norm,
    name=f"Torso_{index}",
  )
  if config.torso is not None:
    name = f"torso_{index}" if index else "torso"
    torso = copy.deepcopy(config.torso).clone(name=name)
  core = copy.deepcopy(config.memory)
  if core is not None:
    core = core.clone(name=f"{type(core).__name__}_{index}")
  return networks.Tower(torso, core)


def _check_variables(
  network: nn.Module, variables: types.Tree, *arguments: types.Tree
) -> None:
  if extra := sorted({*variables} - {"params"}):
    raise types.ConfigError(
      "expected a network whose only variables are parameters, found the"
      f" collections {', '.join(extra)}; use layers without state, such as"
      " nn.LayerNorm in place of nn.BatchNorm"
    )
  try:
    # Only `init` lends its random key to every layer.
    jax.eval_shape(network.apply, variables, *arguments)
  except flax.errors.InvalidRngError as error:
    raise types.ConfigError(
      "expected a network without random numbers, found that"
      f" {str(error).split(' (')[0]}; leave it out, or use"
      " nn.Dropout(rate, deterministic=True)"
    ) from error


def _check_module(role: str, module: object) -> None:
  if module is None or isinstance(module, nn.Module):
    return
  words = f"an instance of {type(module).__name__}"
  if callable(module) and hasattr(module, "__name__"):
    kind = "class" if isinstance(module, type) else "function"
    words = f"the {kind} {module.__name__}"
  raise types.ConfigError(
    f"expected a {role} that is an instance of flax.linen.Module, such as"
    f" Mine(), found {words}"
  )


def _check_use(
  config: Config, observation: Sequence[dm_env.specs.Array]
) -> None:
  if len(config.hidden_sizes) > _MAX_LAYERS:
    raise types.ConfigError(
      f"expected hidden_sizes of at most {_MAX_LAYERS} layers, found"
      f" {len(config.hidden_sizes):,}"
    )
  if config.stack_frames > 1 and not any(map(types.is_image, observation)):
    raise types.ConfigError(
      f"expected stack_frames 1 for observations without images, found"
      f" {config.stack_frames}; an LSTM remembers them all, and an array is an"
      " image if it is uint8 of rank 3, or has other pixels between bounds"
    )
  if config.normalize_observations and not any(
    map(normalizer.is_normalized, observation)
  ):
    raise types.ConfigError(
      "expected normalize_observations False for observations without floats,"
      " found True; images are standardized, discrete parts are one-hot"
    )


def without_mask(
  spec: types.EnvironmentSpec, observation: types.Tree
) -> tuple[types.Tree, types.Tree | None]:
  """Splits an observation, or its specs, into network input and action mask."""
  if not isinstance(spec.observation, dict):
    return observation, None
  unseen = spec.action_mask, *spec.hidden
  seen = {k: observation[k] for k in spec.observation if k not in unseen}
  return seen, observation[spec.action_mask] if spec.action_mask else None
