"""Returns and advantages of one stream, which may span several episodes.

All functions take these arguments, and return `[T]`:
  values: `[T + 1]` float, V of each time step; `q_lambda_returns` takes Q.
  step_type: `[T + 1]` integers of `dm_env.StepType`.
  reward: `[T + 1]` float, reward that arrived with each time step.
  discount: `[T + 1]` float, discount of each time step, times gamma.

At a reset, from an episode's LAST step to the next FIRST, the return is V(LAST)
and the advantage is 0; see `streams.transitions`.
"""

import chex
import jax
import jax.numpy as jnp

from seedx.losses import lazy_rlax, streams


@streams.in_float32
def n_step_returns(
  values: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  n: int,
) -> jax.Array:
  """Computes returns that bootstrap after n steps or at the stream's end.

      G_t = r_t+1 + d_t+1 (r_t+2 + d_t+2 (... (r_t+n + d_t+n V_t+n)))

  Sutton and Barto 2018, "Reinforcement Learning", equation 7.1. The module
  describes the arguments.

  >>> import jax.numpy as jnp
  >>> n_step_returns(
  ...   values=jnp.array([0.0, 0.0, 8.0]),
  ...   step_type=jnp.array([0, 1, 1]),
  ...   reward=jnp.array([0.0, 1.0, 2.0]),
  ...   discount=jnp.array([1.0, 0.5, 0.5]),
  ...   n=2,
  ... ).tolist()  # 1 + 0.5 (2 + 0.5 * 8), 2 + 0.5 * 8
  [4.0, 6.0]

  Raises:
    ValueError: n is below 1.
  """
  if n < 1:
    raise ValueError(f"expected n of at least 1, found {n}")
  steps = streams.transitions(step_type, reward, discount, values)
  return lazy_rlax.rlax().n_step_bootstrapped_returns(
    steps.reward_t, steps.discount_t, values[1:], n
  )


@streams.in_float32
def lambda_returns(
  values: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  lambda_: float | jax.Array = 1.0,
) -> jax.Array:
  """Computes lambda-returns, exponentially weighted means of n-step returns.

      G_t = r_t+1 + d_t+1 ((1 - lambda) V_t+1 + lambda G_t+1),  G_T = V_T

  Sutton and Barto 2018, "Reinforcement Learning", section 12.1. Lambda 1 gives
  the longest n-step return, lambda 0 the one-step return. The module describes
  the other arguments.

  >>> import jax.numpy as jnp
  >>> lambda_returns(
  ...   values=jnp.array([0.0, 4.0, 8.0]),
  ...   step_type=jnp.array([0, 1, 1]),
  ...   reward=jnp.array([0.0, 1.0, 2.0]),
  ...   discount=jnp.array([1.0, 0.5, 0.5]),
  ...   lambda_=0.5,
  ... ).tolist()  # 1 + 0.5 (0.5 * 4 + 0.5 * 6), 2 + 0.5 * 8
  [3.5, 6.0]
  """
  steps = streams.transitions(step_type, reward, discount, values)
  return lazy_rlax.rlax().lambda_returns(
    steps.reward_t, steps.discount_t, values[1:], 1.0 * lambda_
  )


@streams.in_float32
def q_lambda_returns(
  q_values: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  lambda_: float | jax.Array = 1.0,
) -> jax.Array:
  """Computes the targets of Q(lambda), the lambda-returns of the best actions.

      G_t = r_t+1 + d_t+1 ((1 - lambda) max_a Q_t+1(a) + lambda G_t+1),
      G_T = max_a Q_T(a)

  Peng and Williams 1996, https://doi.org/10.1023/A:1018076709321: traces do not
  end at actions that are not the best. `q_values` are `[T + 1, A]`; the module
  describes the other arguments.

  >>> q_lambda_returns(
  ...   q_values=jnp.array([[0.0, 9.0], [4.0, 2.0], [7.0, 8.0]]),
  ...   step_type=jnp.array([0, 1, 1]),
  ...   reward=jnp.array([0.0, 1.0, 2.0]),
  ...   discount=jnp.array([1.0, 0.5, 0.5]),
  ...   lambda_=0.5,
  ... ).tolist()  # 1 + 0.5 (0.5 * 4 + 0.5 * 6), 2 + 0.5 * 8
  [3.5, 6.0]
  """
  shape = streams.num_transitions(step_type) + 1, None
  chex.assert_type(q_values, float, custom_message="q_values")
  chex.assert_shape(q_values, shape, custom_message="q_values")
  values = jnp.max(q_values, axis=-1)
  return lambda_returns(values, step_type, reward, discount, lambda_=lambda_)


@streams.in_float32
def gae(
  values: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  lambda_: float | jax.Array = 0.95,
) -> jax.Array:
  """Computes generalised advantage estimates.

      A_t = delta_t + d_t+1 lambda A_t+1,
      delta_t = r_t+1 + d_t+1 V_t+1 - V_t

  Schulman et al. 2015, https://arxiv.org/abs/1506.02438, equation 16. The
  estimate equals the lambda-return minus V. Lambda 1 gives the longest returns,
  lambda 0 one-step TD errors. The module describes the other arguments.

  >>> import jax.numpy as jnp
  >>> gae(
  ...   values=jnp.array([1.0, 4.0, 8.0]),
  ...   step_type=jnp.array([0, 1, 1]),
  ...   reward=jnp.array([0.0, 1.0, 2.0]),
  ...   discount=jnp.array([1.0, 0.5, 0.5]),
  ...   lambda_=0.5,
  ... ).tolist()  # (1 + 0.5 * 4 - 1) + 0.5 * 0.5 * 2, 2 + 0.5 * 8 - 4
  [2.5, 2.0]
  """
  steps = streams.transitions(step_type, reward, discount, values)
  return lazy_rlax.rlax().truncated_generalized_advantage_estimation(
    steps.reward_t, steps.discount_t, lambda_, values
  )
