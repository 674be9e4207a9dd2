"""The V-trace actor-critic: IMPALA's agent."""

import dataclasses

import jax

from seedx import losses, types
from seedx.agents import actor_critic, base


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
  """Static hyper-parameters, beside those of every actor-critic.

  Attributes:
    lambda_: mixes in shorter returns; 1 for the longest.
    clip_rho_threshold: see `losses.vtrace`.
    clip_pg_rho_threshold: see `losses.vtrace`.
  """

  lambda_: float = 1.0
  clip_rho_threshold: float = 1.0
  clip_pg_rho_threshold: float = 1.0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    super().__post_init__()
    types.check_ranges(
      self,
      lambda_=(0.0, 1.0),
      clip_rho_threshold=(0.0, types.MOST),
      clip_pg_rho_threshold=(0.0, types.MOST),
    )


def make(
  spec: types.EnvironmentSpec, config: Config, axis_name: str | None = None
) -> base.Agent:
  """Makes the agent for an environment; see `actor_critic.make`."""

  def loss(
    evaluation: actor_critic.Evaluation, unroll: types.Unroll
  ) -> losses.ActorCriticLoss:
    return jax.vmap(stream_loss, in_axes=1, out_axes=1)(
      evaluation.values,
      evaluation.log_prob,
      unroll.extras.log_prob[:-1],
      evaluation.entropy,
      evaluation.step_type,
      evaluation.reward,
      evaluation.discount,
    )

  def stream_loss(*stream: jax.Array) -> losses.ActorCriticLoss:
    return losses.vtrace(
      *stream,
      lambda_=config.lambda_,
      clip_rho_threshold=config.clip_rho_threshold,
      clip_pg_rho_threshold=config.clip_pg_rho_threshold,
    )

  return actor_critic.make(spec, config, loss, axis_name)
