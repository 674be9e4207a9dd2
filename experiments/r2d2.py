"""Trains R2D2 in the pipeline Ape-X, with a prioritized replay of sequences.

  python -m experiments.r2d2 --env CartPole-v1 \
    --observation-transform seedx.envs.transforms:hide_velocities

The program starts its own actors; for several machines, see `impala`. Some
defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app
from seedx.acting import protocol
from seedx.agents import r2d2
from seedx.learning import learner
from seedx.pipelines import apex

EXPERIMENT = app.Experiment(
  # The fetch interval is that of Kapturowski et al. 2019, table 2, whose actors
  # have one environment.
  apex.Config(
    total_steps=500_000,
    agent=r2d2.Config(),
    actors=protocol.Actors(envs_per_actor=8),
    fetch_interval=400,
    learner=learner.InboxConfig(unroll_length=20, batch_size=8),
    replay=r2d2.REPLAY,
  ),
  # Batch and ratio are those of SEED's `agents/r2d2/learner.py`. A sequence
  # begins every 40 steps, as in Kapturowski et al. 2019, section 2.3.
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    envs_per_actor=16,
    unroll_length=40,
    batch_size=16,
    replay_capacity=400_000,
    replay_min_steps=50_000,
    replay_ratio=1.5,
    replay_batch_size=64,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
