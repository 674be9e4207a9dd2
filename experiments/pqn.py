"""Trains PQN, parallelised Q-networks without a replay, in one process.

  python -m experiments.pqn --env CartPole-v1

Defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app
from seedx.agents import pqn
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    total_steps=500_000,
    num_envs=32,
    agent=pqn.Config(),
    learner=learner.Config(unroll_length=64),
  ),
  images=app.preset(
    measured=False, total_steps=10_000_000, num_envs=128, unroll_length=32
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
