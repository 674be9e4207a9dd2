"""AlphaZero's loss: a policy learns from a search, a value from results."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedx.losses import returns, streams


class AlphaZeroLoss(NamedTuple):
  """Losses of the steps of one stream.

  Attributes:
    policy: `[T]`.
    value: `[T]`.
    weight: `[T]`, 0 on resets, 1 elsewhere.
    target: `[T]`, target of the values, without a gradient; 0 on resets.
  """

  policy: jax.Array
  value: jax.Array
  weight: jax.Array
  target: jax.Array


@streams.in_float32
def alphazero(
  values: jax.Array,
  log_policy: jax.Array,
  search_policy: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  lambda_: float | jax.Array = 1.0,
) -> AlphaZeroLoss:
  """Computes the losses of AlphaZero for one stream.

      policy loss  -sum_a pi_t(a) log p_t(a)
      value loss   (G_t - V_t)^2

  pi is the policy that a search found, p the network's, and G the
  lambda-return, by default the longest n-step return of the stream: the result
  of the game, if the stream has its end. Silver et al. 2018,
  https://doi.org/10.1126/science.aar6404, equation 1.

  If two players alternate, each value is that of the player to move, so what is
  good for one is bad for the other: pass the negative discount. No gradient
  flows through G and pi. Games may end inside the stream, see
  `streams.transitions`.

  >>> loss = alphazero(
  ...   values=jnp.array([0.5, -0.25, 0.0]),
  ...   log_policy=jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]])),
  ...   search_policy=jnp.array([[1.0, 0.0], [0.0, 1.0]]),
  ...   step_type=jnp.array([1, 1, 2]),
  ...   reward=jnp.array([0.0, 0.0, 1.0]),
  ...   discount=jnp.array([-1.0, -1.0, 0.0]),
  ... )  # The second player has won: G is -1 for the first player.
  >>> loss.target.tolist(), loss.value.tolist()
  ([-1.0, 1.0], [2.25, 1.5625])

  Args:
    values: `[T + 1]` float, V of each time step.
    log_policy: `[T, A]` float, log p of all actions; finite.
    search_policy: `[T, A]` float, pi; 0 for illegal actions.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step, times gamma, and
      times -1 if players alternate.
    lambda_: lambda of TD(lambda), from 0 (one-step targets) to 1 (longest
      returns).
  """
  length = streams.num_transitions(step_type)
  names = "log_policy, search_policy"
  policies = [log_policy, search_policy]
  chex.assert_type(policies, float, custom_message=names)
  chex.assert_shape(policies, (length, None), custom_message=names)
  chex.assert_equal_shape(policies, custom_message=names)
  steps = streams.transitions(step_type, reward, discount, values)
  target = jax.lax.stop_gradient(
    returns.lambda_returns(values, step_type, reward, discount, lambda_=lambda_)
  )
  search_policy = jax.lax.stop_gradient(search_policy)
  cross_entropy = -jnp.sum(search_policy * log_policy, axis=-1)
  return AlphaZeroLoss(
    policy=cross_entropy * steps.weight,
    value=jnp.square(target - values[:-1]) * steps.weight,
    weight=steps.weight,
    target=target * steps.weight,
  )
