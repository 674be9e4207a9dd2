"""Trains Rainbow, DQN with six improvements, in one process.

  python -m experiments.rainbow --env CartPole-v1

Each component can be left out: `--no-double`, `--no-dueling`, `--n-step 1`,
`--num-atoms 0`, `--priority-exponent 0`; and `--noise-scale 0`, which needs
another way to explore, such as `--epsilon-end 0.01 --epsilon-steps 50000`. Some
defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app, replay
from seedx.agents import rainbow
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    total_steps=500_000,
    num_envs=8,
    agent=rainbow.Config(
      learning_rate=5e-4,
      max_gradient_norm=10.0,
      target_period=200,
      noise_scale=0.1,
    ),
    learner=learner.Config(unroll_length=4),
    replay=replay.PrioritizedConfig(
      priority_exponent=0.5,
      importance_exponent_rise=0.6,
    ),
  ),
  # Not measured; close to Hessel et al. 2018, scaled to one machine.
  images=app.change(
    total_steps=10_000_000,
    learning_rate=6.25e-5,
    adam_epsilon=1.5e-4,
    unroll_length=16,
    hidden_sizes=(512,),
    noise_scale=0.5,
    reward_scale=1.0,
    reward_clip=1.0,
    stack_frames=4,
    target_period=2000,
    replay_min_steps=20_000,
    replay_ratio=8.0,
    replay_batch_size=32,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
