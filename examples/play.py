"""Plays tic-tac-toe against a trained agent, and saves the moves.

  seedx train alphazero --env seedx:TicTacToe --run-dir runs/tictactoe
  python examples/play.py runs/tictactoe --moves runs/game.json

The person begins. A move is the number of a cell, 0 to 8, row by row.
"""

import argparse
import json
import pathlib

import jax
import numpy as np

from seedx import app


def ask(legal):
  while True:
    text = input(f"your move, one of {np.flatnonzero(legal).tolist()}: ")
    if text.isdecimal() and int(text) < len(legal) and legal[int(text)]:
      return int(text)


def picture(board, player):
  """Draws the board `[2, 3, 3]`, whose first plane is the next player's."""
  first, second = board[player], board[1 - player]
  cells = np.where(first, "X", np.where(second, "O", "."))
  return "\n".join(" ".join(row) for row in cells)


def play(run_dir):
  """Plays a game; returns its moves and the winner, 0, 1 or None."""
  policy = app.load(run_dir)
  game, memory = policy.spec.game, None
  state, moves, over, reward = game.start(), [], False, 0.0
  while not over:
    seen = jax.tree.map(np.asarray, game.observe(state))
    player = len(moves) % 2
    print(picture(seen["board"], player), end="\n\n")
    # The agent sees every position, so that its memory counts the moves.
    move, memory = policy.predict(seen, memory)
    moves.append(ask(seen["action_mask"]) if player == 0 else int(move))
    state, reward, over = game.play(state, moves[-1])
  return {"moves": moves, "winner": player if reward > 0 else None}


if __name__ == "__main__":
  parser = argparse.ArgumentParser()
  parser.add_argument("run_dir")
  parser.add_argument("--moves", type=pathlib.Path, default="runs/game.json")
  options = parser.parse_args()
  result = play(options.run_dir)
  options.moves.write_text(json.dumps(result) + "\n")
  print(f"{result}; saved in {options.moves}")
