"""Evolution strategies: agents that learn from returns, without a gradient.

A pair of members acts with parameters `theta + sigma e` and `theta - sigma e`
for whole episodes. The noise `e` follows from the pair's number, so a pair's
number and its two returns are all that an update needs.

Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to
Reinforcement Learning", https://arxiv.org/abs/1703.03864, algorithm 2; Mania et
al. 2018, "Simple random search provides a competitive approach to reinforcement
learning", https://arxiv.org/abs/1803.07055, algorithm 2 (ARS).
"""

import dataclasses
import functools
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.scipy.stats
from jax import flatten_util
from jax.sharding import PartitionSpec

from seedx import distributions, losses, networks, sharding, types
from seedx.agents import (
  base,
  models,
  normalizer,
  optimizers,
  policy_model,
)
from seedx.on_cpu import random_keys


class Fitness(NamedTuple):
  """The batch of an update: the results of P pairs.

  Attributes:
    version: `[]` int32, number of updates behind the centre.
    pair: `[P]` int32, numbers of the pairs.
    returns: `[P, 2]` float32, returns with the noise added and subtracted; a
      pair with a return that is not finite is left out.
    lengths: `[P, 2]` int32, env steps of the episodes.
    totals: `normalizer.Totals` of the observations that all members acted on;
      () without normalization.
  """

  version: types.Array
  pair: types.Array
  returns: types.Array
  lengths: types.Array
  totals: types.Tree


class Needs(base.Needs):
  """The needs of an agent that learns from `Fitness`."""

  @property
  def specs(self) -> types.Tree:
    """See `base.Needs`."""
    one, each = sharding.REPLICATED, PartitionSpec(sharding.CORES)
    return Fitness(one, each, one, each, one)

  def steps(self, batch: Fitness) -> Any:
    """See `base.Needs`."""
    return jnp.maximum(jnp.sum(batch.lengths, dtype=jnp.float32), 1.0)

  def lag(self, batch: Fitness, version: types.Array) -> None:
    """Returns None; see `base.Needs`."""

  def time_steps(self, period: int) -> NoReturn:
    """Raises types.ConfigError: the agent learns from no unrolls."""
    raise types.ConfigError(
      "expected an agent that learns from unrolls, found one that learns from"
      " the returns of a population; use the pipeline evolution"
    )


@dataclasses.dataclass(frozen=True)
class Config(models.Config):
  """Hyper-parameters of ES, in which a return counts by its rank.

  Attributes:
    sigma: standard deviation of the noise that is added to parameters.
    weight_decay: factor of the parameters that is subtracted from the estimate
      of the gradient.
  """

  learning_rate: float = 0.01
  learning_rate_end: float = dataclasses.field(default=1.0, init=False)
  max_gradient_norm: float = dataclasses.field(default=0.0, init=False)
  adam_epsilon: float = 1e-8
  discount: float = dataclasses.field(default=1.0, init=False)
  reward_scale: float = dataclasses.field(default=1.0, init=False)
  reward_clip: float = dataclasses.field(default=0.0, init=False)
  sigma: float = types.setting(0.02, changes="run_time", low=1e-9, high=1e3)
  weight_decay: float = types.setting(0.005, low=0.0, high=1.0)
  _head_scale: ClassVar[float] = 1.0

  def for_small(self) -> Self:
    """Returns a copy for small tasks: larger noise and steps."""
    return dataclasses.replace(
      self, learning_rate=0.03, sigma=0.1, hidden_sizes=(16,)
    )

  def for_images(self) -> Self:
    """Returns a copy for Atari: stacked frames."""
    return dataclasses.replace(self, stack_frames=4)

  def for_continuous(self) -> Self:
    """Returns a copy that normalizes observations."""
    return dataclasses.replace(self, normalize_observations=True)

  def weights(self, returns: jax.Array, valid: jax.Array) -> jax.Array:
    """Returns the weights `[P]` of the noises in the estimate of the gradient.

    Args:
      returns: `[P, 2]`, see `Fitness`; 0 in pairs that are left out.
      valid: `[P]` bool, whether a pair is not left out.
    """
    ranks = centred_ranks(returns, valid)
    weight = (ranks[:, 0] - ranks[:, 1]) / jnp.maximum(jnp.sum(valid), 1)
    return jnp.where(valid, weight, 0.0)

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    del horizon  # The number of updates of a run is not known.
    base.check_one_player(spec)
    kind = distributions.for_spec(spec.action)
    outputs = kind.num_parameters
    if isinstance(kind, distributions.BoundedGaussian):
      outputs //= 2  # Only the mean acts.
    head = ActionHead(outputs, kind.num_parameters, self._head_scale)
    policy = policy_model.Policy(models.Model.make(spec, self, head), kind)
    optimizer = optimizers.Optimizer.make(self, None)
    init, start = models.beginnings(self, optimizer, policy.init)
    gradients = functools.partial(_gradients, self, optimizer, axis_name)
    apply = functools.partial(models.apply, optimizer)
    return base.Agent(
      init=init,
      acting=lambda state: models.Variables(state.params, state.statistics),
      initial_core_state=policy.initial_core_state,
      step=policy.greedy,
      greedy=policy.greedy,
      gradients=gradients,
      apply=apply,
      update=base.composed_update(gradients, apply),
      needs=Needs(whole_batches=True),
      start=start,
    )


