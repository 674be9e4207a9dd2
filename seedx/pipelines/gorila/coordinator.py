"""Gorila's coordinator: counts what workers report, and ends the run."""

import dataclasses
import math
from typing import Self

import jax

from seedx import envs, launch, types, wire
from seedx.acting import local_actor, sessions
from seedx.agents import base, optimizers
from seedx.learning import experience
from seedx.pipelines.gorila import (
  parameter_server,
  replays,
  reports,
  saved_shards,
  worker,
)
from seedx.runtime import counters, process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of a Gorila run.

  Attributes:
    server_addresses: addresses of the parameter servers, each with a shard of
      the parameters; if empty, each server registers its own when it joins.
    num_servers: number of parameter servers, if there are no server_addresses.
    server: with --role server, the index of its own address in
      server_addresses.
    max_staleness: parameter servers drop gradients that are more than this many
      updates old.
    outlier_deviations: workers drop gradients whose loss is more than this many
      standard deviations above its running mean.
    env: the environment.
    agent: that acts and learns.
    workers: processes that act and compute gradients.
    replay: of each worker.
  """

  server_addresses: tuple[str, ...] = ()
  num_servers: int = 2
  server: int = 0
  max_staleness: int = 100
  outlier_deviations: float = 5.0
  env: envs.Config = envs.Config()
  agent: base.Config
  workers: local_actor.WorkersConfig = local_actor.WorkersConfig()
  replay: experience.ReplayConfig = experience.ReplayConfig()

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    types.check_ranges(
      self,
      num_servers=(1, 2**10),
      server=(0, max(0, len(self.server_addresses) - 1)),
      max_staleness=(0, 2**31 - 1),
      outlier_deviations=(0.0, types.MOST),
    )
    for address in filter(None, self.server_addresses):
      wire.check_address(address)
    if isinstance(self.replay, experience.PrioritizedConfig):
      raise types.ConfigError(
        "expected a uniform replay, a ReplayConfig, since workers compute no"
        f" priorities, found {self.replay}"
      )

  @property
  def plan(self) -> experience.Plan:
    """The experience that each worker computes gradients from."""
    return experience.Plan(
      self.total_steps, self.workers.batch_steps, self.replay
    )

  def with_sockets(self, folder: str) -> Self:
    """The config with sockets in a folder where no address was given."""
    sockets = (f"unix:{folder}/server-{k}" for k in range(self.num_servers))
    addresses = self.server_addresses or tuple(sockets)
    own = super().with_sockets(folder)
    return dataclasses.replace(own, server_addresses=addresses)

  def nodes(self) -> list[launch.Node]:
    """The parameter servers, and the workers, which reach all of the others."""
    addresses = self.server_addresses or ("",) * self.num_servers
    servers = [
      launch.Node(
        f"server-{shard}",
        parameter_server.run,
        parameter_server.Work(
          address=address,
          env=self.env,
          agent=self.agent,
          horizon=self.plan.horizon,
          shard=shard,
          num_shards=len(addresses),
          num_workers=self.workers.num_workers,
          max_staleness=self.max_staleness,
          security=self.security,
        ),
        needs_jax=True,
      )
      for shard, address in enumerate(addresses)
    ]
    work = worker.Work(
      address=self.address,
      env=self.env,
      agent=self.agent,
      plan=self.plan,
      seed=self.seed,
      workers=self.workers,
      max_gradient_norm=_max_gradient_norm(self.agent),
      outlier_deviations=self.outlier_deviations,
      security=self.security,
    )
    workers = launch.Node(
      "worker",
      worker.run,
      work,
      count=self.workers.num_workers,
      needs_jax=True,
    )
    return [*servers, workers]

  def learn(self, context: process.Context) -> process.Process:
    """The coordinator.

    Raises:
      types.ConfigError: the environment does not exist, or the agent cannot
        learn so.
    """
    spec = envs.spec(self.env)
    agent = self.plan.agent(self.agent, spec)
    _check(agent, self)
    acted = counters.Acted(spec.frames_per_step)
    seeds = sessions.Seeds(self.seed)
    workers = self.workers
    connected = sessions.Sessions(
      agent.exploration(workers.num_envs),
      acted,
      seeds,
      envs.returns_are_sums(self.env),
    )
    addresses = launch.Addresses(
      self.num_servers, self.server_addresses, self.security
    )
    shards = saved_shards.SavedShards(
      agent, addresses, context.stop, self.security
    )
    replay_bytes = worker.replay_bytes(agent, spec, self.plan, workers)
    if self.address.startswith("unix:"):  # All workers are on this machine.
      cpus = jax.devices("cpu")[:1] * workers.num_workers
      experience.check_memory(self.replay, cpus, replay_bytes)
    kept = replays.Replays(
      workers.num_workers, replay_bytes, connected.count_open
    )
    reported = reports.Reports(
      connected, shards.are_ready, self.replay, agent.needs, kept
    )
    server = self.make_server(workers.num_workers)
    length = agent.needs.unroll_length(workers.unroll_length)
    names = worker.metric_names(agent, spec, self.plan, workers)
    inputs = reports.layout(length, workers.envs_per_worker, names)
    reported.bind(server, inputs, addresses)
    kept.bind(server)

    def done() -> bool:
      reported.learned.check()
      return shards.are_ready() and acted.env_steps >= self.total_steps

    def ending() -> None:
      kept.fetch_last()  # Workers go on meanwhile.
      shards.fetch_last()

    return process.Process(
      acted=acted,
      parts={
        "shards": shards,
        "learned": reported.learned,
        "acted": acted,
        "seeds": seeds,
      },
      replay=kept,
      policy=lambda saved: shards.acting(saved["shards"]),
      measures=[acted.measure, reported.learned.measure, reported.measure],
      done=done,
      threads={"restore": shards.give_restored},
      server=server,
      addresses={"server": addresses},
      ending=ending,
    )


def _max_gradient_norm(agent: base.Config) -> float:
  """Of the whole gradient, which no parameter server sees."""
  if not isinstance(agent, optimizers.Config):
    raise types.ConfigError(
      "expected an agent whose config says max_gradient_norm, by which workers"
      f" scale gradients down, found {type(agent).__name__}"
    )
  return math.inf if agent.transformation else agent.max_gradient_norm


def _check(agent: base.Agent, config: Config) -> None:
  """Raises types.ConfigError for an agent that cannot learn so."""
  _max_gradient_norm(config.agent)
  parameter_server.Shard(agent, config.max_staleness)
  state = jax.eval_shape(agent.init, jax.random.key(0))
  if jax.tree.leaves(state.statistics):
    raise types.ConfigError(
      "expected an agent without statistics of observations"
      " (normalize_observations False): parameter servers hold parameters"
    )
