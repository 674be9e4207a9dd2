"""Action distributions: what a policy head's outputs mean."""

import dataclasses

import distrax
import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types

# The logit of what must not happen: its probability is exactly 0, and 0 times
# it as well, so that entropies and gradients stay finite.
_NEVER = -1e9


@dataclasses.dataclass(frozen=True)
class Categorical:
  """One of `num_actions` discrete actions, from as many logits."""

  num_actions: int

  @property
  def num_parameters(self) -> int:
    """How many outputs of the policy head it takes."""
    return self.num_actions

  def __call__(
    self, parameters: jax.Array, action_mask: jax.Array | None = None
  ) -> distrax.Distribution:
    """The distribution of some logits; actions are `[...]` int32.

    Args:
      parameters: `[..., num_actions]`.
      action_mask: `[..., num_actions]`, not 0 where an action is legal; the
        others have probability 0. None where all are.
    """
    logits = parameters.astype(jnp.float32)
    return distrax.Categorical(logits=only_legal(logits, action_mask))


@dataclasses.dataclass(frozen=True)
class MultiCategorical:
  """Several independent choices at once.

  Attributes:
    num_actions: of each choice.
  """

  num_actions: tuple[int, ...]

  @property
  def num_parameters(self) -> int:
    """How many outputs of the policy head it takes: a logit for each action."""
    return sum(self.num_actions)

  def __call__(self, parameters: jax.Array) -> distrax.Distribution:
    """The distribution of `[..., P]`; actions are `[..., choices]` int32."""
    ends = np.cumsum(self.num_actions)[:-1]
    parts = jnp.split(parameters.astype(jnp.float32), ends, axis=-1)
    most = max(self.num_actions)
    padded = [
      jnp.pad(
        part,
        [(0, 0)] * (part.ndim - 1) + [(0, most - part.shape[-1])],
        constant_values=_NEVER,
      )
      for part in parts
    ]
    return distrax.Independent(
      distrax.Categorical(logits=jnp.stack(padded, axis=-2)),
      reinterpreted_batch_ndims=1,
    )


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


Distribution = distrax.Distribution
Policy = Categorical | MultiCategorical | BoundedGaussian


def only_legal(values: jax.Array, action_mask: jax.Array | None) -> jax.Array:
  """Logits or Q-values with those of illegal actions far below all others.

  Args:
    values: `[..., A]`.
    action_mask: `[..., A]`, not 0 where an action is legal; None for all.
  """
  if action_mask is None:
    return values
  return jnp.where(action_mask != 0, values, _NEVER)


def for_spec(spec: dm_env.specs.BoundedArray) -> Policy:
  """The distribution over the actions that a spec allows.

  Raises:
    types.ConfigError: the spec is neither discrete, nor a vector of integers
      from 0, nor a vector of floats between finite bounds.
  """
  if isinstance(spec, dm_env.specs.DiscreteArray):
    return Categorical(int(spec.num_values))
  minimum, maximum = (
    np.broadcast_to(b, spec.shape) for b in (spec.minimum, spec.maximum)
  )
  is_vector = len(spec.shape) == 1
  if is_vector and np.issubdtype(spec.dtype, np.integer) and not minimum.any():
    return MultiCategorical(tuple(int(high) + 1 for high in maximum))
  if (
    is_vector
    and np.issubdtype(spec.dtype, np.floating)
    and np.all(np.isfinite([minimum, maximum]))
    and np.all(minimum < maximum)
  ):
    return BoundedGaussian(
      tuple(map(float, minimum)), tuple(map(float, maximum))
    )
  raise types.ConfigError(
    "expected discrete actions, a vector of integers from 0, or a vector of"
    f" floats between different and finite bounds, found {spec}"
  )
