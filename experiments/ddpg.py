"""Trains DDPG, with a uniform replay in one process.

  python -m experiments.ddpg --env Pendulum-v1

Defaults depend on the environment: `--env HalfCheetah-v4 --help` shows them.
"""

import sys

from seedx import app, envs
from seedx.agents import ddpg
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    env=envs.Config("Pendulum-v1"),
    total_steps=20_000,
    num_envs=1,
    agent=ddpg.Config(),
    learner=learner.Config(unroll_length=4),
    replay=ddpg.REPLAY,
  ),
  continuous=app.preset(
    games="MuJoCo",
    measured=False,
    total_steps=1_000_000,
    replay_min_steps=25_000,
    replay_capacity=1_000_000,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
