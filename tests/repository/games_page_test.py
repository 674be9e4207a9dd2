"""Tests of the game that docs/games.md adds."""

import sys
import types as python_types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.repository import documentation


@pytest.fixture(name="my_game", scope="module")
def _my_game():
  """The module that the page shows."""
  module = python_types.ModuleType("my_game")
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "my_game", module)
    exec(documentation.file_named("my_game.py"), vars(module))
    yield module


def states(game):
  """Returns all states `[N, 3]` of the game, the finished one first."""
  heaps = [range(x + 1) for x in np.asarray(game.start())]
  grid = np.stack(np.meshgrid(*heaps, indexing="ij"), axis=-1)
  return jnp.asarray(grid.reshape(-1, 3), jnp.int8)


def test_an_observation_has_the_whole_state(my_game):
  game = my_game.Nim()
  every = states(game)
  observed = jax.vmap(game.observe)(every)
  np.testing.assert_array_equal(jax.vmap(game.state)(observed), every)
  assert jnp.all(jnp.any(observed["action_mask"], axis=-1))
  for name, spec in game.observation.items():
    assert observed[name].shape[1:] == spec.shape
    assert observed[name].dtype == spec.dtype


def test_the_perfect_opponent_wins_every_game_that_it_begins(my_game):
  match = my_game.make(opponent="perfect", seat="second")

  def step(state, rng_key):
    action_key, rng_key = jax.random.split(rng_key)
    legal = match.game.legal(state.position)
    logits = jnp.where(legal, 0.0, -jnp.inf)
    action = jax.random.categorical(action_key, logits)
    state, timestep = match.step(state, action, rng_key)
    return state, (timestep.last(), timestep.reward)

  start = match.init(jax.random.key(0))
  keys = jax.random.split(jax.random.key(1), 300)
  _, (last, rewards) = jax.jit(lambda: jax.lax.scan(step, start, keys))()
  results = np.asarray(rewards)[np.asarray(last)]
  assert len(results) > 30 and np.all(results == -1)
