"""Trains AlphaZero with self-play workers, and a replay on the learner (Ape-X).

  python -m experiments.apex_alphazero --env seedx:TicTacToe

Each worker plays and searches with its copy of the network, and sends its games
to the learner. The program starts its own workers; for several machines, see
`impala`.
"""

import sys

from seedx import app, envs
from seedx.acting import protocol
from seedx.agents import alphazero
from seedx.learning import learner
from seedx.pipelines import apex

EXPERIMENT = app.Experiment(
  apex.Config(
    env=envs.Config("seedx:TicTacToe"),
    total_steps=250_000,
    agent=alphazero.Config(),
    actors=protocol.Actors(num_actors=2, envs_per_actor=64),
    learner=learner.InboxConfig(unroll_length=16, batch_size=64),
    replay=alphazero.REPLAY,
  )
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
