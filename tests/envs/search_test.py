"""Searches in tic-tac-toe, with estimates of positions from tables."""

import collections
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import types
from seedx.envs.functional import games, opponents, search
from tests.envs import boards

RULES, GAME = boards.TIC_TAC_TOE, boards.TIC_TAC_TOE.game
SIZE, SIMULATIONS = 64, 32
KINDS = "gumbel", "puct"
KEY = jax.random.key(0)
every_kind = pytest.mark.parametrize("kind", KINDS)
TRACES, SEEN = collections.Counter(), []


def evaluate(tables, rng_key, state):
  """Reads the estimates of positions from tables."""
  del rng_key
  jax.debug.callback(lambda x: SEEN.append(np.array(x)), state)
  code = boards.code(state)
  return search.Evaluation(tables["logits"][code], tables["value"][code])


@functools.cache
def program(kind):
  """Returns the program of a kind of search, which all tests share."""

  @jax.jit
  def run(tables, key, state, noise, alpha):
    TRACES[kind] += 1
    return search.search(
      GAME,
      evaluate,
      tables,
      key,
      state,
      num_simulations=SIMULATIONS,
      kind=kind,
      noise=noise,
      dirichlet_alpha=alpha,
    )

  return run


def searched(kind, tables, positions, noise=0.0, seed=0, alpha=0.3):
  """Searches from any number of positions, in batches of one size."""
  noise = np.broadcast_to(np.float32(noise), len(positions))
  results = []
  for start in range(0, len(positions), SIZE):
    index = np.arange(start, start + SIZE).clip(max=len(positions) - 1)
    key = jax.random.key(seed + start)
    result = program(kind)(tables, key, positions[index], noise[index], alpha)
    rest = len(positions) - start
    results.append(
      jax.tree.map(lambda x, rest=rest: np.asarray(x)[:rest], result)
    )
  assert TRACES[kind] == 1, "a search was compiled twice"
  return jax.tree.map(lambda *x: np.concatenate(x), *results)


def tables_of(logits=0.0, value=0.0):
  """Returns tables `[3 ** 9, 9]` and `[3 ** 9]` for `evaluate`."""
  shape = (3**9, 9)
  return {
    "logits": np.array(np.broadcast_to(np.float32(logits), shape)),
    "value": np.array(np.broadcast_to(np.float32(value), shape[:1])),
  }


def random_tables(scale=1.0):
  rng = np.random.default_rng(0)
  return tables_of(rng.normal(size=(3**9, 9)), scale * rng.normal(size=3**9))


@functools.cache
def oracle():
  """Returns tables with exact values; those of finished games are wrong."""
  tables = tables_of(value=5.0)
  for code, (_, values) in boards.solved().items():
    tables["value"][code] = np.nanmax(values)
  return tables


@functools.cache
def positions_of(size=320, seed=0):
  """Returns positions in which moves differ in value, and these values."""
  rng = np.random.default_rng(seed)
  differ = [
    (position, values)
    for position, values in boards.solved().values()
    if np.nanmax(values) > np.nanmin(values)
  ]
  chosen = rng.choice(len(differ), size, replace=False)
  return tuple(
    np.array(x) for x in zip(*(differ[k] for k in chosen), strict=True)
  )


def legal_of(positions):
  return np.array([RULES.legal(x) for x in positions])


def finished_positions():
  """Returns a won, a lost and a drawn board, and a full one."""
  rng, positions = np.random.default_rng(0), {}
  while len(positions) < 3:
    *_, (_, _, after, reward, _) = RULES.random_game(rng)
    positions[reward, bool(after.any(0).all())] = after
  return np.array(list(positions.values()))


# Values and moves


@every_kind
def test_exact_values_send_the_visits_to_the_solvers_moves(kind):
  positions, values = positions_of()
  best = values == np.nanmax(values, axis=-1, keepdims=True)
  result = searched(kind, oracle(), positions)
  legal = legal_of(positions)
  uniform = np.sum(best, -1) / np.sum(legal, -1)
  # In few positions, a reply that is seen too late misleads 32 simulations.
  assert best[np.arange(len(positions)), result.action].mean() > 0.97
  shares = [(x * best).sum(-1).mean() for x in (result.visits, result.policy)]
  bounds = {"gumbel": (1.3 * uniform.mean(), 0.9), "puct": (0.7, 0.7)}
  assert (np.array(shares) > bounds[kind]).all(), shares


def wins_and_blocks():
  """Returns a position in which move 2 wins, and one in which it blocks."""
  win, block = np.zeros((2, 2, 3, 3), np.int8)
  win[0, 0, :2], win[1, 2, :2] = 1, 1  # Both can win, in rows 0 and 2.
  block[0].flat[[0, 3, 7]], block[1].flat[[1, 4, 6]] = 1, 1
  return np.stack([win, block])


