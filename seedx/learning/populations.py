"""Population-based training: which agents copy others, and what they change.

The functions are pure, over arrays of a population's N agents. A study uses
them between runs, and `pipelines.anakin` inside its program.

Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846; the tournament, and
factors with a probability: Espeholt et al. 2018,
https://arxiv.org/abs/1802.01561, appendix F.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from seedx import search_spaces, types
from seedx.agents import base

# The fraction of a population that copies, and that is copied, in truncation.
_FRACTION = 0.2
_RESAMPLED, _DRIFTING = 0.25, 0.33


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Options of a population.

  Attributes:
    members: number of agents of the population, which train at the same time.
    search: hyper-parameters that differ between members, as NAME=LOW..HIGH or
      NAME=log:LOW..HIGH.
    ready_steps: steps of the run's clock after which a member compares itself
      with others, again and again.
    exploit: which members copy another. With "truncation", the worst 20% copy
      one of the best 20%; with "tournament", a member copies a random other one
      whose score is better by `margin`; with "none", no member changes.
    margin: difference of scores in a tournament.
    explore: how hyper-parameters change. With "perturb", those of a member that
      has copied are multiplied by 0.8 or 1.2, or drawn again with probability
      0.25; with "drift", those of all members are multiplied by 1.2 or 1 / 1.2
      with probability 0.33.
  """

  members: int = types.setting(1, low=1, high=2**16)
  search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  ready_steps: int = types.setting(50_000, low=1)
  exploit: Literal["truncation", "tournament", "none"] = "truncation"
  margin: float = types.setting(0.05, low=0.0)
  explore: Literal["perturb", "drift"] = "perturb"

  def __post_init__(self) -> None:
    types.check_settings(self)

  def spaces(self, agent: Any) -> dict[str, search_spaces.Range]:
    """Returns the ranges of the agent's hyper-parameters in `search`.

    Raises:
      types.ConfigError: a setting does not change at run time, or has no range.
    """
    kinds = dict.fromkeys(base.hyperparameters(agent), float)
    for name in self.search:
      if name.replace("-", "_") not in kinds:
        raise types.ConfigError(
          "expected --search of settings that may change in a run, which are"
          f" {', '.join(kinds)}; found {name}: search others with seedx sweep"
        )
    spaces = {}
    for name, space in search_spaces.space(self.search, kinds).items():
      if not isinstance(space, search_spaces.Range):
        raise types.ConfigError(
          f"expected --search {name}=LOW..HIGH in a population, found"
          f" {'|'.join(space.values)}"
        )
      for end in space.low, space.high:  # Refuses a value out of its range.
        dataclasses.replace(agent, **{name: end})
      spaces[name] = space
    return spaces

  def sources(self, rng_key: jax.Array, scores: jax.Array) -> jax.Array:
    """Returns the member that each member copies, by the rule `exploit`.

    Args:
      rng_key: random key.
      scores: `[N]` float32, larger is better; NaN for a member that diverged.

    Returns:
      `[N]` int32; a member that copies no other one has its own index.
    """
    if self.exploit == "truncation":
      return truncation(rng_key, scores)
    if self.exploit == "tournament":
      return tournament(rng_key, scores, self.margin)
    return jnp.arange(len(scores))

  def explored(
    self,
    rng_key: jax.Array,
    values: Mapping[str, jax.Array],
    spaces: Mapping[str, search_spaces.Range],
    copied: jax.Array,
  ) -> dict[str, jax.Array]:
    """Returns the values of the hyper-parameters after `explore`.

    Args:
      rng_key: random key.
      values: `[N]` float32 by name, after the copies.
      spaces: range of each hyper-parameter that is searched.
      copied: `[N]` bool, whether a member has copied another one.
    """
    new = dict(values)
    if self.exploit == "none":
      return new
    keys = jax.random.split(rng_key, len(spaces))
    for key, (name, space) in zip(keys, spaces.items(), strict=True):
      if self.explore == "drift":
        new[name] = drift(key, values[name], space)
      else:
        changed = perturb(key, values[name], space)
        new[name] = jnp.where(copied, changed, values[name])
    return new


