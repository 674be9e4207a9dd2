"""Trains an agent by PPO through the SEED loop.

  python -m experiments.seed_ppo --env LunarLander-v3

starts its own actors. On several machines:

  python -m experiments.seed_ppo --role learner --address 0.0.0.0:8470
  python -m experiments.seed_ppo --role actor --address learner-host:8470

with the same environment options on both sides. Defaults depend on the
environment: `--env LunarLander-v3 --help` shows its own.
"""

import dataclasses
import sys
from typing import TYPE_CHECKING

from experiments import allocator, command, settings

if TYPE_CHECKING:
  from seedx.agents import base

PRESETS: settings.Presets = {
  "default": {
    "envs_per_actor": 32,
    "unroll_length": 32,
    "td_lambda": 0.95,
    "entropy_cost": 0.005,
  },
  # As in `ppo`, from two actors; neither is measured here.
  "continuous": {
    "learning_rate": 3e-4,
    "envs_per_actor": 8,
    "unroll_length": 128,
    "batch_size": 16,
    "epochs": 10,
    "minibatches": 32,
    "entropy_cost": 0.0,
    "normalize_observations": True,
  },
  "images": {
    "total_steps": 10_000_000,
    "learning_rate": 2.5e-4,
    "envs_per_actor": 8,
    "unroll_length": 128,
    "batch_size": 8,
    "clip_epsilon": 0.1,
    "entropy_cost": 0.01,
    "reward_scale": 1.0,
    "reward_clip": 1.0,
    "stack_frames": 4,
  },
  # Minibatches are of whole unrolls then, of which there are `batch_size`.
  "recurrent": {"minibatches": 4},
}


@dataclasses.dataclass(frozen=True)
class Options(
  settings.ActorCritic, settings.PPO, settings.Seed, settings.Common
):
  """The command line; presets of the environment change defaults."""


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  return command.main(Options, PRESETS, __doc__, _learn, argv, thin_actors=True)


def make_agent(given: Options) -> "base.Maker":
  """The agent that the options ask for."""
  from seedx.agents import base, ppo

  updates = given.total_steps / (given.batch_size * given.unroll_length)
  return base.Maker(ppo.make, ppo.Config(**settings.ppo(given, updates)))


def _learn(given: Options) -> int:
  from experiments import training

  return training.run_seed(given, make_agent(given))


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
