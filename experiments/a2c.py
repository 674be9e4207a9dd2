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
    agent=a2c.Config(td_lambda=0.95),
    learner=learner.Config(unroll_length=16),
  ),
  # Pendulum-v1, seeds 0 to 2: -382, -365, -417 (with a discount of 0.95: -323,
  # -211, -1,066); HalfCheetah-v4, seed 0: 1,244 (1,484).
  continuous=app.change(
    total_steps=1_000_000,
    learning_rate=1e-3,
    discount=0.9,
    entropy_cost=0.0,
    normalize_observations=True,
  ),
  # Not measured.
  images=app.change(
    total_steps=10_000_000,
    learning_rate=7e-4,
    reward_scale=1.0,
    reward_clip=1.0,
    stack_frames=4,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
