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
from typing import Any, Literal, NamedTuple, NoReturn, Self

import dm_env
import jax
import jax.numpy as jnp
from jax import flatten_util
from jax.sharding import PartitionSpec

from seedx import distributions, losses, networks, sharding, types
from seedx.agents import acting_step, base, models, normalizer, optimizers
from seedx.on_cpu import random_keys


class Totals(NamedTuple):
  """Sums over the observations that members acted on.

  Attributes:
    count: `[...]` float32, number of observations.
    offset: `[..., F]` float32, offsets from the mean, see `normalizer.Moments`.
    square: `[..., F]` float32, squared offsets.
  """

  count: types.Array
  offset: tuple[types.Array, ...]
  square: tuple[types.Array, ...]


class Fitness(NamedTuple):
  """The batch of an update: the results of P pairs.

  Attributes:
    pair: `[P]` int32, numbers of the pairs.
    returns: `[P, 2]` float32, returns with the noise added and subtracted; a
      pair with a return that is not finite is left out.
    env_steps: `[P]` float32, number of env steps of both members.
    totals: `Totals` of `[cores, ...]`; () without normalization.
  """

  pair: types.Array
  returns: types.Array
  env_steps: types.Array
  totals: types.Tree = ()


@dataclasses.dataclass(frozen=True)
class Needs(base.Needs):
  """The needs of an agent that learns from `Fitness`."""

  whole_batches: bool = True

  @property
  def specs(self) -> types.Tree:
    """See `base.Needs`."""
    return Fitness(*[PartitionSpec(sharding.CORES)] * 4)

  def steps(self, batch: Fitness) -> Any:
    """See `base.Needs`."""
    return jnp.maximum(jnp.sum(batch.env_steps), 1.0)

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

  def initial(self, params: types.Tree) -> types.Tree:
    """Returns the first parameters, from those of a new network."""
    return params

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    del horizon  # The number of updates of a run is not known.
    base.check_one_player(spec)
    search = _Search.make(self, spec, axis_name)
    init, start = models.beginnings(self, search.optimizer, search.init)
    return base.Agent(
      init=init,
      acting=lambda state: models.Variables(state.params, state.statistics),
      initial_core_state=search.model.initial_core_state,
      step=search.step,
      greedy=search.step,
      gradients=search.gradients,
      apply=search.apply,
      update=base.composed_update(search.gradients, search.apply),
      needs=Needs(),
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

  def initial(self, params: types.Tree) -> types.Tree:
    """Returns the parameters with a head of 0, so all first actions are 0."""
    layers = params["params"]
    head = jax.tree.map(jnp.zeros_like, layers["head"])
    return {"params": {**layers, "head": head}}


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
  ordered = jnp.sort(values)
  low, high = (jnp.searchsorted(ordered, values, side=x) for x in _SIDES)
  number = jnp.maximum(2 * jnp.sum(valid) - 1, 1)
  return ((low + high - 1) / 2 / number - 0.5).reshape(returns.shape)


_SIDES = ("left", "right")


def noise(params: types.Tree, pair: types.Array) -> types.Tree:
  """Returns a pair's standard normal noise, like `params`; `pair` is `[]`."""
  flat, unravel = flatten_util.ravel_pytree(params)
  key = random_keys.unrolled(jax.random.key(0))
  drawn: types.Tree = unravel(
    jax.random.normal(jax.random.fold_in(key, pair), flat.shape)
  )
  return drawn


def members(
  params: types.Tree, sigma: types.Array, pair: types.Array
) -> types.Tree:
  """Returns the parameters of both members of pairs.

  Args:
    params: parameters of the centre.
    sigma: `[]`, see `Config`.
    pair: `[P]` int32, numbers of the pairs.

  Returns:
    `[2 P, ...]`; member 2 k adds the noise of pair k, and 2 k + 1 subtracts it.
  """

  def both(pair: jax.Array) -> types.Tree:
    return jax.tree.map(
      lambda x, e: jnp.stack([x + sigma * e, x - sigma * e]),
      params,
      noise(params, pair),
    )

  made = jax.vmap(both)(pair)
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), made)


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


class Population(NamedTuple):
  """N members while they act.

  Attributes:
    params: `[N, ...]` parameters.
    state: `[N, ...]` acting state.
    totals: `Totals` of their observations; () without normalization.
  """

  params: types.Tree
  state: acting_step.ActingState
  totals: types.Tree


def population(
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  state: base.AgentState,
  pair: jax.Array,
) -> Population:
  """Returns the members of pairs at the start of an episode.

  Args:
    agent: agent of any config of this module.
    spec: the environment's observations and actions.
    state: the centre's state.
    pair: `[P]` int32, numbers of the pairs.
  """
  params = members(state.params, state.hyperparameters["sigma"], pair)
  acting = acting_step.initial_state(agent, spec, 2 * len(pair))
  return Population(params, acting, no_totals(state.statistics))


