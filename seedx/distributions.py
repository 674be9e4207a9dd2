"""Action distributions, whose parameters are a policy head's outputs."""

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any, TypeAlias

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types

if TYPE_CHECKING:
  import distrax

  Distribution: TypeAlias = distrax.Distribution

# The logit of an illegal action, whose probability is then exactly 0. A finite
# logit keeps entropies and gradients finite.
_NEVER = -1e9


@dataclasses.dataclass(frozen=True)
class Categorical:
  """Distributions over `num_actions` discrete actions, with a logit each."""

  num_actions: int

  @property
  def num_parameters(self) -> int:
    """Number of outputs of the policy head: a logit for each action."""
    return self.num_actions

  def __call__(
    self, parameters: jax.Array, action_mask: jax.Array | None = None
  ) -> "distrax.Distribution":
    """Returns the distribution with these logits; actions are `[...]` int32.

    Args:
      parameters: `[..., num_actions]`, logits.
      action_mask: `[..., num_actions]`, 0 for illegal actions, which get
        probability 0; None if all are legal.
    """
    logits = parameters.astype(jnp.float32)
    return _distrax().Categorical(logits=only_legal(logits, action_mask))


@dataclasses.dataclass(frozen=True)
class MultiCategorical:
  """Distributions over vectors of independent discrete actions.

  Attributes:
    num_actions: number of actions of each dimension.
  """

  num_actions: tuple[int, ...]

  @property
  def num_parameters(self) -> int:
    """Number of outputs of the policy head: a logit for each action."""
    return sum(self.num_actions)

  def __call__(
    self, parameters: jax.Array, action_mask: jax.Array | None = None
  ) -> "distrax.Distribution":
    """Returns the distribution with these logits; actions `[..., A]` int32.

    Args:
      parameters: `[..., P]`, logits.
      action_mask: `[..., A, max(num_actions)]`, 0 for illegal actions of each
        dimension; None if all are legal.
    """
    ends = np.cumsum(self.num_actions)[:-1]
    parts = jnp.split(parameters.astype(jnp.float32), ends, axis=-1)
    width = max(self.num_actions)
    padded = [
      jnp.pad(
        part,
        [(0, 0)] * (part.ndim - 1) + [(0, width - part.shape[-1])],
        constant_values=_NEVER,
      )
      for part in parts
    ]
    logits = only_legal(jnp.stack(padded, axis=-2), action_mask)
    distrax = _distrax()
    return distrax.Independent(
      distrax.Categorical(logits=logits),
      reinterpreted_batch_ndims=1,
    )


@dataclasses.dataclass(frozen=True)
class BoundedGaussian:
  """Diagonal Gaussian distributions, scaled to the action bounds.

  Parameters of 0 give a mean at the middle of the bounds, and a standard
  deviation of a quarter of their range. Samples are not clipped, so that
  log-probabilities are exact; environments clip actions.

  Attributes:
    minimum: lower bound of each of the A dimensions.
    maximum: upper bound of each of the A dimensions.
  """

  minimum: tuple[float, ...]
  maximum: tuple[float, ...]

  @property
  def num_parameters(self) -> int:
    """Number of outputs of the policy head: means and log scales."""
    return 2 * len(self.minimum)

  def __call__(self, parameters: jax.Array) -> "distrax.Distribution":
    """Returns the distribution; actions are `[..., A]` float32.

    Args:
      parameters: `[..., 2 A]`, means and log scales.
    """
    mean, log_scale = jnp.split(parameters.astype(jnp.float32), 2, axis=-1)
    middle = jnp.asarray(np.add(self.minimum, self.maximum) / 2, jnp.float32)
    half = jnp.asarray(np.subtract(self.maximum, self.minimum) / 2, jnp.float32)
    scale = 0.5 * half * jnp.exp(jnp.clip(log_scale, -5.0, 2.0))
    return _distrax().MultivariateNormalDiag(middle + half * mean, scale)


Policy = Categorical | MultiCategorical | BoundedGaussian


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Parameterized:
  """A batch of action distributions as a nest of their parameters.

  The nest can be shuffled, sliced and scanned. A distribution of Distrax cannot
  be, because it keeps the batch shape with which it was made.

  Attributes:
    family: kind of the distributions.
    parameters: `[..., P]`, outputs of the policy head.
    action_mask: mask as the `family` takes it, 0 for illegal actions; None if
      all are legal.
  """

  family: Policy = dataclasses.field(metadata={"static": True})
  parameters: jax.Array
  action_mask: jax.Array | None = None

  @property
  def distribution(self) -> "distrax.Distribution":
    """The batch as a distribution of Distrax."""
    if self.action_mask is None:
      return self.family(self.parameters)
    # Only discrete actions have a mask, see `types.EnvironmentSpec`.
    assert not isinstance(self.family, BoundedGaussian)
    return self.family(self.parameters, self.action_mask)


def only_legal(values: jax.Array, action_mask: jax.Array | None) -> jax.Array:
  """Replaces logits or Q-values `[..., A]` of illegal actions by -1e9.

  The mask `[..., A]` is 0 for illegal actions; it is None if all are legal.
  """
  if action_mask is None:
    return values
  return jnp.where(action_mask != 0, values, _NEVER)


def for_spec(spec: dm_env.specs.BoundedArray) -> Policy:
  """Returns the kind of distribution for an action spec.

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


def _distrax() -> Any:
  """Returns the module `distrax`, which the first call imports.

  Distrax imports TensorFlow Probability, which takes half a second and 97 MB.
  Processes that use no distribution never load it.
  """
  # JAX may trace the first call, but must not trace the import.
  with jax.ensure_compile_time_eval():
    return importlib.import_module("distrax")
