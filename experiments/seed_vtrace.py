"""Trains a V-trace agent in the pipeline SEED (central inference).

  python -m experiments.seed_vtrace --env CartPole-v1

The program starts its own actors. On several machines, run these commands
instead, with the options for TLS and token in `seedx certificates --help`:

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
  continuous=app.preset(envs_per_actor=32, batch_size=32),
  images=app.preset(
    total_steps=10_000_000,
    envs_per_actor=8,
    unroll_length=64,
    batch_size=4,
    micro_batches=4,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
