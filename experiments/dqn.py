"""Trains a deep Q-network (DQN) in lock step, from a uniform replay.

  python -m experiments.dqn --env CartPole-v1

Defaults depend on the environment: `--env Acrobot-v1 --help` shows its own.
"""

import dataclasses
import sys

from experiments import allocator, command, options, settings

option = options.option

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
class Options(settings.Sync, settings.Common):
  """The command line; presets of the environment change defaults."""

  n_step: int = option(3, "steps before bootstrapping")
  double: bool = option(True, "double Q-learning")
  dueling: bool = option(False, "give values and advantages their own heads")
  huber_delta: float = option(0.0, "errors beyond it count linearly; 0: never")
  rescale: bool = option(False, "value function rescaling, for large returns")
  target_period: int = option(100, "updates between copies to the target")
  epsilon_end: float = option(0.01, "share of random actions in the end")
  epsilon_steps: int = option(
    50_000, "env steps of learning over which that falls from 1"
  )
  epsilon_ladder: bool = option(
    False, "give each environment a share of its own instead"
  )
  replay_capacity: int = option(200_000, "env steps that are kept")
  replay_min_steps: int = option(2_000, "env steps before learning begins")
  replay_ratio: float = option(4.0, "how often each env step is learned from")
  replay_batch_size: int = option(128, "transitions in an update")


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  return command.main(Options, PRESETS, __doc__, _learn, argv)


def _learn(given: Options) -> int:
  from experiments import training
  from seedx.agents import dqn
  from seedx.runtime import feeds

  updates_per_step = given.replay_ratio / given.replay_batch_size
  agent = dqn.Config(
    **settings.agent(given, given.total_steps * updates_per_step),
    n_step=given.n_step,
    double=given.double,
    dueling=given.dueling,
    huber_delta=given.huber_delta,
    rescale=given.rescale,
    target_period=given.target_period,
    epsilon_end=given.epsilon_end,
    epsilon_decay_updates=round(given.epsilon_steps * updates_per_step),
    epsilon_ladder=given.epsilon_ladder,
  )
  replay = feeds.ReplayConfig(
    capacity=given.replay_capacity,
    min_steps=given.replay_min_steps,
    batch_size=given.replay_batch_size,
    ratio=given.replay_ratio,
  )
  return training.run_sync(
    given, lambda spec, axis: dqn.make(spec, agent, axis), replay
  )


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
