"""Trains an agent in the pipeline IMPALA: actors with a copy of the parameters.

  python -m experiments.impala --env CartPole-v1

starts its own actors. On several machines:

  python -m experiments.impala --role learner --address 0.0.0.0:8470
  python -m experiments.impala --role actor --address learner-host:8470

with the same options on both sides. Defaults depend on the environment:
`--env Pong-v5 --help` shows those of Atari.
"""

import dataclasses
import sys
import tempfile
from typing import TYPE_CHECKING

from experiments import allocator, command, options, settings

if TYPE_CHECKING:
  from seedx.agents import base

option = options.option

PRESETS: settings.Presets = {
  "default": {"envs_per_actor": 32, "batch_size": 32},
  # Neither is measured here.
  "continuous": {
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
class Options(
  settings.ActorCritic,
  settings.PPO,
  settings.MicroBatches,
  settings.Actors,
  settings.Common,
):
  """The command line; presets of the environment change defaults."""

  agent: str = option("vtrace", "what learns", choices=settings.AGENTS)


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  return command.main(Options, PRESETS, __doc__, _learn, argv)


def make_agent(given: Options) -> "base.Maker":
  """The agent that the options ask for."""
  from experiments import makers

  updates = given.total_steps / (given.batch_size * given.unroll_length)
  return makers.maker(given, updates)


def _learn(given: Options) -> int:
  from experiments import training
  from seedx.pipelines import impala

  with tempfile.TemporaryDirectory() as sockets:
    config = impala.Config(
      env=settings.environment(given),
      make_agent=make_agent(given),
      address=given.address or f"unix:{sockets}/learner",
      total_steps=given.total_steps,
      seed=given.seed,
      num_actors=given.num_actors,
      envs_per_actor=given.envs_per_actor,
      unroll_length=given.unroll_length,
      batch_size=given.batch_size,
      micro_batches=given.micro_batches,
      learner_devices=given.learner_devices,
    )
    if given.role == "actor":
      return training.run_node(impala.actors(config))
    return training.run(
      given,
      config.make_agent,
      lambda sinks, stop: impala.Learner(config, sinks, stop),
      [impala.actors(config)] if given.role == "all" else [],
    )


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
