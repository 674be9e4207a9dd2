"""Trains a DQN in the pipeline Gorila: workers and parameter servers.

  python -m experiments.gorila_dqn --env CartPole-v1

The program starts all processes. On several machines, run these commands
instead, with the options for TLS and token in `seedx certificates --help`:

  python -m experiments.gorila_dqn --role learner --address 0.0.0.0:8470
  python -m seedx.join learner-host:8470 --role server --listen this-host:8471
  python -m seedx.join learner-host:8470 --role worker

The role `learner` is only the coordinator, which counts env steps and ends the
run. The workers compute gradients.
"""

import sys

from seedx import app, replay
from seedx.acting import local_actor
from seedx.agents import dqn
from seedx.pipelines import gorila

EXPERIMENT = app.Experiment(
  gorila.Config(
    total_steps=500_000,
    agent=dqn.Config(target_period=100),
    workers=local_actor.WorkersConfig(
      num_workers=2, envs_per_worker=4, unroll_length=8
    ),
    replay=replay.Config(replay_capacity=100_000),
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
