"""The advantage actor-critic: A2C's agent, and A3C's."""

import dataclasses
import functools

import jax

from seedx import losses, types
from seedx.agents import actor_critic, base


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
  """Static hyper-parameters, beside those of every actor-critic.

  Attributes:
    lambda_: mixes in shorter returns; 1 for the longest.
  """

  lambda_: float = 1.0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    super().__post_init__()
    types.check_ranges(self, lambda_=(0.0, 1.0))


def make(
  spec: types.EnvironmentSpec, config: Config, axis_name: str | None = None
) -> base.Agent:
  """Makes the agent for an environment; see `actor_critic.make`."""
  stream_loss = functools.partial(losses.a2c, lambda_=config.lambda_)

  def loss(
    evaluation: actor_critic.Evaluation, unroll: types.Unroll
  ) -> losses.ActorCriticLoss:
    del unroll  # Its actions are taken to be the learned policy's own.
    return jax.vmap(stream_loss, in_axes=1, out_axes=1)(*evaluation)

  return actor_critic.make(spec, config, loss, axis_name)
