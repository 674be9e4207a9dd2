"""Monte Carlo tree search in games, by mctx, for a batch of positions."""

import functools
import importlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from seedx import types
from seedx.envs.functional import games


class Evaluation(NamedTuple):
  """The estimate of positions by a network, or by playouts.

  Attributes:
    logits: `[B, A]` float32, logits of the player's moves; those of illegal
      moves are ignored.
    value: `[B]` float32, expected reward of the player to move.
  """

  logits: jax.Array
  value: jax.Array


class Result(NamedTuple):
  """The result of a search.

  Attributes:
    action: `[B]` int32, the move to play.
    policy: `[B, A]` float32, the improved policy, which a network can learn: of
      the Gumbel search, the policy of completed values, and of PUCT, the shares
      of visits. It is 0 for illegal moves.
    visits: `[B, A]` float32, each move's share of the simulations.
  """

  action: jax.Array
  policy: jax.Array
  visits: jax.Array


Evaluate = Callable[[Any, jax.Array, Any], Evaluation]
Kind = Literal["gumbel", "puct"]

# Logits of illegal moves; finite, so that a search has no NaN.
_ILLEGAL = -1e9
# Share of noise in the root's policy (AlphaGo Zero, Silver et al. 2017).
_NOISE_SHARE = 0.25


class _Node(NamedTuple):
  state: types.Tree  # `[B, ...]` states of the game.
  over: jax.Array  # `[B]` bool.


def search(
  game: games.Game,
  evaluate: Evaluate,
  params: types.Tree,
  rng_key: jax.Array,
  state: types.Tree,
  *,
  num_simulations: int,
  kind: Kind = "gumbel",
  noise: jax.Array | float = 0.0,
  max_considered: int = 16,
  dirichlet_alpha: float = 0.3,
) -> Result:
  """Searches from a batch of positions; those of finished games are harmless.

  A value is that of the player to move, so it changes its sign with each move.

  The kind "gumbel" chooses moves by sequential halving (Danihelka et al. 2022,
  https://openreview.net/forum?id=bERaNdoegnO); "puct" is the search of
  AlphaZero (Silver et al. 2018, https://doi.org/10.1126/science.aar6404).

  Args:
    game: the game.
    evaluate: function `(params, rng_key, states [B, ...]) -> Evaluation`.
    params: parameters for `evaluate`.
    rng_key: random key.
    state: `[B, ...]` states of the game.
    num_simulations: number of simulations, each with one new position.
    kind: kind of search.
    noise: `[]` or `[B]`, 0 for the best move without randomness. With "gumbel",
      the scale of the Gumbel noise at the root; with "puct", the temperature at
      which a move is sampled from the visits, and noise at the root unless it
      is 0.
    max_considered: largest number of moves that the Gumbel search tries.
    dirichlet_alpha: concentration of the noise in the root's policy, with
      "puct"; small values choose few moves.

  Raises:
    types.ConfigError: mctx is not installed.
  """
  mctx = _mctx()
  root_key, rng_key = jax.random.split(rng_key)
  legal = jax.vmap(game.legal)(state)
  root = evaluate(params, root_key, state)
  logits = _only_legal(root.logits, legal)
  noise = jnp.broadcast_to(jnp.float32(noise), root.value.shape)[:, None]
  over = jnp.zeros(root.value.shape, bool)
  options: dict[str, Any] = {
    "num_simulations": num_simulations,
    "invalid_actions": ~legal,
  }
  if kind == "gumbel":
    policy = mctx.gumbel_muzero_policy
    options["max_num_considered_actions"] = max_considered
    options["gumbel_scale"] = noise
    # Values have a scale, so small differences are small.
    options["qtransform"] = functools.partial(
      mctx.qtransform_completed_by_mix_value, rescale_values=False
    )
  else:
    policy = mctx.muzero_policy
    noise_key, rng_key = jax.random.split(rng_key)
    share = jnp.where(noise > 0, _NOISE_SHARE, 0.0)
    logits = _with_noise(noise_key, logits, legal, share, dirichlet_alpha)
    options["qtransform"] = _scaled_values
    options["dirichlet_fraction"] = 0.0
    options["temperature"] = noise
  output = policy(
    params,
    rng_key,
    mctx.RootFnOutput(
      prior_logits=logits, value=root.value, embedding=_Node(state, over)
    ),
    _step(game, evaluate, mctx),
    **options,
  )
  tree, action = output.search_tree.summary(), output.action
  if kind == "puct":
    # At temperature 0, mctx chooses among the most visited moves by chance.
    action = jnp.where(noise[:, 0] > 0, action, _most_visited(tree))
  return Result(
    action.astype(jnp.int32), output.action_weights, tree.visit_probs
  )


