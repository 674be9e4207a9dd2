"""Trains an advantage actor-critic (A2C) in lock step.

  python -m experiments.a2c --env CartPole-v1

Defaults depend on the environment: `--env Pendulum-v1 --help` shows its own.
"""

import dataclasses
import sys
from typing import TYPE_CHECKING

from experiments import allocator, command, settings

if TYPE_CHECKING:
  from seedx.agents import base

PRESETS: settings.Presets = {
  "default": {"total_steps": 500_000, "td_lambda": 0.95},
  # Neither is measured here.
  "continuous": {
    "total_steps": 1_000_000,
    "learning_rate": 7e-4,
    "entropy_cost": 0.0,
    "normalize_observations": True,
  },
  "images": {
    "total_steps": 10_000_000,
    "learning_rate": 7e-4,
    "unroll_length": 16,
    "reward_scale": 1.0,
    "reward_clip": 1.0,
    "stack_frames": 4,
  },
}


@dataclasses.dataclass(frozen=True)
class Options(settings.ActorCritic, settings.Sync, settings.Common):
  """The command line; presets of the environment change defaults."""


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  return command.main(Options, PRESETS, __doc__, _learn, argv)


def make_agent(given: Options) -> "base.Maker":
  """The agent that the options ask for."""
  from seedx.agents import a2c, base

  updates = given.total_steps / (given.num_envs * given.unroll_length)
  fields = settings.actor_critic(given, updates)
  return base.Maker(a2c.make, a2c.Config(**fields))


def _learn(given: Options) -> int:
  from experiments import training

  return training.run_sync(given, make_agent(given))


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
