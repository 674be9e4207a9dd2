"""Trains PPO with a pool of inference processes between actors and learner.

  python -m experiments.pool_ppo --env CartPole-v1

The program starts its own actors and inference processes. On several machines,
run these commands instead, with the options for TLS and token in `seedx
certificates --help`:

  python -m experiments.pool_ppo --role learner --address 0.0.0.0:8470
  python -m seedx.join learner-host:8470 --role inference --listen HOST:8471
  python -m seedx.join learner-host:8470 --role actor

Defaults depend on the environment: `--env LunarLander-v3 --help` shows them.
"""

import sys

from seedx import app
from seedx.acting import thin_actor
from seedx.agents import ppo
from seedx.learning import learner
from seedx.pipelines import pool

EXPERIMENT = app.Experiment(
  pool.Config(
    # The values of `seed_ppo`.
    agent=ppo.Config(epochs=4, minibatches=4),
    actors=thin_actor.Config(envs_per_actor=32),
    learner=learner.InboxConfig(unroll_length=32),
  ),
  continuous=app.preset(
    measured=False, envs_per_actor=8, unroll_length=128, batch_size=16
  ),
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    envs_per_actor=8,
    unroll_length=128,
    batch_size=8,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
