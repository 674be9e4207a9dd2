"""DDPG, a deterministic policy with a critic; TD3 and D4PG are its settings.

Lillicrap et al. 2016, "Continuous control with deep reinforcement learning",
https://arxiv.org/abs/1509.02971. TD3: Fujimoto et al. 2018,
https://arxiv.org/abs/1802.09477. D4PG: Barth-Maron et al. 2018,
https://arxiv.org/abs/1804.08617.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from seedx import losses, types
from seedx.agents import (
  action_vectors,
  base,
  critics,
  policies,
  return_atoms,
)

# The replay for training in one process.
REPLAY = critics.REPLAY
# Largest noise of an action in a target (TD3, section 6.1).
_MAX_TARGET_NOISE = 0.5


@dataclasses.dataclass(frozen=True)
class Config(critics.Config):
  """Hyper-parameters that DDPG adds to those of agents with critics.

  TD3 has two critics (`num_critics`), a delayed actor (`actor_period`), and
  smoothed targets (`target_noise`); see `td3`. D4PG has a distribution of
  returns (`num_atoms` above 0) and n-step returns (`n_step`).

  Attributes:
    actor_period: updates of the critics for each update of the actor.
    noise_scale: standard deviation of the noise of actions, in halves of their
      range.
    noise_ladder: separate noise for each environment, from `noise_scale` down
      to a sixteenth of it.
    target_noise: standard deviation of the noise of the actions in targets, in
      halves of their range, before it is clipped to [-0.5, 0.5]; 0 for none.
    action_gradient_clip: largest absolute value of each element of the critic's
      gradient with respect to the action; 0 for no clipping.
    num_atoms: atoms of the distribution of returns; 0 for Q-values.
    value_min: lowest atom, a return of scaled rewards.
    value_max: highest atom, a return of scaled rewards.
  """

  num_critics: int = 1
  actor_period: int = types.setting(1, low=1, high=2**31 - 1)
  noise_scale: float = types.setting(0.1, changes="run_time", low=0.0, high=1e3)
  noise_ladder: bool = False
  target_noise: float = types.setting(0.0, low=0.0, high=1e3)
  action_gradient_clip: float = types.setting(0.0, low=0.0)
  num_atoms: int = types.setting(0, low=0, high=2**16)
  value_min: float = types.setting(-150.0, low=-types.MAX_VALUE)
  value_max: float = types.setting(150.0, low=-types.MAX_VALUE)

  def __post_init__(self) -> None:
    """Raises types.ConfigError for atoms that cannot hold returns."""
    super().__post_init__()
    return_atoms.spaced(self.num_atoms, self.value_min, self.value_max)

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    space = action_vectors.Box.of(spec)
    agent = critics.make(
      spec,
      self,
      _Deterministic(self, space.size, self.actor_period),
      space,
      axis_name,
      horizon,
      atoms=return_atoms.spaced(self.num_atoms, self.value_min, self.value_max),
      first_guides=True,
    )
    if not self.noise_ladder:
      return agent
    return dataclasses.replace(agent, exploration=ladder)


def td3() -> Config:
  """Returns the config of TD3: DDPG with its three changes."""
  return Config(
    critic_learning_rate=3e-4,
    num_critics=2,
    actor_period=2,
    target_period=2,
    target_noise=0.2,
  )


def ladder(num_envs: int) -> np.ndarray:
  """Returns each environment's factor of the noise, `[num_envs]` float32.

  The factors fall geometrically from 1 to 1/16, as the epsilons of Horgan et
  al. 2018, https://arxiv.org/abs/1803.00933, section 4.1, do.
  """
  return np.geomspace(1.0, 1 / 16, num_envs).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class _Deterministic(policies.Policy):
  """A deterministic policy with noise."""

  config: Config
  num_parameters: int
  actor_period: int

  target_groups = ("actor", "critic")

  def explore(
    self,
    outputs: jax.Array,
    noise: jax.Array,
    exploration: jax.Array,
    hyperparameters: Mapping[str, jax.Array],
  ) -> jax.Array:
    scale = hyperparameters["noise_scale"]
    if self.config.noise_ladder:
      scale = scale * exploration[:, None]
    return jnp.clip(self.greedy(outputs) + scale * noise, -1.0, 1.0)

  def greedy(self, outputs: jax.Array) -> jax.Array:
    return jnp.tanh(outputs)

  def propose(
    self,
    params: types.Tree,
    outputs: jax.Array,
    noise: jax.Array,
    *,
    smooth: bool = False,
  ) -> policies.Proposal:
    del params
    # The noise of targets: Fujimoto et al. 2018, equation 15.
    action = self.greedy(outputs)
    if smooth and self.config.target_noise:
      noise = self.config.target_noise * noise
      noise = jnp.clip(noise, -_MAX_TARGET_NOISE, _MAX_TARGET_NOISE)
      action = jnp.clip(action + noise, -1.0, 1.0)
    zeros = jnp.zeros(action.shape[:-1], action.dtype)
    return policies.Proposal(action, zeros, zeros)

  def losses(
    self,
    params: types.Tree,
    proposal: policies.Proposal,
    q_function: policies.QFunction,
    step_type: jax.Array,
  ) -> tuple[dict[str, losses.ActorLoss], dict[str, jax.Array]]:
    del params
    action = jax.lax.stop_gradient(proposal.action)

    def total(action: jax.Array) -> tuple[jax.Array, jax.Array]:
      q_values = q_function(action)[..., 0]
      return jnp.sum(q_values), q_values

    gradient, q_values = jax.grad(total, has_aux=True)(action)

    stream_loss = functools.partial(
      losses.deterministic_policy_gradient,
      gradient_clip=self.config.action_gradient_clip or None,
    )
    loss = jax.vmap(stream_loss, in_axes=1, out_axes=1)(
      proposal.action, gradient, step_type
    )
    return {"actor": loss}, {"q_actor": q_values}
