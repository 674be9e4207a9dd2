"""Trains a DQN in the pipeline Gorila: workers and parameter servers.

  python -m experiments.gorila_dqn --env CartPole-v1

starts all of them. On several machines, one command for each:

  python -m experiments.gorila_dqn --role learner --address 0.0.0.0:8470
  python -m experiments.gorila_dqn --role server --server 0 ...
  python -m experiments.gorila_dqn --role worker --address learner-host:8470 ...

where the learner is who counts, and all are also told `--server-addresses
host-a:8471,host-b:8471`, with the same options everywhere. Workers end with the
learner, servers with Ctrl-C.
Defaults depend on the environment: `--env Acrobot-v1 --help` shows its own.
"""

import dataclasses
import sys
import tempfile
from typing import TYPE_CHECKING

from experiments import allocator, command, options, settings
from seedx import types

if TYPE_CHECKING:
  from seedx.agents import base

option = options.option

PRESETS: settings.Presets = {
  "default": {
    "total_steps": 500_000,
    "num_workers": 2,
    "envs_per_worker": 4,
    "unroll_length": 8,
    "learning_rate": 5e-4,
    "hidden_sizes": (128, 128),
    "max_gradient_norm": 10.0,
    "optimizer": "adam",
    "replay_capacity": 100_000,
  },
  # Not measured here; see `dqn`.
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
class Options(settings.DQN, settings.Replay, settings.Workers, settings.Common):
  """The command line; presets of the environment change defaults."""

  num_servers: int = option(2, "parameter servers that it starts")
  max_staleness: int = option(
    100, "updates since a gradient's parameters; others are dropped"
  )
  outlier_deviations: float = option(
    5.0, "gradients with a loss further above the mean are dropped"
  )
  role: str = option(
    "all",
    "what this process does; 'all' starts the others",
    choices=("all", "learner", "server", "worker"),
  )
  address: str = option(
    "", "where the learner listens, HOST:PORT or unix:PATH; with --role"
  )
  server_addresses: tuple[str, ...] = option(
    (), "where the parameter servers listen; with --role", parse=options.names
  )
  server: int = option(0, "with --role server: which of the addresses it is")


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
  from seedx.pipelines import gorila

  if given.role != "all" and not given.server_addresses:
    raise types.ConfigError(
      f"expected --server-addresses with --role {given.role}, found none"
    )
  with tempfile.TemporaryDirectory() as sockets:
    config = gorila.Config(
      env=settings.environment(given),
      make_agent=make_agent(given),
      address=given.address or f"unix:{sockets}/coordinator",
      server_addresses=given.server_addresses
      or [f"unix:{sockets}/server-{i}" for i in range(given.num_servers)],
      total_steps=given.total_steps,
      seed=given.seed,
      num_workers=given.num_workers,
      envs_per_worker=given.envs_per_worker,
      unroll_length=given.unroll_length,
      replay=settings.replay(given),
      max_gradient_norm=given.max_gradient_norm,
      max_staleness=given.max_staleness,
      outlier_deviations=given.outlier_deviations,
    )
    servers = gorila.servers(config)
    if given.role == "server":
      if not 0 <= given.server < len(servers):
        raise types.ConfigError(
          f"expected --server from 0 to {len(servers) - 1}, one of the"
          f" --server-addresses, found {given.server}"
        )
      return training.run_node(servers[given.server])
    if given.role == "worker":
      return training.run_node(gorila.workers(config))
    return training.run(
      given,
      config.make_agent,
      lambda sinks, stop: gorila.Coordinator(config, sinks, stop),
      [*servers, gorila.workers(config)] if given.role == "all" else [],
    )


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
