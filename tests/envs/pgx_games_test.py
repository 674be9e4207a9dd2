"""Tests that pgx's games are those of EnvPool, and fit a search's needs."""

import functools
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, types
from seedx.envs import functional
from seedx.envs.functional import pgx_games

FIRST, MID, LAST = range(3)
# Each player of chess moves a knight and moves it back, twice.
KNIGHTS = (3572, 3572, 3137, 3137) * 2
# Games, numbers of steps, first moves, and results of the last move.
GAMES = [
  pytest.param("Othello", 130, (), {-1, 1}),
  pytest.param("Hex", 130, (), {1}),
  pytest.param("Go-9x9", 330, (), {-1, 1}, marks=pytest.mark.slow),
  pytest.param("Chess", 520, KNIGHTS, {0, 1}, marks=pytest.mark.slow),
]
# Planes of chess: numbers, and whether each of 8 positions is a repetition.
NUMBERS, REPEATED = [113, 118], np.arange(13, 112, 14)


@functools.cache
def match(name):
  return functional.make(envs.Config(f"seedx:{name}"))


def envpool_games(name, num_steps, num_envs=8, opening=()):
  """Plays an opening and random moves in EnvPool; half of the games often pass.

  Returns:
    The actions `[T, N]` that led to each step (those of a FIRST step are not
    used), and columns of steps `[T, N, ...]`: step types, rewards of the last
    move, observations of the player to move, and legal moves.
  """
  import envpool

  random = np.random.default_rng(0)
  pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=3)
  games, actions = np.arange(num_envs), np.zeros(num_envs, np.int32)
  mover, was_last = np.zeros(num_envs, np.int32), np.ones(num_envs, bool)
  columns = []
  while len(columns) < num_steps:
    if columns:
      observation, rewards, ended, _, info = pool.step(actions)
    else:
      observation, info = pool.reset()
      rewards, ended = np.zeros(2 * num_envs), np.zeros(num_envs, bool)
    # Rows arrive in any order.
    order = np.argsort(info["env_id"])
    players = np.lexsort((info["players"]["id"], info["players"]["env_id"]))
    rewards = rewards[players].reshape(num_envs, 2)
    planes = observation[players].reshape(num_envs, 2, *observation.shape[1:])
    to_move = info["current_player"][order]
    legal = info["legal_action_mask"][order]
    ended = ended[order]
    step_type = np.where(ended, LAST, np.where(was_last, FIRST, MID))
    reward, seen = rewards[games, mover], planes[games, to_move]
    columns.append((actions, step_type, reward, seen, legal))
    weights = random.random(legal.shape) * legal
    weights[::2, -1] *= 5.0
    if len(columns) <= len(opening):
      weights[:, opening[len(columns) - 1]] = 9.0
    actions = np.argmax(weights, axis=-1).astype(np.int32)
    mover, was_last = to_move, ended
  pool.close()
  return map(np.stack, zip(*columns, strict=True))


def played(name, actions):
  """Returns the time steps `[T, N]` of actions, which follow `functional`."""
  env = match(name)

  def step(state, action):
    key = jax.random.key(0)
    return jax.vmap(lambda s, a: env.step(s, a, key))(state, action)

  @jax.jit
  def play(actions):
    keys = jax.random.split(jax.random.key(0), actions.shape[1])
    return jax.lax.scan(step, jax.vmap(env.init)(keys), actions)[1]

  return jax.device_get(play(jnp.asarray(actions)))


@pytest.mark.parametrize(("name", "num_steps", "opening", "results"), GAMES)
def test_random_games_are_those_of_envpool(name, num_steps, opening, results):
  actions, step_type, reward, planes, legal = envpool_games(
    f"{name.replace('-', '')}-v1", num_steps, opening=opening
  )
  timestep = played(name, actions)
  np.testing.assert_array_equal(timestep.step_type, step_type)
  np.testing.assert_array_equal(timestep.discount, step_type != LAST)
  np.testing.assert_array_equal(timestep.reward, reward)
  np.testing.assert_array_equal(timestep.observation["action_mask"], legal)
  assert results <= set(reward[step_type == LAST])
  board = np.moveaxis(timestep.observation["board"], 2, -1)
  if name == "Chess":
    # Shares of cells stand for two numbers.
    np.testing.assert_allclose(
      board.mean((2, 3))[..., NUMBERS],
      planes.mean((2, 3))[..., NUMBERS],
      atol=1 / 128,
    )
    # EnvPool marks no repetitions.
    unlike = [*NUMBERS, *REPEATED, *(REPEATED - 1)]
    board, planes = (np.delete(x, unlike, axis=-1) for x in (board, planes))
  np.testing.assert_array_equal(board, planes)


