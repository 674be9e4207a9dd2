"""Gorila's coordinator: counts the workers' env steps, and ends the run."""

import dataclasses
import functools
from typing import Self

import jax

from seedx import envs, types, wire
from seedx import replay as replay_lib
from seedx.acting import local_actor, sessions
from seedx.agents import base
from seedx.launch import admission, topology
from seedx.learning import plans, replay_source
from seedx.pipelines.gorila import (
  parameter_server,
  reports,
  saved_shards,
  settings,
  worker,
)
from seedx.runtime import process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of a Gorila run.

  Attributes:
    server_addresses: addresses of the parameter servers, each with a shard of
      the parameters; if empty, servers register addresses as they join.
    num_servers: number of parameter servers, if there are no server_addresses.
    server: index of a server's own address in server_addresses, with --role
      server.
    max_staleness: age in updates above which parameter servers drop a gradient.
    workers: processes that act and compute gradients.
    replay: the replay of each worker.
  """

  server_addresses: tuple[str, ...] = types.setting(
    (), changes="process", labels=False
  )
  num_servers: int = types.setting(2, low=1, high=2**10)
  server: int = types.setting(0, changes="process", labels=False)
  max_staleness: int = types.setting(100, low=0, high=2**31 - 1)
  workers: local_actor.WorkersConfig = local_actor.WorkersConfig()
  replay: replay_lib.Config = replay_lib.Config()

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range(
      "server", self.server, 0, max(0, len(self.server_addresses) - 1)
    )
    for address in filter(None, self.server_addresses):
      wire.check_address(address)
    if self.replay.has_priorities:
      raise types.ConfigError(
        "expected a uniform replay (replay.Config), because workers compute no"
        f" priorities; found {self.replay}"
      )
    if self.replay.demonstrations:
      raise types.ConfigError(
        "expected no demonstrations, which Gorila's workers do not learn from;"
        " use sync, seed, apex or anakin"
      )

  @property
  def plan(self) -> plans.Plan:
    """The plan of every worker's experience."""
    return plans.Plan(
      self.total_steps,
      self.workers.batch_steps,
      self.replay,
      unroll_length=self.workers.unroll_length,
      workers=self.workers.num_workers,
    )

  def with_sockets(self, folder: str) -> Self:
    """Returns the config with a socket in `folder` for each missing address."""
    sockets = (f"unix:{folder}/server-{k}" for k in range(self.num_servers))
    addresses = self.server_addresses or tuple(sockets)
    config = super().with_sockets(folder)
    return dataclasses.replace(config, server_addresses=addresses)

  def nodes(self) -> list[topology.Node]:
    """Returns nodes of the parameter servers, and of the workers."""
    addresses = self.server_addresses or ("",) * self.num_servers
    work = settings.Work(
      address=self.address,
      env=self.env,
      agent=self.agent,
      plan=self.plan,
      seed=self.seed,
      workers=self.workers,
      num_shards=len(addresses),
      max_staleness=self.max_staleness,
      security=self.security,
    )
    servers = [
      topology.Node(
        f"server-{shard}",
        parameter_server.run,
        dataclasses.replace(work, address=address, shard=shard),
        needs_jax=True,
      )
      for shard, address in enumerate(addresses)
    ]
    count = self.workers.num_workers
    workers = topology.Node("worker", worker.run, work, count, needs_jax=True)
    return [*servers, workers]

  def learn(self, context: process.Context) -> process.Process:
    """Returns the coordinator."""
    spec = envs.spec(self.env)
    agent = self.plan.agent(self.agent, spec)
    shapes = worker.Shapes.of(agent, spec, self.plan, self.workers)
    _check(agent, self, shapes.replay_bytes)
    acted = context.acted(spec, self.total_steps)
    seeds = context.seeds(self.seed)
    addresses = admission.Addresses(
      self.num_servers, self.server_addresses, self.security
    )
    shards = saved_shards.SavedShards(
      agent, addresses, context.stop, self.security
    )
    exploration = agent.exploration(self.workers.num_envs)
    connected = sessions.Sessions(exploration, acted, seeds, self.env)
    reported = reports.Reports(
      connected, shards.are_ready, self.replay, agent.needs
    )
    server = self.make_server(self.workers.num_workers)
    reported.bind(server, shapes.report, addresses)

    def done() -> bool:
      reported.learned.check()
      return shards.are_ready() and acted.is_done

    return process.Process(
      acted=acted,
      parts={
        "agent": shards,
        "learned": reported.learned,
        "acted": acted,
        "seeds": seeds,
      },
      begin=shards.begin,
      refill=functools.partial(self.plan.refill, agent.needs, shards.leave_out),
      policy=lambda saved: shards.acting(saved["agent"]),
      measures=[acted, reported.learned, reported],
      done=done,
      threads={"restore": shards.give_restored},
      server=server,
      addresses={"server": addresses},
      ending=shards.fetch_last,
    )


def _check(agent: base.Agent, config: Config, replay_bytes: int) -> None:
  worker.max_gradient_norm(config.agent)
  parameter_server.Shard(agent, config.max_staleness)
  state = jax.eval_shape(agent.init, jax.random.key(0))
  if jax.tree.leaves(state.statistics):
    raise types.ConfigError(
      "expected an agent without statistics of observations"
      " (normalize_observations False): parameter servers hold parameters"
    )
  if config.address.startswith("unix:"):  # All workers are on this machine.
    cpus = jax.devices("cpu")[:1] * config.workers.num_workers
    replay_source.check_memory(config.replay, cpus, replay_bytes)
