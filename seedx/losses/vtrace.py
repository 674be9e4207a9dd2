"""V-trace, the off-policy actor-critic loss of IMPALA."""

import chex
import jax
import jax.numpy as jnp

from seedx.losses import lazy_rlax, streams

# A weight above its threshold only by rounding does not count as clipped.
_CLIPPED = 1.001


@streams.in_float32
def vtrace(
  values: jax.Array,
  log_prob: jax.Array,
  behaviour_log_prob: jax.Array,
  entropy: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  lambda_: float | jax.Array = 1.0,
  clip_rho_threshold: float | jax.Array = 1.0,
  clip_pg_rho_threshold: float | jax.Array = 1.0,
) -> streams.ActorCriticLoss:
  """Computes the V-trace actor-critic losses of one stream.

      rho_t   = pi(a_t) / mu(a_t), the importance weight
      delta_t = min(rho_bar, rho_t) (r_t+1 + d_t+1 V_t+1 - V_t)
      vs_t    = V_t + delta_t + d_t+1 lambda min(1, rho_t) (vs_t+1 - V_t+1)
      value loss            0.5 (vs_t - V_t)^2
      policy gradient loss  -min(rho_pg, rho_t) (q_t - V_t) log pi(a_t), with
                            q_t = r_t+1 + d_t+1 (lambda vs_t+1
                                                 + (1 - lambda) V_t+1)
      entropy loss          -H(pi_t)

  No gradient flows through vs and the advantage (Espeholt et al. 2018,
  https://arxiv.org/abs/1802.01561, equation 1 and section 4.2). Episodes may
  end inside the stream: a reset, the transition into a FIRST step, has weight 0
  and errors of 0, and no trace crosses it; see `streams.transitions`.

  >>> loss = vtrace(
  ...   values=jnp.array([1.0, 2.0]),
  ...   log_prob=jnp.log(jnp.array([0.25])),
  ...   behaviour_log_prob=jnp.log(jnp.array([0.5])),
  ...   entropy=jnp.array([0.7]),
  ...   step_type=jnp.array([0, 1]),
  ...   reward=jnp.array([0.0, 3.0]),
  ...   discount=jnp.array([1.0, 0.5]),
  ... )  # rho = 0.5 and vs_0 = 1 + 0.5 (3 + 0.5 * 2 - 1).
  >>> loss.value.tolist()
  [1.125]

  Args:
    values: `[T + 1]` float, V of each time step.
    log_prob: `[T]` float, log pi(a_t).
    behaviour_log_prob: `[T]` float, log mu(a_t) of the acting parameters.
    entropy: `[T]` float, entropy of pi.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step, times gamma.
    lambda_: lambda of V-trace, from 0 (one-step targets) to 1 (longest
      returns).
    clip_rho_threshold: rho_bar, maximum of rho in the value targets.
    clip_pg_rho_threshold: rho_pg, maximum of rho in the policy gradient.
  """
  length = streams.num_transitions(step_type)
  names = "log_prob, behaviour_log_prob, entropy"
  floats = [log_prob, behaviour_log_prob, entropy]
  chex.assert_type(floats, float, custom_message=names)
  chex.assert_shape(floats, (length,), custom_message=names)
  steps = streams.transitions(step_type, reward, discount, values)
  log_ratio = streams.log_ratio(log_prob, behaviour_log_prob)
  ratio = jnp.exp(log_ratio)
  estimates = lazy_rlax.rlax().vtrace_td_error_and_advantage(
    v_tm1=values[:-1],
    v_t=values[1:],
    r_t=steps.reward_t,
    discount_t=steps.discount_t,
    rho_tm1=ratio,
    lambda_=lambda_,
    clip_rho_threshold=clip_rho_threshold,
    clip_pg_rho_threshold=clip_pg_rho_threshold,
  )
  advantage = jax.lax.stop_gradient(estimates.pg_advantage)
  # The error of a reset is 0, so only the entropy needs the weight.
  return streams.ActorCriticLoss(
    policy_gradient=-advantage * log_prob,
    value=0.5 * jnp.square(estimates.errors),
    entropy=-entropy * steps.weight,
    weight=steps.weight,
    diagnostics=streams.diagnostics(
      steps.weight,
      advantage,
      values[:-1] + estimates.errors,
      values[:-1],
      log_ratio,
      importance_weight=ratio,
      importance_square=jnp.square(ratio),
      clip_mass=jnp.maximum(ratio - clip_rho_threshold, 0.0),
      clip_fraction=(ratio > _CLIPPED * clip_rho_threshold).astype(ratio.dtype),
    ),
  )
