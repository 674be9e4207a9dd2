"""Trains a DQN in the pipeline Ape-X: a prioritized replay and its actors.

  python -m experiments.apex_dqn --env CartPole-v1

starts its own actors. On several machines:

  python -m experiments.apex_dqn --role learner --address 0.0.0.0:8470
  python -m experiments.apex_dqn --role actor --address learner-host:8470

with the same options on both sides. Defaults depend on the environment:
`--env Acrobot-v1 --help` shows its own.
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
  "default": {
    "total_steps": 500_000,
    "envs_per_actor": 8,
    "unroll_length": 8,
    "batch_size": 8,
    "learning_rate": 5e-4,
    "hidden_sizes": (128, 128),
    "max_gradient_norm": 10.0,
    "dueling": True,
    "epsilon_ladder": True,
  },
  # Not measured here; near Horgan et al. 2018, at the scale of one machine.
  "images": {
    "total_steps": 10_000_000,
    "learning_rate": 1e-4,
    "envs_per_actor": 16,
    "unroll_length": 16,
    "batch_size": 16,
    "reward_scale": 1.0,
    "reward_clip": 1.0,
    "stack_frames": 4,
    "huber_delta": 1.0,
    "target_period": 2500,
    "replay_min_steps": 50_000,
    "replay_ratio": 8.0,
    "replay_batch_size": 64,
  },
}


@dataclasses.dataclass(frozen=True)
class Options(settings.DQN, settings.Replay, settings.Actors, settings.Common):
  """The command line; presets of the environment change defaults."""

  priority_exponent: float = option(
    0.6, "how much priorities count; 0 for not at all"
  )
  importance_exponent: float = option(
    0.4, "how far the loss makes up for it; 1 for wholly"
  )


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
  from seedx.pipelines import apex
  from seedx.runtime import feeds

  with tempfile.TemporaryDirectory() as sockets:
    config = apex.Config(
      env=settings.environment(given),
      make_agent=make_agent(given),
      address=given.address or f"unix:{sockets}/learner",
      total_steps=given.total_steps,
      seed=given.seed,
      num_actors=given.num_actors,
      envs_per_actor=given.envs_per_actor,
      unroll_length=given.unroll_length,
      batch_size=given.batch_size,
      replay=feeds.PrioritizedConfig(
        **dataclasses.asdict(settings.replay(given)),
        priority_exponent=given.priority_exponent,
        importance_exponent=given.importance_exponent,
      ),
      learner_devices=given.learner_devices,
    )
    if given.role == "actor":
      return training.run_node(apex.actors(config))
    return training.run(
      given,
      config.make_agent,
      lambda sinks, stop: apex.Learner(config, sinks, stop),
      [apex.actors(config)] if given.role == "all" else [],
    )


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
