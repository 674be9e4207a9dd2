"""Trains SAC in the pipeline SEED: central inference, replay on the learner.

  python -m experiments.seed_sac --env Pendulum-v1

The program starts its own actors; for several machines, see `seed_vtrace`.
"""

import sys

from seedx import app, envs
from seedx.acting import thin_actor
from seedx.agents import sac
from seedx.learning import learner
from seedx.pipelines import seed

EXPERIMENT = app.Experiment(
  seed.Config(
    env=envs.Config("Pendulum-v1"),
    total_steps=20_000,
    agent=sac.Config(),
    actors=thin_actor.Config(num_actors=2, envs_per_actor=4),
    learner=learner.InboxConfig(unroll_length=4, batch_size=8),
    replay=sac.REPLAY,
  ),
  continuous=app.preset(
    games="MuJoCo",
    measured=False,
    total_steps=1_000_000,
    replay_min_steps=5_000,
    replay_capacity=1_000_000,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
