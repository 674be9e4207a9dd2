"""Heads, which map features to policies, values and Q-values."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx.networks import noisy
from seedx.on_cpu import product


class PolicyValue(NamedTuple):
  """A policy and a value for each step.

  Attributes:
    policy: `[..., P]` float32, parameters of action distributions.
    value: `[...]` float32.
  """

  policy: jax.Array
  value: jax.Array


class PolicyValueHead(nn.Module):
  """A head with a linear layer for the policy, and one for the value.

  Attributes:
    num_policy_parameters: P, number of parameters of the action distribution.
  """

  num_policy_parameters: int

  @nn.compact
  def __call__(
    self, features: jax.Array, value_features: jax.Array | None = None
  ) -> PolicyValue:
    """Maps features `[..., F]` to a policy and a value.

    The value has its own `value_features`, `[..., F]`, unless they are None.
    """
    if value_features is None:
      value_features = features
    return PolicyValue(
      policy=linear(self.num_policy_parameters, 0.01)(features),
      value=linear(1, 1.0)(value_features)[..., 0],
    )


class QHead(nn.Module):
  """A head of Q-values: a linear layer, or a dueling network.

  The dueling network, Q(a) = V + A(a) - mean_b A(b), has a hidden layer before
  V and one before A (Wang et al. 2016, https://arxiv.org/abs/1511.06581,
  equation 9).

  Attributes:
    num_actions: A, number of actions.
    dueling: whether to use a dueling network.
    size: number of units of each hidden layer of the dueling network; 0 for no
      hidden layers.
    dtype: dtype of the hidden layers; Q-values are float32.
    noise_scale: scale of `noisy.NoisyDense`, which replaces all linear layers
      and takes `[T, B, F]`; 0 for linear layers.
    parts: Z, number of outputs of each action, such as atoms; 0 for one Q-value
      and no Z axis.
  """

  num_actions: int
  dueling: bool = False
  size: int = 64
  dtype: Any = jnp.float32
  noise_scale: float = 0.0
  parts: int = 0

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps `[..., F]` to `[..., A]`, or `[..., A, Z]`, float32."""
    if not self.dueling:
      return self._outputs(self.num_actions)(features)
    value = self._outputs(1)(self._hidden(features))
    advantage = self._outputs(self.num_actions)(self._hidden(features))
    action_axis = -2 if self.parts else -1
    return value + advantage - advantage.mean(axis=action_axis, keepdims=True)

  def _outputs(self, count: int) -> Callable[[jax.Array], jax.Array]:
    """Returns a layer with outputs `[..., count]`, or `[..., count, Z]`."""
    if not self.parts:
      return self._linear(count, 1.0, jnp.float32)
    layer = self._linear(count * self.parts, 1.0, jnp.float32)
    shape = count, self.parts
    return lambda hidden: layer(hidden).reshape(*hidden.shape[:-1], *shape)

  def _hidden(self, features: jax.Array) -> jax.Array:
    if not self.size:
      return features
    return nn.relu(self._linear(self.size, 2.0**0.5, self.dtype)(features))

  def _linear(
    self, size: int, scale: float, dtype: Any
  ) -> Callable[[jax.Array], jax.Array]:
    kernel_init = nn.initializers.orthogonal(scale)
    if self.noise_scale:
      return noisy.NoisyDense(size, self.noise_scale, kernel_init, dtype)
    return nn.Dense(
      size,
      dtype=dtype,
      kernel_init=kernel_init,
      dot_general=product.dot_general,
    )


class CategoricalQ(NamedTuple):
  """Distributions of the returns of actions.

  Attributes:
    q_values: `[..., A]` float32, means.
    logits: `[..., A, Z]` float32, logits of the atoms.
  """

  q_values: jax.Array
  logits: jax.Array


class CategoricalQHead(nn.Module):
  """A head of distributions of returns over fixed atoms.

  Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, section 4.1. A
  dueling network adds the value and the advantages of each atom, as in Hessel
  et al. 2018, https://arxiv.org/abs/1710.02298.

  Attributes:
    head: head with Z `parts`.
    atoms: Z returns, ascending.
  """

  head: QHead
  atoms: tuple[float, ...]

  @nn.compact
  def __call__(self, features: jax.Array) -> CategoricalQ:
    """Maps `[..., F]` to `CategoricalQ` of `[..., A, ...]`."""
    logits = self.head(features)
    q_values = jnp.sum(jax.nn.softmax(logits) * jnp.float32(self.atoms), -1)
    return CategoricalQ(q_values, logits)


def linear(size: int, scale: float) -> nn.Dense:
  """Returns a linear layer whose initial kernel is orthogonal."""
  # Without a dtype, the layer computes in float32, the parameters' dtype.
  return nn.Dense(
    size,
    kernel_init=nn.initializers.orthogonal(scale),
    dot_general=product.dot_general,
  )
