"""Deep Q-networks with a target network: double, dueling, n-step.

Mnih et al. 2015, "Human-level control through deep reinforcement learning",
https://doi.org/10.1038/nature14236.
"""

import dataclasses
import functools
from typing import Self

import jax

from seedx import losses, replay, types
from seedx.agents import base, value_based

# The replay for training in one process.
REPLAY = replay.Config(replay_ratio=8.0)


@dataclasses.dataclass(frozen=True)
class Config(value_based.Config):
  """Hyper-parameters that DQN adds to those of every agent with Q-values.

  Attributes:
    huber_delta: TD error above which the Huber loss is linear; 0 for the
      squared loss.
    rescale: rescaling of the value function, for large returns.
  """

  learning_rate: float = 5e-4
  max_gradient_norm: float = 10.0
  hidden_sizes: tuple[int, ...] = (128, 128)
  target_period: int = 200
  huber_delta: float = types.setting(0.0, low=0.0)
  rescale: bool = False

  def for_images(self) -> Self:
    """Returns a copy for Atari; not measured.

    Learning rate and epsilons are those of CleanRL's `dqn_atari.py`, and errors
    are clipped to 1 as in Mnih et al. 2015, "Methods". The period of the target
    network is ours.
    """
    return dataclasses.replace(
      super().for_images(),
      learning_rate=1e-4,
      huber_delta=1.0,
      target_period=1000,
      epsilon_steps=1_000_000,
    )

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
  """Returns `losses.q_learning` with the options of a config."""
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
