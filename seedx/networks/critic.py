"""Critics of (state, action), and the head of their actors."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx.networks import heads, torsos


class ActorHead(nn.Module):
  """A linear layer whose first outputs are close to 0.

  Attributes:
    num_parameters: P, number of parameters of the policy.
  """

  num_parameters: int

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to `[..., P]` float32."""
    return heads.linear(self.num_parameters, 0.01)(features)


class Critic(nn.Module):
  """Critics side by side, each an MLP of the features and the action.

  Attributes:
    sizes: number of units of each hidden layer.
    num_critics: C, number of critics.
    parts: Z, number of outputs of each critic, such as atoms; 0 for one Q-value
      and no Z axis.
    is_linear: whether Q is linear in the action: each critic has an output for
      each dimension of the action, which weights them. So Q of a distribution
      over discrete actions is the mean of theirs.
    activation: key of `ACTIVATIONS`, for the hidden layers.
    layer_norm: whether each activation follows a layer normalization.
    dtype: dtype of the hidden layers; outputs are float32.
  """

  sizes: Sequence[int]
  num_critics: int = 1
  parts: int = 0
  is_linear: bool = False
  activation: str = "relu"
  layer_norm: bool = False
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, features: jax.Array, action: jax.Array) -> jax.Array:
    """Maps `[..., F]` and `[..., A]` to `[..., C]`, or `[..., C, Z]`."""
    batch = features.shape[:-1]
    # With one batch axis, no gradient of a kernel transposes its operands.
    rows = features.astype(self.dtype).reshape(-1, features.shape[-1])
    action = action.reshape(-1, action.shape[-1])
    if self.is_linear:
      size = action.shape[-1]
      values = [self._critic(rows, size) for _ in range(self.num_critics)]
      outputs = jnp.stack([jnp.sum(x * action, axis=-1) for x in values], -1)
    else:
      joined = jnp.concatenate([rows, action.astype(self.dtype)], axis=-1)
      size = max(self.parts, 1)
      each = [self._critic(joined, size) for _ in range(self.num_critics)]
      outputs = jnp.concatenate(each, axis=-1)
      if self.parts:
        outputs = jnp.stack(each, axis=-2)
    return outputs.reshape(*batch, *outputs.shape[1:])

  def _critic(self, hidden: jax.Array, num_outputs: int) -> jax.Array:
    for size in self.sizes:
      hidden = torsos.dense(size, self.dtype)(hidden)
      hidden = torsos.activated(hidden, self.activation, self.layer_norm)
    return heads.linear(num_outputs, 1.0)(hidden)
