"""The rules of games, their symmetries, and the moves of perfect play."""

import dataclasses
import functools
import pickle

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import types
from seedx.envs.functional import games
from tests.envs import boards

EVERY = boards.TIC_TAC_TOE, boards.CONNECT_FOUR
every_game = pytest.mark.parametrize(
  "rules", EVERY, ids=lambda x: type(x.game).__name__
)


@functools.cache
def play(rules):
  """Returns `play` and `legal` of a batch of positions as one program."""
  game = rules.game
  both = jax.vmap(
    lambda state, action: (game.play(state, action), game.legal(state))
  )
  return jax.jit(both)


@functools.cache
def random_games(rules):
  """Returns the moves of 300 random games as arrays."""
  rng = np.random.default_rng(0)
  moves = [x for _ in range(300) for x in rules.random_game(rng)]
  return tuple(map(np.array, zip(*moves, strict=True)))


@every_game
def test_random_games_follow_the_rules(rules):
  before, action, after, reward, over = random_games(rules)
  assert over.sum() == 300 and (rules.falls or reward.sum() < 290)
  (state, actual_reward, actual_over), legal = play(rules)(before, action)
  assert (state.dtype, actual_reward.dtype) == (np.int8, np.float32)
  np.testing.assert_array_equal(state, after)
  np.testing.assert_array_equal(actual_reward, reward)
  np.testing.assert_array_equal(actual_over, over)
  expected = np.array([rules.legal(x) for x in before])
  np.testing.assert_array_equal(legal, expected)
  assert not expected.all()


@every_game
def test_lines_win_and_nothing_else(rules):
  """Random boards have stones anywhere, also beyond each edge of a line."""
  rng = np.random.default_rng(2)
  rows, columns = rules.shape
  positions = np.zeros((4000, 2, rows, columns), np.int8)
  density = rng.uniform(0.2, 0.9, (4000, 1, 1))
  own = rng.random((4000, rows, columns)) < density
  height = rng.integers(0, rows + 1, (4000, 1, columns))
  filled = np.arange(rows)[:, None] >= rows - height
  if not rules.falls:
    filled = rng.random(filled.shape[:1] + rules.shape) < 0.7
  positions[:, 0], positions[:, 1] = own & filled, ~own & filled
  free = np.array([rules.legal(x).any() for x in positions])
  # Positions in which the player has won do not occur in games.
  positions = positions[free & ~rules.won(positions[:, 0])]
  actions = np.array(
    [rng.choice(np.flatnonzero(rules.legal(x))) for x in positions]
  )
  expected = [rules.play(x, a) for x, a in zip(positions, actions, strict=True)]
  after, reward, over = map(np.array, zip(*expected, strict=True))
  # All programs have batches of one size.
  actual, _ = batched(rules, positions, actions)
  np.testing.assert_array_equal(actual.state, after)
  np.testing.assert_array_equal(actual.reward, reward)
  np.testing.assert_array_equal(actual.over, over)
  assert 0.05 < reward.mean() < 0.9


def batched(rules, positions, actions):
  """Plays any number of moves with the program of `random_games`."""
  size = len(random_games(rules)[0])
  outputs = []
  for start in range(0, len(positions), size):
    index = np.arange(start, start + size).clip(max=len(positions) - 1)
    moved = play(rules)(positions[index], actions[index])
    rest = len(positions) - start
    outputs.append(jax.tree.map(lambda x, rest=rest: x[:rest], moved))
  return jax.tree.map(lambda *x: np.concatenate(x), *outputs)


@every_game
def test_every_line_wins_whichever_stone_is_the_last(rules):
  columns, positions, actions = rules.shape[1], [], []
  for line in rules.lines:
    for last in line:
      row, column = divmod(int(last), columns)
      position = rules.start()
      position[0].flat[[x for x in line if x != last]] = 1
      if rules.falls:
        if position[0, :row, column].any():
          continue  # The last stone of a column is its highest.
        below = position[:, row + 1 :, column]
        below[1] = 1 - below[0]
      positions.append(position)
      actions.append(column if rules.falls else last)
  moved, _ = batched(rules, np.array(positions), np.array(actions))
  assert (moved.reward == 1).all() and moved.over.all()
  assert len(positions) == (213 if rules.falls else 24)
  # Without any of the other stones, the line does not win.
  for k in range(rules.length - 1):
    fewer = np.array(positions)
    for position in fewer:
      cells = np.argwhere(position[0])
      position[(0, *cells[k % len(cells)])] = 0
      position[(1, *cells[k % len(cells)])] = 1
    moved, _ = batched(rules, fewer, np.array(actions))
    assert not moved.reward.any()


