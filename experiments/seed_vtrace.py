"""Trains a V-trace agent in the pipeline SEED (central inference).

  python -m experiments.seed_vtrace --env CartPole-v1

It starts its own actors. On several machines, with the options for TLS and a
token that `experiments.certificates --help` shows:

  python -m experiments.seed_vtrace --role learner --address 0.0.0.0:8470
  python -m seedx.join learner-host:8470

Some defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app
from seedx.agents import vtrace
from seedx.pipelines import seed

EXPERIMENT = app.Experiment(
  seed.Config(agent=vtrace.Config()),
  continuous=app.change(
    envs_per_actor=32,
    batch_size=32,
    learning_rate=1e-3,
    discount=0.95,
    entropy_cost=0.0,
  ),
  images=app.change(
    total_steps=10_000_000,
    envs_per_actor=8,
    unroll_length=64,
    batch_size=4,
    micro_batches=4,
    learning_rate=5e-4,
    td_lambda=0.95,
    entropy_cost=0.003,
    reward_scale=1.0,
    reward_clip=1.0,
    stack_frames=4,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
