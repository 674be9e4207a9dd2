"""SAC, soft actor-critic: a stochastic policy with an entropy bonus.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications",
https://arxiv.org/abs/1812.05905. Discrete actions: Christodoulou 2019,
https://arxiv.org/abs/1910.07207.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from seedx import distributions, losses, replay, types
from seedx.agents import base, critics

# The replay for training in one process: one update for each env step.
REPLAY = replay.Config(
  replay_min_steps=1_000, replay_batch_size=256, replay_ratio=256.0
)


@dataclasses.dataclass(frozen=True)
class Config(critics.Config):
  """Hyper-parameters that SAC adds to those of agents with critics.

  Attributes:
    temperature: initial alpha, the weight of the entropy.
    temperature_learning_rate: initial learning rate of log alpha; 0 keeps alpha
      constant.
    target_entropy: entropy per dimension of the action, which the learned alpha
      keeps; the action is between -1 and 1.
  """

  temperature: float = types.setting(1.0, low=1e-9, high=1e9)
  temperature_learning_rate: float = types.setting(
    1e-3, changes="run_time", low=0.0, high=1e3
  )
  target_entropy: float = types.setting(-1.0, low=-1e3, high=1e3)

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    space = critics.Box.of(spec)
    policy = _Soft(self, distributions.SquashedGaussian(space.size))
    return critics.make(spec, self, policy, space, axis_name, horizon)


@dataclasses.dataclass(frozen=True)
class _Soft:
  """A squashed Gaussian policy; see `critics.Policy`."""

  config: Config
  distribution: distributions.SquashedGaussian

  rates: ClassVar[Mapping[str, str]] = {
    "actor": "learning_rate",
    "critic": "critic_learning_rate",
    "temperature": "temperature_learning_rate",
  }
  target_groups = ("critic",)
  actor_period = 1

  @property
  def num_parameters(self) -> int:
    """See `critics.Policy`."""
    return self.distribution.num_parameters

  def others(self) -> dict[str, types.Tree]:
    """See `critics.Policy`; the temperature is log alpha."""
    return {"temperature": jnp.log(jnp.float32(self.config.temperature))}

  def explore(
    self,
    outputs: jax.Array,
    noise: jax.Array,
    exploration: jax.Array,
    hyperparameters: Mapping[str, jax.Array],
  ) -> jax.Array:
    """See `critics.Policy`."""
    del exploration, hyperparameters  # The policy itself explores.
    mean, scale = self.distribution.moments(outputs)
    return jnp.tanh(mean + scale * noise)

  def greedy(self, outputs: jax.Array) -> jax.Array:
    """See `critics.Policy`."""
    mean, _ = self.distribution.moments(outputs)
    return jnp.tanh(mean)

  def propose(
    self,
    params: types.Tree,
    outputs: jax.Array,
    noise: jax.Array,
    *,
    smooth: bool = False,
  ) -> critics.Proposal:
    """See `critics.Policy`."""
    del smooth  # The policy is stochastic.
    action, log_prob = self.distribution.sample(outputs, noise)
    return critics.Proposal(
      action, log_prob, -jnp.exp(params["temperature"]) * log_prob
    )

  def losses(
    self,
    params: types.Tree,
    proposal: critics.Proposal,
    q_function: critics.QFunction,
    step_type: jax.Array,
  ) -> tuple[dict[str, losses.ActorLoss], dict[str, jax.Array]]:
    """See `critics.Policy`."""
    log_temperature = params["temperature"]
    alpha = jax.lax.stop_gradient(jnp.exp(log_temperature))
    per_stream = functools.partial(jax.vmap, in_axes=1, out_axes=1)
    actor = per_stream(
      functools.partial(losses.soft_policy, temperature=alpha)
    )(q_function(proposal.action), proposal.log_prob, step_type)
    temperature = per_stream(
      functools.partial(
        losses.temperature,
        log_temperature,
        target_entropy=self.config.target_entropy * self.distribution.size,
      )
    )(proposal.log_prob, step_type)
    return (
      {"actor": actor, "temperature": temperature},
      {"entropy": -proposal.log_prob, "temperature": alpha},
    )