def knight_moves(length, start, columns):
  """Returns the moves of chess of a knight from a column of row 0 and back.

  In between, the knight visits cells of three rows between the players, each at
  most once.
  """
  down, right = (-1, 1, -2, 2, -1, 1, -2, 2), (-2, -2, -1, -1, 2, 2, 1, 1)

  def rest(row, column, visited):
    for k in range(8):
      cell = row + down[k], column + right[k]
      move = (column * 8 + row) * 73 + 65 + k
      if len(visited) == length - 1:
        moves = [] if cell == (0, start) else None
      elif cell[0] in (2, 3, 4) and cell[1] in columns and cell not in visited:
        moves = rest(*cell, visited | {cell})
      else:
        moves = None
      if moves is not None:
        return [move, *moves]
    return None

  return rest(0, start, frozenset())


@pytest.mark.slow
def test_repetitions_are_marked_as_in_pgx():
  """Positions come back 80 moves later, until a pawn moves after 98."""
  pgx = importlib.import_module("pgx")
  game, env = match("Chess").game, pgx.make("chess")
  moves = np.zeros(104, np.int32)
  moves[0::2] = np.resize(knight_moves(10, 6, range(3, 8)), 52)
  moves[1::2] = np.resize(knight_moves(8, 1, range(3)), 52)
  moves[98:] = [89, 4177, 673, 3593, 1257, 3009]  # Pawns.

  def step(carry, action):
    state, reference = carry
    move, reference = game.play(state, action), env.step(reference, action)
    seen = game.observe(move.state)["board"]
    return (move.state, reference), (
      jnp.moveaxis(seen, 0, -1)[..., REPEATED],
      reference.observation[..., REPEATED],
      game.legal(state)[action],
      move.over | reference.terminated,
    )

  @jax.jit
  def play(moves):
    start = game.start(), env.init(jax.random.key(0))
    return jax.lax.scan(step, start, moves)[1]

  seen, expected, legal, over = jax.device_get(play(moves))
  assert legal.all() and not over.any()
  np.testing.assert_array_equal(seen, expected)
  np.testing.assert_array_equal(
    np.flatnonzero(seen[:, 0, 0, 0]), np.arange(79, 98)
  )
  assert seen[-1, 0, 0].tolist() == [0] * 6 + [1, 1]


@pytest.mark.parametrize(("name", "number"), [("Othello", 8), ("Hex", 2)])
def test_a_turned_move_in_a_turned_position_turns_the_next_one(name, number):
  game = match(name).game
  cells, actions = game.symmetries
  assert len(cells) == len(actions) == number
  inverse = np.argsort(actions, axis=-1)
  shape = game.observation["board"].shape[0], cells.shape[1]
  start = jax.vmap(lambda x: turned(game, game.start(), x))(cells)

  def step(states, rng_key):
    logits = jnp.where(game.legal(states[0]), 0.0, -jnp.inf)
    # Often a pass, or the second player's move to take over a stone.
    action = jax.random.categorical(rng_key, logits.at[-1].add(3.0))
    moves = jax.vmap(game.play)(states, jnp.asarray(inverse)[:, action])
    return moves.state, (action, moves, jax.vmap(game.observe)(moves.state))

  @jax.jit
  @functools.partial(jax.vmap, out_axes=1)
  def play(rng_key):
    return jax.lax.scan(step, start, jax.random.split(rng_key, 90))[1]

  played_actions, moves, observation = jax.device_get(
    play(jax.random.split(jax.random.key(0), 8))
  )
  assert (played_actions == game.num_actions - 1).any()
  assert moves.over.any()
  # Positions after the end of a game have no meaning.
  over = moves.over[:, :, 0]
  in_game = np.cumsum(over, axis=0) == over
  board = observation["board"][in_game].reshape(-1, number, *shape)
  mask = observation["action_mask"][in_game]
  for k in range(number):
    np.testing.assert_array_equal(board[:, k], board[:, 0][..., cells[k]])
    np.testing.assert_array_equal(mask[:, k], mask[:, 0][:, actions[k]])
  for column in (moves.reward, moves.over):
    kept = column[in_game]
    np.testing.assert_array_equal(kept, np.repeat(kept[:, :1], number, axis=1))


def turned(game, state, cells):
  """Turns a position of Othello, or an empty board."""
  rules = pgx_games.rules_of(game.name)
  full = rules.unpacked(state)
  inner = full._x._replace(board=full._x.board[cells])
  mask = jnp.append(full.legal_action_mask[cells], full.legal_action_mask[-1])
  return rules.packed(full.replace(_x=inner, legal_action_mask=mask))


def test_a_game_without_pgx_names_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, "pgx", None)
  pgx_games.rules_of.cache_clear()
  with pytest.raises(types.ConfigError, match=r"pip install 'seedx\[games\]'"):
    functional.make(envs.Config("seedx:Hex"))
