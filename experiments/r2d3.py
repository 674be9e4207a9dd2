"""Trains R2D3: R2D2 in the pipeline Ape-X, with demonstrations in its replay.

  seedx record --env seedx:DeepSea --env-options size=20,cued=true \
    --policy seedx.envs.demonstrators:deep_sea --episodes 20 --output data
  python -m experiments.r2d3 --env seedx:DeepSea \
    --env-options size=20,cued=true --demonstrations data

The program starts its own actors; for several machines, see `impala`. Paine et
al. 2019, https://arxiv.org/abs/1909.01387.
"""

import dataclasses
import sys

from seedx import app
from seedx.acting import protocol
from seedx.agents import r2d2
from seedx.learning import learner
from seedx.pipelines import apex

EXPERIMENT = app.Experiment(
  # Without reward in most episodes, exploration only delays demonstrations.
  apex.Config(
    total_steps=60_000,
    agent=r2d2.Config(
      rescale=False, burn_in=0, sequence_length=30, epsilon_steps=5_000
    ),
    actors=protocol.Actors(envs_per_actor=8),
    fetch_interval=400,
    learner=learner.InboxConfig(unroll_length=15, batch_size=8),
    replay=dataclasses.replace(
      r2d2.REPLAY, replay_ratio=16.0, demonstration_ratio=0.0625
    ),
  ),
  # As in the experiment `r2d2`.
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    rescale=True,
    envs_per_actor=16,
    unroll_length=40,
    batch_size=16,
    replay_capacity=400_000,
    replay_min_steps=50_000,
    replay_ratio=1.5,
    replay_batch_size=64,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
