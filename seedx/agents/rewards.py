"""Division of rewards by the standard deviation of discounted returns.

Each environment has the discounted sum of its rewards so far,

    R_t = gamma R_t-1 + r_t,

and rewards are divided by the standard deviation of all R so far (the "reward
scaling" of Engstrom et al. 2020, https://arxiv.org/abs/2005.12729). R is a part
of the core state, so that it crosses from one unroll to the next in every
pipeline.

Differences from Gymnasium's `NormalizeReward` and the `VecNormalize` of
Stable-Baselines3:

* All rewards of a batch (or micro-batch) are divided by the same number, the
  deviation over this and all previous batches. Each batch counts the same.
* R starts at 0 in every episode, as in Stable-Baselines3. Gymnasium's continues
  after a time limit.
* Rewards are divided first, then scaled and clipped by `reward_scale` and
  `reward_clip`. Stable-Baselines3 clips to 10, Gymnasium does not clip.
* Gamma is the config's, even if `discount` changes at run time.
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
  """The core state of an agent that normalizes rewards.

  Attributes:
    network: core state of the network.
    discounted: `[B]` float32, R after the last step.
  """

  network: types.Tree
  discounted: jax.Array


def init(observed: types.Tree) -> normalizer.Statistics:
  """Appends initial statistics of R to those of observations, or to ()."""
  return _joined(observed, normalizer.init(_SPEC))


def observed(statistics: normalizer.Statistics) -> normalizer.Statistics:
  """Returns the statistics of observations, without those of R."""
  return normalizer.Statistics(*(parts[:-1] for parts in statistics))


def discounted(
  timestep: dm_env.TimeStep, before: jax.Array, discount: float
) -> jax.Array:
  """Returns R after each step, `[T, B]`; `before` is R before them, `[B]`."""

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
  observations: types.Tree,
  timestep: dm_env.TimeStep,
  before: jax.Array,
  discount: float,
  axis_name: str | None,
) -> normalizer.Moments:
  """Adds the moments of a batch's R to those of its observations, or to ().

  The time steps are `[T + 1, B, ...]`. `before` is R before them, `[B]`. The
  first time step also ended the previous unroll, and does not count again.
  """
  returns = discounted(timestep, before, discount)[1:]
  first = timestep.step_type[1:] == int(dm_env.StepType.FIRST)
  weight = 1.0 - first.astype(jnp.float32)
  moments = normalizer.measure(
    _last(statistics), _SPEC, returns, weight, axis_name
  )
  return _joined(observations, moments)


def deviation(
  statistics: normalizer.Statistics, moments: normalizer.Moments
) -> jax.Array:
  """Returns R's standard deviation over this and all previous batches, `[]`."""
  (variance,) = normalizer.merge(_last(statistics), _last(moments)).variance
  return jnp.where(variance < 0, 1.0, jnp.sqrt(jnp.maximum(variance, 1e-8)))


def divided(inputs: types.Inputs, deviation: jax.Array) -> types.Inputs:
  """Returns inputs with their rewards divided by a deviation."""
  timestep = inputs.timestep
  timestep = timestep._replace(reward=timestep.reward / deviation)
  return inputs._replace(timestep=timestep)


def _last(nest: Any) -> Any:
  """Returns the statistics or moments of R."""
  return type(nest)(*(parts[-1:] for parts in nest))


def _joined(first: Any, second: Any) -> Any:
  pairs = zip(first or [()] * len(second), second, strict=True)
  return type(second)(*(a + b for a, b in pairs))
