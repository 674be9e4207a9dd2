"""The exact solver of connect four, and the benchmark that uses it."""

import functools
import random
import re
import types as python_types

import dm_env
import numpy as np
import pytest

from benchmarks import connect_four
from benchmarks import connect_four_solver as solver
from seedx import app, envs, types
from seedx.agents import alphazero
from seedx.envs.functional import games
from seedx.learning import learner
from seedx.pipelines import anakin

EMPTY = 0, 1, 2, 3
LINES = [
  [(row + k * down, column + k * right) for k in EMPTY]
  for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
  for row in range(6)
  for column in range(7)
  if row + 3 * down < 6 and 0 <= column + 3 * right < 7
]


def has_won(stones):
  return any(all(stones[cell] for cell in line) for line in LINES)


def played(board, column):
  """Returns the board after a move, seen by the other player."""
  row = 5 - int(board.sum(axis=(0, 1))[column])
  after = board[::-1].copy()
  after[1, row, column] = 1
  return after


def legal(board):
  return [k for k in range(7) if not board[:, 0, k].any()]


@functools.cache
def minimax(content):
  """Returns the value of a board's bytes for the player to move."""
  board = np.frombuffer(content, np.int8).reshape(2, 6, 7)
  if has_won(board[1]):
    return -1
  moves = (played(board, k) for k in legal(board))
  return max((-minimax(x.tobytes()) for x in moves), default=0)


def late_boards(number, empty):
  """Returns boards of random games that are not over."""
  choices, boards = random.Random(0), []
  while len(boards) < number:
    board = np.zeros((2, 6, 7), np.int8)
    while board.sum() < 42 - empty and not has_won(board[1]):
      board = played(board, choices.choice(legal(board)))
    if not has_won(board[1]):
      boards.append(board)
  return boards


def test_values_are_those_of_an_exhaustive_search():
  seen = set()
  for board in late_boards(30, empty=7):
    expected = {k: -minimax(played(board, k).tobytes()) for k in legal(board)}
    assert solver.values(*solver.bits(board)) == expected
    seen |= {*expected.values()}
  assert seen == {-1, 0, 1}


@pytest.mark.parametrize(
  ("columns", "value"),
  [  # From Pascal Pons's set Test_L3_R1; columns from 1.
    ("2252576253462244111563365343671351441", -1),
    ("7422341735647741166133573473242566", 1),
    ("23163416124767223154467471272416755633", 0),
  ],
)
def test_known_positions_have_their_values(columns, value):
  board = np.zeros((2, 6, 7), np.int8)
  for column in columns:
    board = played(board, int(column) - 1)
  assert max(solver.values(*solver.bits(board)).values()) == value


def test_positions_are_late_and_before_the_end_of_a_game():
  kinds = dm_env.StepType
  boards = np.zeros((43, 2, 6, 7), np.int8)
  for k in range(42):
    boards[k:, k % 2, k % 6, k // 6] = 1  # Step k has k + 1 stones.
  step_type = np.full(43, kinds.MID)
  step_type[40:] = kinds.LAST, kinds.FIRST, kinds.MID
  late = connect_four.late(boards, step_type, 5)
  assert late.sum(axis=(1, 2, 3)).tolist() == [37, 38, 39, 40]


def test_an_interval_has_room_on_the_side_of_doubt():
  low, high = connect_four.interval(np.array([1.0] * 485 + [0.0] * 15))
  assert (low, high) == (
    pytest.approx(0.951, abs=1e-3),
    pytest.approx(0.982, abs=1e-3),
  )
  low, high = connect_four.interval(np.ones(100))
  assert (low, high) == (pytest.approx(0.963, abs=1e-3), pytest.approx(1.0))


def test_players_are_compared_in_the_same_positions():
  first, second = np.array([True] * 60 + [False] * 40), np.arange(100) < 50
  expected = "10.0% (4.1% to 15.9%)"
  assert connect_four.difference(first, second) == expected


def test_a_run_of_another_game_is_refused(monkeypatch):
  spec = python_types.SimpleNamespace(game=games.TicTacToe())
  policy = python_types.SimpleNamespace(spec=spec, env=envs.Config("a game"))
  monkeypatch.setattr(app, "load", lambda *args: policy, raising=False)
  with pytest.raises(types.ConfigError, match="found one of a game"):
    connect_four.main(["some directory"])


@pytest.mark.slow
def test_a_run_is_compared_with_other_players(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(connect_four, "_GAMES", 8)
  app.train(
    anakin.Config(
      env=envs.Config("seedx:ConnectFour"),
      num_envs=4,
      total_steps=32,
      agent=alphazero.Config(
        replayed=False, hidden_sizes=(4,), num_simulations=2
      ),
      learner=learner.Config(unroll_length=8),
    ),
    run_dir=str(tmp_path),
    quiet=True,
  )
  words = [str(tmp_path), "--positions", "6", "--games", "8", "--empty", "24"]
  assert connect_four.main(words) == 0
  text = capsys.readouterr().out
  assert " 6 positions of " in text
  rows = re.findall(r"^\| (.*) \| ([\d.]+)% \|", text, re.MULTILINE)
  shares = {name: float(share) for name, share in rows}
  assert [*shares] == [
    "the run, 2 simulations",
    "its network alone",
    "playouts, 2 simulations",
    "random moves",
    "as first",
    "as second",
    "both",
  ]
  assert shares["both"] == pytest.approx(
    (shares["as first"] + shares["as second"]) / 2, abs=0.1
  )
  assert 0 < shares["random moves"] < 100
