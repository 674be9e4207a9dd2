"""SAC, soft actor-critic: a stochastic policy with an entropy bonus.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications",
https://arxiv.org/abs/1812.05905. Discrete actions: Christodoulou 2019,
https://arxiv.org/abs/1910.07207.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import dm_env.specs
import jax
import jax.numpy as jnp

from seedx import distributions, losses, types
from seedx.agents import action_vectors, base, critics, policies

# The replay for training in one process.
REPLAY = critics.REPLAY


@dataclasses.dataclass(frozen=True)
class Config(critics.Config):
  """Hyper-parameters that SAC adds to those of agents with critics.

  Attributes:
    temperature: initial alpha, the weight of the entropy.
    temperature_learning_rate: initial learning rate of log alpha; 0 keeps alpha
      constant, unless there is a `transformation`, which has its own rate.
    target_entropy: entropy per dimension of a continuous action, which the
      learned alpha keeps; the action is between -1 and 1.
    target_entropy_share: entropy that alpha keeps for discrete actions, as a
      share of the largest entropy.
  """

  temperature: float = types.setting(1.0, low=1e-9, high=1e9)
  temperature_learning_rate: float = types.setting(
    1e-3, changes="run_time", low=0.0, high=1e3
  )
  # A squashed Gaussian has at most 0.6836, at mean 0 and scale 0.874.
  target_entropy: float = types.setting(-1.0, low=-1e3, high=0.68)
  target_entropy_share: float = types.setting(0.5, low=0.0, high=1.0)

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    if isinstance(spec.action, dm_env.specs.DiscreteArray):
      choices = action_vectors.Choices(int(spec.action.num_values))
      entropy = self.target_entropy_share * math.log(choices.size)
      chooser = _SoftChoices(self, choices.size, entropy)
      return critics.make(spec, self, chooser, choices, axis_name, horizon)
    box = action_vectors.Box.of(spec)
    distribution = distributions.SquashedGaussian(box.size)
    entropy = self.target_entropy * box.size
    policy = _SoftGaussian(
      self, distribution.num_parameters, entropy, distribution
    )
    return critics.make(spec, self, policy, box, axis_name, horizon)


@dataclasses.dataclass(frozen=True)
class _Soft(policies.Policy):
  """A stochastic policy; its temperature keeps the whole action's entropy."""

  config: Config
  num_parameters: int
  target_entropy: float

  rates: ClassVar[Mapping[str, str]] = {
    **policies.Policy.rates,
    "temperature": "temperature_learning_rate",
  }

  def others(self) -> dict[str, types.Tree]:
    """See `policies.Policy`; the temperature is log alpha."""
    return {"temperature": jnp.log(jnp.float32(self.config.temperature))}

  def losses(
    self,
    params: types.Tree,
    proposal: policies.Proposal,
    q_function: policies.QFunction,
    step_type: jax.Array,
  ) -> tuple[dict[str, losses.ActorLoss], dict[str, jax.Array]]:
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
        target_entropy=self.target_entropy,
      )
    )(proposal.log_prob, step_type)
    return (
      {"actor": actor, "temperature": temperature},
      {"entropy": -proposal.log_prob, "temperature": alpha},
    )

  def _bonus(self, params: types.Tree, log_prob: jax.Array) -> jax.Array:
    """Returns the entropy bonus, -alpha log pi."""
    return -jnp.exp(params["temperature"]) * log_prob


@dataclasses.dataclass(frozen=True)
class _SoftGaussian(_Soft):
  distribution: distributions.SquashedGaussian

  def explore(
    self,
    outputs: jax.Array,
    noise: jax.Array,
    exploration: jax.Array,
    hyperparameters: Mapping[str, jax.Array],
  ) -> jax.Array:
    del exploration, hyperparameters  # The policy itself explores.
    mean, scale = self.distribution.moments(outputs)
    return jnp.tanh(mean + scale * noise)

  def greedy(self, outputs: jax.Array) -> jax.Array:
    mean, _ = self.distribution.moments(outputs)
    return jnp.tanh(mean)

  def propose(
    self,
    params: types.Tree,
    outputs: jax.Array,
    noise: jax.Array,
    *,
    smooth: bool = False,
  ) -> policies.Proposal:
    del smooth  # The policy is stochastic.
    action, log_prob = self.distribution.sample(outputs, noise)
    return policies.Proposal(action, log_prob, self._bonus(params, log_prob))


class _SoftChoices(_Soft):
  """A policy of discrete actions, whose means over actions are exact."""

  def explore(
    self,
    outputs: jax.Array,
    noise: jax.Array,
    exploration: jax.Array,
    hyperparameters: Mapping[str, jax.Array],
  ) -> jax.Array:
    """See `policies.Policy`; the largest element is a sample (Gumbel)."""
    del exploration, hyperparameters  # The policy itself explores.
    uniform = jnp.clip(jax.scipy.stats.norm.cdf(noise), 1e-6, 1.0 - 1e-6)
    return outputs - jnp.log(-jnp.log(uniform))

  def greedy(self, outputs: jax.Array) -> jax.Array:
    return outputs

  def propose(
    self,
    params: types.Tree,
    outputs: jax.Array,
    noise: jax.Array,
    *,
    smooth: bool = False,
  ) -> policies.Proposal:
    del noise, smooth
    log_probs = jax.nn.log_softmax(outputs)
    probs = jnp.exp(log_probs)
    log_prob = jnp.sum(probs * log_probs, axis=-1)
    return policies.Proposal(probs, log_prob, self._bonus(params, log_prob))
