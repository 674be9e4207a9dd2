"""IQL, implicit Q-learning: learns from recordings, then perhaps continues.

No Q-value of an action that is not in the data is ever used: V is an expectile
of Q over the actions in the data, Q bootstraps from V, and the policy imitates
the actions of large advantage.

Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit
Q-Learning", https://arxiv.org/abs/2110.06169.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal, Self

import dm_env.specs
import jax
import jax.numpy as jnp

from seedx import distributions, losses, networks, replay, types
from seedx.agents import (
  action_vectors,
  base,
  models,
  policy_model,
  replay_windows,
)

# The replay for training in one process.
REPLAY = replay.Config(
  replay_min_steps=1_000, replay_batch_size=256, replay_ratio=256.0
)
_CRITIC, _POLICY = "critic", "policy"


@dataclasses.dataclass(frozen=True)
class Config(replay_windows.Config):
  """Hyper-parameters that IQL adds to those of windows.

  Attributes:
    expectile: tau, the expectile of Q that V is; 0.5 is the mean, 1 the
      maximum.
    inverse_temperature: beta, the factor of the advantage in the exponent of an
      action's weight; 0 for behavioural cloning.
  """

  learning_rate: float = 3e-4
  learning_rate_end: float = 1.0
  adam_epsilon: float = 1e-8
  max_gradient_norm: float = 0.0
  hidden_sizes: tuple[int, ...] = (256, 256)
  activation: Literal["tanh", "relu"] = "relu"
  n_step: int = 1
  target_period: int = 1
  target_rate: float = 0.005
  expectile: float = types.setting(0.7, changes="run_time", low=0.0, high=1.0)
  inverse_temperature: float = types.setting(
    3.0, changes="run_time", low=0.0, high=1e6
  )

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    base.check_one_player(spec)
    parts = _Networks.make(spec, self, axis_name)
    policy = parts.policy
    return replay_windows.make(
      self,
      policy.model,
      parts.loss_share,
      parts.init,
      horizon,
      axis_name,
      initial_targets=lambda params: {_CRITIC: params[_CRITIC]},
      update_targets=functools.partial(
        replay_windows.update_targets, self, groups=[_CRITIC]
      ),
      acting=lambda state: models.Variables(
        state.params[_POLICY], state.statistics
      ),
      initial_core_state=policy.initial_core_state,
      step=policy.step,
      greedy=policy.greedy,
    )


@dataclasses.dataclass(frozen=True)
class _Networks:
  """Policy and state value, the twin critics, and their losses."""

  policy: policy_model.Policy
  critic: models.Model
  space: action_vectors.Space
  windows: replay_windows.Windows
  axis_name: str | None

  @classmethod
  def make(
    cls, spec: types.EnvironmentSpec, config: Config, axis_name: str | None
  ) -> Self:
    distribution = distributions.for_spec(spec.action)
    space: action_vectors.Space
    if isinstance(spec.action, dm_env.specs.DiscreteArray):
      space = action_vectors.Choices(int(spec.action.num_values))
    else:
      space = action_vectors.Box.of(spec)
    # Policy and value share no layer.
    head = networks.PolicyValueHead(distribution.num_parameters)
    model = models.Model.make(spec, config, head, towers=2)
    return cls(
      policy_model.Policy(model, distribution),
      action_vectors.critics(spec, config, space, num_critics=2),
      space,
      config.windows,
      axis_name,
    )

  def init(self, rng_key: jax.Array) -> models.Variables:
    policy_key, critic_key = jax.random.split(rng_key)
    variables = self.policy.init(policy_key)
    critic = action_vectors.init_critics(self.critic, self.space, critic_key)
    params = {_POLICY: variables.params, _CRITIC: critic.params}
    return variables._replace(params=params)

  def loss_share(
    self,
    state: base.AgentState,
    rng_key: jax.Array,
    batch: types.Sample,
    params: types.Tree,
  ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array | None]]:
    """Returns this core's share of the sum of all losses, and metrics."""
    del rng_key
    costs, unroll = state.hyperparameters, batch.unroll
    policy = models.Variables(params[_POLICY], state.statistics)
    inputs, core_state = self.windows.warmed_up(
      self.policy.model, policy, unroll.inputs, ()
    )
    steps = self.windows.steps(self.policy.model, unroll, costs["discount"])
    action = self.windows.after_burn_in(unroll.action)
    evaluated = self.policy.evaluate_steps(policy, inputs, action, core_state)
    values, log_prob = evaluated.values, evaluated.log_prob[:-1]

    # The same frames, for a network with one tower.
    of_critic = core_state._replace(memory=core_state.memory[:1])

    def criticized(critic: types.Tree) -> jax.Array:
      return self.critic.unroll(
        models.Variables(critic, state.statistics),
        jax.tree.map(lambda x: x[:-1], inputs),
        of_critic,
        action=self.space.normalized(steps.action),
      ).head

    q_values = criticized(params[_CRITIC])
    target = jax.lax.stop_gradient(criticized(state.target_params[_CRITIC]))
    advantage = jnp.min(target, axis=-1) - values[:-1]
    critic, value, imitation = jax.vmap(
      functools.partial(self._losses, costs), in_axes=1, out_axes=1
    )(q_values, target, values, log_prob, *steps[1:-1])
    learned = self.windows.learned(
      {
        "critic": critic,
        "q_taken": jnp.mean(q_values, axis=-1),
        "loss_value": value.loss,
        "loss_policy": imitation.loss,
        "advantage_mean": advantage,
        "entropy": evaluated.entropy[:-1],
      },
      steps,
    )
    critic, q_taken = learned.pop("critic"), learned.pop("q_taken")
    total = critic.loss + learned["loss_value"] + learned["loss_policy"]
    measured, priorities = self.windows.shares(
      total * batch.importance_weight,
      q_taken,
      critic,
      batch.importance_weight,
      self.axis_name,
    )
    measured |= {
      name: losses.mean_share(x, critic.weight, self.axis_name)
      for name, x in learned.items()
    }
    return measured["loss"], (measured, priorities)

  def _losses(
    self,
    costs: Mapping[str, jax.Array],
    q_values: jax.Array,
    target: jax.Array,
    values: jax.Array,
    log_prob: jax.Array,
    *stream: jax.Array,
  ) -> tuple[losses.QLearningLoss, losses.ActorLoss, losses.ActorLoss]:
    """Returns the losses of critics, state value and policy, of one stream."""
    step_type = stream[0]
    advantage = jnp.min(target, axis=-1) - values[:-1]
    return (
      losses.clipped_double_q_learning(
        q_values, values[:, None], *stream, n=self.windows.n_step
      ),
      losses.expectile_value(
        values[:-1], target, step_type, expectile=costs["expectile"]
      ),
      losses.advantage_weighted_policy(
        log_prob,
        advantage,
        step_type,
        inverse_temperature=costs["inverse_temperature"],
      ),
    )
