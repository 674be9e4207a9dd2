"""The advantage actor-critic loss of A3C and A2C."""

import chex
import jax
import jax.numpy as jnp

from seedx.losses import returns, streams


@streams.in_float32
def a2c(
  values: jax.Array,
  log_prob: jax.Array,
  entropy: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  lambda_: float | jax.Array = 1.0,
) -> streams.ActorCriticLoss:
  """Computes the advantage actor-critic losses of one stream.

      policy gradient loss  -(G_t - V_t) log pi(a_t)
      value loss            0.5 (G_t - V_t)^2
      entropy loss          -H(pi_t)

  G is the lambda-return, by default the longest n-step return of the stream. No
  gradient flows through G and the advantage (Mnih et al. 2016,
  https://arxiv.org/abs/1602.01783, section 4 and algorithm S3). The loss is
  on-policy: the actions must be drawn from pi. Episodes may end inside the
  stream, see `streams.transitions`.

  >>> loss = a2c(
  ...   values=jnp.array([1.0, 2.0]),
  ...   log_prob=jnp.array([-0.5]),
  ...   entropy=jnp.array([0.7]),
  ...   step_type=jnp.array([0, 1]),
  ...   reward=jnp.array([0.0, 3.0]),
  ...   discount=jnp.array([1.0, 0.5]),
  ... )  # The advantage is 3 + 0.5 * 2 - 1.
  >>> loss.policy_gradient.tolist(), loss.value.tolist()
  ([1.5], [4.5])

  Args:
    values: `[T + 1]` float, V of each time step.
    log_prob: `[T]` float, log pi(a_t).
    entropy: `[T]` float, entropy of pi.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step, times gamma.
    lambda_: lambda of TD(lambda), from 0 (one-step targets) to 1 (longest
      returns).
  """
  length = streams.num_transitions(step_type)
  names = "log_prob, entropy"
  chex.assert_type([log_prob, entropy], float, custom_message=names)
  chex.assert_shape([log_prob, entropy], (length,), custom_message=names)
  steps = streams.transitions(step_type, reward, discount, values)
  target = returns.lambda_returns(
    values, step_type, reward, discount, lambda_=lambda_
  )
  errors = jax.lax.stop_gradient(target) - values[:-1]
  # The error of a reset is 0, so only the entropy needs the weight.
  return streams.ActorCriticLoss(
    policy_gradient=-jax.lax.stop_gradient(errors) * log_prob,
    value=0.5 * jnp.square(errors),
    entropy=-entropy * steps.weight,
    weight=steps.weight,
    diagnostics=streams.diagnostics(steps.weight, errors, target, values[:-1]),
  )
