"""Trains PPO in the SEED pipeline: actors without a network, central inference.

  python -m experiments.seed_ppo --env LunarLander-v3

It starts its own actors; `seed_vtrace` says how to use several machines.
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
    agent=ppo.Config(entropy_cost=0.005),
    actors=thin_actor.Config(envs_per_actor=32),
    learner=learner.InboxConfig(unroll_length=32),
  ),
  # As in `ppo`, with two actors; Pendulum-v1, 1M, seed 0: -148.
  continuous=app.change(
    learning_rate=3e-4,
    envs_per_actor=8,
    unroll_length=128,
    batch_size=16,
    epochs=10,
    minibatches=32,
    entropy_cost=0.0,
    normalize_observations=True,
  ),
  # As in `ppo`; not measured.
  images=app.change(
    total_steps=10_000_000,
    learning_rate=2.5e-4,
    envs_per_actor=8,
    unroll_length=128,
    batch_size=8,
    clip_epsilon=0.1,
    entropy_cost=0.01,
    reward_scale=1.0,
    reward_clip=1.0,
    stack_frames=4,
  ),
  # Minibatches of whole unrolls: they must divide `batch_size`.
  recurrent=app.change(minibatches=4),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
