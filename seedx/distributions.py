"""Action distributions, parameterized by a policy head's outputs."""

import dataclasses

import distrax
import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types

# The logit of an illegal action: its probability is exactly 0. The logit itself
# is finite, so entropies and gradients are too.
_NEVER = -1e9


@dataclasses.dataclass(frozen=True)
class Categorical:
  """One of `num_actions` discrete actions, with a logit each."""

  num_actions: int

  @property
  def num_parameters(self) -> int:
    """Outputs of the policy head: a logit for each action."""
    return self.num_actions

  def __call__(
    self, parameters: jax.Array, action_mask: jax.Array | None = None
  ) -> distrax.Distribution:
    """The distribution with given logits; actions are `[...]` int32.

    Args:
      parameters: `[..., num_actions]`, the logits.
      action_mask: `[..., num_actions]`, not 0 where an action is legal; illegal
        actions have probability 0. None if all are legal.
    """
    logits = parameters.astype(jnp.float32)
    return distrax.Categorical(logits=only_legal(logits, action_mask))


@dataclasses.dataclass(frozen=True)
class MultiCategorical:
  """A vector of independent discrete actions.

  Attributes:
    num_actions: actions in each dimension.
  """

  num_actions: tuple[int, ...]

  @property
  def num_parameters(self) -> int:
    """Outputs of the policy head: a logit for each action of each dimension."""
    return sum(self.num_actions)

  def __call__(
    self, parameters: jax.Array, action_mask: jax.Array | None = None
  ) -> distrax.Distribution:
    """The distribution with given logits; actions are `[..., A]` int32.

    Args:
      parameters: `[..., P]`, the logits.
      action_mask: `[..., A, max(num_actions)]`, not 0 where an action of a
        dimension is legal; None if all are.
    """
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
    logits = only_legal(jnp.stack(padded, axis=-2), action_mask)
    return distrax.Independent(
      distrax.Categorical(logits=logits),
      reinterpreted_batch_ndims=1,
    )


@dataclasses.dataclass(frozen=True)
class BoundedGaussian:
  """A diagonal Gaussian, scaled to the action bounds.

  Outputs of 0 give a mean at the middle of the bounds, and a standard deviation
  of a quarter of their range. Samples are not clipped, so log-probabilities are
  exact; environments clip actions.

  Attributes:
    minimum: A lower bounds.
    maximum: A upper bounds.
  """

  minimum: tuple[float, ...]
  maximum: tuple[float, ...]

  @property
  def num_parameters(self) -> int:
    """Outputs of the policy head: A means and A log scales."""
    return 2 * len(self.minimum)

  def __call__(self, parameters: jax.Array) -> distrax.Distribution:
    """The distribution of outputs `[..., 2 A]`; actions `[..., A]` float32."""
    mean, log_scale = jnp.split(parameters.astype(jnp.float32), 2, axis=-1)
    middle = jnp.asarray(np.add(self.minimum, self.maximum) / 2, jnp.float32)
    half = jnp.asarray(np.subtract(self.maximum, self.minimum) / 2, jnp.float32)
    scale = 0.5 * half * jnp.exp(jnp.clip(log_scale, -5.0, 2.0))
    return distrax.MultivariateNormalDiag(middle + half * mean, scale)


Distribution = distrax.Distribution
Policy = Categorical | MultiCategorical | BoundedGaussian


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Parameterized:
  """A distribution over actions for each of some steps, by its parameters.

  It is a nest of arrays that can be shuffled, cut and scanned. A distribution
  of Distrax is not: it keeps the shape of the batch that it was made for.

  Attributes:
    family: the kind of distribution.
    parameters: `[..., P]`, the policy head's outputs.
    action_mask: `[..., A]`, not 0 where an action is legal; None if all are.
  """

  family: Policy = dataclasses.field(metadata={"static": True})
  parameters: jax.Array
  action_mask: jax.Array | None = None

  @property
  def distribution(self) -> distrax.Distribution:
    """The distribution; its batch shape is that of the steps."""
    if self.action_mask is None:
      return self.family(self.parameters)
    # Only discrete actions have a mask, see `types.EnvironmentSpec`.
    assert not isinstance(self.family, BoundedGaussian)
    return self.family(self.parameters, self.action_mask)


def only_legal(values: jax.Array, action_mask: jax.Array | None) -> jax.Array:
  """Masks illegal actions: their logits or Q-values are far below all others.

  Args:
    values: `[..., A]`, logits or Q-values.
    action_mask: `[..., A]`, not 0 where an action is legal; None if all are.
  """
  if action_mask is None:
    return values
  return jnp.where(action_mask != 0, values, _NEVER)


def for_spec(spec: dm_env.specs.BoundedArray) -> Policy:
  """The action distribution for an action spec.

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
