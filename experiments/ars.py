"""Trains augmented random search (ARS) with a linear policy.

  python -m experiments.ars --env CartPole-v1
  python -m experiments.ars --env Swimmer-v4

Workers and evaluations are those of `es`.
"""

import sys

from seedx import app
from seedx.acting import perturbed
from seedx.agents import evolution
from seedx.pipelines import evolution as pipeline

EXPERIMENT = app.Experiment(
  pipeline.Config(
    total_steps=100_000,
    agent=evolution.ARSConfig(),
    population=perturbed.Config(pairs=8, pairs_per_worker=4),
  ),
  continuous=app.preset(measured=False, games="MuJoCo", total_steps=2_000_000),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
