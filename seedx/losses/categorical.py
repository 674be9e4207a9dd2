"""Distributional Q-learning over fixed atoms: C51's and Rainbow's loss."""

from typing import NamedTuple

import chex
import dm_env
import jax
import jax.numpy as jnp

from seedx.losses import lazy_rlax, streams
from seedx.losses.q_learning import QLearningLoss


class Bootstraps(NamedTuple):
  """N-step returns, split into rewards and the time step to bootstrap from.

  Attributes:
    reward: `[T]`, sum of discounted rewards.
    discount: `[T]`, product of discounts.
    step: `[T]` int32, index of the time step to bootstrap from.
    weight: `[T]`, 0 on resets, 1 elsewhere.
  """

  reward: jax.Array
  discount: jax.Array
  step: jax.Array
  weight: jax.Array


@streams.in_float32
def n_step_bootstraps(
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  n: int,
  starts: int | None = None,
) -> Bootstraps:
  """Splits n-step returns into rewards and the time step to bootstrap from.

      G_t = reward_t + discount_t V(step_t)

  A return ends n steps ahead, at its episode's last step, or at the end of the
  stream, whichever comes first. V may be a distribution instead of a number.

  >>> bootstraps = n_step_bootstraps(
  ...   step_type=jnp.array([1, 1, 2, 0]),
  ...   reward=jnp.array([0.0, 1.0, 2.0, 0.0]),
  ...   discount=jnp.array([0.5, 0.5, 0.5, 0.5]),
  ...   n=3,
  ... )  # 1 + 0.5 (2 + 0.5 V_2), 2 + 0.5 V_2, and a reset
  >>> bootstraps.reward.tolist(), bootstraps.discount.tolist()
  ([2.0, 2.0, 0.0], [0.25, 0.5, 1.0])
  >>> bootstraps.step.tolist()
  [2, 2, 2]

  Args:
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step, times gamma.
    n: number of steps before bootstrapping, at least 1.
    starts: S, number of the first time steps whose returns are computed; None
      for all T.

  Returns:
    The `[S]` returns; for a reset, only the weight has a meaning.

  Raises:
    ValueError: n is below 1.
  """
  length = streams.num_transitions(step_type, n)
  starts = length if starts is None else starts
  names = "reward, discount"
  chex.assert_type([reward, discount], float, custom_message=names)
  chex.assert_shape([reward, discount], (length + 1,), custom_message=names)
  steps = jnp.arange(starts)
  step_type, reward, discount = map(jnp.asarray, (step_type, reward, discount))
  first = step_type[1:] == int(dm_env.StepType.FIRST)
  # A stream that breaks off has no LAST.
  last = step_type == int(dm_env.StepType.LAST)
  last = last.at[:-1].set(last[:-1] | first)

  def extend(ends: Bootstraps, k: jax.Array) -> tuple[Bootstraps, None]:
    step = jnp.minimum(steps + k, length)
    grows = (steps + k <= length) & ~last[ends.step]
    return Bootstraps(
      ends.reward + jnp.where(grows, ends.discount * reward[step], 0.0),
      ends.discount * jnp.where(grows, discount[step], 1.0),
      jnp.where(grows, step, ends.step),
      ends.weight,
    ), None

  weight = 1.0 - first[:starts].astype(jnp.float32)
  no_steps = Bootstraps(jnp.zeros(starts), jnp.ones(starts), steps, weight)
  ends, _ = jax.lax.scan(extend, no_steps, jnp.arange(1, min(n, length) + 1))
  return ends


