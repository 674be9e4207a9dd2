"""Trains an agent in the pipeline A3C: asynchronous actor-learners.

  python -m experiments.a3c --env CartPole-v1
  python -m experiments.a3c --env CartPole-v1 --agent dqn

The second is asynchronous n-step Q-learning. Defaults depend on the
environment: `--env Acrobot-v1 --help` shows its own.
"""

import dataclasses
import sys
from typing import TYPE_CHECKING

from experiments import allocator, command, options, settings

if TYPE_CHECKING:
  from seedx.agents import base

option = options.option

PRESETS: settings.Presets = {
  "default": {
    "total_steps": 500_000,
    "td_lambda": 0.95,
  },
  # Many small steps: its returns are of no use once the policy has changed.
  "dqn": {
    "learning_rate": 5e-4,
    "envs_per_worker": 4,
    "unroll_length": 5,
    "n_step": 5,
  },
  # Neither is measured here; images as in Mnih et al. 2016, with fewer workers.
  "continuous": {
    "total_steps": 1_000_000,
    "learning_rate": 7e-4,
    "entropy_cost": 0.0,
    "normalize_observations": True,
  },
  "images": {
    "total_steps": 10_000_000,
    "learning_rate": 7e-4,
    "envs_per_worker": 4,
    "unroll_length": 5,
    "n_step": 5,
    "reward_scale": 1.0,
    "reward_clip": 1.0,
    "stack_frames": 4,
  },
}


@dataclasses.dataclass(frozen=True)
class Options(
  settings.ActorCritic, settings.DQN, settings.Workers, settings.Common
):
  """The command line; presets of the environment change defaults."""

  agent: str = option("a2c", "what learns", choices=settings.AGENTS)


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  return command.main(Options, PRESETS, __doc__, _learn, argv)


def make_agent(given: Options) -> "base.Maker":
  """The agent that the options ask for."""
  from experiments import makers

  updates = given.total_steps / (given.envs_per_worker * given.unroll_length)
  return makers.maker(given, updates, replayed=False)


def _learn(given: Options) -> int:
  from experiments import training
  from seedx.pipelines import a3c

  config = a3c.Config(
    env=settings.environment(given),
    make_agent=make_agent(given),
    total_steps=given.total_steps,
    seed=given.seed,
    num_workers=given.num_workers,
    envs_per_worker=given.envs_per_worker,
    unroll_length=given.unroll_length,
  )
  return training.run(
    given,
    config.make_agent,
    lambda sinks, stop: a3c.Trainer(config, sinks, stop),
    [],
  )


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
