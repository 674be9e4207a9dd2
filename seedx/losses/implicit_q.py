"""Losses of implicit Q-learning, which evaluates only actions in the data."""

import chex
import jax
import jax.numpy as jnp

from seedx.losses import streams
from seedx.losses.continuous_q import ActorLoss


@streams.in_float32
def expectile_value(
  values: jax.Array,
  q_values: jax.Array,
  step_type: jax.Array,
  *,
  expectile: float | jax.Array,
) -> ActorLoss:
  """Computes the loss of a state value that is an expectile of Q.

      loss_t = |tau - 1[u_t < 0]| u_t^2,  u_t = min_c Q_c(s_t, a_t) - V(s_t)

  An expectile tau of 0.5 is the mean over the actions in the data; with tau
  close to 1, V approaches the largest Q among them. No gradient flows to Q.

  Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit
  Q-Learning", https://arxiv.org/abs/2110.06169, equation 5.

  >>> loss = expectile_value(
  ...   values=jnp.array([0.0, 0.0]),
  ...   q_values=jnp.array([[2.0, 3.0], [-2.0, 1.0]]),
  ...   step_type=jnp.array([1, 1, 1]),
  ...   expectile=0.75,
  ... )
  >>> loss.loss.tolist()
  [3.0, 1.0]

  Args:
    values: `[T]` float, V.
    q_values: `[T, C]` float, Q of the actions taken.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    expectile: tau, between 0 and 1.
  """
  length = streams.num_transitions(step_type)
  names = "values, q_values"
  chex.assert_type([values, q_values], float, custom_message=names)
  chex.assert_shape(
    [values, q_values], [(length,), (length, None)], custom_message=names
  )
  error = jax.lax.stop_gradient(jnp.min(q_values, axis=-1)) - values
  side = jnp.where(error < 0, 1.0 - expectile, expectile)
  weight = streams.weights(step_type)
  return ActorLoss(weight * side * jnp.square(error), weight)


@streams.in_float32
def advantage_weighted_policy(
  log_prob: jax.Array,
  advantage: jax.Array,
  step_type: jax.Array,
  *,
  inverse_temperature: float | jax.Array,
  max_weight: float = 100.0,
) -> ActorLoss:
  """Computes the loss of a policy that imitates actions of large advantage.

      loss_t = -min(exp(beta A_t), w_max) log pi(a_t | s_t)

  With a beta of 0, it is behavioural cloning. No gradient flows to A.

  Peng et al. 2019, https://arxiv.org/abs/1910.00177, equation 8; the limit of
  weights: Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169.

  >>> loss = advantage_weighted_policy(
  ...   log_prob=jnp.array([-1.0, -1.0]),
  ...   advantage=jnp.array([0.0, 50.0]),
  ...   step_type=jnp.array([1, 1, 1]),
  ...   inverse_temperature=3.0,
  ... )
  >>> [round(x) for x in loss.loss.tolist()]
  [1, 100]

  Args:
    log_prob: `[T]` float, log pi of the actions taken.
    advantage: `[T]` float, A.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    inverse_temperature: beta, at least 0.
    max_weight: w_max.
  """
  length = streams.num_transitions(step_type)
  names = "log_prob, advantage"
  both = [log_prob, advantage]
  chex.assert_type(both, float, custom_message=names)
  chex.assert_shape(both, (length,), custom_message=names)
  # The exponent is clipped, too: exp overflows.
  exponent = jnp.minimum(inverse_temperature * advantage, jnp.log(max_weight))
  scale = jax.lax.stop_gradient(jnp.exp(exponent))
  weight = streams.weights(step_type)
  return ActorLoss(-weight * scale * log_prob, weight)
