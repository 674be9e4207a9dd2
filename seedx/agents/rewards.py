"""Division of rewards by the standard deviation of discounted returns.

As `NormalizeReward` of Gymnasium and `VecNormalize` of Stable-Baselines3 do:
each environment has the discounted sum of its rewards so far,

    R_t = gamma R_t-1 + r_t,

and rewards are divided by the standard deviation of all R so far (the "reward
scaling" of Engstrom et al. 2020, https://arxiv.org/abs/2005.12729).

R is a part of the core state: acting carries it from step to step, wherever
that is, and an unroll has it as it was before the first step. So it belongs to
an environment and crosses from one unroll to the next, in any pipeline.

What differs from the two:

* All rewards of a batch (or micro-batch) are divided by one number, the
  deviation of all batches before and of itself. Each batch counts the same.
* R begins again at 0 in each episode, as in Stable-Baselines3; Gymnasium's
  goes on after a time limit.
* Rewards are divided first, then scaled and clipped by `reward_scale` and
  `reward_clip`. Stable-Baselines3 clips to 10, Gymnasium does not.
* Gamma is the config's, also where `discount` changes at run time.
"""

from typing import Any, NamedTuple

import dm_env
import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.agents import normalizer

_SPEC = dm_env.specs.Array((), np.float32)


class CoreState(NamedTuple):
  """What an agent carries from step to step.

  Attributes:
    network: the network's core state.
    discounted: `[B]` float32, R after the last step.
  """

  network: types.Tree
  discounted: jax.Array


def init(observed: types.Tree) -> normalizer.Statistics:
  """Initial statistics: of R, after those of observations, which may be ()."""
  return _joined(observed, normalizer.init(_SPEC))


def observed(statistics: normalizer.Statistics) -> normalizer.Statistics:
  """The part of statistics that is of observations."""
  return normalizer.Statistics(statistics.mean[:-1], statistics.variance[:-1])


def discounted(
  timestep: dm_env.TimeStep, before: jax.Array, discount: float
) -> jax.Array:
  """R after each step, `[T, B]`.

  Args:
    timestep: `[T, B, ...]`.
    before: `[B]`, R before the first of them.
    discount: gamma.
  """

  def add(
    total: jax.Array, step: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, jax.Array]:
    is_first, reward = step
    total = jnp.where(is_first, 0.0, discount * total) + reward
    return total, total

  is_first = timestep.step_type == int(dm_env.StepType.FIRST)
  _, returns = jax.lax.scan(add, before, (is_first, timestep.reward))
  return returns


def measure(
  statistics: normalizer.Statistics,
  of_observations: types.Tree,
  timestep: dm_env.TimeStep,
  before: jax.Array,
  discount: float,
  axis_name: str | None,
) -> normalizer.Moments:
  """The moments of a batch: of observations, and of R.

  Args:
    statistics: of all batches before.
    of_observations: moments; () without.
    timestep: `[T + 1, B, ...]`; the first was the last of the unroll before.
    before: `[B]`, R before the first of them.
    discount: gamma.
    axis_name: the mesh axis over which the batch is sharded, or None.
  """
  returns = discounted(timestep, before, discount)[1:]
  first = timestep.step_type[1:] == int(dm_env.StepType.FIRST)
  weight = 1.0 - first.astype(jnp.float32)
  moments = normalizer.measure(
    _last(statistics), _SPEC, returns, weight, axis_name
  )
  return _joined(of_observations, moments)


def deviation(
  statistics: normalizer.Statistics,
  moments: normalizer.Moments,
  updates: jax.Array,
) -> jax.Array:
  """The standard deviation of R, `[]`, of a batch and of all before it."""
  (variance,) = normalizer.merge(
    _last(statistics), _last(moments), updates
  ).variance
  return jnp.where(variance < 0, 1.0, jnp.sqrt(jnp.maximum(variance, 1e-8)))


def divided(inputs: types.Inputs, deviation: jax.Array) -> types.Inputs:
  """Inputs with their rewards divided by a deviation."""
  timestep = inputs.timestep
  timestep = timestep._replace(reward=timestep.reward / deviation)
  return inputs._replace(timestep=timestep)


def _last(nest: Any) -> Any:
  """The part of statistics or moments that is of R."""
  return type(nest)(*(parts[-1:] for parts in nest))


def _joined(first: Any, second: Any) -> Any:
  """Statistics or moments of observations, which may be (), and of R."""
  pairs = zip(first or [()] * len(second), second, strict=True)
  return type(second)(*(a + b for a, b in pairs))
