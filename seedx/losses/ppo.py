"""The clipped losses of proximal policy optimisation."""

import chex
import jax
import jax.numpy as jnp

from seedx.losses import streams


@streams.in_float32
def ppo(
  values: jax.Array,
  log_prob: jax.Array,
  behaviour_log_prob: jax.Array,
  entropy: jax.Array,
  advantage: jax.Array,
  target: jax.Array,
  weight: jax.Array,
  *,
  clip_epsilon: float | jax.Array = 0.2,
  behaviour_values: jax.Array | None = None,
) -> streams.ActorCriticLoss:
  """Computes the clipped actor-critic losses of T steps.

      rho_t = pi(a_t) / mu(a_t), the probability ratio
      policy gradient loss  -min(rho_t A_t,
                                 clip(rho_t, 1 - epsilon, 1 + epsilon) A_t)
      value loss            0.5 (G_t - V_t)^2
      entropy loss          -H(pi_t)

  No gradient flows through A and G (Schulman et al. 2017,
  https://arxiv.org/abs/1707.06347, equations 7 and 9). With the values V' from
  before the update, the value loss is clipped too, as in OpenAI's baselines:

      0.5 max((G_t - V_t)^2,
              (G_t - V'_t - clip(V_t - V'_t, -epsilon, epsilon))^2)

  The steps need not be consecutive: compute advantages and targets of whole
  streams with `returns.gae`, then sample minibatches of steps.

  >>> loss = ppo(
  ...   values=jnp.array([1.0]),
  ...   log_prob=jnp.log(jnp.array([0.75])),
  ...   behaviour_log_prob=jnp.log(jnp.array([0.5])),
  ...   entropy=jnp.array([0.7]),
  ...   advantage=jnp.array([2.0]),
  ...   target=jnp.array([3.0]),
  ...   weight=jnp.array([1.0]),
  ...   clip_epsilon=0.25,
  ... )  # The ratio 1.5 is clipped to 1.25.
  >>> loss.policy_gradient.tolist(), loss.value.tolist()
  ([-2.5], [2.0])

  Args:
    values: `[T]` float, V.
    log_prob: `[T]` float, log pi(a_t).
    behaviour_log_prob: `[T]` float, log mu(a_t) of the acting parameters.
    entropy: `[T]` float, entropy of pi.
    advantage: `[T]` float, A, which may be normalized.
    target: `[T]` float, G, the value target.
    weight: `[T]` float, 0 on resets, 1 elsewhere.
    clip_epsilon: epsilon, the clip range of rho around 1.
    behaviour_values: `[T]` float, V'; None for an unclipped value loss.
  """
  names = (
    "values, log_prob, behaviour_log_prob, entropy, advantage, target, weight"
  )
  floats = [
    values,
    log_prob,
    behaviour_log_prob,
    entropy,
    advantage,
    target,
    weight,
  ]
  if behaviour_values is not None:
    names += ", behaviour_values"
    floats.append(behaviour_values)
  message = f"{names} of one stream; use jax.vmap for a batch of streams"
  chex.assert_rank(floats, 1, custom_message=message)
  chex.assert_type(floats, float, custom_message=names)
  chex.assert_equal_shape(floats, custom_message=names)
  log_ratio = streams.log_ratio(log_prob, behaviour_log_prob)
  ratio = jnp.exp(log_ratio)
  advantage = jax.lax.stop_gradient(advantage)
  clipped = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
  surrogate = -jnp.fmin(ratio * advantage, clipped * advantage)
  target = jax.lax.stop_gradient(target)
  square = jnp.square(target - values)
  if behaviour_values is not None:
    behaviour_values = jax.lax.stop_gradient(behaviour_values)
    moved = jnp.clip(values - behaviour_values, -clip_epsilon, clip_epsilon)
    square = jnp.maximum(square, jnp.square(target - behaviour_values - moved))
  return streams.ActorCriticLoss(
    policy_gradient=surrogate * weight,
    value=0.5 * square * weight,
    entropy=-entropy * weight,
    weight=weight,
    diagnostics=streams.diagnostics(
      weight,
      advantage,
      target,
      values,
      log_ratio,
      clip_fraction=(jnp.abs(ratio - 1) > clip_epsilon).astype(ratio.dtype),
    ),
  )