@dataclasses.dataclass(frozen=True)
class ARSConfig(Config):
  """Hyper-parameters of ARS, which follows the pairs with the best returns.

  Without `normalize_observations` it is V1-t, with it V2-t.

  Attributes:
    top_pairs: number of pairs that an update follows (b).
  """

  optimizer: Literal["adam", "rmsprop", "sgd"] = "sgd"
  learning_rate: float = 0.02
  hidden_sizes: tuple[int, ...] = ()
  sigma: float = 0.03
  weight_decay: float = 0.0
  top_pairs: int = types.setting(8, low=1, high=2**20)
  _head_scale: ClassVar[float] = 0.0  # All first actions are 0.

  def for_small(self) -> Self:
    """Returns the same config."""
    return self

  def weights(self, returns: jax.Array, valid: jax.Array) -> jax.Array:
    """See `Config`; pairs whose best return ties with pair b are kept, too."""
    best = jnp.where(valid, jnp.max(returns, axis=1), -jnp.inf)
    last = jnp.sort(best)[-min(self.top_pairs, len(best))]
    kept = valid & (best >= last)
    count = jnp.maximum(jnp.sum(kept), 1)
    mean = jnp.sum(jnp.where(kept[:, None], returns, 0.0)) / (2 * count)
    squares = jnp.where(kept[:, None], jnp.square(returns - mean), 0.0)
    deviation = jnp.sqrt(jnp.sum(squares) / (2 * count))
    # Equal returns make no update, instead of one that is not finite.
    scale = jnp.where(deviation > 0, count * deviation, jnp.inf)
    return jnp.where(kept, (returns[:, 0] - returns[:, 1]) / scale, 0.0)


def centred_ranks(returns: jax.Array, valid: jax.Array) -> jax.Array:
  """Returns ranks between -0.5 and 0.5, `[P, 2]`; equal returns share theirs.

  >>> returns = jnp.array([[1.0, 2.0], [2.0, 5.0]])
  >>> centred_ranks(returns, jnp.array([True, True])).round(2).tolist()
  [[-0.5, 0.0], [0.0, 0.5]]

  Args:
    returns: `[P, 2]`, see `Config.weights`.
    valid: `[P]`; ranks are among the returns of these pairs.
  """
  values = jnp.where(valid[:, None], returns, jnp.inf).ravel()
  ranks = jax.scipy.stats.rankdata(values, method="average") - 1
  number = jnp.maximum(2 * jnp.sum(valid) - 1, 1)
  return (ranks / number - 0.5).reshape(returns.shape)


def noise(params: types.Tree, pair: types.Array) -> types.Tree:
  """Returns a pair's standard normal noise, like `params`; `pair` is `[]`."""
  flat, unravel = flatten_util.ravel_pytree(params)
  key = random_keys.unrolled(jax.random.key(0))
  drawn: types.Tree = unravel(
    jax.random.normal(jax.random.fold_in(key, pair), flat.shape)
  )
  return drawn


