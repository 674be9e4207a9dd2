"""Transitions, diagnostics and checks that all losses share."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import chex
import dm_env
import jax
import jax.numpy as jnp

# Sums and squares of e^20 = 5e8 are finite in float32.
_MAX_LOG_RATIO = 20.0
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


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


class Stream(NamedTuple):
  """The time steps of a stream; the last three arguments of most losses.

  Attributes:
    step_type: `[T + 1]` int32 of `dm_env.StepType`.
    reward: `[T + 1]`, reward that arrived with each time step.
    discount: `[T + 1]`, discount of each time step, times gamma.
  """

  step_type: jax.Array
  reward: jax.Array
  discount: jax.Array


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


def in_float32(
  function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
  """Makes a function of arrays compute in float32, or in their widest dtype.

  So networks may compute in bfloat16 or float16, and rewards may have another
  dtype than values. Gradients have the dtypes of the arguments.

  >>> in_float32(jnp.sum)(jnp.ones(3, jnp.bfloat16)).dtype
  dtype('float32')
  """

  @functools.wraps(function)
  def computed(*args: Any, **kwargs: Any) -> _Result:
    floats = [x.dtype for x in jax.tree.leaves((args, kwargs)) if _is_float(x)]
    dtype = jnp.result_type(jnp.float32, *floats)

    def cast(x: Any) -> Any:
      return jnp.asarray(x, dtype) if _is_float(x) and x.dtype != dtype else x

    args, kwargs = jax.tree.map(cast, (args, kwargs))
    return function(*args, **kwargs)

  return computed


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
  episode were computed separately. The reward of a FIRST step is not used: for
  environments that return the last reward with the first observation of the
  next episode, see `from_same_step`.

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


def from_same_step(
  reward: jax.Array,
  terminated: jax.Array,
  truncated: jax.Array | None = None,
  final_values: jax.Array | None = None,
  *,
  gamma: float | jax.Array,
) -> Stream:
  """Makes a stream of an environment that resets in the step that ends.

  This is how gymnax, Gym's vector environments and Gymnasium's `SAME_STEP`
  work: the last reward comes with the first observation of the next episode,
  and no time step has the last observation. So no step of the stream is LAST or
  FIRST, and all have weight 1. Where an episode ends, the discount is 0; where
  it is truncated, the reward includes gamma V(last observation). All losses of
  this package have the right targets then, except that
  `categorical_q_learning` and `categorical_clipped_double_q_learning` bootstrap
  from the mean of a truncated episode's distribution.

  >>> stream = from_same_step(
  ...   reward=jnp.array([1.0, 2.0, 3.0]),
  ...   terminated=jnp.array([False, True, False]),
  ...   truncated=jnp.array([False, False, True]),
  ...   final_values=jnp.array([0.0, 0.0, 8.0]),
  ...   gamma=0.5,
  ... )
  >>> stream.reward.tolist(), stream.discount.tolist()
  ([0.0, 1.0, 2.0, 7.0], [0.5, 0.5, 0.0, 0.0])

  Args:
    reward: `[T]` float, reward of each action.
    terminated: `[T]` bool, whether the action terminated the episode.
    truncated: `[T]` bool, whether it truncated the episode; None for never.
    final_values: `[T]` float, V of the episode's last observation (Gymnasium's
      `final_obs`), read where `truncated` is true, and without a gradient. For
      Q-learning, the value of the best action, as in the loss; for critics, V
      of the loss, from Q' of the target policy's action.
    gamma: discount of the agent.

  Returns:
    The stream of T + 1 steps. Other arguments of a loss, such as `values`, have
    the observation before each action, and at last the one after all actions.

  Raises:
    ValueError: only one of `truncated` and `final_values` is given.
  """
  terminated = _flags("terminated", terminated, reward)
  ended = terminated
  if truncated is not None and final_values is not None:
    truncated = _flags("truncated", truncated, reward) & ~terminated
    names = "reward, final_values"
    chex.assert_equal_shape([reward, final_values], custom_message=names)
    bootstrap = gamma * jax.lax.stop_gradient(final_values)
    reward = reward + jnp.where(truncated, bootstrap, 0.0)
    ended = terminated | truncated
  elif truncated is not None or final_values is not None:
    raise ValueError(
      "expected truncated and final_values, or neither: a truncated episode"
      " bootstraps from the value of its last observation"
    )
  return Stream(
    step_type=jnp.full(len(reward) + 1, int(dm_env.StepType.MID)),
    reward=_after(0.0, reward),
    discount=_after(gamma, jnp.where(ended, 0.0, gamma)),
  )


def from_next_step(
  reward: jax.Array,
  terminated: jax.Array,
  truncated: jax.Array,
  *,
  gamma: float | jax.Array,
  ended: bool | jax.Array = False,
) -> Stream:
  """Makes a stream of an environment that resets in the step after the end.

  This is how the vector environments of Gymnasium 1.x work by default
  (`NEXT_STEP`): the last observation is returned like any other, then an action
  is ignored, and the next episode's first observation comes with reward 0. The
  stream has the steps LAST and FIRST there, and losses give the ignored action
  weight 0, see `transitions`.

  >>> stream = from_next_step(
  ...   reward=jnp.array([1.0, 2.0, 0.0]),
  ...   terminated=jnp.array([False, False, False]),
  ...   truncated=jnp.array([False, True, False]),
  ...   gamma=0.5,
  ... )
  >>> stream.step_type.tolist(), stream.discount.tolist()
  ([1, 1, 2, 0], [0.5, 0.5, 0.5, 0.5])

  Args:
    reward: `[T]` float, reward of each action.
    terminated: `[T]` bool, whether the episode terminated with the observation
      after the action.
    truncated: `[T]` bool, whether it was truncated there.
    gamma: discount of the agent.
    ended: `[]` bool, whether an episode had ended with the observation before
      the first action, which was then ignored.

  Returns:
    The stream of T + 1 steps.
  """
  terminated = _flags("terminated", terminated, reward)
  last = terminated | _flags("truncated", truncated, reward)
  last = _after(jnp.asarray(ended, bool), last)
  kinds = dm_env.StepType
  step_type = jnp.where(last, int(kinds.LAST), int(kinds.MID))
  first = _after(False, last[:-1])
  return Stream(
    step_type=jnp.where(first, int(kinds.FIRST), step_type),
    reward=_after(0.0, reward),
    discount=_after(gamma, jnp.where(terminated, 0.0, gamma)),
  )


def weights(step_type: jax.Array) -> jax.Array:
  """Returns `[T]`, 0 on resets, 1 elsewhere, for step types `[T + 1]`."""
  return 1.0 - (step_type[1:] == int(dm_env.StepType.FIRST)).astype(jnp.float32)


def num_transitions(step_type: jax.Array, n: int = 1) -> int:
  """Returns T of a stream with `step_type`, `[T + 1]` integers.

  Raises:
    AssertionError: `step_type` has another rank or dtype, or T is 0.
    ValueError: n, a number of steps before bootstrapping, is below 1.
  """
  message = "step_type of one stream; use jax.vmap for a batch of streams"
  chex.assert_rank(step_type, 1, custom_message=message)
  chex.assert_type(step_type, int, custom_message="step_type")
  chex.assert_axis_dimension_gteq(
    step_type, axis=0, val=2, custom_message="step_type"
  )
  if n < 1:
    raise ValueError(f"expected n of at least 1, found {n}")
  return step_type.shape[0] - 1


def _is_float(x: Any) -> bool:
  return jnp.issubdtype(getattr(x, "dtype", jnp.int32), jnp.floating)


def _flags(name: str, flags: jax.Array, reward: jax.Array) -> jax.Array:
  names = f"reward, {name} of one stream; use jax.vmap for a batch of streams"
  chex.assert_rank([reward, flags], 1, custom_message=names)
  chex.assert_equal_shape([reward, flags], custom_message=names)
  chex.assert_type(reward, float, custom_message="reward")
  return jnp.asarray(flags).astype(bool)


def _after(first: jax.typing.ArrayLike, others: jax.Array) -> jax.Array:
  """Returns `[T + 1]`, a number followed by T others of its dtype."""
  others = jnp.asarray(others)
  return jnp.concatenate([jnp.full(1, first, others.dtype), others])
