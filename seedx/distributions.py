"""Action distributions: what a policy head's outputs mean."""

import dataclasses

import distrax
import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types


@dataclasses.dataclass(frozen=True)
class Categorical:
  """One of `num_actions` discrete actions, from as many logits."""

  num_actions: int

  @property
  def num_parameters(self) -> int:
    """How many outputs of the policy head it takes."""
    return self.num_actions

  def __call__(self, parameters: jax.Array) -> distrax.Distribution:
    """The distribution of `[..., num_actions]`; actions are `[...]` int32."""
    return distrax.Categorical(logits=parameters.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class BoundedGaussian:
  """A diagonal Gaussian in units of the action bounds.

  Outputs of 0 mean the middle of the bounds and a standard deviation of half
  the distance from there to a bound. Samples are not cut: environments clip
  what they are sent, and the density stays that of the sample.

  Attributes:
    minimum: A lower bounds.
    maximum: A upper bounds.
  """

  minimum: tuple[float, ...]
  maximum: tuple[float, ...]

  @property
  def num_parameters(self) -> int:
    """How many outputs of the policy head it takes: A means, A log scales."""
    return 2 * len(self.minimum)

  def __call__(self, parameters: jax.Array) -> distrax.Distribution:
    """The distribution of `[..., 2 A]`; actions are `[..., A]` float32."""
    mean, log_scale = jnp.split(parameters.astype(jnp.float32), 2, axis=-1)
    middle = jnp.asarray(np.add(self.minimum, self.maximum) / 2, jnp.float32)
    half = jnp.asarray(np.subtract(self.maximum, self.minimum) / 2, jnp.float32)
    scale = 0.5 * half * jnp.exp(jnp.clip(log_scale, -5.0, 2.0))
    return distrax.MultivariateNormalDiag(middle + half * mean, scale)


def for_spec(
  spec: dm_env.specs.BoundedArray,
) -> Categorical | BoundedGaussian:
  """The distribution over the actions that a spec allows.

  Raises:
    types.ConfigError: the spec is neither discrete nor a vector of floats
      between finite bounds.
  """
  if isinstance(spec, dm_env.specs.DiscreteArray):
    return Categorical(int(spec.num_values))
  bounds = [
    np.broadcast_to(b, spec.shape) for b in (spec.minimum, spec.maximum)
  ]
  is_vector = len(spec.shape) == 1 and np.issubdtype(spec.dtype, np.floating)
  if not (
    is_vector and np.all(np.isfinite(bounds)) and np.all(bounds[0] < bounds[1])
  ):
    raise types.ConfigError(
      "expected discrete actions, or a vector of floats between different and"
      f" finite bounds, found {spec}"
    )
  minimum, maximum = (tuple(float(x) for x in bound) for bound in bounds)
  return BoundedGaussian(minimum, maximum)
