"""Trains an agent by proximal policy optimisation (PPO) in lock step.

  python -m experiments.ppo --env CartPole-v1

Defaults depend on the environment: `--env HalfCheetah-v4 --help` shows its own.
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
    "num_envs": 16,
    "unroll_length": 64,
    "td_lambda": 0.95,
    "epochs": 8,
    "minibatches": 8,
    "entropy_cost": 0.005,
  },
  "continuous": {
    "total_steps": 1_000_000,
    "learning_rate": 3e-4,
    "num_envs": 8,
    "unroll_length": 256,
    "epochs": 10,
    "minibatches": 32,
    "entropy_cost": 0.0,
    "normalize_observations": True,
  },
  # Not measured here; near Schulman et al. 2017, table 5.
  "images": {
    "total_steps": 10_000_000,
    "learning_rate": 2.5e-4,
    "num_envs": 8,
    "unroll_length": 128,
    "epochs": 4,
    "minibatches": 4,
    "clip_epsilon": 0.1,
    "entropy_cost": 0.01,
    "reward_scale": 1.0,
    "reward_clip": 1.0,
    "stack_frames": 4,
  },
  # Minibatches are of whole unrolls then, of which there are `num_envs`.
  "recurrent": {"minibatches": 4},
}


@dataclasses.dataclass(frozen=True)
class Options(
  settings.ActorCritic, settings.PPO, settings.Sync, settings.Common
):
  """The command line; presets of the environment change defaults."""


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  return command.main(Options, PRESETS, __doc__, _learn, argv)


def make_agent(given: Options) -> "base.Maker":
  """The agent that the options ask for."""
  from seedx.agents import base, ppo

  updates = given.total_steps / (given.num_envs * given.unroll_length)
  return base.Maker(ppo.make, ppo.Config(**settings.ppo(given, updates)))


def _learn(given: Options) -> int:
  from experiments import training

  return training.run_sync(given, make_agent(given))


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
