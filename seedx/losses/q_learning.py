"""Q-learning losses: n-step, double, with rescaled values."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedx.losses import lazy_rlax, streams


class QLearningLoss(NamedTuple):
  """Losses of the steps of one stream.

  Attributes:
    loss: `[T]`.
    td_error: `[T]`, without a gradient; its magnitude is the priority.
    weight: `[T]`, 0 on resets, 1 elsewhere.
  """

  loss: jax.Array
  td_error: jax.Array
  weight: jax.Array


@streams.in_float32
def q_learning(
  q_values: jax.Array,
  target_q_values: jax.Array,
  action: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  n: int = 1,
  double: bool = True,
  huber_delta: float | None = None,
  rescale: bool = False,
  importance_weight: jax.Array | None = None,
) -> QLearningLoss:
  """Computes the Q-learning loss of one stream.

      td_t   = h(G_t) - Q_t(a_t)
      G_t    = r_t+1 + d_t+1 (r_t+2 + d_t+2 (... (r_t+n + d_t+n V_t+n)))
      V_t    = h^-1(Q'_t(argmax_a Q_t(a))) if double, else
               h^-1(max_a Q'_t(a))
      loss_t = w huber(td_t), or w 0.5 td_t^2

  No gradient flows through G. Q' uses the target parameters. With `rescale`, h
  is sign(x) (sqrt(|x| + 1) - 1) + 0.001 x; otherwise h is the identity. A step
  closer than n to the end of the stream bootstraps at the end. Episodes may end
  inside the stream, see `streams.transitions`.

  Sources: Mnih et al. 2015, https://doi.org/10.1038/nature14236; double: van
  Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, equation 4; n steps and
  w: Hessel et al. 2018, https://arxiv.org/abs/1710.02298; h: Pohlen et al.
  2018, https://arxiv.org/abs/1805.11593, section 3.1.

  >>> loss = q_learning(
  ...   q_values=jnp.array([[1.0, 0.0], [2.0, 5.0]]),
  ...   target_q_values=jnp.array([[0.0, 0.0], [6.0, 4.0]]),
  ...   action=jnp.array([0]),
  ...   step_type=jnp.array([0, 1]),
  ...   reward=jnp.array([0.0, 3.0]),
  ...   discount=jnp.array([1.0, 0.5]),
  ... )  # Q chooses action 1; Q' evaluates it as 4.
  >>> loss.td_error.tolist(), loss.loss.tolist()
  ([4.0], [8.0])

  Args:
    q_values: `[T + 1, A]` float, Q.
    target_q_values: `[T + 1, A]` float, Q'.
    action: `[T]` integers, the actions taken.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step, times gamma.
    n: number of steps before bootstrapping, at least 1.
    double: whether Q chooses the action that Q' evaluates.
    huber_delta: TD error beyond which the Huber loss is linear; None for the
      squared loss.
    rescale: whether Q estimates h of the return instead of the return.
    importance_weight: `[]` float, w of the whole stream; None for 1.

  Raises:
    ValueError: n is below 1.
  """
  length = streams.num_transitions(step_type, n)
  names = "q_values, target_q_values"
  both = [q_values, target_q_values]
  chex.assert_type(both, float, custom_message=names)
  chex.assert_shape(both, (length + 1, None), custom_message=names)
  chex.assert_equal_shape(both, custom_message=names)
  chex.assert_type(action, int, custom_message="action")
  chex.assert_shape(action, (length,), custom_message="action")
  rlax = lazy_rlax.rlax()
  pair = rlax.SIGNED_HYPERBOLIC_PAIR if rescale else rlax.IDENTITY_PAIR
  best = jnp.argmax(q_values if double else target_q_values, axis=-1)
  values = jnp.take_along_axis(target_q_values, best[:, None], axis=-1)[:, 0]
  steps = streams.transitions(
    step_type, reward, discount, pair.apply_inv(values)
  )
  td_error = steps.weight * rlax.transformed_n_step_q_learning(
    q_values[:-1],
    action,
    target_q_values[1:],
    best[1:],
    steps.reward_t,
    steps.discount_t,
    n,
    tx_pair=pair,
  )
  loss = 0.5 * jnp.square(td_error)
  if huber_delta is not None:
    loss = rlax.huber_loss(td_error, huber_delta)
  if importance_weight is not None:
    name = "importance_weight"
    chex.assert_type(importance_weight, float, custom_message=name)
    chex.assert_rank(importance_weight, 0, custom_message=name)
    loss = loss * importance_weight
  return QLearningLoss(loss, jax.lax.stop_gradient(td_error), steps.weight)
