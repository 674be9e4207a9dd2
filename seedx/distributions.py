"""Action distributions, whose parameters are a policy head's outputs."""

import dataclasses
import functools
import importlib
from collections.abc import Iterable
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

# Bounds of the log scale of a squashed Gaussian.
_LOG_SCALES = -5.0, 2.0


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
    """Returns the distribution with logits `[..., num_actions]`.

    The mask `[..., num_actions]` is 0 for illegal actions, which get
    probability 0; None if all are legal. Actions are `[...]` int32.
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
    """Returns the distribution with logits `[..., P]`.

    The mask `[..., A, max(num_actions)]` is 0 for illegal actions of each
    dimension; None if all are legal. Actions are `[..., A]` int32.
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
  log-probabilities are exact; environments clip actions. `for_spec` chooses
  the bounds of dimensions that have none, or only one.

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
    """Returns the distribution of actions `[..., A]` for `[..., 2 A]`."""
    mean, log_scale = jnp.split(parameters.astype(jnp.float32), 2, axis=-1)
    middle = jnp.asarray(np.add(self.minimum, self.maximum) / 2, jnp.float32)
    half = jnp.asarray(np.subtract(self.maximum, self.minimum) / 2, jnp.float32)
    scale = 0.5 * half * jnp.exp(jnp.clip(log_scale, -5.0, 2.0))
    return _distrax().MultivariateNormalDiag(middle + half * mean, scale)


