"""The work that Gorila's coordinator has for the other processes."""

import dataclasses

from seedx import envs, wire
from seedx.acting import local_actor
from seedx.agents import base
from seedx.learning import plan as plan_lib


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of a worker, or of a parameter server.

  Attributes:
    address: the coordinator's address; of a server, where it listens.
    env: the environment.
    agent: the agent that acts and learns.
    plan: the experience of each worker, with a replay of its own.
    seed: the run's random seed, for the initial parameters.
    workers: the config of all workers.
    num_shards: number of parameter servers.
    max_staleness: see `coordinator.Config`.
    outlier_deviations: see `coordinator.Config`.
    security: how processes authenticate each other.
    shard: index of a server's shard of the parameters.
  """

  address: str
  env: envs.Config
  agent: base.Config
  plan: plan_lib.Plan
  seed: int
  workers: local_actor.WorkersConfig
  num_shards: int
  max_staleness: int
  outlier_deviations: float
  security: wire.Security
  shard: int = 0
