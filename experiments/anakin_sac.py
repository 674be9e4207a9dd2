"""Trains SAC with environment, replay and learning in one program (Anakin).

  python -m experiments.anakin_sac --env seedx:Pendulum-v1
  python -m experiments.anakin_sac --num-seeds 10
  python -m experiments.anakin_sac --agent td3

The agent may also be DDPG or TD3.
"""

import sys

from seedx import app, envs
from seedx.agents import ddpg, sac
from seedx.learning import learner
from seedx.pipelines import anakin

EXPERIMENT = app.Experiment(
  anakin.Config(
    env=envs.Config("seedx:Pendulum-v1"),
    total_steps=20_000,
    num_envs=1,
    agent=sac.Config(),
    learner=learner.Config(unroll_length=4),
    replay=sac.REPLAY,
    updates_per_call=16,
  ),
  agents={"sac": sac.Config(), "ddpg": ddpg.Config(), "td3": ddpg.td3()},
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
