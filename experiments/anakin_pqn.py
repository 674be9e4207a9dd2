"""Trains PQN with environment, acting and learning in one program (Anakin).

  python -m experiments.anakin_pqn --env seedx:CartPole-v1
  python -m experiments.anakin_pqn --env seedx:Breakout-MinAtar

Defaults depend on the environment: `--env seedx:Breakout-MinAtar --help` shows
them.
"""

import sys

from seedx import app
from seedx.agents import pqn
from seedx.learning import learner
from seedx.pipelines import anakin

EXPERIMENT = app.Experiment(
  anakin.Config(
    total_steps=500_000,
    num_envs=32,
    agent=pqn.Config(),
    learner=learner.Config(unroll_length=64),
  ),
  images=app.preset(
    games="MinAtar", total_steps=10_000_000, num_envs=128, unroll_length=32
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
