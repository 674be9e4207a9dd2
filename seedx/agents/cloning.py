"""Behavioural cloning: a policy that imitates the actions of a recording.

Pomerleau 1989, "ALVINN: An Autonomous Land Vehicle in a Neural Network". The
network is that of A2C, PPO and V-trace, which can begin with its parameters.
"""

import dataclasses
import functools

import jax

from seedx import distributions, losses, networks, types
from seedx.agents import base, models, policy_model, replay_windows


@dataclasses.dataclass(frozen=True)
class Config(replay_windows.Config):
  """Hyper-parameters of behavioural cloning."""

  learning_rate: float = 1e-3
  learning_rate_end: float = 1.0
  n_step: int = 1

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    base.check_one_player(spec)
    distribution = distributions.for_spec(spec.action)
    head = networks.PolicyValueHead(distribution.num_parameters)
    model = models.Model.make(spec, self, head)
    policy = policy_model.Policy(model, distribution)
    return replay_windows.make(
      self,
      model,
      functools.partial(_loss_share, policy, self.windows, axis_name),
      policy.init,
      horizon,
      axis_name,
      initial_targets=lambda params: (),
      update_targets=lambda state: state,
      acting=lambda state: models.Variables(state.params, state.statistics),
      initial_core_state=policy.initial_core_state,
      step=policy.step,
      greedy=policy.greedy,
    )


# A `replay_windows.LossShare`.
def _loss_share(
  policy: policy_model.Policy,
  windows: replay_windows.Windows,
  axis_name: str | None,
  state: base.AgentState,
  rng_key: jax.Array,
  batch: types.Sample,
  params: types.Tree,
) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
  """Returns this core's share of the mean of -log pi(a | s), and metrics."""
  del rng_key
  variables = models.Variables(params, state.statistics)
  inputs, core_state = windows.warmed_up(
    policy.model, variables, batch.unroll.inputs, ()
  )
  action = windows.after_burn_in(batch.unroll.action)
  steps = policy.evaluate_steps(variables, inputs, action, core_state)
  weight = losses.weights(inputs.timestep.step_type)

  def mean(values: jax.Array) -> jax.Array:
    return losses.mean_share(values[:-1], weight, axis_name)

  loss = mean(-steps.log_prob * batch.importance_weight)
  entropy = mean(steps.entropy)
  return loss, (
    {"loss": loss, "entropy": entropy, "weight": weight.sum()},
    None,
  )
