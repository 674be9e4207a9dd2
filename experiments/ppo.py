"""Trains PPO, proximal policy optimisation, in one process.

  python -m experiments.ppo --env CartPole-v1

Defaults depend on the environment: `--env HalfCheetah-v4 --help` shows them.
"""

import sys

from seedx import app
from seedx.agents import ppo
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    total_steps=500_000,
    agent=ppo.Config(),
    learner=learner.Config(unroll_length=64),
  ),
  continuous=app.preset(total_steps=1_000_000, num_envs=8, unroll_length=256),
  images=app.preset(
    measured=False, total_steps=10_000_000, num_envs=8, unroll_length=128
  ),
  # Minibatches have whole unrolls, so their number must divide `num_envs`.
  recurrent=app.preset(minibatches=4),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
