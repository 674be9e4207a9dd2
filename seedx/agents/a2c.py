"""The advantage actor-critic: A2C's agent, and A3C's."""

import dataclasses
import functools
from collections.abc import Mapping

import jax

from seedx import losses, types
from seedx.agents import base, policy_gradient


@dataclasses.dataclass(frozen=True)
class Config(policy_gradient.Config):
  """Static hyper-parameters: those of every policy gradient."""

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    return policy_gradient.make(spec, self, _loss, axis_name, horizon)


def _loss(
  evaluation: policy_gradient.Evaluation,
  unroll: types.Unroll,
  hyperparameters: Mapping[str, jax.Array],
) -> losses.ActorCriticLoss:
  del unroll  # Its actions are taken to be the learned policy's own.
  stream_loss = functools.partial(
    losses.a2c, lambda_=hyperparameters["td_lambda"]
  )
  return jax.vmap(stream_loss, in_axes=1, out_axes=1)(*evaluation)
