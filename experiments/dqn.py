"""Trains DQN, a deep Q-network, with a uniform replay in one process.

  python -m experiments.dqn --env CartPole-v1

Defaults depend on the environment: `--env Acrobot-v1 --help` shows them.
"""

import sys

from seedx import app
from seedx.agents import dqn
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    total_steps=500_000,
    num_envs=8,
    agent=dqn.Config(),
    learner=learner.Config(unroll_length=4),
    replay=dqn.REPLAY,
  ),
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    unroll_length=16,
    replay_min_steps=20_000,
    replay_batch_size=32,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
