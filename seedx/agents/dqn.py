"""Deep Q-networks with a target network: double, dueling, n-step."""

import dataclasses
import functools

import jax

from seedx import losses, types
from seedx.agents import base, value_based


@dataclasses.dataclass(frozen=True)
class Config(value_based.Config):
  """DQN's hyper-parameters, beside those of every agent with Q-values.

  Attributes:
    huber_delta: TD error beyond which the Huber loss is linear; 0 for the
      squared loss.
    rescale: value function rescaling, for large returns.
  """

  huber_delta: float = 0.0
  rescale: bool = False

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    super().__post_init__()
    types.check_ranges(self, huber_delta=(0.0, types.MOST))

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    loss = loss_of(self)
    return value_based.make(
      spec, self, loss, axis_name, horizon, bootstraps=True
    )


def loss_of(config: Config) -> value_based.Loss:
  """The loss `losses.q_learning` with the options of a config."""
  stream_loss = functools.partial(
    losses.q_learning,
    n=config.n_step,
    double=config.double,
    huber_delta=config.huber_delta or None,
    rescale=config.rescale,
  )

  def loss(evaluation: value_based.Evaluation) -> losses.QLearningLoss:
    return jax.vmap(stream_loss, in_axes=1, out_axes=1)(*evaluation)

  return loss
