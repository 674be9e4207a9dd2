"""Transitions, diagnostics and checks that all losses share."""

from typing import NamedTuple

import chex
import dm_env
import jax
import jax.numpy as jnp

# Sums and squares of e^20 = 5e8 are finite in float32.
_MAX_LOG_RATIO = 20.0


class Transitions(NamedTuple):
  """The transitions of a stream, ready for a loss.

  Attributes:
    reward_t: `[T]`, reward at the end of each transition.
    discount_t: `[T]`, discount of the value at the end of each transition.
    weight: `[T]`, 0 on resets, 1 elsewhere.
  """

  reward_t: jax.Array
  discount_t: jax.Array
  weight: jax.Array


class ActorCriticLoss(NamedTuple):
  """Losses of the steps of one stream.

  Attributes:
    policy_gradient: `[T]`.
    value: `[T]`.
    entropy: `[T]`, negative entropy.
    weight: `[T]`, 0 on resets, 1 elsewhere.
    diagnostics: `[T]` each, by name, without a gradient; see `diagnostics`.
  """

  policy_gradient: jax.Array
  value: jax.Array
  entropy: jax.Array
  weight: jax.Array
  diagnostics: dict[str, jax.Array] = {}  # noqa: RUF012 (never changed)


def log_ratio(log_prob: jax.Array, behaviour_log_prob: jax.Array) -> jax.Array:
  """Returns log rho_t = log pi(a_t) - log mu(a_t), clipped to [-20, 20].

  Clipping keeps rho and its gradient finite; a clipped ratio has no gradient.

  Args:
    log_prob: `[T]`, log pi(a) of the learned parameters.
    behaviour_log_prob: `[T]`, log mu(a), whose gradient is stopped.

  Returns:
    `[T]`.
  """
  behaviour_log_prob = jax.lax.stop_gradient(behaviour_log_prob)
  return jnp.clip(
    log_prob - behaviour_log_prob, -_MAX_LOG_RATIO, _MAX_LOG_RATIO
  )


def diagnostics(
  weight: jax.Array,
  advantage: jax.Array,
  target: jax.Array,
  values: jax.Array,
  log_ratio: jax.Array | None = None,
  **others: jax.Array,
) -> dict[str, jax.Array]:
  """Returns the diagnostics of `ActorCriticLoss`, without a gradient.

  The mean of `approx_kl`, rho_t - 1 - log rho_t, estimates KL(mu || pi)
  (Schulman 2020, http://joschu.net/blog/kl-approx.html).

  >>> numbers = diagnostics(*jnp.array([[1.0], [2.0], [3.0], [1.0], [0.0]]))
  >>> [(name, x.tolist()) for name, x in numbers.items()]  # doctest: +ELLIPSIS
  [('advantage', [2.0]), ('value_target', [3.0]), ('value_error', [2.0]), ...]

  Args:
    weight: `[T]`, 0 on resets, 1 elsewhere; multiplies all diagnostics.
    advantage: `[T]`.
    target: `[T]`, target of the values.
    values: `[T]`, V.
    log_ratio: `[T]`, log pi(a) - log mu(a); None to leave out `approx_kl`.
    **others: `[T]` each, diagnostics of the loss itself.
  """
  numbers = {
    "advantage": advantage,
    "value_target": target,
    "value_error": target - values,
    **others,
  }
  if log_ratio is not None:
    numbers["approx_kl"] = jnp.expm1(log_ratio) - log_ratio
  return {
    name: jax.lax.stop_gradient(weight * x) for name, x in numbers.items()
  }


def transitions(
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  values: jax.Array,
) -> Transitions:
  """Makes transitions of a stream, and separates its episodes.

  A reset, the transition from an episode's LAST step to the next FIRST, is not
  experience. A reset gets the reward `values[LAST]` and the discount 0, so its
  TD error is exactly 0 and no trace crosses it. A truncated episode bootstraps
  from the value of its own LAST step. So each step has the same loss as if its
  episode were computed separately.

  >>> steps = transitions(
  ...   step_type=jnp.array([1, 2, 0]),  # MID, LAST (truncated), FIRST
  ...   reward=jnp.array([0.0, 1.0, 0.0]),
  ...   discount=jnp.array([0.9, 0.9, 0.9]),
  ...   values=jnp.array([5.0, 7.0, 3.0]),
  ... )
  >>> steps.reward_t.tolist(), steps.weight.tolist()
  ([1.0, 7.0], [1.0, 0.0])

  Args:
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, reward that arrived with each time step.
    discount: `[T + 1]` float, discount of each time step: 0 at termination,
      gamma at truncation and elsewhere.
    values: `[T + 1]` float, V of each time step; no gradient flows to them.
  """
  length = num_transitions(step_type)
  names = "reward, discount, values"
  floats = [reward, discount, values]
  chex.assert_type(floats, float, custom_message=names)
  chex.assert_shape(floats, (length + 1,), custom_message=names)
  starts = step_type[1:] == int(dm_env.StepType.FIRST)
  return Transitions(
    reward_t=jnp.where(starts, jax.lax.stop_gradient(values[:-1]), reward[1:]),
    discount_t=jnp.where(starts, 0.0, discount[1:]),
    weight=1.0 - starts.astype(jnp.float32),
  )


def num_transitions(step_type: jax.Array) -> int:
  """Returns T of a stream with `step_type`, `[T + 1]` integers.

  Raises:
    AssertionError: `step_type` has another rank or dtype, or T is 0.
  """
  message = "step_type of one stream; use jax.vmap for a batch of streams"
  chex.assert_rank(step_type, 1, custom_message=message)
  chex.assert_type(step_type, int, custom_message="step_type")
  chex.assert_axis_dimension_gteq(
    step_type, axis=0, val=2, custom_message="step_type"
  )
  return step_type.shape[0] - 1
