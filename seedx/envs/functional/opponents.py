"""Opponents in games: pure functions from a position to a move."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from seedx import types
from seedx.envs import config as env_config
from seedx.envs.functional import games, search

# Maps a random key, the seed of the game `[]`, and a state of the game, all
# without a batch axis, to a move `[]`.
Opponent = Callable[[jax.Array, jax.Array, Any], jax.Array]

NAMES = ("random", "perfect", "search")
# The + between two opponents; that of a directory's name is not one.
_AND = re.compile(rf"\+(?=(?:{'|'.join(NAMES)})(?:\+|$)|[\w.]+:)")


def make(game: games.Game, name: str, num_simulations: int = 32) -> Opponent:
  """Makes an opponent.

  Args:
    game: the game.
    name: "random"; "perfect", a random one of the best moves, for small games;
      "search", a tree search with random playouts; or MODULE:FUNCTION for your
      own, a function of the game that returns an `Opponent`. In
      MODULE:FUNCTION:TEXT, the function receives the text, too. Several names
      with + between them stand for a random one of these in each game.
    num_simulations: number of simulations of "search".

  Raises:
    types.ConfigError: there is no such opponent.
  """
  names = members(name)
  if len(names) > 1:
    return _one_of([make(game, x, num_simulations) for x in names])
  if name == "random":
    return _among(game.legal)
  if name == "perfect":
    if not hasattr(game, "optimal"):
      raise types.ConfigError(
        f"expected an opponent other than perfect in {type(game).__name__},"
        " which is too large for a table of all positions"
      )
    return _among(game.optimal)
  if name == "search":
    types.check_range("opponent_simulations", num_simulations, 1, 2**16)
    return _searching(game, num_simulations)
  if ":" not in name:
    raise types.ConfigError(
      f"unknown opponent {name!r}. {env_config.suggestion(name, NAMES)} A"
      " trained run is run:DIR, your own opponent MODULE:FUNCTION, and a"
      " random one of several A+B."
    )
  module, function, *text = name.split(":", 2)
  factory = env_config.load_function(f"{module}:{function}", "an opponent")
  try:
    opponent: Opponent = factory(game, *text)
  except types.ConfigError:
    raise
  except Exception as error:  # A user's function may raise anything.
    raise types.ConfigError(
      f"opponent {name} raises {env_config.in_one_line(error)}"
    ) from error
  return opponent


def members(name: str) -> list[str]:
  """Returns the names of the opponents in a name; see `make`."""
  return _AND.split(name)


def _one_of(opponents: Sequence[Opponent]) -> Opponent:
  """Returns an opponent that is another one in each game.

  With a batch of games, each move costs the sum of all opponents' moves.
  """

  def opponent(
    rng_key: jax.Array, game_seed: jax.Array, state: types.Tree
  ) -> jax.Array:
    count = len(opponents)
    move: jax.Array = jax.lax.switch(
      (game_seed % count).astype(jnp.int32),
      opponents,
      rng_key,
      game_seed // count,
      state,
    )
    return move

  return opponent


def _among(choices: Callable[[Any], jax.Array]) -> Opponent:

  def opponent(
    rng_key: jax.Array, game_seed: jax.Array, state: types.Tree
  ) -> jax.Array:
    del game_seed
    logits = jnp.where(choices(state), 0.0, -jnp.inf)
    return jax.random.categorical(rng_key, logits).astype(jnp.int32)

  return opponent


def _searching(game: games.Game, num_simulations: int) -> Opponent:
  def opponent(
    rng_key: jax.Array, game_seed: jax.Array, state: types.Tree
  ) -> jax.Array:
    del game_seed
    result = search.search(
      game,
      search.playouts(game),
      (),
      rng_key,
      jax.tree.map(lambda x: x[None], state),
      num_simulations=num_simulations,
      kind="puct",
    )
    return result.action[0]

  return opponent
