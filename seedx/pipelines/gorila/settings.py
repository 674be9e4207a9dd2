"""The config of Gorila's workers and parameter servers."""

import dataclasses

from seedx import envs, wire
from seedx.acting import local_actor
from seedx.agents import base
from seedx.learning import plans


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of a worker or of a parameter server; see `coordinator.Config`.

  Attributes:
    address: address of the coordinator; a server's work has its own address.
    plan: amounts of experience of each worker, with its replay.
    seed: random seed of the run, for the initial parameters.
    shard: index of a server's shard of the parameters.
  """

  address: str
  env: envs.Config
  agent: base.Config
  plan: plans.Plan
  seed: int
  workers: local_actor.WorkersConfig
  num_shards: int
  max_staleness: int
  security: wire.Security
  shard: int = 0
