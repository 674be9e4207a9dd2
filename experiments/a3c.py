"""Trains A3C, the asynchronous advantage actor-critic, or another agent.

  python -m experiments.a3c --env CartPole-v1
  python -m experiments.a3c --env CartPole-v1 --agent dqn

The second line trains asynchronous n-step Q-learning. Defaults depend on the
environment: `--env Acrobot-v1 --help` shows them.
"""

import sys

from seedx import app
from seedx.agents import a2c, dqn, ppo, vtrace
from seedx.pipelines import a3c

A2C = a2c.Config(optimizer="rmsprop")

EXPERIMENT = app.Experiment(
  a3c.Config(total_steps=500_000, agent=A2C),
  agents={
    "a2c": A2C,
    "vtrace": vtrace.Config(td_lambda=0.95, optimizer="rmsprop"),
    "ppo": ppo.Config(optimizer="rmsprop"),
    # Asynchronous n-step Q-learning.
    "dqn": dqn.Config(
      replayed=False,
      n_step=5,
      optimizer="rmsprop",
      hidden_sizes=(64, 64),
      max_gradient_norm=0.5,
      target_period=100,
    ),
  },
  # DQN does not correct n-step returns for actions of an older policy, so
  # unrolls are short and updates frequent.
  by_agent={"dqn": app.preset(envs_per_worker=4, unroll_length=5)},
  # Return in Pendulum-v1 with seed 2: -190.
  continuous=app.preset(total_steps=2_000_000),
  # Mnih et al. 2016, "Experimental setup", have unrolls of 5 steps, too, but 16
  # threads of one environment.
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    envs_per_worker=4,
    unroll_length=5,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
