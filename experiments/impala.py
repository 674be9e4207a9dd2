"""Trains an agent in the pipeline IMPALA; actors have copies of its parameters.

  python -m experiments.impala --env CartPole-v1

The program starts its own actors. On several machines, run these commands
instead, with the options for TLS and token in `seedx certificates --help`:

  python -m experiments.impala --role learner --address 0.0.0.0:8470
  python -m seedx.join learner-host:8470

Some defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app
from seedx.acting import protocol
from seedx.agents import a2c, dqn, ppo, pqn, vtrace
from seedx.learning import learner
from seedx.pipelines import impala

EXPERIMENT = app.Experiment(
  impala.Config(
    agent=vtrace.Config(),
    actors=protocol.Actors(envs_per_actor=32),
    learner=learner.InboxConfig(batch_size=32),
  ),
  agents={
    "vtrace": vtrace.Config(),
    "a2c": a2c.Config(),
    "ppo": ppo.Config(epochs=4, minibatches=4, entropy_cost=0.01),
    "pqn": pqn.Config(),
    "dqn": dqn.Config(),
  },
  # PPO and PQN divide batches into minibatches themselves.
  by_agent={
    "ppo": app.preset(micro_batches=1),
    # Minibatches of whole unrolls, with a memory, must divide a batch.
    "pqn": app.preset(micro_batches=1, unroll_length=64, batch_size=32),
  },
  # Return in Pendulum-v1 after 2M env steps with seed 0: -237.
  continuous=app.preset(),
  # The values of `seed_vtrace`.
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
