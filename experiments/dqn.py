"""Trains a deep Q-network (DQN) in lock step, from a uniform replay.

  python -m experiments.dqn --env CartPole-v1

Defaults depend on the environment: `--env Acrobot-v1 --help` shows its own.
"""

import dataclasses
import sys
from typing import TYPE_CHECKING

from experiments import allocator, command, settings

if TYPE_CHECKING:
  from seedx.agents import base

PRESETS: settings.Presets = {
  "default": {
    "total_steps": 500_000,
    "num_envs": 8,
    "unroll_length": 4,
    "learning_rate": 5e-4,
    "hidden_sizes": (128, 128),
    "max_gradient_norm": 10.0,
  },
  # Not measured here; near Hessel et al. 2018, at the scale of one machine.
  "images": {
    "total_steps": 10_000_000,
    "learning_rate": 1e-4,
    "unroll_length": 16,
    "reward_scale": 1.0,
    "reward_clip": 1.0,
    "stack_frames": 4,
    "huber_delta": 1.0,
    "target_period": 1000,
    "epsilon_steps": 1_000_000,
    "replay_min_steps": 20_000,
    "replay_ratio": 8.0,
    "replay_batch_size": 32,
  },
}


@dataclasses.dataclass(frozen=True)
class Options(settings.DQN, settings.Replay, settings.Sync, settings.Common):
  """The command line; presets of the environment change defaults."""


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  return command.main(Options, PRESETS, __doc__, _learn, argv)


def make_agent(given: Options) -> "base.Maker":
  """The agent that the options ask for."""
  from seedx.agents import base, dqn

  updates = given.total_steps * given.replay_ratio / given.replay_batch_size
  return base.Maker(dqn.make, dqn.Config(**settings.dqn(given, updates)))


def _learn(given: Options) -> int:
  from experiments import training

  return training.run_sync(given, make_agent(given), settings.replay(given))


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
