"""Trains PPO with environment, acting and learning in one program (Anakin).

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

# A quarter of `ppo`'s optimizer steps, since environments wait for updates.
_PPO = ppo.Config(epochs=4, minibatches=4)

EXPERIMENT = app.Experiment(
  anakin.Config(
    total_steps=500_000,
    num_envs=64,
    agent=_PPO,
    learner=learner.Config(unroll_length=32),
  ),
  continuous=app.preset(
    measured=False, total_steps=1_000_000, learning_rate=2e-3
  ),
  images=app.preset(games="MinAtar", total_steps=10_000_000, unroll_length=128),
  agents={"ppo": _PPO, "a2c": a2c.Config(), "vtrace": vtrace.Config()},
  # PPO's own values for continuous actions differ, so these replace them.
  by_agent={"ppo": app.preset(epochs=4, minibatches=4)},
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
