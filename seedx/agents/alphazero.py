"""AlphaZero: an agent whose step is a search, trained by self-play.

A network gives each position a policy and a value. Acting searches with both,
and learning makes them more like the search's policy and the games' results.
Silver et al. 2018, "A general reinforcement learning algorithm that masters
chess, shogi, and Go through self-play", https://doi.org/10.1126/science.aar6404;
the search for few simulations is that of Danihelka et al. 2022, "Policy
improvement by planning with Gumbel", https://openreview.net/forum?id=bERaNdoegnO.
"""

import dataclasses
import functools
from typing import NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx import distributions, losses, networks, replay, types
from seedx.agents import acting_step, base, models, optimizers, replay_windows
from seedx.envs.functional import games
from seedx.envs.functional import search as search_lib

# Values of a window of games, of which a network sees the positions once.
REPLAY = replay.Config(
  replay_capacity=50_000,
  replay_min_steps=4_000,
  replay_batch_size=512,
  replay_ratio=2.0,
)

# A search prefers a won game, 1, to any estimate of the network, which may be
# larger: otherwise it puts off wins.
_LARGEST_ESTIMATE = 0.95


@dataclasses.dataclass(frozen=True)
class Config(models.Config):
  """Hyper-parameters of AlphaZero.

  Attributes:
    search: "gumbel", sequential halving with Gumbel noise, which improves a
      policy even with few simulations; or "puct", the search of the paper.
    num_simulations: number of simulations of each search.
    exploration_moves: number of an agent's first moves in a game that are
      random to a degree; later moves are the best ones. With "puct", moves are
      sampled from the visits at temperature 1.
    dirichlet_alpha: concentration of the noise in the root's policy, with
      "puct"; Silver et al. 2018 ("Configuration") have 0.3 for chess, 0.15 for
      shogi and 0.03 for Go.
    symmetries: whether learning turns and reflects positions at random, if the
      game has symmetries.
    value_cost: weight of the value loss.
    n_step: number of moves, of both players, after which the value's target
      bootstraps instead of waiting for the game's result; at most the length of
      the longest game. Without a replay, the unroll's end sets it.
    replayed: whether the agent learns from a replay; if not, from each unroll
      once.
    residual_blocks: number of residual blocks of convolutions, of which Silver
      et al. 2018 ("Architecture") have 19; 0 for the MLP of `hidden_sizes`.
    residual_channels: channels of these convolutions.
  """

  learning_rate: float = 2e-3
  max_gradient_norm: float = 10.0
  # The search counts results as they are, so learning does, too.
  discount: float = dataclasses.field(default=1.0, init=False)
  reward_scale: float = dataclasses.field(default=1.0, init=False)
  reward_clip: float = dataclasses.field(default=0.0, init=False)
  # The value of a position does not depend on the games played so far.
  normalize_observations: bool = dataclasses.field(default=False, init=False)
  hidden_sizes: tuple[int, ...] = (128, 128)
  search: search_lib.Kind = "gumbel"
  num_simulations: int = types.setting(32, low=1, high=2**16)
  exploration_moves: int = types.setting(30, low=0, high=2**31 - 1)
  dirichlet_alpha: float = types.setting(0.3, low=1e-6)
  symmetries: bool = True
  value_cost: float = types.setting(1.0, changes="run_time", low=0.0)
  n_step: int = types.setting(64, low=1, high=2**16)
  replayed: bool = True
  residual_blocks: int = types.setting(0, low=0, high=2**6)
  residual_channels: int = types.setting(64, low=1, high=2**16)

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.torso is not None and self.residual_blocks:
      raise types.ConfigError(
        "expected residual_blocks 0 with a torso of your own, found"
        f" {self.residual_blocks}"
      )
    if not self.replayed and self.n_step != type(self).n_step:
      raise types.ConfigError(
        "expected n_step only with a replay, found"
        f" {self.n_step} with replayed=False; set unroll_length"
      )

  def for_images(self) -> Self:
    """Returns the same config: a board is no image of Atari's."""
    return self

  def for_small(self) -> Self:
    """Returns the same config: results of games are not scaled."""
    return self

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """See `base.Config`."""
    if spec.game is None:
      raise types.ConfigError(
        "expected a game whose rules are JAX functions, so that a search can"
        " look ahead, such as seedx:TicTacToe, found another environment, or an"
        " observation_transform"
      )
    player = _Player(self, spec, axis_name)
    optimizer = optimizers.Optimizer.make(self, horizon)

    init, start = models.beginnings(self, optimizer, player.model.init)

    def gradients(
      state: base.AgentState, rng_key: jax.Array, batch: types.Tree
    ) -> tuple[base.Gradients, types.LossOutput]:
      grads, output = player.differentiate(state, rng_key, batch)
      output.metrics.update(optimizer.measure(state, grads))
      return base.Gradients(grads), output

    apply = functools.partial(models.apply, optimizer)
    return base.Agent(
      init=init,
      acting=lambda state: state.params,
      initial_core_state=lambda size: CoreState(jnp.zeros(size, jnp.int32)),
      step=functools.partial(player.step, explores=True),
      greedy=functools.partial(player.step, explores=False),
      without_search=player.step_without_search,
      gradients=gradients,
      apply=apply,
      update=base.composed_update(gradients, apply),
      needs=player.needs,
      start=start,
    )


