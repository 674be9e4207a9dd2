"""Trains DQN with environment, replay and learning in one program (Anakin).

  python -m experiments.anakin_dqn --env seedx:CartPole-v1
  python -m experiments.anakin_dqn --agent rainbow

Defaults depend on the agent: `--agent rainbow --help` shows them.
"""

import dataclasses
import sys

from seedx import app
from seedx.agents import dqn, rainbow
from seedx.learning import learner
from seedx.pipelines import anakin


def _prioritized(config: anakin.Config) -> anakin.Config:
  """Replaces the replay by a prioritized one."""
  replay = dataclasses.replace(rainbow.REPLAY, replay_ratio=8.0)
  return dataclasses.replace(config, replay=replay)


EXPERIMENT = app.Experiment(
  anakin.Config(
    total_steps=500_000,
    num_envs=8,
    agent=dqn.Config(),
    learner=learner.Config(unroll_length=4),
    replay=dqn.REPLAY,
    updates_per_call=64,
  ),
  agents={"dqn": dqn.Config(), "rainbow": rainbow.Config()},
  by_agent={"rainbow": _prioritized},
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
