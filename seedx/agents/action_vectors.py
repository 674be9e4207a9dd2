"""The actions of an environment as vectors, for actors and critics."""

import dataclasses
from typing import Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from seedx import types


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
    middle: `[A]` float32, middle of the bounds.
    half: `[A]` float32, half of their range.
  """

  middle: np.ndarray
  half: np.ndarray

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
    half = high / 2 - low / 2
    if not np.all(np.isfinite(half)):
      raise types.ConfigError(
        f"expected actions with bounds for a critic, found {native}; use an"
        " actor-critic agent (PPO, A2C or V-trace), or let the environment take"
        " bounded actions, as a gymnasium.ActionWrapper can"
      )
    return cls(low + half, half)

  @property
  def size(self) -> int:
    """Number of dimensions."""
    return len(self.middle)

  def scaled(self, action: jax.Array) -> jax.Array:
    """See `Space`."""
    return self.middle + self.half * action

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
