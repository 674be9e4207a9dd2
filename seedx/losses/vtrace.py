"""V-trace, the off-policy actor-critic loss of IMPALA."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import rlax

from seedx.losses import streams


class VTraceLoss(NamedTuple):
  """Per-step losses of one stream.

  Attributes:
    policy_gradient: `[T]`.
    value: `[T]`.
    entropy: `[T]`, the negative entropy.
    weight: `[T]`, 0 on the steps that are no experience, 1 elsewhere.
  """

  policy_gradient: jax.Array
  value: jax.Array
  entropy: jax.Array
  weight: jax.Array


def vtrace(
  values: jax.Array,
  log_prob: jax.Array,
  behaviour_log_prob: jax.Array,
  entropy: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  lambda_: float = 1.0,
  clip_rho_threshold: float = 1.0,
  clip_pg_rho_threshold: float = 1.0,
) -> VTraceLoss:
  """The V-trace actor-critic losses of one stream of T transitions.

  With the importance weight rho_t = pi(a_t) / mu(a_t),

      delta_t = min(rho_bar, rho_t) (r_t+1 + d_t+1 V_t+1 - V_t)
      vs_t    = V_t + delta_t + d_t+1 lambda min(1, rho_t) (vs_t+1 - V_t+1)
      value loss            0.5 (vs_t - V_t)^2
      policy gradient loss  -min(rho_pg, rho_t) (q_t - V_t) log pi(a_t), with
                            q_t = r_t+1 + d_t+1 (lambda vs_t+1
                                                 + (1 - lambda) V_t+1)
      entropy loss          -H(pi_t)

  where vs and the advantage are constants to the gradient (Espeholt et al.
  2018, https://arxiv.org/abs/1802.01561, equations 1 and section 4.2).
  Episodes that end inside the stream are cut as `streams.transitions` says.

  Args:
    values: `[T + 1]` float, V of each time step by the learned parameters.
    log_prob: `[T]` float, log pi(a_t) by the learned parameters.
    behaviour_log_prob: `[T]` float, log mu(a_t) when it was acted.
    entropy: `[T]` float, entropy of pi at each time step.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, the reward that arrived with each time step.
    discount: `[T + 1]` float, likewise, times the agent's own discount.
    lambda_: mixes in shorter returns; 1 for the longest.
    clip_rho_threshold: rho_bar; decides which policy's value is learned.
    clip_pg_rho_threshold: rho_pg.

  Returns:
    `VTraceLoss` of `[T]` each.

  Raises:
    AssertionError: ranks, types or lengths differ from the above.
  """
  chex.assert_rank([values, log_prob, behaviour_log_prob, entropy], 1)
  chex.assert_type([values, log_prob, behaviour_log_prob, entropy], float)
  chex.assert_equal_shape([log_prob, behaviour_log_prob, entropy, values[1:]])
  steps = streams.transitions(step_type, reward, discount, values)
  estimates = rlax.vtrace_td_error_and_advantage(
    v_tm1=values[:-1],
    v_t=values[1:],
    r_t=steps.reward_t,
    discount_t=steps.discount_t,
    rho_tm1=jnp.exp(jax.lax.stop_gradient(log_prob) - behaviour_log_prob),
    lambda_=lambda_,
    clip_rho_threshold=clip_rho_threshold,
    clip_pg_rho_threshold=clip_pg_rho_threshold,
  )
  advantage = jax.lax.stop_gradient(estimates.pg_advantage)
  return VTraceLoss(
    policy_gradient=-advantage * log_prob * steps.weight,
    value=0.5 * jnp.square(estimates.errors) * steps.weight,
    entropy=-entropy * steps.weight,
    weight=steps.weight,
  )
