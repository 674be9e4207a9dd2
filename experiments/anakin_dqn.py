"""Trains DQN with environment, replay and learning as one program (Anakin).

  python -m experiments.anakin_dqn --env seedx:CartPole-v1
  python -m experiments.anakin_dqn --agent rainbow

Defaults depend on the agent: `--agent rainbow --help` shows them.
"""

import dataclasses
import sys

from seedx import app, replay
from seedx.agents import dqn, rainbow
from seedx.learning import learner
from seedx.pipelines import anakin


def _prioritized(config: anakin.Config) -> anakin.Config:
  """Changes what Rainbow needs."""
  prioritized = replay.PrioritizedConfig(
    replay_ratio=8.0, priority_exponent=0.5, importance_exponent_rise=0.6
  )
  return dataclasses.replace(config, replay=prioritized)


_DQN = dqn.Config(
  learning_rate=5e-4,
  hidden_sizes=(128, 128),
  max_gradient_norm=10.0,
  target_period=200,
)
_RAINBOW = rainbow.Config(
  learning_rate=5e-4,
  max_gradient_norm=10.0,
  target_period=200,
  noise_scale=0.1,
)

EXPERIMENT = app.Experiment(
  anakin.Config(
    total_steps=500_000,
    num_envs=8,
    agent=_DQN,
    learner=learner.Config(unroll_length=4),
    replay=replay.Config(replay_ratio=8.0),
    updates_per_call=64,
  ),
  agents={"dqn": _DQN, "rainbow": _RAINBOW},
  by_agent={"rainbow": _prioritized},
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
