"""The network of every agent: frame stack, torso, core and head."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import dm_env.specs
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.networks import frame_stack


class CoreState(NamedTuple):
  """The state that a network carries from one step to the next.

  Attributes:
    frames: latest frames of each image of the observation, see
      `frame_stack.FrameStack`.
    memory: state of each tower's core; () for a tower without a core.
  """

  frames: tuple[types.Array, ...]
  memory: tuple[types.Tree, ...]


class Core(Protocol):
  """A Flax module with a memory, such as `lstm.LSTM`."""

  def initial_state(self, batch_size: int) -> types.Tree:
    """Returns the state at the start of an episode, `[batch_size, ...]`.

    The state is a nest of only dictionaries, tuples and NamedTuples, because it
    is sent to other processes. The method is called without variables, so the
    state cannot depend on parameters.
    """

  def __call__(
    self, features: jax.Array, step_type: jax.Array, state: types.Tree
  ) -> tuple[jax.Array, types.Tree]:
    """Unrolls the core over a stream; a step is a stream of length 1.

    Args:
      features: `[T, B, F]`.
      step_type: `[T, B]`; a FIRST step starts from the initial state.
      state: `[B, ...]`, before the first step.

    Returns:
      Features `[T, B, G]`, and the state after the last step.
    """


class Tower(NamedTuple):
  """A torso and its core.

  Attributes:
    torso: module that maps the observation's nest `[T * B, ...]`, with stacked
      images, to features `[T * B, F]`.
    core: `Core` after the torso; None for no memory.
  """

  torso: nn.Module
  core: nn.Module | None = None


class Network(nn.Module):
  """A frame stack, one or several towers, and a head.

  A core sees the torso's features, the previous action, and its reward clipped
  to [-1, 1], as in IMPALA (Espeholt et al. 2018,
  https://arxiv.org/abs/1802.01561, figure 3).

  Attributes:
    observation: leaves of the observation's nest of specs.
    action: action spec.
    head: module that maps the features `[T, B, F]` of each tower, one argument
      per tower, to a nest of `[T, B, ...]`. The head also takes `action` if the
      network is called with one.
    towers: one or several towers; the names of their modules are keys of the
      parameters.
    stack_frames: number of frames in a stack of images.
    dtype: dtype of the previous action and reward that cores see.
  """

  preserve_adopted_names = True

  observation: tuple[dm_env.specs.Array, ...]
  action: dm_env.specs.Array
  head: nn.Module
  towers: Sequence[Tower]
  stack_frames: int = 1
  dtype: Any = jnp.float32

  @property
  def recurrent(self) -> bool:
    """Whether any tower has a core."""
    return any(tower.core is not None for tower in self.towers)

  def initial_core_state(self, batch_size: int) -> CoreState:
    """Returns the core state at the start of episodes, `[batch_size, ...]`."""
    stack = frame_stack.FrameStack(self.stack_frames)
    frames = tuple(
      stack.initial_state(batch_size, spec.shape, spec.dtype)
      for spec in self.observation
      if types.is_image(spec)
    )
    cores = (tower.core for tower in self.towers)
    memory = (() if x is None else x.initial_state(batch_size) for x in cores)
    return CoreState(frames, tuple(memory))

  @nn.compact
  def __call__(
    self,
    inputs: types.Inputs,
    core_state: CoreState,
    at: jax.Array | None = None,
    action: jax.Array | None = None,
  ) -> tuple[types.Tree, CoreState]:
    """Unrolls the network over a stream; a step is a stream of length 1.

    Args:
      inputs: `[T, B, ...]`.
      core_state: `[B, ...]`, before the first step.
      at: `[K, B]` int, time steps whose outputs are computed; None for all. A
        network with cores requires None.
      action: `[T, B, ...]` or `[K, B, ...]`, actions for the head at the steps
        whose outputs are computed; None for a head without `action`.

    Returns:
      The head's outputs, a nest of `[T, B, ...]` or `[K, B, ...]`, and the core
      state after the last step.

    Raises:
      types.ConfigError: a torso or a core returned arrays of wrong shapes or
        dtypes.
    """
    step_type = inputs.timestep.step_type
    observation, frames = self._stacked(inputs, core_state.frames)
    if at is not None:
      assert not self.recurrent
      observation, step_type = steps_at((observation, step_type), at)
    # Convolutions run on the merged [T * B]; only a core sees time.
    merged = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), observation)
    tower_features, memory = [], []
    for tower, before in zip(self.towers, core_state.memory, strict=True):
      features = tower.torso(merged)
      _check_batch(tower.torso, features, step_type.size)
      features = features.reshape(*step_type.shape, -1)
      after: types.Tree = ()
      if tower.core is not None:
        joined = jnp.concatenate([features, *self._previous(inputs)], axis=-1)
        features, after = tower.core(joined, step_type, before)
        _check(tower.core, features, step_type, before, after)
      tower_features.append(features)
      memory.append(after)
    options = {} if action is None else {"action": action}
    return self.head(*tower_features, **options), CoreState(
      frames, tuple(memory)
    )

  def _stacked(
    self, inputs: types.Inputs, past: tuple[types.Array, ...]
  ) -> tuple[types.Tree, tuple[types.Array, ...]]:
    """Returns the observation with stacked images, and the latest frames."""
    stack = frame_stack.FrameStack(self.stack_frames)
    leaves, structure = jax.tree.flatten(inputs.timestep.observation)
    before, after = iter(past), []
    for i, spec in enumerate(self.observation):
      if types.is_image(spec):
        leaves[i], state = stack.unroll(
          leaves[i], inputs.timestep.step_type, next(before)
        )
        after.append(state)
    return jax.tree.unflatten(structure, leaves), tuple(after)

  def _previous(self, inputs: types.Inputs) -> list[jax.Array]:
    """Returns the previous action and clipped reward, `[T, B, F]` each."""
    has_previous = inputs.timestep.step_type != int(dm_env.StepType.FIRST)
    action = inputs.action_tm1
    if np.issubdtype(self.action.dtype, np.integer):
      action = _one_hot(self.action, action)
    elif isinstance(self.action, types.HybridArray):
      count = self.action.num_choices
      choices = _one_hot(self.action.choices, action[..., :count])
      choices = choices.reshape(*has_previous.shape, -1)
      action = jnp.concatenate([choices, action[..., count:]], axis=-1)
    action = action.reshape(*has_previous.shape, -1) * has_previous[..., None]
    reward = jnp.clip(inputs.timestep.reward, -1.0, 1.0)[..., None]
    return [action.astype(self.dtype), reward.astype(self.dtype)]


def _one_hot(spec: dm_env.specs.Array, action: jax.Array) -> jax.Array:
  return jax.nn.one_hot(action, int(np.max(spec.maximum)) + 1)


def steps_at(nest: types.Tree, at: jax.Array) -> types.Tree:
  """Returns some time steps of each stream of a batch.

  With `at` of `[K, B]` int, leaves of `[T, B, ...]` become `[K, B, ...]`.
  """
  return jax.tree.map(lambda leaf: leaf[at, jnp.arange(at.shape[1])], nest)


def _check_batch(torso: nn.Module, features: Any, batch_size: int) -> None:
  shape = [*features.shape] if hasattr(features, "shape") else None
  if not shape or shape[0] != batch_size:
    words = type(features).__name__ if shape is None else shape
    raise types.ConfigError(
      f"expected features {[batch_size, 'F']} of the torso"
      f" {type(torso).__name__}, one row for each observation, found {words}"
    )


def _check(
  core: nn.Module,
  features: jax.Array,
  step_type: jax.Array,
  before: types.Tree,
  after: types.Tree,
) -> None:
  name = type(core).__name__
  if features.shape[:-1] != step_type.shape:
    raise types.ConfigError(
      f"expected features {[*step_type.shape, 'G']} of the core {name}, found"
      f" {[*features.shape]}"
    )
  expected, actual = (
    jax.tree.map(lambda x: f"{x.dtype}{[*x.shape]}", state)
    for state in (before, after)
  )
  if actual != expected:
    raise types.ConfigError(
      f"expected the core {name} to return a state like that of initial_state,"
      f" {expected}, found {actual}"
    )
