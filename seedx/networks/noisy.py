"""A noisy layer, which explores by noise whose scale is learned."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

# The name of the noise's random numbers among Flax's `rngs`.
NOISE = "noise"


class NoisyDense(nn.Module):
  """A linear layer with factorised Gaussian noise.

      y_j = mu_j(x) + f(e_j) (sigma_j0 + sum_i sigma_ji f(e_i) x_i)
      f(e) = sign(e) sqrt(|e|),  e normal

  where mu is a linear layer. Each stream of a batch has its own noise, constant
  over its steps, so that environments explore differently; no noisy matrix is
  built. Without random numbers named `NOISE` the output is mu(x). Fortunato et
  al. 2018, https://arxiv.org/abs/1706.10295, section 3.

  Attributes:
    size: number of outputs.
    scale: factor of the initial sigma, scale / sqrt(number of inputs).
    kernel_init: initializer of mu's matrix; mu's bias is initially 0.
  """

  size: int
  scale: float = 0.5
  kernel_init: Callable[..., jax.Array] = nn.initializers.orthogonal()
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps `[T, B, F]` to `[T, B, size]`."""
    _, streams, inputs = features.shape
    sigma = nn.initializers.constant(self.scale / inputs**0.5)
    mean = nn.Dense(self.size, dtype=self.dtype, kernel_init=self.kernel_init)
    spread = nn.Dense(
      self.size, dtype=self.dtype, kernel_init=sigma, bias_init=sigma
    )
    if not self.has_rng(NOISE):
      if self.is_initializing():
        spread(features)
      return mean(features)
    noise = _noise(self.make_rng(NOISE), (streams, inputs + self.size))
    before, after = jnp.split(noise.astype(features.dtype), [inputs], axis=-1)
    return mean(features) + after * spread(before * features)


def _noise(rng_key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  normal = jax.random.normal(rng_key, shape)
  # Without the barrier, XLA draws the noise again for each time step.
  return jax.lax.optimization_barrier(
    jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))
  )
