"""Population-based training: which members copy others, and what changes.

Pure functions over a population's N members: a study calls them between runs,
`pipelines.anakin` inside its program. Jaderberg et al. 2017,
https://arxiv.org/abs/1711.09846; tournament and drift: Espeholt et al. 2018,
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

Spaces = Mapping[str, search_spaces.Range]

# The fraction of a population that copies, and that is copied.
_FRACTION = 0.2
_DRIFTING, _RESAMPLED = 0.33, 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Options of a population.

  Attributes:
    members: number of agents in the population.
    ready_steps: steps of the run's clock between two comparisons of a member
      with others.
    exploit: rule of copies. With "truncation", the worst 20% copy one of the
      best 20%; with "tournament", a member copies a random other one that is
      better by `margin`; with "none", no member changes.
    margin: difference of scores in a tournament.
    explore: rule of changes. With "perturb", a member that has copied
      multiplies each hyper-parameter by 0.8 or 1.2, or draws it again with
      probability 0.25; with "drift", each member multiplies each by 1.2 or
      1 / 1.2 with probability 0.33.
  """

  members: int = types.setting(1, low=1, high=2**16)
  ready_steps: int = types.setting(50_000, low=1)
  exploit: Literal["truncation", "tournament", "none"] = "truncation"
  margin: float = types.setting(0.05, low=0.0)
  explore: Literal["perturb", "drift"] = "perturb"

  def __post_init__(self) -> None:
    types.check_settings(self)


def spaces(texts: Mapping[str, Any], agent: Any, flag: str) -> Spaces:
  """Parses ranges of hyper-parameters, by name; `flag` is their option.

  Raises:
    types.ConfigError: a setting does not change at run time, has no range, or a
      range that the agent refuses.
  """
  kinds = dict.fromkeys(base.hyperparameters(agent), float)
  if other := [x for x in texts if x.replace("-", "_") not in kinds]:
    raise types.ConfigError(
      f"expected {flag} of settings that may change in a run, which are"
      f" {', '.join(kinds)}; found {', '.join(other)}"
    )
  ranges: Any = search_spaces.space(texts, kinds, flag)
  for name, space in ranges.items():
    if not isinstance(space, search_spaces.Range):
      raise types.ConfigError(
        f"expected {flag} {name}=LOW..HIGH in a population, found"
        f" {'|'.join(space.values)}"
      )
    for end in (space.low, space.high):
      dataclasses.replace(agent, **{name: end})
  return ranges


def exploit(config: Config, rng_key: jax.Array, scores: jax.Array) -> jax.Array:
  """Returns the member that each member copies, which may be itself.

  Args:
    config: options of the population.
    rng_key: random key.
    scores: `[N]` float32, larger is better; NaN for a member that has diverged:
      it ranks last, and is not copied.

  Returns:
    `[N]` int32.
  """
  size, own = len(scores), jnp.arange(len(scores))
  scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
  if config.exploit == "none":
    return own
  if config.exploit == "tournament":
    distance = jax.random.randint(rng_key, (size,), 1, max(2, size))
    other = (own + distance) % size
    return jnp.where(scores[other] > scores + config.margin, other, own)
  order, count = jnp.argsort(scores), math.ceil(_FRACTION * size)
  worst, best = order[:count], order[-count:]
  drawn = jax.random.choice(rng_key, best, (count,))
  return own.at[worst].set(jnp.where(scores[drawn] > -jnp.inf, drawn, worst))


def explore(
  config: Config,
  rng_key: jax.Array,
  values: Mapping[str, jax.Array],
  spaces: Spaces,
  copied: jax.Array,
  resampled: float = _RESAMPLED,
) -> dict[str, jax.Array]:
  """Returns the members' next hyper-parameters, which stay in their spaces.

  Args:
    config: options of the population.
    rng_key: random key.
    values: `[N]` float32 by name, after the copies.
    spaces: spaces of the hyper-parameters that change.
    copied: `[N]` bool, whether a member has copied another one.
    resampled: probability of a new draw; factors never change a zero.
  """
  new = dict(values)
  for name, key in zip(
    spaces, jax.random.split(rng_key, len(spaces)), strict=True
  ):
    old, space = values[name], spaces[name]
    factor_key, chance_key, value_key = jax.random.split(key, 3)
    drifts = config.explore == "drift"
    down, chance = (1 / 1.2, _DRIFTING) if drifts else (0.8, resampled)
    up = jax.random.bernoulli(factor_key, 0.5, old.shape)
    changed = old * jnp.where(up, 1.2, down)
    happens = jax.random.bernoulli(chance_key, chance, old.shape)
    if drifts:
      changes = happens
    else:
      ends = (math.log(x) if space.log else x for x in (space.low, space.high))
      drawn = jax.random.uniform(value_key, old.shape, jnp.float32, *ends)
      drawn = jnp.exp(drawn) if space.log else drawn
      changed, changes = jnp.where(happens, drawn, changed), copied
    changed = jnp.clip(changed, space.low, space.high)
    new[name] = jnp.where(changes, changed, old)
  return new if config.exploit != "none" else dict(values)


def evolve(
  config: Config,
  rng_key: jax.Array,
  scores: jax.Array,
  values: Mapping[str, jax.Array],
  spaces: Spaces,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns the results of `exploit`, and of `explore` after the copies."""
  copy_key, explore_key = jax.random.split(rng_key)
  source = exploit(config, copy_key, scores)
  copied = {name: x[source] for name, x in values.items()}
  has_copied = source != jnp.arange(len(scores))
  return source, explore(config, explore_key, copied, spaces, has_copied)


def inherited(own: types.Tree, other: types.Tree) -> types.Tree:
  """Returns the state of an agent that has copied another one.

  Integers, such as the counts of its schedules, remain its own.
  """
  return jax.tree.map(
    lambda x, y: y if jnp.issubdtype(x.dtype, jnp.inexact) else x, own, other
  )
