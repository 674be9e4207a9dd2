"""Trains PPO in the SEED pipeline: actors without a network, central inference.

  python -m experiments.seed_ppo --env LunarLander-v3

The program starts its own actors; for several machines, see `seed_vtrace`.
Defaults depend on the environment: `--env LunarLander-v3 --help` shows them.
"""

import sys

from seedx import app
from seedx.acting import thin_actor
from seedx.agents import ppo
from seedx.learning import learner
from seedx.pipelines import seed

EXPERIMENT = app.Experiment(
  seed.Config(
    # Fewer epochs than in `ppo`, since one learner serves many actors.
    agent=ppo.Config(epochs=4, minibatches=4),
    actors=thin_actor.Config(envs_per_actor=32),
    learner=learner.InboxConfig(unroll_length=32),
  ),
  # As many env steps per update as in `ppo`, from two actors. Return in
  # Pendulum-v1 after 1M env steps with seed 0: -148.
  continuous=app.preset(envs_per_actor=8, unroll_length=128, batch_size=16),
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
