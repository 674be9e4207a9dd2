"""Trains AlphaZero in the pipeline SEED: central inference serves the search.

  python -m experiments.seed_alphazero --env seedx:TicTacToe

The actors only play the games' moves. The learner's process searches for all
games of all actors in one batch. The program starts its own actors; for several
machines, see `seed_vtrace`.
"""

import sys

from seedx import app, envs
from seedx.acting import thin_actor
from seedx.agents import alphazero
from seedx.learning import learner
from seedx.pipelines import seed

EXPERIMENT = app.Experiment(
  seed.Config(
    env=envs.Config("seedx:TicTacToe"),
    total_steps=250_000,
    agent=alphazero.Config(),
    actors=thin_actor.Config(num_actors=2, envs_per_actor=64),
    learner=learner.InboxConfig(unroll_length=16, batch_size=64),
    replay=alphazero.REPLAY,
  )
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
