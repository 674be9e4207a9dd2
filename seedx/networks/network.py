"""The network of every agent: frame stack, torso, LSTM, head."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import dm_env.specs
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.networks import frame_stack, lstm, torsos


class CoreState(NamedTuple):
  """What a network carries from step to step.

  Attributes:
    frames: for each image of the observation, its last frames, see
      `frame_stack.FrameStack`.
    lstm: the LSTM's state, or () without one.
  """

  frames: tuple[types.Array, ...]
  lstm: types.Tree


class Network(nn.Module):
  """Frame stack, torso, an optional LSTM, and a head.

  The LSTM sees the torso's features, the previous action and the reward, as in
  IMPALA (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, figure 3).

  Attributes:
    observation: the leaves of the observation's nest of specs.
    action: the action spec.
    head: maps features `[T, B, F]` to a nest of `[T, B, ...]`.
    sizes: units of the MLP's layers.
    image_torso: one of `torsos.IMAGE_TORSOS`.
    stack_frames: frames in a stack of images.
    lstm_size: units of the LSTM; 0 for none.
    torso: maps the observation's nest `[T * B, ...]`, with stacked images, to
      features `[T * B, F]`; None for `torsos.Torso`.
    dtype: of the computation; parameters are float32.
  """

  observation: tuple[dm_env.specs.Array, ...]
  action: dm_env.specs.Array
  head: nn.Module
  sizes: Sequence[int] = (64, 64)
  image_torso: str = "nature"
  stack_frames: int = 1
  lstm_size: int = 0
  torso: nn.Module | None = None
  dtype: Any = jnp.float32

  def initial_core_state(self, batch_size: int) -> CoreState:
    """The core state at the start of an episode, `[batch_size, ...]` zeros."""
    stack = frame_stack.FrameStack(self.stack_frames)
    frames = tuple(
      stack.initial_state(batch_size, spec.shape, spec.dtype)
      for spec in self.observation
      if torsos.is_image(spec)
    )
    cell = lstm.initial_state(batch_size, self.lstm_size)
    return CoreState(frames, cell if self.lstm_size else ())

  @nn.compact
  def __call__(
    self,
    inputs: types.Inputs,
    core_state: CoreState,
    at: jax.Array | None = None,
  ) -> tuple[types.Tree, CoreState]:
    """Unrolls the network over a stream; a step is a stream of length 1.

    Args:
      inputs: `[T, B, ...]`.
      core_state: `[B, ...]`, before the first step.
      at: `[K, B]` int, the time steps of which there are outputs, if there is
        no LSTM; None for all.

    Returns:
      The head's outputs, a nest of `[T, B, ...]`, or `[K, B, ...]`, and the
      core state after the last step.
    """
    step_type = inputs.timestep.step_type
    observation, frames = self._stacked(inputs, core_state.frames)
    if at is not None:
      assert not self.lstm_size
      observation, step_type = steps_at((observation, step_type), at)
    # Convolutions run on the merged [T * B]; only the LSTM is scanned.
    torso = self.torso or torsos.Torso(
      self.observation, self.sizes, self.image_torso, self.dtype
    )
    features = torso(
      jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), observation)
    )
    features = features.reshape(*step_type.shape, -1)
    cell: types.Tree = ()
    if self.lstm_size:
      joined = jnp.concatenate([features, *self._past(inputs)], axis=-1)
      core = lstm.LSTM(self.lstm_size, self.dtype)
      features, cell = core(joined, step_type, core_state.lstm)
    return self.head(features), CoreState(frames, cell)

  def _stacked(
    self, inputs: types.Inputs, past: tuple[types.Array, ...]
  ) -> tuple[types.Tree, tuple[types.Array, ...]]:
    """The observation with stacked images, and the next `CoreState.frames`."""
    stack = frame_stack.FrameStack(self.stack_frames)
    leaves, structure = jax.tree.flatten(inputs.timestep.observation)
    before, after = iter(past), []
    for i, spec in enumerate(self.observation):
      if torsos.is_image(spec):
        leaves[i], state = stack.unroll(
          leaves[i], inputs.timestep.step_type, next(before)
        )
        after.append(state)
    return jax.tree.unflatten(structure, leaves), tuple(after)

  def _past(self, inputs: types.Inputs) -> list[jax.Array]:
    """The previous action and its reward as features, `[T, B, F]` each."""
    goes_on = inputs.timestep.step_type != int(dm_env.StepType.FIRST)
    action = inputs.action_tm1
    if np.issubdtype(self.action.dtype, np.integer):
      most = int(np.max(self.action.maximum)) + 1
      action = jax.nn.one_hot(action, most)
    action = action.reshape(*goes_on.shape, -1) * goes_on[..., None]
    reward = jnp.clip(inputs.timestep.reward, -1.0, 1.0)[..., None]
    return [action.astype(self.dtype), reward.astype(self.dtype)]


def steps_at(nest: types.Tree, at: jax.Array) -> types.Tree:
  """Some time steps of each stream of a batch.

  Args:
    nest: of `[T, B, ...]`.
    at: `[K, B]` int, the time steps.

  Returns:
    A nest of `[K, B, ...]`.
  """
  return jax.tree.map(lambda leaf: leaf[at, jnp.arange(at.shape[1])], nest)
