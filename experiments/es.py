"""Trains an evolution strategy (ES); workers send only returns.

  python -m experiments.es --env CartPole-v1
  python -m experiments.es --num-workers 2

Without workers, one process plays all members. For several machines, see
`impala`; the role is `worker`. Evaluations play the centre of the population:
`--evaluate-every-steps 50000`.
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
    population=perturbed.Config(pairs=16, envs_per_worker=32),
  ),
  continuous=app.preset(measured=False, games="MuJoCo", pairs=128),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