def playouts(game: games.Game) -> Evaluate:
  """Returns an evaluation without parameters: random moves to the end.

  All moves have the same logit, and a value is the result of one game.
  """

  def evaluate(
    params: types.Tree, rng_key: jax.Array, state: types.Tree
  ) -> Evaluation:
    del params
    rows = jax.tree.leaves(state)[0].shape[0]

    def move(carry: Any) -> Any:
      node, value, sign, moves, rng_key = carry
      rng_key, key = jax.random.split(rng_key)
      logits = _only_legal(
        jnp.zeros((rows, game.num_actions)), jax.vmap(game.legal)(node.state)
      )
      action = jax.random.categorical(key, logits)
      node, reward = _advance(game, node, action)
      return node, value + sign * reward, -sign, moves + 1, rng_key

    def goes_on(carry: Any) -> jax.Array:
      # Moves from a finished position, whose value is ignored, may never end.
      node, _, _, moves, _ = carry
      return ~jnp.all(node.over) & (moves < game.max_moves)

    node = _Node(state, jnp.zeros(rows, bool))
    start = node, jnp.zeros(rows), jnp.float32(1), jnp.int32(0), rng_key
    _, value, *_ = jax.lax.while_loop(goes_on, move, start)
    return Evaluation(jnp.zeros((rows, game.num_actions)), value)

  return evaluate


def _step(game: games.Game, evaluate: Evaluate, mctx: Any) -> Any:
  """Returns mctx's function of a parameter, a key, an action and a node."""

  def step(
    params: types.Tree, rng_key: jax.Array, action: jax.Array, node: _Node
  ) -> tuple[Any, _Node]:
    node, reward = _advance(game, node, action)
    estimate = evaluate(params, rng_key, node.state)
    legal = jax.vmap(game.legal)(node.state)
    goes_on = 1.0 - node.over
    return mctx.RecurrentFnOutput(
      reward=reward,
      discount=-goes_on,  # The next value is that of the other player.
      prior_logits=_only_legal(estimate.logits, legal),
      value=estimate.value * goes_on,
    ), node

  return step


def _advance(
  game: games.Game, node: _Node, action: jax.Array
) -> tuple[_Node, jax.Array]:
  """Plays a move in each game that is not over; returns rewards, too."""
  move = jax.vmap(game.play)(node.state, action)
  state = jax.tree.map(
    lambda old, new: jnp.where(
      node.over.reshape(-1, *(1,) * (new.ndim - 1)), old, new
    ),
    node.state,
    move.state,
  )
  reward = jnp.where(node.over, 0.0, move.reward)
  return _Node(state, node.over | move.over), reward


def _only_legal(logits: jax.Array, legal: jax.Array) -> jax.Array:
  return jnp.where(legal, logits, _ILLEGAL)


def _with_noise(
  rng_key: jax.Array,
  logits: jax.Array,
  legal: jax.Array,
  share: jax.Array,
  alpha: float,
) -> jax.Array:
  """Mixes Dirichlet noise over the legal moves into policies `[B, A]`.

  mctx's own noise is over all moves.
  """
  gammas = jax.random.gamma(rng_key, alpha, logits.shape) * legal
  total = jnp.sum(gammas, axis=-1, keepdims=True)
  noise = gammas / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
  mixed = (1.0 - share) * jax.nn.softmax(logits) + share * noise
  tiny = jnp.finfo(jnp.float32).tiny
  return _only_legal(jnp.log(jnp.maximum(mixed, tiny)), legal)


def _most_visited(tree: Any) -> jax.Array:
  """Returns the move with most visits, and of several the one of most value."""
  visits = tree.visit_counts
  is_most = visits == jnp.max(visits, axis=-1, keepdims=True)
  return jnp.argmax(jnp.where(is_most, tree.qvalues, -jnp.inf), axis=-1)


def _scaled_values(tree: Any, node: jax.Array) -> jax.Array:
  """Maps values of moves from [-1, 1] to [0, 1], as in AlphaZero.

  Illegal moves, which mctx masks only at the root, have the least value: a
  legal move may have less than 0, since the values of networks have no bounds.
  """
  bounds = {"min_value": -1.0, "max_value": 1.0}
  scaled = _mctx().qtransform_by_min_max(tree, node, **bounds)
  legal = tree.children_prior_logits[node] > _ILLEGAL
  return jnp.where(legal, scaled, -jnp.inf)


def _mctx() -> Any:
  """Returns the module `mctx`, which only a search imports."""
  try:
    with jax.ensure_compile_time_eval():
      return importlib.import_module("mctx")
  except ImportError as error:
    raise types.ConfigError(
      "expected the package mctx for a search, found none; install it with"
      " pip install 'seedx[games]'"
    ) from error