@dataclasses.dataclass(frozen=True)
class SquashedGaussian:
  """Diagonal Gaussian distributions, squashed by a tanh into (-1, 1).

  Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, appendix C. The log
  scale is bounded smoothly: parameters of 0 give a scale of exp(-1.5).

  Attributes:
    size: A, number of dimensions.
  """

  size: int

  @property
  def num_parameters(self) -> int:
    """Number of outputs of the policy head: means and log scales."""
    return 2 * self.size

  def __call__(self, parameters: jax.Array) -> "distrax.Distribution":
    """Returns the distribution of actions `[..., A]` for `[..., 2 A]`."""
    distrax = _distrax()
    return distrax.Transformed(
      distrax.MultivariateNormalDiag(*self.moments(parameters)),
      distrax.Block(distrax.Tanh(), 1),
    )

  def sample(
    self, parameters: jax.Array, noise: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns actions `[..., A]`, and the logs of their densities `[...]`.

    Both are differentiable functions of the parameters `[..., 2 A]`, and of
    standard normal noise `[..., A]`.
    """
    squashed = self(parameters)
    gaussian = squashed.distribution
    unbounded = gaussian.loc + gaussian.scale_diag * noise
    action, log_slope = squashed.bijector.forward_and_log_det(unbounded)
    return action, gaussian.log_prob(unbounded) - log_slope

  def moments(self, parameters: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns mean and standard deviation before the tanh, `[..., A]` each."""
    mean, log_scale = jnp.split(parameters.astype(jnp.float32), 2, axis=-1)
    low, high = _LOG_SCALES
    log_scale = low + (high - low) / 2 * (jnp.tanh(log_scale) + 1)
    return mean, jnp.exp(log_scale)


@dataclasses.dataclass(frozen=True)
class Hybrid:
  """Products of a distribution of choices and a distribution of numbers.

  Actions are float32 vectors, the choices followed by the numbers, see
  `types.HybridArray`.
  """

  choices: MultiCategorical
  numbers: BoundedGaussian

  @property
  def num_parameters(self) -> int:
    """Number of outputs of the policy head: those of both distributions."""
    return self.choices.num_parameters + self.numbers.num_parameters

  def __call__(
    self, parameters: jax.Array, action_mask: jax.Array | None = None
  ) -> "distrax.Distribution":
    """Returns the distribution of actions `[..., A]` for `[..., P]`.

    The parameters are those of the choices, then those of the numbers; the mask
    is that of the choices, see `MultiCategorical`.
    """
    first = self.choices.num_parameters
    return _product_class()(
      self.choices(parameters[..., :first], action_mask),
      self.numbers(parameters[..., first:]),
    )


Policy = Categorical | MultiCategorical | BoundedGaussian | Hybrid


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

  Where a float has no bounds, the mean begins at 0 and the standard deviation
  at 1. Where it has one bound, the mean begins 2 within it.

  Raises:
    types.ConfigError: the spec is neither discrete, nor a vector of integers
      from 0, nor a vector of floats between different bounds, nor hybrid.
  """
  if isinstance(spec, dm_env.specs.DiscreteArray):
    return Categorical(int(spec.num_values))
  if isinstance(spec, types.HybridArray):
    choices, numbers = for_spec(spec.choices), for_spec(spec.numbers)
    assert isinstance(choices, MultiCategorical)
    assert isinstance(numbers, BoundedGaussian)
    return Hybrid(choices, numbers)
  minimum, maximum = (
    np.broadcast_to(b, spec.shape) for b in (spec.minimum, spec.maximum)
  )
  is_vector = len(spec.shape) == 1
  if is_vector and np.issubdtype(spec.dtype, np.integer) and not minimum.any():
    return MultiCategorical(tuple(int(high) + 1 for high in maximum))
  is_float = np.issubdtype(spec.dtype, np.floating)
  if is_vector and is_float:
    low, high = _finite(minimum, maximum)
    # Also if there is only one bound, and so large that adding 4 is lost.
    if np.all(low < high):
      return BoundedGaussian(tuple(map(float, low)), tuple(map(float, high)))
  raise types.ConfigError(
    "expected discrete actions, a vector of integers from 0, or a vector of"
    f" floats between different bounds, found {spec};"
    " envs.actions packs other arrays, and nests of them, into such a vector"
  )


def _finite(
  minimum: np.ndarray, maximum: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Replaces infinite bounds, so that the standard deviation begins at 1."""
  no_minimum, no_maximum = np.isinf(minimum), np.isinf(maximum)
  low = np.where(no_minimum, np.where(no_maximum, -2.0, maximum - 4.0), minimum)
  high = np.where(no_maximum, np.where(no_minimum, 2.0, minimum + 4.0), maximum)
  return low, high


@functools.cache
def _product_class() -> Any:
  """Returns the class of the distributions of `Hybrid`, a Distrax class."""
  base: Any = _distrax().Distribution

  class Product(base):
    def __init__(self, choices: Any, numbers: Any) -> None:
      super().__init__()
      self._parts = choices, numbers

    @property
    def event_shape(self) -> tuple[int, ...]:
      return (sum(part.event_shape[0] for part in self._parts),)

    @property
    def batch_shape(self) -> tuple[int, ...]:
      return self._parts[0].batch_shape

    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
      keys = jax.random.split(key)
      pairs = zip(self._parts, keys, strict=True)
      return _joined(x.sample(seed=k, sample_shape=n) for x, k in pairs)

    def _of_parts(self, action: jax.Array) -> Any:
      count = self._parts[0].event_shape[0]
      choices = action[..., :count].astype(jnp.int32)
      return zip(self._parts, (choices, action[..., count:]), strict=True)

    def log_prob(self, value: jax.Array) -> jax.Array:
      return sum(part.log_prob(x) for part, x in self._of_parts(value))

    def entropy(self) -> jax.Array:
      return sum(part.entropy() for part in self._parts)

    def mode(self) -> jax.Array:
      return _joined(part.mode() for part in self._parts)

    def kl_divergence(self, other: Any, **kwargs: Any) -> jax.Array:
      pairs = zip(self._parts, other._parts, strict=True)
      return sum(mine.kl_divergence(its, **kwargs) for mine, its in pairs)

  return Product


def _joined(parts: Iterable[jax.Array]) -> jax.Array:
  return jnp.concatenate([x.astype(jnp.float32) for x in parts], axis=-1)


def _distrax() -> Any:
  """Returns the module `distrax`, which the first call imports.

  Distrax imports TensorFlow Probability, which takes half a second and 97 MB.
  Processes that use no distribution never load it.
  """
  # JAX may trace the first call, but must not trace the import.
  with jax.ensure_compile_time_eval():
    return importlib.import_module("distrax")
