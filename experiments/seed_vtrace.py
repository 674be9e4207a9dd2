"""Trains a V-trace agent through the SEED loop.

  python -m experiments.seed_vtrace --env CartPole-v1

starts its own actors. On several machines:

  python -m experiments.seed_vtrace --role learner --address 0.0.0.0:8470
  python -m experiments.seed_vtrace --role actor --address learner-host:8470

with the same environment options on both sides. Defaults depend on the kind of
environment: `--env Pong-v5 --help` shows those of Atari.
"""

import dataclasses
import sys
from typing import TYPE_CHECKING

from experiments import allocator, command, settings

if TYPE_CHECKING:
  from seedx.agents import base

PRESETS: settings.Presets = {
  "continuous": {
    "envs_per_actor": 32,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "discount": 0.95,
    "entropy_cost": 0.0,
  },
  "images": {
    "total_steps": 10_000_000,
    "envs_per_actor": 8,
    "unroll_length": 64,
    "batch_size": 4,
    "micro_batches": 4,
    "learning_rate": 5e-4,
    "td_lambda": 0.95,
    "entropy_cost": 0.003,
    "reward_scale": 1.0,
    "reward_clip": 1.0,
    "stack_frames": 4,
  },
}


@dataclasses.dataclass(frozen=True)
class Options(settings.ActorCritic, settings.Seed, settings.Common):
  """The command line; presets of the environment's kind change defaults."""


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  return command.main(Options, PRESETS, __doc__, _learn, argv, thin_actors=True)


def make_agent(given: Options) -> "base.Maker":
  """The agent that the options ask for."""
  from seedx.agents import base, vtrace

  updates = given.total_steps / (given.batch_size * given.unroll_length)
  fields = settings.actor_critic(given, updates)
  return base.Maker(vtrace.make, vtrace.Config(**fields))


def _learn(given: Options) -> int:
  from experiments import training

  return training.run_seed(given, make_agent(given))


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
