"""The advantage actor-critic, the agent of A2C and A3C."""

import dataclasses
import functools
from collections.abc import Mapping

import jax

from seedx import losses, types
from seedx.agents import base, policy_gradient


@dataclasses.dataclass(frozen=True)
class Config(policy_gradient.Config):
  """A2C's hyper-parameters: those of every actor-critic."""

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
  del unroll  # The loss is on-policy: it needs no behaviour policy.
  stream_loss = functools.partial(
    losses.a2c, lambda_=hyperparameters["td_lambda"]
  )
  return jax.vmap(stream_loss, in_axes=1, out_axes=1)(*evaluation.streams)