def evaluation(
  config: Config, spec: types.EnvironmentSpec
) -> search_lib.Evaluate:
  """Returns the agent's network, with which `search.search` can look ahead.

  Its parameters are the acting parameters, such as those of `app.load`.
  """
  return _Player(config, spec, None).evaluate


class CoreState(NamedTuple):
  """The core state.

  Attributes:
    moves: `[B]` int32 number of the agent's moves in the game so far.
  """

  moves: jax.Array


class Extras(NamedTuple):
  """The extras of `types.AgentOutput`, from which the policy learns.

  Attributes:
    search_policy: `[B, A]` float32, the policy that the search found.
  """

  search_policy: jax.Array


class _Player:
  def __init__(
    self, config: Config, spec: types.EnvironmentSpec, axis_name: str | None
  ) -> None:
    self._config, self._spec, self._axis_name = config, spec, axis_name
    self._game: games.Game = spec.game
    head = networks.PolicyValueHead(self._game.num_actions)
    self.model = models.Model.make(spec, _with_torso(config), head)
    n_step = min(config.n_step, self._game.max_moves)
    self._windows = replay_windows.Windows(
      transitions=n_step if config.replayed else None, n_step=n_step
    )
    self.needs = dataclasses.replace(
      self._windows.needs, extras=True, unread=tuple(spec.hidden)
    )

  def step(
    self,
    params: types.Tree,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: CoreState,
    *,
    explores: bool,
  ) -> tuple[types.AgentOutput, CoreState]:
    config = self._config
    explored = core_state.moves < config.exploration_moves
    result = search_lib.search(
      self._game,
      self.evaluate,
      params,
      rng_key,
      jax.vmap(self._game.state)(inputs.timestep.observation),
      num_simulations=config.num_simulations,
      kind=config.search,
      noise=explored.astype(jnp.float32) if explores else 0.0,
      dirichlet_alpha=config.dirichlet_alpha,
    )
    output = types.AgentOutput(result.action, Extras(result.policy))
    return output, CoreState(core_state.moves + 1)

  def step_without_search(
    self,
    params: types.Tree,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: CoreState,
  ) -> tuple[types.AgentOutput, CoreState]:
    del rng_key  # The move is deterministic.
    log_policy, _ = self._network(
      params, jax.tree.map(lambda x: x[None], inputs)
    )
    action = jnp.argmax(log_policy[0], axis=-1).astype(jnp.int32)
    output = types.AgentOutput(action, Extras(jnp.exp(log_policy[0])))
    return output, CoreState(core_state.moves + 1)

  def differentiate(
    self, state: base.AgentState, rng_key: jax.Array, batch: types.Tree
  ) -> tuple[types.Tree, types.LossOutput]:
    costs = state.hyperparameters
    sample = self._windows.sample(batch)
    inputs, search_policy, steps = self._positions(sample.unroll)
    if self._config.symmetries:
      inputs, search_policy = self._augmented(rng_key, inputs, search_policy)
    _, last_value = self._network(
      state.params, jax.tree.map(lambda x: x[-1:], inputs)
    )

    def loss_share(
      params: types.Tree,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
      log_policy, values = self._network(
        params, jax.tree.map(lambda x: x[:-1], inputs)
      )
      loss = jax.vmap(losses.alphazero, in_axes=1, out_axes=1)(
        jnp.concatenate([values, last_value]),
        log_policy,
        search_policy,
        steps.step_type,
        steps.reward,
        steps.discount,
      )

      def mean(values: jax.Array) -> jax.Array:
        weights = loss.weight * sample.importance_weight
        return losses.mean_share(values, weights, self._axis_name)

      # The logarithms of probabilities of 0 are finite.
      tiny = jnp.finfo(jnp.float32).tiny
      log_search = jnp.log(jnp.maximum(search_policy, tiny))
      entropy = -jnp.sum(search_policy * log_search, axis=-1)
      total = mean(loss.policy + costs["value_cost"] * loss.value)
      return total, {
        "loss": total,
        "loss_policy": mean(loss.policy),
        "loss_value": mean(loss.value),
        "search_entropy": mean(entropy),
        "search_kl": mean(loss.policy - entropy),
        "value_target_square": mean(jnp.square(loss.target)),
        "weight": jnp.sum(loss.weight),
      }

    gradients, shares = jax.grad(loss_share, has_aux=True)(state.params)
    gradients, metrics = losses.sum_over_cores(
      (gradients, shares), self._axis_name
    )
    return gradients, types.LossOutput(metrics.pop("weight"), metrics)

  def _positions(
    self, unroll: types.Unroll
  ) -> tuple[types.Inputs, jax.Array, replay_windows.Steps]:
    """Returns inputs `[T + 1, B]`, search policies `[T, B]`, and steps.

    A window of a replay becomes one transition, to the end of its n-step
    return.
    """
    steps = self._windows.steps(
      self.model, unroll, jnp.float32(self._config.discount)
    )
    if self._spec.players > 1:
      steps = steps._replace(discount=-steps.discount)
    inputs, search_policy = unroll.inputs, unroll.extras.search_policy[:-1]
    if self._windows.replayed:
      steps = self._windows.one_transition(steps)
      assert steps.at is not None
      inputs = networks.steps_at(inputs, steps.at)
      search_policy = search_policy[:1]
    return inputs, search_policy, steps

  def _augmented(
    self, rng_key: jax.Array, inputs: types.Inputs, search_policy: jax.Array
  ) -> tuple[types.Inputs, jax.Array]:
    """Applies random symmetries to all positions but the last ones."""
    observation = inputs.timestep.observation
    learned = jax.tree.map(lambda x: x[:-1], observation)
    board, (search_policy, mask) = games.augmented(
      self._game,
      rng_key,
      learned[games.BOARD],
      (search_policy, learned[games.MASK]),
    )
    learned |= {games.BOARD: board, games.MASK: mask}
    observation = jax.tree.map(
      lambda x, all_steps: jnp.concatenate([x, all_steps[-1:]]),
      learned,
      observation,
    )
    timestep = inputs.timestep._replace(observation=observation)
    return inputs._replace(timestep=timestep), search_policy

  def evaluate(
    self, params: types.Tree, rng_key: jax.Array, state: types.Tree
  ) -> search_lib.Evaluation:
    del rng_key  # The network is deterministic.
    observation = jax.vmap(self._game.observe)(state)
    # The number of rows is symbolic in an export.
    size = observation[games.MASK].shape[0]
    one = acting_step.zero_inputs(self._spec, 1)
    inputs: types.Inputs = jax.tree.map(
      lambda x: jnp.zeros((1, size, *x.shape[1:]), x.dtype), one
    )
    timestep = inputs.timestep._replace(
      observation=jax.tree.map(lambda x: x[None], observation)
    )
    log_policy, value = self._network(
      params, inputs._replace(timestep=timestep)
    )
    value = jnp.clip(value[0], -_LARGEST_ESTIMATE, _LARGEST_ESTIMATE)
    return search_lib.Evaluation(log_policy[0], value)

  def _network(
    self, params: types.Tree, inputs: types.Inputs
  ) -> tuple[jax.Array, jax.Array]:
    """Returns log-policies `[T, B, A]` and values `[T, B]`.

    The values have no bound, unlike the paper's: a tanh that is saturated early
    hides differences from the search, and the games of one side collapse.
    """
    size = inputs.timestep.reward.shape[1]
    output = self.model.unroll(
      models.Variables(params, ()),
      inputs,
      self.model.initial_core_state(size),
    )
    logits = distributions.only_legal(output.head.policy, output.action_mask)
    return jax.nn.log_softmax(logits), output.head.value


def _with_torso(config: Config) -> Config:
  """Returns the config with the residual network as its torso, if any."""
  if not config.residual_blocks:
    return config
  torso: nn.Module = networks.BoardNetwork(
    config.residual_blocks,
    config.residual_channels,
    jnp.dtype(config.compute_dtype),
  )
  return dataclasses.replace(config, torso=torso, residual_blocks=0)
