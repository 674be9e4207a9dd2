"""The advantage actor-critic, the agent of A2C and A3C.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, section 4; in one batch:
Clemente et al. 2017, https://arxiv.org/abs/1705.04862.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Self

import jax

from seedx import losses, types
from seedx.agents import base, policy_gradient, policy_model


@dataclasses.dataclass(frozen=True)
class Config(policy_gradient.Config):
  """A2C's hyper-parameters: those of every actor-critic."""

  td_lambda: float = 0.95

  def for_images(self) -> Self:
    """Returns a copy for Atari; not measured."""
    return dataclasses.replace(super().for_images(), learning_rate=7e-4)

  def for_continuous(self) -> Self:
    """Returns a copy for continuous actions, measured on Pendulum-v1."""
    return dataclasses.replace(
      super().for_continuous(),
      learning_rate=1e-3,
      # With 0.95, one seed in three does not learn Pendulum.
      discount=0.9,
      normalize_observations=True,
    )

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    return policy_gradient.make(spec, self, _loss, axis_name, horizon)


def _loss(
  evaluation: policy_model.Evaluation,
  unroll: types.Unroll,
  hyperparameters: Mapping[str, jax.Array],
) -> losses.ActorCriticLoss:
  del unroll  # The loss is on-policy: it needs no behaviour policy.
  stream_loss = functools.partial(
    losses.a2c, lambda_=hyperparameters["td_lambda"]
  )
  return jax.vmap(stream_loss, in_axes=1, out_axes=1)(*evaluation.streams)
