"""Trains DQN with environment, replay and learning as one program (Anakin).

  python -m experiments.anakin_dqn --env seedx:CartPole-v1
  python -m experiments.anakin_dqn --agent rainbow

Defaults depend on the environment: `--env seedx:Breakout-MinAtar --help` shows
them.
"""

import sys

from seedx import app
from seedx.agents import dqn, r2d2, rainbow
from seedx.learning import experience, learner
from seedx.pipelines import anakin

EXPERIMENT = app.Experiment(
  anakin.Config(
    total_steps=500_000,
    num_envs=8,
    agent=dqn.Config(
      learning_rate=5e-4,
      hidden_sizes=(128, 128),
      max_gradient_norm=10.0,
      target_period=200,
    ),
    learner=learner.Config(unroll_length=4),
    replay=experience.ReplayConfig(replay_ratio=8.0),
    updates_per_call=64,
  ),
  agents={
    "dqn": dqn.Config(),
    "rainbow": rainbow.Config(),
    "r2d2": r2d2.Config(),
  },
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
