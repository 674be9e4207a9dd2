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
    agent=ppo.Config(epochs=8, minibatches=8, entropy_cost=0.005),
    learner=learner.Config(unroll_length=64),
  ),
  continuous=app.change(
    total_steps=1_000_000,
    learning_rate=3e-4,
    num_envs=8,
    unroll_length=256,
    epochs=10,
    minibatches=32,
    entropy_cost=0.0,
    normalize_observations=True,
  ),
  # Not measured; close to Schulman et al. 2017, table 5.
  images=app.change(
    total_steps=10_000_000,
    learning_rate=2.5e-4,
    num_envs=8,
    unroll_length=128,
    epochs=4,
    minibatches=4,
    clip_epsilon=0.1,
    entropy_cost=0.01,
    reward_scale=1.0,
    reward_clip=1.0,
    stack_frames=4,
  ),
  # Minibatches of whole unrolls: they must divide `num_envs`.
  recurrent=app.change(minibatches=4),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