@every_kind
def test_without_values_a_search_finds_wins_and_blocks_those_of_the_other(kind):
  """The reward of a move is good for its player, and bad for the other."""
  result = searched(kind, tables_of(), wins_and_blocks())
  assert result.action.tolist() == result.visits.argmax(-1).tolist() == [2, 2]


@every_kind
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_illegal_moves_are_never_searched(kind, noise):
  # A network's values have no bounds, and it prefers illegal moves.
  tables = random_tables(scale=3.0)
  for code, (position, _) in boards.solved().items():
    tables["logits"][code][~RULES.legal(position)] = 30.0
  positions, _ = positions_of()
  SEEN.clear()
  result = searched(kind, tables, positions, noise)
  legal = legal_of(positions)
  assert legal[np.arange(len(positions)), result.action].all()
  assert not result.visits[~legal].any() and not result.policy[~legal].any()
  for share in (result.visits, result.policy):
    np.testing.assert_allclose(share.sum(-1), 1, rtol=1e-5)
  # Nor do illegal moves lead to any position inside of the trees.
  jax.effects_barrier()
  states = np.concatenate(SEEN)
  assert len(states) == len(positions) * (1 + SIMULATIONS)
  stones = states.sum((2, 3))
  assert not (states[:, 0] & states[:, 1]).any()
  assert set(stones[:, 0] - stones[:, 1]) == {0, -1}


def test_small_differences_of_values_are_small():
  """Values keep their scale, or else a search would follow noise."""
  start = np.repeat(RULES.start()[None], 8, 0)
  tables = tables_of(value=random_tables(scale=1e-4)["value"])
  result = searched("gumbel", tables, start)
  np.testing.assert_allclose(result.policy, 1 / 9, atol=0.001)


def test_puct_considers_untried_moves_lost():
  """A move with the value 0 is tried again before untried ones."""
  start = np.repeat(RULES.start()[None], 8, 0)
  largest = searched("puct", tables_of(), start).visits.max(-1) * SIMULATIONS
  assert (largest > 10).all()


# Batches and randomness


@every_kind
def test_a_finished_game_leaves_the_other_searches_unchanged(kind):
  positions, _ = positions_of(SIZE)
  with_finished = positions.copy()
  ended = [0, 7, 12]
  with_finished[ended] = finished_positions()
  for noise in (0.0, 1.0):
    one, two = (
      searched(kind, random_tables(), x, noise)
      for x in (positions, with_finished)
    )
    for a, b in zip(one, two, strict=True):
      np.testing.assert_array_equal(
        np.delete(a, ended, 0), np.delete(b, ended, 0)
      )
      assert np.isfinite(b).all()


@every_kind
def test_noise_is_that_of_each_row(kind):
  positions, _ = positions_of(SIZE)
  tables = random_tables(0.3)
  noise = np.arange(SIZE) % 2
  runs = {
    (name, seed): searched(kind, tables, positions, x, seed)
    for name, x in (("none", 0.0), ("some", noise), ("all", 1.0))
    for seed in (0, 1)
  }
  for seed in (0, 1):
    for name, rows in (("none", noise == 0), ("all", noise == 1)):
      jax.tree.map(
        lambda a, b, rows=rows: np.testing.assert_array_equal(a[rows], b[rows]),
        runs["some", seed],
        runs[name, seed],
      )
  # Without noise, the key has no effect.
  jax.tree.map(np.testing.assert_array_equal, runs["none", 0], runs["none", 1])
  differs = runs["all", 0].visits != runs["all", 1].visits
  assert differs.any(-1).mean() > 0.25


def test_gumbel_noise_samples_from_the_policy():
  """If all values are equal, the best sample has the policy's probability."""
  start = np.repeat(RULES.start()[None], 1280, 0)
  logits = np.linspace(0.0, 2.0, 9)
  result = searched("gumbel", tables_of(logits), start, noise=1.0)
  expected = np.exp(logits) / np.exp(logits).sum()
  actual = np.bincount(result.action, minlength=9) / len(start)
  error = 4 * np.sqrt(expected * (1 - expected) / len(start))
  assert (np.abs(actual - expected) < error).all()


def test_puct_samples_a_move_from_the_visits():
  start = np.repeat(RULES.start()[None], 1280, 0)
  result = searched("puct", tables_of(np.linspace(0.0, 2.0, 9)), start, 1.0)
  np.testing.assert_array_equal(result.policy, result.visits)
  expected = result.visits.mean(0)
  actual = np.bincount(result.action, minlength=9) / len(start)
  error = 4 * np.sqrt(expected * (1 - expected) / len(start))
  assert (np.abs(actual - expected) < error).all()


