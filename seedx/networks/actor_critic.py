"""A policy and a value on one torso."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import dm_env.specs
import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx import types
from seedx.networks import frame_stack, torsos


class ActorCriticOutput(NamedTuple):
  """What the heads say of each step.

  Attributes:
    policy: `[T, B, P]`, parameters of the action distribution.
    value: `[T, B]` float32.
  """

  policy: jax.Array
  value: jax.Array


class ActorCritic(nn.Module):
  """Frame stack, torso, policy head and value head.

  Attributes:
    observation: the observation's specs, as a tuple of the nest's leaves.
    num_policy_parameters: P, outputs of the policy head.
    sizes: units of the MLP's layers.
    stack_frames: how many frames images are stacked over.
    dtype: of the computation; parameters are float32.
  """

  observation: tuple[dm_env.specs.Array, ...]
  num_policy_parameters: int
  sizes: Sequence[int] = (64, 64)
  stack_frames: int = 1
  dtype: Any = jnp.float32

  def initial_core_state(self, batch_size: int) -> types.Tree:
    """The frames before an episode, a tuple with `[B, ...]` for each image."""
    stack = frame_stack.FrameStack(self.stack_frames)
    return tuple(
      stack.initial_state(batch_size, spec.shape, spec.dtype)
      for spec in self.observation
      if torsos.is_image(spec)
    )

  @nn.compact
  def __call__(
    self, inputs: types.Inputs, core_state: types.Tree
  ) -> tuple[ActorCriticOutput, types.Tree]:
    """Unrolls the network over a stream; a step is a stream of length 1.

    Args:
      inputs: `[T, B, ...]`.
      core_state: `[B, ...]`, as it was before the first step.

    Returns:
      `ActorCriticOutput` of `[T, B, ...]` and the core state after the last.
    """
    timestep = inputs.timestep
    stack = frame_stack.FrameStack(self.stack_frames)
    leaves, structure = jax.tree.flatten(timestep.observation)
    states, past = [], list(core_state)
    for i, spec in enumerate(self.observation):
      if torsos.is_image(spec):
        leaves[i], state = stack.unroll(
          leaves[i], timestep.step_type, past.pop(0)
        )
        states.append(state)
    merged = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), leaves)
    features = torsos.Torso(self.observation, self.sizes, self.dtype)(
      jax.tree.unflatten(structure, merged)
    )
    # Convolutions ran on the merged [T * B]; the heads' outputs are split.
    policy = _head(self.num_policy_parameters, 0.01)(features)
    value = _head(1, 1.0)(features)
    length, batch_size = timestep.step_type.shape
    output = ActorCriticOutput(
      policy=policy.reshape(length, batch_size, -1),
      value=value.reshape(length, batch_size),
    )
    return output, tuple(states)


def _head(size: int, scale: float) -> nn.Dense:
  return nn.Dense(size, kernel_init=nn.initializers.orthogonal(scale))
