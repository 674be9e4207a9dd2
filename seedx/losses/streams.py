"""Streams of time steps, and the episode boundaries inside them."""

from typing import NamedTuple

import chex
import dm_env
import jax
import jax.numpy as jnp


class Transitions(NamedTuple):
  """The T transitions of a stream, ready for a loss.

  Attributes:
    reward_t: `[T]`.
    discount_t: `[T]`.
    weight: `[T]`, 1 for experience and 0 for an environment's reset.
  """

  reward_t: jax.Array
  discount_t: jax.Array
  weight: jax.Array


def transitions(
  step_type: jax.Array,
  reward: jax.Array,
  discount: jax.Array,
  values: jax.Array,
) -> Transitions:
  """Cuts a stream at its episode boundaries.

  The transition from an episode's LAST step to the next one's FIRST is no
  experience. It gets the reward `values[LAST]` and the discount 0, so that its
  TD error is exactly 0 and no trace passes it: a step that was truncated
  bootstraps from the value of its own episode's LAST step, and every loss is
  the same as on the stream's halves computed apart.

  Args:
    step_type: `[T + 1]` integers of `dm_env.StepType`.
    reward: `[T + 1]` float, the reward that arrived with each time step.
    discount: `[T + 1]` float, likewise; 0 at termination, 1 at truncation.
    values: `[T + 1]` float, the value estimate of each time step.

  Returns:
    `Transitions` of T steps, constant with respect to `values`.

  Raises:
    AssertionError: ranks, types or lengths differ from the above.
  """
  chex.assert_rank([step_type, reward, discount, values], 1)
  chex.assert_type([step_type, reward, discount, values], [int] + 3 * [float])
  chex.assert_equal_shape([step_type, reward, discount, values])
  starts = step_type[1:] == int(dm_env.StepType.FIRST)
  return Transitions(
    reward_t=jnp.where(starts, jax.lax.stop_gradient(values[:-1]), reward[1:]),
    discount_t=jnp.where(starts, 0.0, discount[1:]),
    weight=1.0 - starts.astype(jnp.float32),
  )
