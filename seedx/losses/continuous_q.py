"""Losses of actors and critics of continuous actions: DDPG, TD3, D4PG and SAC.

A critic estimates Q(s, a) of one action. C critics are learned side by side;
two of them are the twins of clipped double Q-learning.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedx.losses import categorical, lazy_rlax, streams
from seedx.losses.q_learning import QLearningLoss


class ActorLoss(NamedTuple):
  """Losses of an actor at the steps of one stream.

  Attributes:
    loss: `[T]`.
    weight: `[T]`, 0 on resets, 1 elsewhere.
  """

  loss: jax.Array
  weight: jax.Array


@streams.in_float32
def clipped_double_q_learning(
  q_values: jax.Array,
  target_q_values: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  n: int = 1,
  entropy_bonus: jax.Array | None = None,
) -> QLearningLoss:
  """Computes the loss of the critics of one stream.

      loss_t = 1/2 sum_c (G_t - Q_c(s_t, a_t))^2
      V_t    = min_c Q'_c(s_t, a'_t) + entropy_bonus_t

  G_t is the n-step return that bootstraps from V, see `n_step_returns`. The
  action a' is one of the target policy. One critic is DDPG's; for SAC's soft
  values, the entropy bonus is -alpha log pi(a'_t | s_t). No gradient flows
  through G.

  Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, algorithm 1; the
  minimum: Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, equation 10;
  soft values: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equation
  3.

  >>> loss = clipped_double_q_learning(
  ...   q_values=jnp.array([[2.0, 1.0]]),
  ...   target_q_values=jnp.array([[0.0, 0.0], [8.0, 6.0]]),
  ...   step_type=jnp.array([1, 1]),
  ...   reward=jnp.array([0.0, 1.0]),
  ...   discount=jnp.array([1.0, 0.5]),
  ... )  # 1 + 0.5 min(8, 6) = 4
  >>> loss.loss.tolist(), loss.td_error.tolist()
  ([6.5], [2.5])

  Args:
    q_values: `[T, C]` float, Q of the actions taken.
    target_q_values: `[T + 1, C']` float, Q' of the target policy's actions.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step, times gamma.
    n: number of steps before bootstrapping, at least 1.
    entropy_bonus: `[T + 1]` float, added to the values; None for 0.

  Returns:
    The losses; `td_error` is the mean of the critics' absolute TD errors.

  Raises:
    ValueError: n is below 1.
  """
  length = streams.num_transitions(step_type, n)
  names = "q_values, target_q_values"
  both = [q_values, target_q_values]
  chex.assert_type(both, float, custom_message=names)
  shapes = [(length, None), (length + 1, None)]
  chex.assert_shape(both, shapes, custom_message=names)
  values = jnp.min(target_q_values, axis=-1)
  if entropy_bonus is not None:
    name = "entropy_bonus"
    chex.assert_type(entropy_bonus, float, custom_message=name)
    chex.assert_shape(entropy_bonus, (length + 1,), custom_message=name)
    values = values + entropy_bonus
  steps = streams.transitions(step_type, reward, discount, values)
  returns = jax.lax.stop_gradient(
    lazy_rlax.rlax().n_step_bootstrapped_returns(
      steps.reward_t, steps.discount_t, values[1:], n
    )
  )
  td_errors = steps.weight[:, None] * (returns[:, None] - q_values)
  return QLearningLoss(
    0.5 * jnp.sum(jnp.square(td_errors), axis=-1),
    jax.lax.stop_gradient(jnp.mean(jnp.abs(td_errors), axis=-1)),
    steps.weight,
  )


@streams.in_float32
def categorical_clipped_double_q_learning(
  logits: jax.Array,
  target_logits: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  atoms: jax.Array,
  n: int = 1,
) -> QLearningLoss:
  """Computes the loss of distributional critics of one stream (D4PG).

      loss_t = sum_c KL(Phi(R_t + D_t z, p'(s_k, a'_k)) || p_c(s_t, a_t))

  The n-step return bootstraps from step k with reward R_t and discount D_t, see
  `n_step_bootstraps`. The atoms are z, and Phi projects the shifted atoms back
  onto z. Of several target critics, p' is the one with the smallest mean. No
  gradient flows through the target.

  Barth-Maron et al. 2018, https://arxiv.org/abs/1804.08617, algorithm 1.

  >>> loss = categorical_clipped_double_q_learning(
  ...   logits=jnp.zeros((1, 1, 3)),
  ...   target_logits=jnp.array([[[0.0, 0.0, 0.0]], [[-99.0, -99.0, 0.0]]]),
  ...   step_type=jnp.array([1, 1]),
  ...   reward=jnp.array([0.0, 0.5]),
  ...   discount=jnp.array([1.0, 0.5]),
  ...   atoms=jnp.array([0.0, 1.0, 2.0]),
  ... )  # 0.5 + 0.5 * 2 lies half way between the atoms 1 and 2: log 3 - log 2
  >>> round(loss.loss.item(), 4)
  0.4055

  Args:
    logits: `[T, C, Z]` float, logits of p for the actions taken.
    target_logits: `[T + 1, C', Z]` float, logits of p' for the target policy's
      actions.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step, times gamma.
    atoms: `[Z]` float, ascending; returns beyond them are clipped.
    n: number of steps before bootstrapping, at least 1.

  Returns:
    The losses; `td_error` is the mean of the critics' losses.

  Raises:
    ValueError: n is below 1.
  """
  length = streams.num_transitions(step_type, n)
  names = "logits, target_logits, atoms"
  floats = [logits, target_logits, atoms]
  chex.assert_type(floats, float, custom_message=names)
  chex.assert_rank(atoms, 1, custom_message="atoms")
  size = len(atoms)
  shapes = [(length, None, size), (length + 1, None, size), (size,)]
  chex.assert_shape(floats, shapes, custom_message=names)
  target = jax.nn.softmax(target_logits)
  smallest = jnp.argmin(target @ atoms, axis=-1)
  values = jnp.take_along_axis(target, smallest[:, None, None], axis=1)[:, 0]
  ends = categorical.n_step_bootstraps(step_type, reward, discount, n=n)
  target = categorical.projected_returns(ends, values[ends.step], atoms)
  losses = ends.weight[:, None] * categorical.divergence(
    target[:, None], logits
  )
  td_error = jax.lax.stop_gradient(jnp.mean(losses, axis=-1))
  return QLearningLoss(jnp.sum(losses, axis=-1), td_error, ends.weight)


@streams.in_float32
def deterministic_policy_gradient(
  action: jax.Array,
  action_gradient: jax.Array,
  step_type: jax.Array,
  *,
  gradient_clip: float | None = None,
) -> ActorLoss:
  """Computes the loss of a deterministic actor for one stream.

      loss_t = 1/2 |stop(a_t + dQ/da_t) - a_t|^2,  a_t = mu(s_t)

  Its gradient is that of -Q(s_t, mu(s_t)), and its value half the squared norm
  of dQ/da.

  Silver et al. 2014, "Deterministic Policy Gradient Algorithms", equation 9,
  https://proceedings.mlr.press/v32/silver14.html.

  >>> actor_loss = deterministic_policy_gradient(
  ...   action=jnp.array([[0.5, 0.5]]),
  ...   action_gradient=jnp.array([[2.0, -3.0]]),
  ...   step_type=jnp.array([1, 1]),
  ... )
  >>> actor_loss.loss.tolist()
  [6.5]

  Args:
    action: `[T, A]` float, actions of the actor.
    action_gradient: `[T, A]` float, gradient of Q with respect to the action.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    gradient_clip: largest absolute value of each element of dQ/da, beyond which
      it is clipped; None for no clipping.
  """
  length = streams.num_transitions(step_type)
  names = "action, action_gradient"
  both = [action, action_gradient]
  chex.assert_type(both, float, custom_message=names)
  chex.assert_shape(both, (length, None), custom_message=names)
  chex.assert_equal_shape(both, custom_message=names)
  if gradient_clip is not None:
    # RLax would clip the norm.
    action_gradient = jnp.clip(action_gradient, -gradient_clip, gradient_clip)
  weight = streams.weights(step_type)
  per_dimension = jax.vmap(lazy_rlax.rlax().dpg_loss)(action, action_gradient)
  return ActorLoss(weight * jnp.sum(per_dimension, axis=-1), weight)


@streams.in_float32
def soft_policy(
  q_values: jax.Array,
  log_prob: jax.Array,
  step_type: jax.Array,
  *,
  temperature: float | jax.Array,
) -> ActorLoss:
  """Computes the loss of a stochastic actor with an entropy bonus (SAC).

      loss_t = alpha log pi(a_t | s_t) - min_c Q_c(s_t, a_t),  a_t ~ pi

  The gradient flows to the policy through log pi, and through the action, which
  is a function of the policy's parameters and of noise; none flows to alpha.
  With discrete actions, give the means over the policy: -H(pi) for log pi, and
  the mean of the smallest Q-values.

  Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equation 9; discrete
  actions: Christodoulou 2019, https://arxiv.org/abs/1910.07207, equation 12.

  >>> actor_loss = soft_policy(
  ...   q_values=jnp.array([[3.0, 2.0]]),
  ...   log_prob=jnp.array([-1.0]),
  ...   step_type=jnp.array([1, 1]),
  ...   temperature=0.5,
  ... )
  >>> actor_loss.loss.tolist()
  [-2.5]

  Args:
    q_values: `[T, C]` float, Q of the actor's actions.
    log_prob: `[T]` float, log pi of these actions.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    temperature: `[]`, alpha, the weight of the entropy.
  """
  length = streams.num_transitions(step_type)
  names = "q_values, log_prob"
  both = [q_values, log_prob]
  chex.assert_type(both, float, custom_message=names)
  chex.assert_shape(both, [(length, None), (length,)], custom_message=names)
  chex.assert_rank(temperature, 0, custom_message="temperature")
  weight = streams.weights(step_type)
  alpha = jax.lax.stop_gradient(temperature)
  loss = alpha * log_prob - jnp.min(q_values, axis=-1)
  return ActorLoss(weight * loss, weight)


@streams.in_float32
def temperature(
  log_temperature: jax.Array,
  log_prob: jax.Array,
  step_type: jax.Array,
  *,
  target_entropy: float | jax.Array,
) -> ActorLoss:
  """Computes the loss of SAC's temperature for one stream.

      loss_t = -alpha (log pi(a_t | s_t) + H),  a_t ~ pi

  It is minimal where the policy's entropy is the target H: alpha rises while
  the entropy is smaller. No gradient flows to the policy.

  Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equation 18.

  >>> actor_loss = temperature(
  ...   log_temperature=jnp.array(0.0),
  ...   log_prob=jnp.array([2.0]),
  ...   step_type=jnp.array([1, 1]),
  ...   target_entropy=-1.0,
  ... )
  >>> actor_loss.loss.tolist()
  [-1.0]

  Args:
    log_temperature: `[]` float, log alpha.
    log_prob: `[T]` float, log pi of the policy's actions.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    target_entropy: `[]`, H.
  """
  length = streams.num_transitions(step_type)
  names = "log_temperature, log_prob"
  floats = [log_temperature, log_prob]
  chex.assert_type(floats, float, custom_message=names)
  chex.assert_shape(floats, [(), (length,)], custom_message=names)
  chex.assert_rank(target_entropy, 0, custom_message="target_entropy")
  weight = streams.weights(step_type)
  excess = jax.lax.stop_gradient(log_prob + target_entropy)
  return ActorLoss(-weight * jnp.exp(log_temperature) * excess, weight)
