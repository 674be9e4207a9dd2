"""The V-trace actor-critic, the agent of IMPALA.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, section 4.
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
  """Hyper-parameters that V-trace adds to those of every actor-critic.

  Attributes:
    clip_rho_threshold: upper bound of the importance weights in the value
      targets (rho_bar).
    clip_pg_rho_threshold: upper bound of the importance weights in the policy
      gradient.
  """

  clip_rho_threshold: float = types.setting(1.0, changes="run_time", low=0.0)
  clip_pg_rho_threshold: float = types.setting(1.0, changes="run_time", low=0.0)

  def for_images(self) -> Self:
    """Returns a copy for Atari, measured on Pong; the values are ours."""
    return dataclasses.replace(
      super().for_images(),
      learning_rate=5e-4,
      td_lambda=0.95,
      entropy_cost=0.003,
    )

  def for_continuous(self) -> Self:
    """Returns a copy for continuous actions."""
    return dataclasses.replace(
      super().for_continuous(), learning_rate=1e-3, discount=0.95
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
  stream_loss = functools.partial(
    losses.vtrace,
    lambda_=hyperparameters["td_lambda"],
    clip_rho_threshold=hyperparameters["clip_rho_threshold"],
    clip_pg_rho_threshold=hyperparameters["clip_pg_rho_threshold"],
  )

  return jax.vmap(stream_loss, in_axes=1, out_axes=1)(
    evaluation.values,
    evaluation.log_prob,
    unroll.extras.log_prob[:-1],
    evaluation.entropy,
    evaluation.step_type,
    evaluation.reward,
    evaluation.discount,
  )
