"""Trains V-trace with a pool of inference processes between actors and learner.

  python -m experiments.pool_vtrace --env CartPole-v1

The program starts its own actors and inference processes; for several machines,
see `pool_ppo`. Some defaults depend on the environment: `--env Pong-v5 --help`
shows them.
"""

import sys

from seedx import app
from seedx.agents import vtrace
from seedx.pipelines import pool

EXPERIMENT = app.Experiment(
  pool.Config(agent=vtrace.Config()),
  # The values of `seed_vtrace`.
  continuous=app.preset(measured=False, envs_per_actor=32, batch_size=32),
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    envs_per_actor=8,
    unroll_length=64,
    batch_size=4,
    micro_batches=4,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
