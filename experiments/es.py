"""Trains an evolution strategy (ES); workers send only returns.

  python -m experiments.es --env CartPole-v1
  python -m experiments.es --env CartPole-v1 --num-workers 0

The program starts its own workers; without workers, it plays all members
itself. For several machines, see `impala`; the role is `worker`. Evaluations
play the centre of the population: `--evaluate-every-steps 50000`.
"""

import sys

from seedx import app
from seedx.acting import perturbed
from seedx.agents import evolution
from seedx.pipelines import evolution as pipeline

EXPERIMENT = app.Experiment(
  pipeline.Config(
    total_steps=500_000,
    agent=evolution.Config(),
    population=perturbed.Config(pairs=16),
  ),
  continuous=app.preset(measured=False, games="MuJoCo", pairs=128),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
