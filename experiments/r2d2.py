"""Trains R2D2 in the pipeline Ape-X: a prioritized replay of sequences.

  python -m experiments.r2d2 --env CartPole-v1 \
    --observation-transform seedx.envs.transforms:hide_velocities

It starts its own actors; on several machines, see `impala`. Some defaults
depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app, replay
from seedx.acting import slots
from seedx.agents import r2d2
from seedx.learning import learner
from seedx.pipelines import apex

EXPERIMENT = app.Experiment(
  apex.Config(
    total_steps=500_000,
    agent=r2d2.Config(
      max_gradient_norm=40.0, epsilon_ladder=True, lstm_size=64
    ),
    actors=slots.Config(envs_per_actor=8),
    fetch_interval=400,
    learner=learner.InboxConfig(unroll_length=20, batch_size=8),
    replay=replay.PrioritizedConfig(
      replay_batch_size=32,
      replay_ratio=4.0,
      priority_exponent=0.9,
      importance_exponent=0.6,
    ),
  ),
  # Not measured here; near Kapturowski et al. 2019, scaled to one machine.
  images=app.change(
    total_steps=10_000_000,
    learning_rate=1e-4,
    envs_per_actor=16,
    unroll_length=40,
    batch_size=16,
    reward_scale=1.0,
    hidden_sizes=(512,),
    lstm_size=512,
    burn_in=40,
    sequence_length=80,
    target_period=2500,
    adam_epsilon=1e-3,
    replay_capacity=400_000,
    replay_min_steps=50_000,
    replay_ratio=1.5,
    replay_batch_size=64,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
