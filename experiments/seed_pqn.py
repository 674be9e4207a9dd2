"""Trains PQN in the SEED pipeline: actors without a network, central inference.

  python -m experiments.seed_pqn --env CartPole-v1

The program starts its own actors; for several machines, see `seed_vtrace`.
Defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app
from seedx.acting import thin_actor
from seedx.agents import pqn
from seedx.learning import learner
from seedx.pipelines import seed

EXPERIMENT = app.Experiment(
  seed.Config(
    agent=pqn.Config(),
    actors=thin_actor.Config(envs_per_actor=16),
    learner=learner.InboxConfig(unroll_length=64, batch_size=32),
  ),
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    envs_per_actor=64,
    unroll_length=32,
    batch_size=128,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
