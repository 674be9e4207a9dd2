"""Trains IQL with a replay, in one process; perhaps after offline training.

  python -m experiments.offline --agent iql --dataset data --run-dir runs/first
  python -m experiments.iql --init-from runs/first --demonstrations data \
    --demonstration-ratio 0.5

Without `--init-from`, it learns from the environment alone.
"""

import sys

from seedx import app, envs
from seedx.agents import iql
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    env=envs.Config("Pendulum-v1"),
    total_steps=20_000,
    num_envs=1,
    agent=iql.Config(),
    learner=learner.Config(unroll_length=4),
    replay=iql.REPLAY,
  ),
  continuous=app.preset(
    games="MuJoCo",
    measured=False,
    total_steps=1_000_000,
    replay_capacity=1_000_000,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