def truncation(rng_key: jax.Array, scores: jax.Array) -> jax.Array:
  """Returns `[N]` sources: the worst 20% copy a random one of the best 20%.

  A share is rounded up. No member copies one that diverged. See
  `Config.sources` for the arguments.
  """
  scores, size = _ranked(scores), len(scores)
  count = math.ceil(_FRACTION * size)
  order = jnp.argsort(scores)
  drawn = jax.random.choice(rng_key, order[-count:], (count,))
  worst = order[:count]
  source = jnp.where(scores[drawn] > -jnp.inf, drawn, worst)
  return jnp.arange(size).at[worst].set(source)


def tournament(
  rng_key: jax.Array, scores: jax.Array, margin: jax.Array | float
) -> jax.Array:
  """Returns `[N]` sources: a random other member if better by a margin.

  See `Config.sources` for the other arguments.
  """
  scores, size = _ranked(scores), len(scores)
  own = jnp.arange(size)
  distance = jax.random.randint(rng_key, (size,), 1, max(2, size))
  other = (own + distance) % size
  return jnp.where(scores[other] > scores + margin, other, own)


def perturb(
  rng_key: jax.Array,
  values: jax.Array,
  space: search_spaces.Range,
  probability: float = _RESAMPLED,
) -> jax.Array:
  """Multiplies values `[N]` by 0.8 or 1.2, or draws them again.

  A value is drawn again with a `probability`: factors alone would never change
  a zero. Values stay in the space.
  """
  draw_key, factor_key, value_key = jax.random.split(rng_key, 3)
  factor = _factors(factor_key, values.shape, 0.8, 1.2)
  drawn = draw(value_key, values.shape, space)
  again = jax.random.bernoulli(draw_key, probability, values.shape)
  return jnp.where(again, drawn, _clipped(values * factor, space))


def drift(
  rng_key: jax.Array,
  values: jax.Array,
  space: search_spaces.Range,
  probability: float = _DRIFTING,
) -> jax.Array:
  """Multiplies values `[N]` by 1.2 or 1 / 1.2, each with a probability.

  Values stay in the space.
  """
  change_key, factor_key = jax.random.split(rng_key)
  factor = _factors(factor_key, values.shape, 1 / 1.2, 1.2)
  changes = jax.random.bernoulli(change_key, probability, values.shape)
  return jnp.where(changes, _clipped(values * factor, space), values)


def draw(
  rng_key: jax.Array, shape: tuple[int, ...], space: search_spaces.Range
) -> jax.Array:
  """Draws values from a space."""
  low, high = space.low, space.high
  if space.log:
    low, high = math.log(low), math.log(high)
  drawn = jax.random.uniform(rng_key, shape, minval=low, maxval=high)
  return _clipped(jnp.exp(drawn) if space.log else drawn, space)


def inherited(own: types.Tree, other: types.Tree) -> types.Tree:
  """Returns the state of an agent that has copied another one.

  Integers, such as the counts of its schedules, remain its own.
  """

  def chosen(own: types.Array, other: types.Array) -> types.Array:
    return other if jnp.issubdtype(own.dtype, jnp.inexact) else own

  return jax.tree.map(chosen, own, other)


def _ranked(scores: jax.Array) -> jax.Array:
  return jnp.where(jnp.isnan(scores), -jnp.inf, scores)


def _factors(
  rng_key: jax.Array, shape: tuple[int, ...], down: float, up: float
) -> jax.Array:
  return jnp.where(jax.random.bernoulli(rng_key, 0.5, shape), up, down)


def _clipped(values: jax.Array, space: search_spaces.Range) -> jax.Array:
  return jnp.clip(values, space.low, space.high)