def act(
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  population: Population,
  statistics: types.Tree,
  timestep: dm_env.TimeStep,
  counts: jax.Array,
) -> tuple[jax.Array, Population]:
  """Returns the actions `[N, ...]` of members, each with its own parameters.

  Args:
    agent: agent of any config of this module.
    spec: the environment's observations and actions.
    population: the members.
    statistics: the centre's statistics of observations.
    timestep: `[N, ...]`.
    counts: `[N]` bool, whether an observation counts in the totals.
  """

  def one(params: types.Tree, inputs: types.Tree, core: types.Tree) -> Any:
    variables = models.Variables(params, statistics)
    batch = jax.tree.map(lambda x: x[None], (inputs, core))
    output = agent.step(variables, jax.random.key(0), *batch)
    return jax.tree.map(lambda x: x[0], output)

  def step(acting: types.Tree, key: Any, inputs: Any, core: Any) -> Any:
    del key
    return jax.vmap(one)(acting, inputs, core)

  taken = acting_step.take(
    dataclasses.replace(agent, step=step),
    population.params,
    jax.random.key(0),
    timestep,
    population.state,
    exploration=jnp.zeros(timestep.reward.shape, jnp.float32),
  )
  totals = population.totals
  if totals:
    totals = _added(spec, totals, statistics, timestep.observation, counts)
  after = population._replace(state=taken.acting_state, totals=totals)
  return taken.output.action, after


def no_totals(statistics: types.Tree) -> types.Tree:
  """Returns `Totals` of no observations; () for statistics of ()."""
  if not statistics:
    return ()
  zeros = jax.tree.map(jnp.zeros_like, statistics.mean)
  return Totals(jnp.float32(0), zeros, zeros)


def _added(
  spec: types.EnvironmentSpec,
  totals: Totals,
  statistics: normalizer.Statistics,
  observation: types.Tree,
  counts: jax.Array,
) -> Totals:
  seen, _ = models.without_mask(spec, observation)
  seen_spec, _ = models.without_mask(spec, spec.observation)
  weight = counts.astype(jnp.float32)
  count = jnp.sum(weight)
  moments = normalizer.measure(
    statistics,
    seen_spec,
    jax.tree.map(lambda x: x[None], seen),
    weight[None],
    None,
  )
  offset, square = jax.tree.map(
    lambda total, mean: total + count * mean,
    (totals.offset, totals.square),
    (moments.offset, moments.square),
  )
  return Totals(totals.count + count, offset, square)


@dataclasses.dataclass(frozen=True)
class _Search:
  config: Config
  model: models.Model
  distribution: distributions.Policy
  optimizer: optimizers.Optimizer
  axis_name: str | None

  @classmethod
  def make(
    cls, config: Config, spec: types.EnvironmentSpec, axis_name: str | None
  ) -> Self:
    kind = distributions.for_spec(spec.action)
    outputs = kind.num_parameters
    if isinstance(kind, distributions.BoundedGaussian):
      outputs //= 2  # Only the mean acts.
    model = models.Model.make(spec, config, networks.QHead(outputs))
    optimizer = optimizers.Optimizer.make(config, None)
    return cls(config, model, kind, optimizer, axis_name)

  def init(self, rng_key: jax.Array) -> models.Variables:
    variables = self.model.init(rng_key)
    return variables._replace(params=self.config.initial(variables.params))

  def step(
    self,
    variables: models.Variables,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    """Takes the mode of the distribution."""
    del rng_key
    stream = jax.tree.map(lambda x: x[None], inputs)
    output = self.model.unroll(variables, stream, core_state)
    head = output.head
    if isinstance(self.distribution, distributions.BoundedGaussian):
      head = jnp.concatenate([head, jnp.zeros_like(head)], axis=-1)
    policy = distributions.Parameterized(
      self.distribution, head, output.action_mask
    )
    action = policy.distribution.mode()[0]
    action = action.astype(self.model.spec.action.dtype)
    return types.AgentOutput(action, ()), output.core_state

  def gradients(
    self, state: base.AgentState, rng_key: jax.Array, batch: Fitness
  ) -> tuple[base.Gradients, types.LossOutput]:
    del rng_key
    returns, first = batch.returns, jnp.int32(0)
    if self.axis_name is not None:
      returns = jax.lax.all_gather(returns, self.axis_name, tiled=True)
      first = jax.lax.axis_index(self.axis_name) * len(batch.pair)
    valid = jnp.all(jnp.isfinite(returns), axis=1)
    returns = jnp.where(valid[:, None], returns, 0.0)
    weight = self.config.weights(returns, valid)
    mine = jax.lax.dynamic_slice_in_dim(weight, first, len(batch.pair))
    total, steps, totals = losses.sum_over_cores(
      (
        weighted_noise(state.params, batch.pair, mine),
        jnp.sum(batch.env_steps),
        jax.tree.map(lambda x: jnp.sum(x, axis=0), batch.totals),
      ),
      self.axis_name,
    )
    count = jnp.maximum(jnp.sum(valid), 1)
    decay = self.config.weight_decay * jnp.any(valid)
    grads = jax.tree.map(lambda x, y: decay * y - x, total, state.params)
    measured = {
      "fitness": jnp.sum(returns) / (2 * count),
      "pairs_left_out": jnp.sum(~valid).astype(jnp.float32),
      **self.optimizer.measure(state, grads),
    }
    moments = _moments(state.statistics, totals) if totals else ()
    return base.Gradients(grads, moments), types.LossOutput(steps, measured)

  def apply(
    self, state: base.AgentState, gradients: base.Gradients
  ) -> base.AgentState:
    after = self.optimizer.descend(state, gradients.params)
    return models.count_batch(after, gradients.moments)


def _moments(
  statistics: normalizer.Statistics, totals: Totals
) -> normalizer.Moments:
  count = jnp.maximum(totals.count, 1.0)
  offset, square = jax.tree.map(
    lambda x: x / count, (totals.offset, totals.square)
  )
  return normalizer.Moments(statistics.mean, offset, square)
