"""Trains PPO with environment, acting and learning as one program (Anakin).

  python -m experiments.anakin_ppo --env seedx:CartPole-v1
  python -m experiments.anakin_ppo --num-seeds 10

Defaults depend on the environment: `--env seedx:Breakout-MinAtar --help` shows
them.
"""

import sys

from seedx import app
from seedx.agents import a2c, ppo, vtrace
from seedx.learning import learner
from seedx.pipelines import anakin

_PPO = ppo.Config(epochs=4, minibatches=4, entropy_cost=0.005)

EXPERIMENT = app.Experiment(
  anakin.Config(
    total_steps=500_000,
    num_envs=64,
    agent=_PPO,
    learner=learner.Config(unroll_length=32),
  ),
  continuous=app.change(
    total_steps=1_000_000,
    entropy_cost=0.0,
    normalize_observations=True,
  ),
  images=app.change(
    total_steps=10_000_000,
    unroll_length=128,
    learning_rate=5e-3,
    entropy_cost=0.01,
    reward_scale=1.0,
    image_torso="minatar",
  ),
  agents={
    "ppo": _PPO,
    "a2c": a2c.Config(td_lambda=0.95),
    "vtrace": vtrace.Config(),
  },
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
