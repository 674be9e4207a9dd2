"""Trains a DQN in the pipeline Ape-X: a prioritized replay and its actors.

  python -m experiments.apex_dqn --env CartPole-v1

The program starts its own actors; for several machines, see `impala`. Some
defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app
from seedx.acting import protocol
from seedx.agents import dqn
from seedx.learning import learner
from seedx.pipelines import apex

EXPERIMENT = app.Experiment(
  # On vectors, the values are ours.
  apex.Config(
    total_steps=500_000,
    agent=dqn.Config(dueling=True, epsilon_ladder=True, target_period=100),
    actors=protocol.Actors(envs_per_actor=8),
    fetch_interval=400,
    learner=learner.InboxConfig(unroll_length=8, batch_size=8),
  ),
  # The constant epsilons and the fetches after 100 env steps of an actor (400
  # frames) are those of Horgan et al. 2018, section 4.1; the target period and
  # the start of learning are those of appendix C. Their actors have one
  # environment; the 16 here make more than 100 env steps in an unroll. For one
  # machine, the replay ratio is larger than theirs (1.3) and the batch
  # smaller (512).
  images=app.preset(
    measured=False,
    total_steps=10_000_000,
    envs_per_actor=16,
    unroll_length=16,
    batch_size=16,
    target_period=2500,
    epsilon_steps=0,
    fetch_interval=100,
    replay_min_steps=50_000,
    replay_ratio=8.0,
    replay_batch_size=64,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