FULL = {
  boards.TIC_TAC_TOE: [[0, 1, 0], [0, 1, 1], [1, 0, 0]],
  boards.CONNECT_FOUR: (np.arange(6)[:, None] + np.arange(7) // 2) % 2,
}


@every_game
def test_a_full_board_without_a_line_is_a_draw(rules):
  colours = np.array(FULL[rules])
  position = np.stack([colours == colours[0, 0], colours != colours[0, 0]])
  assert not rules.won(position).any()
  position[0, 0, 0] = False
  game = rules.game
  positions, actions = position[None].astype(np.int8), np.zeros(1, np.int32)
  moved, legal = batched(rules, positions, actions)
  assert (moved.reward[0], moved.over[0]) == (0, True)
  assert legal[0].tolist() == [True] + [False] * (game.num_actions - 1)
  # A search may ask for moves after the end.
  _, legal = batched(rules, moved.state, actions)
  assert legal.all()
  again, _ = batched(rules, moved.state, actions)
  assert again.over.all() and np.isfinite(again.reward).all()


@every_game
def test_observations_match_the_spec_and_have_the_state(rules):
  before, *_ = random_games(rules)
  game = rules.game
  observed, state = jax.jit(
    jax.vmap(lambda x: (game.observe(x), game.state(game.observe(x))))
  )(before)
  np.testing.assert_array_equal(state, before)
  np.testing.assert_array_equal(
    observed["action_mask"], [rules.legal(x) for x in before]
  )
  for name, spec in game.observation.items():
    assert (observed[name].shape[1:], observed[name].dtype) == (
      spec.shape,
      spec.dtype,
    )
  np.testing.assert_array_equal(jax.jit(game.start)(), rules.start())


# Symmetries


def transformed(position, cells):
  """Returns positions `[B, 2, H, W]` after a symmetry."""
  flat = position.reshape(len(position), 2, -1)
  return flat[:, :, cells].reshape(position.shape)


@every_game
def test_a_transformed_move_leads_to_the_transformed_position(rules):
  before, action, after, reward, over = random_games(rules)
  symmetries = rules.game.symmetries
  assert len({tuple(x) for x in symmetries.cells}) == (2 if rules.falls else 8)
  for cells, actions in zip(*symmetries, strict=True):
    where = np.argsort(actions)[action]
    assert (actions[where] == action).all()
    moved, legal = play(rules)(transformed(before, cells), where)
    np.testing.assert_array_equal(moved.state, transformed(after, cells))
    np.testing.assert_array_equal(moved.reward, reward)
    np.testing.assert_array_equal(moved.over, over)
    expected = np.array([rules.legal(x) for x in before])[:, actions]
    np.testing.assert_array_equal(legal, expected)


@every_game
def test_the_first_symmetry_changes_nothing(rules):
  for order in (x[0] for x in rules.game.symmetries):
    np.testing.assert_array_equal(order, np.arange(len(order)))


@every_game
def test_augmented_positions_keep_the_policy_of_each_move(rules):
  """A policy of the board's first row stays that of the moved stones."""
  game, rng = rules.game, np.random.default_rng(3)
  rows, size = (4, 100), rules.shape[0] * rules.shape[1]
  board = np.broadcast_to(
    np.arange(2 * size, dtype=np.int8).reshape(2, *rules.shape),
    (*rows, 2, *rules.shape),
  )
  # Every stone, and every move, is different.
  policy = rng.random((*rows, game.num_actions)).astype(np.float32)
  augment = jax.jit(functools.partial(games.augmented, game))
  moved, (one, two) = augment(jax.random.key(0), board, (policy, 2 * policy))
  np.testing.assert_array_equal(two, 2 * one)
  symmetries, drawn = game.symmetries, []
  flat = np.asarray(moved).reshape(*rows, 2, size)
  for row in np.ndindex(rows):
    (k,) = np.flatnonzero((symmetries.cells == flat[row][0]).all(-1))
    np.testing.assert_array_equal(flat[row][1], symmetries.cells[k] + size)
    expected = policy[row][symmetries.actions[k]]
    np.testing.assert_array_equal(one[row], expected)
    drawn.append(k)
  counts = np.bincount(drawn, minlength=len(symmetries.cells))
  assert (counts > 0.5 * len(drawn) / len(counts)).all()


# Perfect play


def test_optimal_moves_are_those_of_minimax_in_every_position():
  positions, values = map(np.array, zip(*boards.solved().values(), strict=True))
  assert len(positions) == 4520
  optimal = jax.jit(jax.vmap(boards.TIC_TAC_TOE.game.optimal))(positions)
  best = np.nanmax(values, axis=-1, keepdims=True)
  np.testing.assert_array_equal(optimal, values == best)


def test_games_can_be_compared_and_pickled():
  one, other = (rules.game for rules in EVERY)
  for game in (one, other):
    same = pickle.loads(pickle.dumps(game))
    assert same == game and hash(same) == hash(game)
  assert one != other


@dataclasses.dataclass(frozen=True)
class Broken(games.TicTacToe):
  """Tic-tac-toe with a wrong part."""

  part: str = ""

  @property
  def observation(self):
    specs = super().observation
    if self.part == "name":
      return {"cells": specs["board"], "action_mask": specs["action_mask"]}
    if self.part == "flat":
      return specs | {"board": dm_env.specs.Array((18,), np.int8)}
    if self.part == "dtype":
      return specs | {"board": dm_env.specs.Array((2, 3, 3), np.float32)}
    return specs

  @property
  def symmetries(self):
    cells = games.square_symmetries(3)
    if self.part == "cells":
      return games.Symmetries(cells[:, :8], cells)
    return cells if self.part == "array" else None

  def play(self, state, action):
    move = super().play(state, action)
    if self.part == "state":
      return move._replace(state=move.state.astype(jnp.float32))
    return move


@pytest.mark.parametrize(
  ("part", "words"),
  [
    ("name", "'board' None"),
    ("flat", r"'board' \(18,\)"),
    ("cells", "9 and 9 columns"),
    ("array", "as games.Symmetries"),
    ("state", "play of Broken"),
    ("dtype", "observe of Broken"),
  ],
)
def test_a_wrong_part_of_a_game_is_named(part, words):
  with pytest.raises(types.ConfigError, match=words):
    games.check(Broken(part=part))


def test_a_game_without_symmetries_is_right():
  game = Broken()
  games.check(game)
  board, policy = np.ones((2, 2, 3, 3)), np.ones((2, 9))
  turned = games.augmented(game, jax.random.key(0), board, policy)
  assert turned[0] is board and turned[1] is policy
