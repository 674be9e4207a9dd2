"""Trains DQN, a deep Q-network, with a uniform replay in one process.

  python -m experiments.dqn --env CartPole-v1

Defaults depend on the environment: `--env Acrobot-v1 --help` shows them.
"""

import sys

from seedx import app, replay
from seedx.agents import dqn
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    total_steps=500_000,
    num_envs=8,
    agent=dqn.Config(
      learning_rate=5e-4,
      hidden_sizes=(128, 128),
      max_gradient_norm=10.0,
      target_period=200,
    ),
    learner=learner.Config(unroll_length=4),
    replay=replay.Config(replay_ratio=8.0),
  ),
  # Not measured; close to Hessel et al. 2018, scaled to one machine.
  images=app.change(
    total_steps=10_000_000,
    learning_rate=1e-4,
    unroll_length=16,
    reward_scale=1.0,
    reward_clip=1.0,
    stack_frames=4,
    huber_delta=1.0,
    target_period=1000,
    epsilon_steps=1_000_000,
    replay_min_steps=20_000,
    replay_batch_size=32,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
