"""Trains A2C, the synchronous advantage actor-critic.

  python -m experiments.a2c --env CartPole-v1

Defaults depend on the environment: `--env Pendulum-v1 --help` shows them.
"""

import sys

from seedx import app
from seedx.agents import a2c
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    total_steps=500_000,
    agent=a2c.Config(),
    learner=learner.Config(unroll_length=16),
  ),
  continuous=app.preset(total_steps=1_000_000),
  images=app.preset(measured=False, total_steps=10_000_000),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