@streams.in_float32
def categorical_q_learning(
  q_values: jax.Array,
  logits: jax.Array,
  target_q_values: jax.Array,
  target_logits: jax.Array,
  action: jax.Array,
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  *,
  atoms: jax.Array,
  n: int = 1,
  double: bool = True,
) -> QLearningLoss:
  """Computes the distributional Q-learning loss of one stream.

      loss_t = KL(Phi(R_t + D_t z, p'_k(a*)) || p_t(a_t))
      a*     = argmax_a Q_k(a) if double, else argmax_a Q'_k(a)

  The n-step return bootstraps from step k with reward R_t and discount D_t, see
  `n_step_bootstraps`. The atoms are z. The learned parameters give the
  distributions p over z, the target parameters p'; Q and Q' are their means.
  Phi projects the shifted atoms back onto z. No gradient flows through the
  target.

  Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, equation 7 and
  algorithm 1; n steps and double Q-learning: Hessel et al. 2018,
  https://arxiv.org/abs/1710.02298, section "The Integrated Agent".

  >>> loss = categorical_q_learning(
  ...   q_values=jnp.array([[0.0], [0.0]]),
  ...   logits=jnp.array([[[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]]),
  ...   target_q_values=jnp.array([[0.0], [2.0]]),
  ...   target_logits=jnp.array([[[0.0, 0.0, 0.0]], [[-99.0, -99.0, 0.0]]]),
  ...   action=jnp.array([0]),
  ...   step_type=jnp.array([1, 1]),
  ...   reward=jnp.array([0.0, 0.5]),
  ...   discount=jnp.array([1.0, 0.5]),
  ...   atoms=jnp.array([0.0, 1.0, 2.0]),
  ... )  # 0.5 + 0.5 * 2 lies half way between the atoms 1 and 2: log 3 - log 2
  >>> round(loss.loss.item(), 4)
  0.4055

  Args:
    q_values: `[T + 1, A]` float, Q, which only chooses actions.
    logits: `[T + 1, A, Z]` float, logits of p.
    target_q_values: `[T + 1, A]` float, Q', which only chooses actions.
    target_logits: `[T + 1, A, Z]` float, logits of p'.
    action: `[T]` integers, the actions taken.
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step, times gamma.
    atoms: `[Z]` float, ascending; returns beyond them are clipped.
    n: number of steps before bootstrapping, at least 1.
    double: whether Q, not Q', chooses the action of the target.

  Returns:
    The losses; `td_error` is the loss without a gradient.

  Raises:
    ValueError: n is below 1.
  """
  length = streams.num_transitions(step_type)
  names = "logits, target_logits, q_values, target_q_values, atoms"
  floats = [logits, target_logits, q_values, target_q_values, atoms]
  chex.assert_type(floats, float, custom_message=names)
  chex.assert_rank(floats, [3, 3, 2, 2, 1], custom_message=names)
  full = (length + 1, *logits.shape[1:])  # [T + 1, A, Z]
  shapes = [full, full, full[:2], full[:2], full[2:]]
  chex.assert_shape(floats, shapes, custom_message=names)
  chex.assert_type(action, int, custom_message="action")
  chex.assert_shape(action, (length,), custom_message="action")
  logits, target_logits = map(jnp.asarray, (logits, target_logits))
  ends = n_step_bootstraps(step_type, reward, discount, n=n)
  best = jnp.argmax(q_values if double else target_q_values, axis=-1)
  chosen = target_logits[ends.step, best[ends.step]]
  target = projected_returns(ends, jax.nn.softmax(chosen), atoms)
  taken = logits[jnp.arange(length), action]
  loss = ends.weight * divergence(target, taken)
  return QLearningLoss(loss, jax.lax.stop_gradient(loss), ends.weight)


def projected_returns(
  ends: Bootstraps, probabilities: jax.Array, atoms: jax.Array
) -> jax.Array:
  """Returns Phi(R_t + D_t z, p), `[T, Z]`, without a gradient.

  The `[T, Z]` probabilities p of the atoms z, `[Z]`, are those of the steps
  from which the returns bootstrap.
  """
  project = jax.vmap(
    lazy_rlax.rlax().categorical_l2_project, in_axes=(0, 0, None)
  )
  shifted = ends.reward[:, None] + ends.discount[:, None] * atoms
  return jax.lax.stop_gradient(project(shifted, probabilities, atoms))


def divergence(target: jax.Array, logits: jax.Array) -> jax.Array:
  """Returns KL(target || softmax(logits)), `[...]`, for `[..., Z]` each."""
  return jnp.sum(
    jax.scipy.special.xlogy(target, target)
    - target * jax.nn.log_softmax(logits),
    axis=-1,
  )
