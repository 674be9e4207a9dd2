"""Heads: from features to policies, values and Q-values."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp


class PolicyValue(NamedTuple):
  """A policy and a value for each step.

  Attributes:
    policy: `[..., P]` float32, parameters of the action distribution.
    value: `[...]` float32.
  """

  policy: jax.Array
  value: jax.Array


class PolicyValueHead(nn.Module):
  """One linear layer for the policy and one for the value.

  Attributes:
    num_policy_parameters: P, parameters of the action distribution.
  """

  num_policy_parameters: int

  @nn.compact
  def __call__(self, features: jax.Array) -> PolicyValue:
    """Maps `[B, F]` to `PolicyValue` of `[B, ...]`."""
    return PolicyValue(
      policy=_linear(self.num_policy_parameters, 0.01)(features),
      value=_linear(1, 1.0)(features)[..., 0],
    )


class QHead(nn.Module):
  """Q-values from one linear layer, or from a dueling network.

  The dueling network, Q(a) = V + A(a) - mean_b A(b), has a hidden layer before
  V and one before A (Wang et al. 2016, https://arxiv.org/abs/1511.06581,
  equation 9).

  Attributes:
    num_actions: A.
    dueling: use a dueling network.
    size: units of its hidden layers.
    dtype: of the hidden layers' computation; parameters are float32.
  """

  num_actions: int
  dueling: bool = False
  size: int = 64
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps `[B, F]` to Q-values `[B, A]` float32."""
    if not self.dueling:
      return _linear(self.num_actions, 1.0)(features)
    value = _linear(1, 1.0)(self._hidden(features))
    advantage = _linear(self.num_actions, 1.0)(self._hidden(features))
    return value + advantage - advantage.mean(axis=-1, keepdims=True)

  def _hidden(self, features: jax.Array) -> jax.Array:
    layer = nn.Dense(
      self.size,
      dtype=self.dtype,
      kernel_init=nn.initializers.orthogonal(2.0**0.5),
    )
    return nn.relu(layer(features))


def _linear(size: int, scale: float) -> nn.Dense:
  """A linear layer that computes in float32, whatever the features' dtype."""
  return nn.Dense(size, kernel_init=nn.initializers.orthogonal(scale))
