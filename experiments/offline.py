"""Trains an agent from a recording, without an environment.

  seedx record runs/my_sac --no-greedy --episodes 100 --output data
  python -m experiments.offline --dataset data --evaluate-every-steps 5000

The number of steps is that of updates. The environment is the recording's, and
is played only in evaluations.
"""

import sys

from seedx import app
from seedx.agents import cloning, ddpg, dqn, iql, r2d2, rainbow, sac
from seedx.pipelines import offline

EXPERIMENT = app.Experiment(
  offline.Config(total_steps=20_000, agent=cloning.Config()),
  agents={
    "cloning": cloning.Config(),
    "dqn": dqn.Config(),
    "rainbow": rainbow.Config(),
    "r2d2": r2d2.Config(),
    "iql": iql.Config(),
    "ddpg": ddpg.Config(),
    "td3": ddpg.td3(),
    "sac": sac.Config(),
  },
  by_agent={"iql": app.preset(replay_batch_size=256)},
  continuous=app.preset(games="MuJoCo", measured=False, total_steps=1_000_000),
  images=app.preset(measured=False, total_steps=500_000),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
