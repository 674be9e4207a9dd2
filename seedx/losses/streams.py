"""Streams of time steps: episode boundaries, and checks of arguments."""

from typing import NamedTuple

import chex
import dm_env
import jax
import jax.numpy as jnp

# e^20 is 5e8: sums and squares of such ratios are finite in float32.
_MOST_LOG_RATIO = 20.0


class Transitions(NamedTuple):
  """The T transitions of a stream, ready for a loss.

  Attributes:
    reward_t: `[T]`.
    discount_t: `[T]`.
    weight: `[T]`, 0 on resets, 1 elsewhere.
  """

  reward_t: jax.Array
  discount_t: jax.Array
  weight: jax.Array


class ActorCriticLoss(NamedTuple):
  """Per-step losses of one stream.

  Attributes:
    policy_gradient: `[T]`.
    value: `[T]`.
    entropy: `[T]`, the negative entropy.
    weight: `[T]`, 0 on resets, 1 elsewhere.
    diagnostics: `[T]` each by name, without a gradient: no losses, but what
      tells how learning goes, see `diagnostics`.
  """

  policy_gradient: jax.Array
  value: jax.Array
  entropy: jax.Array
  weight: jax.Array
  diagnostics: dict[str, jax.Array] = {}  # noqa: RUF012 (never changed)


def log_ratio(log_prob: jax.Array, behaviour_log_prob: jax.Array) -> jax.Array:
  """Returns log rho_t = log pi(a_t) - log mu(a_t), between -20 and 20.

  Beyond, where rho would overflow and its gradient not be a number, it has no
  gradient.

  Args:
    log_prob: `[T]`, log pi(a) by the learned parameters.
    behaviour_log_prob: `[T]`, log mu(a) by the acting parameters.

  Returns:
    `[T]`, with the gradient of `log_prob`.
  """
  behaviour_log_prob = jax.lax.stop_gradient(behaviour_log_prob)
  return jnp.clip(
    log_prob - behaviour_log_prob, -_MOST_LOG_RATIO, _MOST_LOG_RATIO
  )


def diagnostics(
  weight: jax.Array,
  advantage: jax.Array,
  target: jax.Array,
  values: jax.Array,
  log_ratio: jax.Array | None = None,
  **others: jax.Array,
) -> dict[str, jax.Array]:
  """What actor-critic losses say beside themselves, see `ActorCriticLoss`.

  `approx_kl`, whose mean estimates the divergence KL(mu || pi), is
  rho_t - 1 - log rho_t (Schulman 2020, http://joschu.net/blog/kl-approx.html).

  >>> said = diagnostics(*jnp.array([[1.0], [2.0], [3.0], [1.0], [0.0]]))
  >>> [(name, x.tolist()) for name, x in said.items()]  # doctest: +ELLIPSIS
  [('advantage', [2.0]), ('value_target', [3.0]), ('value_error', [2.0]), ...]

  Args:
    weight: `[T]`, 0 on resets, 1 elsewhere; all others are multiplied by it.
    advantage: `[T]`.
    target: `[T]`, of the values.
    values: `[T]`, V.
    log_ratio: `[T]`, log pi(a) - log mu(a); None where the loss does not ask.
    **others: `[T]` each.
  """
  said = {
    "advantage": advantage,
    "value_target": target,
    "value_error": target - values,
    **others,
  }
  if log_ratio is not None:
    said["approx_kl"] = jnp.expm1(log_ratio) - log_ratio
  return {
    name: jax.lax.stop_gradient(weight * each) for name, each in said.items()
  }


def transitions(
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  values: jax.Array,
) -> Transitions:
  """Cuts a stream at its episode boundaries.

  A reset, the transition from an episode's LAST step to the next FIRST, is not
  experience. It gets the reward `values[LAST]` and the discount 0, so its TD
  error is exactly 0 and no trace crosses it. A truncated episode bootstraps
  from the value of its own LAST step, and every loss equals that of the
  episodes computed apart.

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
    reward: `[T + 1]` float, the reward that arrived with each time step.
    discount: `[T + 1]` float, the discount of each time step: 0 at termination,
      gamma at truncation and elsewhere.
    values: `[T + 1]` float, V of each time step.

  Returns:
    `Transitions` of `[T]` each, without a gradient to `values`.

  Raises:
    AssertionError: ranks, types or lengths differ from the above.
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
  """T of a stream, from its `step_type`, `[T + 1]` integers.

  Raises:
    AssertionError: `step_type` has another rank or dtype, or T is 0.
  """
  of_one = "step_type of one stream; use jax.vmap for a batch of streams"
  chex.assert_rank(step_type, 1, custom_message=of_one)
  chex.assert_type(step_type, int, custom_message="step_type")
  chex.assert_axis_dimension_gteq(
    step_type, axis=0, val=2, custom_message="step_type"
  )
  return step_type.shape[0] - 1
