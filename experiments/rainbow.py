"""Trains Rainbow, DQN with six improvements, in one process.

  python -m experiments.rainbow --env CartPole-v1

Each component can be left out: `--no-double`, `--no-dueling`, `--n-step 1`,
`--num-atoms 0`, `--priority-exponent 0`; and `--noise-scale 0`, which needs
another way to explore, such as `--epsilon-end 0.01 --epsilon-steps 50000`. Some
defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app
from seedx.agents import rainbow
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    total_steps=500_000,
    num_envs=8,
    agent=rainbow.Config(),
    learner=learner.Config(unroll_length=4),
    replay=rainbow.REPLAY,
  ),
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    unroll_length=16,
    replay_min_steps=20_000,
    replay_ratio=8.0,
    replay_batch_size=32,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