def members(state: base.AgentState, pair: types.Array) -> models.Variables:
  """Returns the acting parameters of both members of pairs.

  Args:
    state: the centre's state.
    pair: `[P]` int32, numbers of the pairs.

  Returns:
    `[2 P, ...]`; member 2 k adds the noise of pair k, and 2 k + 1 subtracts it.
  """
  sigma, count = state.hyperparameters["sigma"], 2 * len(pair)

  def both(pair: jax.Array) -> types.Tree:
    return jax.tree.map(
      lambda x, e: jnp.stack([x + sigma * e, x - sigma * e]),
      state.params,
      noise(state.params, pair),
    )

  params, statistics = jax.vmap(both)(pair), state.statistics
  return models.Variables(
    jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), params),
    jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), statistics),
  )


def weighted_noise(
  params: types.Tree, pair: jax.Array, weight: jax.Array
) -> types.Tree:
  """Returns the sum of pairs' noises times weights; both are `[P]`.

  One noise is in memory at a time.
  """

  def add(total: types.Tree, one: Any) -> tuple[types.Tree, None]:
    drawn = noise(params, one[0])
    return jax.tree.map(lambda x, e: x + one[1] * e, total, drawn), None

  zeros = jax.tree.map(jnp.zeros_like, params)
  return jax.lax.scan(add, zeros, (pair, weight))[0]


def no_totals(statistics: types.Tree) -> types.Tree:
  """Returns `Fitness.totals` of no observations."""
  if not statistics:
    return ()
  zeros = jax.tree.map(jnp.zeros_like, statistics.mean)
  return normalizer.Totals(jnp.float32(0), zeros, zeros)


def count_observations(
  spec: types.EnvironmentSpec,
  statistics: types.Tree,
  totals: types.Tree,
  observation: types.Tree,
  counts: jax.Array,
) -> types.Tree:
  """Returns `Fitness.totals` with more observations.

  Args:
    spec: the environment's observations and actions.
    statistics: the centre's statistics of observations.
    totals: totals so far.
    observation: `[N, ...]`.
    counts: `[N]` bool, whether an observation counts.
  """
  if not statistics:
    return ()
  seen, _ = models.without_mask(spec, observation)
  seen_spec, _ = models.without_mask(spec, spec.observation)
  more = normalizer.total(statistics, seen_spec, seen, counts)
  return jax.tree.map(jnp.add, totals, more)


class ActionHead(nn.Module):
  """A head of the first `outputs` parameters of a policy; the others are 0."""

  outputs: int
  num_parameters: int
  scale: float

  @nn.compact
  def __call__(self, features: jax.Array) -> networks.PolicyValue:
    policy = networks.linear(self.outputs, self.scale)(features)
    rest = *policy.shape[:-1], self.num_parameters - self.outputs
    policy = jnp.concatenate([policy, jnp.zeros(rest)], axis=-1)
    return networks.PolicyValue(policy, jnp.zeros(rest[:-1]))


def _gradients(
  config: Config,
  optimizer: optimizers.Optimizer,
  axis_name: str | None,
  state: base.AgentState,
  rng_key: jax.Array,
  batch: Fitness,
) -> tuple[base.Gradients, types.LossOutput]:
  del rng_key
  first = jnp.int32(0)
  if axis_name is not None:
    first = jax.lax.axis_index(axis_name) * len(batch.pair)
  valid = jnp.all(jnp.isfinite(batch.returns), axis=1)
  returns = jnp.where(valid[:, None], batch.returns, 0.0)
  weight = config.weights(returns, valid)
  mine = jax.lax.dynamic_slice_in_dim(weight, first, len(batch.pair))
  total, steps = losses.sum_over_cores(
    (
      weighted_noise(state.params, batch.pair, mine),
      jnp.sum(batch.lengths, dtype=jnp.float32),
    ),
    axis_name,
  )
  decay = config.weight_decay * jnp.any(valid)
  grads = jax.tree.map(lambda x, y: decay * y - x, total, state.params)
  measured = {
    "fitness": jnp.sum(returns) / (2 * jnp.maximum(jnp.sum(valid), 1)),
    "pairs_left_out": jnp.sum(~valid).astype(jnp.float32),
    **optimizer.measure(state, grads),
  }
  moments: types.Tree = ()
  if batch.totals:
    moments = normalizer.moments(state.statistics, batch.totals)
  return base.Gradients(grads, moments), types.LossOutput(steps, measured)
