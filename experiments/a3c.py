"""Trains A3C, the asynchronous advantage actor-critic, or another agent.

  python -m experiments.a3c --env CartPole-v1
  python -m experiments.a3c --env CartPole-v1 --agent dqn

The second is asynchronous n-step Q-learning. Defaults depend on the
environment: `--env Acrobot-v1 --help` shows them.
"""

import sys

from seedx import app
from seedx.agents import a2c, dqn, ppo, vtrace
from seedx.pipelines import a3c

A2C = a2c.Config(td_lambda=0.95, optimizer="rmsprop")


def _continuous(config: a3c.Config) -> a3c.Config:
  if not isinstance(config.agent, dqn.Config):  # DQN has no entropy bonus.
    config = app.change(entropy_cost=0.0)(config)
  return app.change(
    total_steps=2_000_000,
    learning_rate=1e-3,
    discount=0.9,
    normalize_observations=True,
  )(config)


EXPERIMENT = app.Experiment(
  a3c.Config(total_steps=500_000, agent=A2C),
  agents={
    "a2c": A2C,
    "vtrace": vtrace.Config(td_lambda=0.95, optimizer="rmsprop"),
    "ppo": ppo.Config(optimizer="rmsprop"),
    "dqn": dqn.Config(
      replayed=False, n_step=5, learning_rate=5e-4, optimizer="rmsprop"
    ),
  },
  # Short unrolls, many updates: DQN's n-step returns are not corrected for
  # actions of an older policy.
  by_agent={"dqn": app.change(envs_per_worker=4, unroll_length=5)},
  continuous=_continuous,  # Pendulum-v1, seed 2: -190.
  # Not measured; follows Mnih et al. 2016, with fewer workers.
  images=app.change(
    total_steps=10_000_000,
    learning_rate=7e-4,
    envs_per_worker=4,
    unroll_length=5,
    reward_scale=1.0,
    reward_clip=1.0,
    stack_frames=4,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