def two_draws():
  """Returns all positions with two legal moves, which are draws."""
  return np.array(
    [
      position
      for position, values in boards.solved().values()
      if np.sum(values == 0) == 2 == np.sum(~np.isnan(values))
    ]
  )


def test_of_the_most_visited_moves_puct_plays_the_one_of_most_value():
  position = two_draws()[0]
  moves = np.flatnonzero(RULES.legal(position))
  for best in moves:
    tables = tables_of()
    after, *_ = RULES.play(position, best)
    # The other player's value, too small to change the visits.
    tables["value"][boards.code(after)] = -1e-3
    result = searched("puct", tables, position[None])
    np.testing.assert_array_equal(result.visits[0, moves], 0.5)
    assert result.action == best


def test_gumbel_considers_only_some_moves():
  same = search.Evaluation(jnp.zeros((1, 9)), jnp.zeros(1))

  @jax.jit
  def run(state):
    options = {"num_simulations": 4, "max_considered": 2}
    return search.search(GAME, lambda *_: same, (), KEY, state, **options)

  assert np.count_nonzero(run(RULES.start()[None]).visits) == 2


def test_dirichlet_noise_is_over_the_legal_moves_only():
  # Two draws are left, of which the policy hardly considers the second.
  positions = np.repeat(two_draws()[:8], 40, 0)
  legal = legal_of(positions)
  tables = tables_of(np.linspace(0.0, 80.0, 9))
  noisy = searched("puct", tables, positions, noise=1.0).visits
  unlikely = legal.argmax(-1)
  shares = noisy[np.arange(len(positions)), unlikely]
  # A quarter of the policy is noise; half of it goes to this move.
  assert abs(shares.mean() - 0.25 / 2) < 0.03
  even = searched("puct", tables, positions, noise=1.0, alpha=1e3).visits
  assert even[np.arange(len(positions)), unlikely].std() < 0.2 * shares.std()
  without = searched("puct", tables, positions).visits
  assert not without[np.arange(len(positions)), unlikely].any()


# Playouts


@functools.cache
def random_value(code):
  """Returns the expected result of random moves, for the player to move."""
  position, values = boards.solved()[code]
  total = 0.0
  for action in np.flatnonzero(~np.isnan(values)):
    after, reward, over = RULES.play(position, action)
    total += reward if over else -random_value(int(boards.code(after)))
  return total / np.sum(~np.isnan(values))


def test_playouts_estimate_the_results_of_random_moves():
  positions, _ = positions_of(SIZE)
  run = jax.jit(lambda key, state: search.playouts(GAME)((), key, state))
  logits, values = run(jax.random.key(0), np.repeat(positions, 1000, 0))
  assert not logits.any() and set(np.unique(values)) == {-1, 0, 1}
  expected = [random_value(int(boards.code(x))) for x in positions]
  actual = values.reshape(SIZE, 1000).mean(-1)
  np.testing.assert_allclose(actual, expected, atol=4 / 1000**0.5)
  assert np.std(expected) > 0.2


class Countdown:
  """A game of 3 moves; after its end, only move 100 wins and ends it again."""

  num_actions, max_moves = 1, 3

  def legal(self, state):
    return jnp.ones(1, bool)

  def play(self, state, action):
    won = state == 99
    over = won | (state == self.max_moves - 1)
    return games.Move(state + 1, won.astype(jnp.float32), over)


def test_playouts_from_finished_games_end():
  """Random moves after the end of a game of Hex may have no end."""
  run = jax.jit(lambda state: search.playouts(Countdown())((), KEY, state))
  assert run(jnp.arange(4)).value.tolist() == [0.0] * 4


def test_an_opponent_that_searches_wins_and_blocks():
  opponent = opponents.make(GAME, "search", SIMULATIONS)
  states = np.repeat(wins_and_blocks(), 20, 0)
  actions = jax.jit(jax.vmap(opponent))(
    jax.random.split(jax.random.key(0), 40), np.zeros(40, np.uint32), states
  )
  assert actions.dtype == np.int32
  assert np.mean(actions[:20] == 2) >= 0.9 <= np.mean(actions[20:] == 2)


def test_a_search_without_mctx_names_its_package(monkeypatch):
  monkeypatch.setitem(sys.modules, "mctx", None)
  with pytest.raises(types.ConfigError, match=r"seedx\[games\]"):
    jax.eval_shape(
      lambda: search.search(
        GAME,
        search.playouts(GAME),
        (),
        jax.random.key(0),
        jnp.asarray(RULES.start())[None],
        num_simulations=1,
      )
    )
