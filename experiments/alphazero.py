"""Trains AlphaZero by self-play in one program on the devices (Anakin).

  python -m experiments.alphazero --env seedx:TicTacToe

The games' rules, the search and learning run together. `seedx arena` lets the
trained run play against others.
"""

import sys

from seedx import app, envs
from seedx.agents import alphazero
from seedx.learning import learner
from seedx.pipelines import anakin

EXPERIMENT = app.Experiment(
  anakin.Config(
    env=envs.Config("seedx:TicTacToe"),
    total_steps=250_000,
    num_envs=128,
    agent=alphazero.Config(),
    learner=learner.Config(unroll_length=16),
    replay=alphazero.REPLAY,
  )
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
