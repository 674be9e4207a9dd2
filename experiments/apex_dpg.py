"""Trains DDPG in the pipeline Ape-X: a prioritized replay and its actors.

  python -m experiments.apex_dpg --env Pendulum-v1

Each environment has noise of another size. The program starts its own actors;
for several machines, see `impala`.
"""

import sys

from seedx import app, envs, replay
from seedx.acting import protocol
from seedx.agents import ddpg
from seedx.learning import learner
from seedx.pipelines import apex

EXPERIMENT = app.Experiment(
  apex.Config(
    env=envs.Config("Pendulum-v1"),
    total_steps=20_000,
    agent=ddpg.Config(
      n_step=5,
      target_period=100,
      target_rate=1.0,
      noise_scale=0.5,
      noise_ladder=True,
      action_gradient_clip=1.0,
    ),
    actors=protocol.Actors(num_actors=2, envs_per_actor=4),
    fetch_interval=16,
    learner=learner.InboxConfig(unroll_length=4, batch_size=8),
    replay=replay.PrioritizedConfig(
      replay_min_steps=1_000, replay_batch_size=256, replay_ratio=256.0
    ),
  ),
  continuous=app.preset(
    games="MuJoCo",
    measured=False,
    total_steps=1_000_000,
    replay_min_steps=25_000,
    replay_capacity=1_000_000,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
