"""The actions of an environment as vectors, for actors and critics."""

import dataclasses
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from seedx import networks, types
from seedx.agents import models


class Space(Protocol):
  """The actions of an environment, as vectors for actor and critics.

  Attributes:
    size: A, length of a vector.
  """

  @property
  def size(self) -> int:
    """A."""

  def scaled(self, action: jax.Array) -> jax.Array:
    """Maps vectors `[..., A]` to the environment's actions."""

  def normalized(self, action: jax.Array) -> jax.Array:
    """Maps the environment's actions to vectors `[..., A]`."""


@dataclasses.dataclass(frozen=True)
class Box:
  """Continuous actions, whose bounds become -1 and 1.

  Attributes:
    minimum: `[A]` float32, lower bounds.
    maximum: `[A]` float32, upper bounds.
  """

  minimum: np.ndarray
  maximum: np.ndarray

  @classmethod
  def of(cls, spec: types.EnvironmentSpec) -> Self:
    """Returns the bounds of an environment's actions.

    Raises:
      types.ConfigError: the actions are not a vector of floats with bounds.
    """
    action = spec.action
    native = action if spec.native_action is None else spec.native_action
    if isinstance(action, types.HybridArray) or action.dtype.kind != "f":
      raise types.ConfigError(
        f"expected continuous actions for a critic, found {native}; use SAC or"
        " DQN for one discrete action, or an actor-critic agent (PPO, A2C or"
        " V-trace) for all others"
      )
    low, high = (
      np.broadcast_to(np.float32(x), action.shape)
      for x in (action.minimum, action.maximum)
    )
    if not np.all(np.isfinite(high / 2 - low / 2)):
      raise types.ConfigError(
        f"expected actions with bounds for a critic, found {native}; use an"
        " actor-critic agent (PPO, A2C or V-trace), or let the environment take"
        " bounded actions, as a gymnasium.ActionWrapper can"
      )
    return cls(low, high)

  @property
  def size(self) -> int:
    """Number of dimensions."""
    return len(self.minimum)

  @property
  def half(self) -> np.ndarray:
    """`[A]` float32, half of the bounds' range."""
    return self.maximum / 2 - self.minimum / 2

  @property
  def middle(self) -> np.ndarray:
    """`[A]` float32, middle of the bounds."""
    return self.minimum + self.half

  def scaled(self, action: jax.Array) -> jax.Array:
    """See `Space`; rounding leads to no action beyond the bounds."""
    scaled = self.middle + self.half * action
    return jnp.clip(scaled, self.minimum, self.maximum)

  def normalized(self, action: jax.Array) -> jax.Array:
    """See `Space`."""
    # A dimension with a single value becomes 0.
    return (action - self.middle) / np.where(self.half > 0, self.half, 1)


@dataclasses.dataclass(frozen=True)
class Choices:
  """Discrete actions, whose vectors are one-hot.

  Attributes:
    size: number of actions.
  """

  size: int

  def scaled(self, action: jax.Array) -> jax.Array:
    """See `Space`; the action is the index of the largest element."""
    return jnp.argmax(action, axis=-1)

  def normalized(self, action: jax.Array) -> jax.Array:
    """See `Space`."""
    return jax.nn.one_hot(action, self.size)


def critics(
  spec: types.EnvironmentSpec, config: models.Config, space: Space, **head: Any
) -> models.Model:
  """Makes a model whose `networks.Critic` has the fields `head`.

  Their hidden layers are in this head, which sees the action.
  """
  return models.Model.make(
    spec,
    dataclasses.replace(config, hidden_sizes=()),
    networks.Critic(
      config.hidden_sizes,
      is_linear=isinstance(space, Choices),
      activation=config.activation,
      layer_norm=config.layer_norm,
      dtype=jnp.dtype(config.compute_dtype),
      **head,
    ),
  )


def init_critics(
  model: models.Model, space: Space, rng_key: jax.Array
) -> models.Variables:
  """Returns the initial variables of `critics`."""
  return model.init(rng_key, jnp.zeros((1, 1, space.size), jnp.float32))
