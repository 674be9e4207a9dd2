"""Gorila: workers with a replay of their own, and sharded parameter servers.

    worker: EnvPool <-> act -> replay -> gradients --.   .-> server: shard 0
    worker: EnvPool <-> act -> replay -> gradients ----X---> server: shard 1
    worker: EnvPool <-> act -> replay -> gradients --'   '-> server: shard 2
               ^                                                  |
               '----------- the newest parameters <---------------'

Every worker acts, replays and learns by itself (bundled mode). It sends each
gradient in parts to the parameter servers, each of which applies its part with
an optimizer of its own and answers with its newest parameters; nobody waits for
another worker. A server drops gradients that are too stale, a worker those
whose loss is an outlier. A worker that dies is not missed, and a server that
dies gets its parameters back from the workers. A coordinator counts what is
done, and says when it is enough. Nair et al. 2015, "Massively Parallel Methods
for Deep Reinforcement Learning", https://arxiv.org/abs/1507.04296, figures 2
and 3; with DQN it is their algorithm 1. Workers that send gradients to sharded
parameter servers, each in its own time, are the pattern of DistBelief (Downpour
SGD): Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from seedx import envs, launch, metrics, types, wire
from seedx.agents import base
from seedx.runtime import (
  bundle,
  crew,
  feeds,
  monitor,
  parameter_server,
  progress,
  roster,
  service,
  shards,
  tally,
)

_RETRY_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Config:
  """What a Gorila run is made of.

  Attributes:
    env: which environment.
    make_agent: `(spec, axis_name) -> Agent`; it can be pickled.
    address: where the coordinator listens: `host:port` or `unix:/path`.
    server_addresses: where the parameter servers do; one shard each.
    total_steps: env steps to learn for.
    seed: fixes environments, initial parameters and sampling.
    num_workers: workers that there is place for.
    envs_per_worker: environments of each.
    unroll_length: T, new steps of an unroll.
    replay: of each worker.
    max_gradient_norm: gradients with a larger global norm are scaled down; at
      most the agent's own, which a parameter server applies to its part.
    max_staleness: updates that a parameter server may have seen since a
      gradient's parameters were current; it drops others.
    outlier_deviations: gradients whose loss is further above the running mean
      of the worker's losses, in standard deviations, are dropped.
    log_seconds: between two lines of metrics.
  """

  env: envs.Config
  make_agent: Callable[[types.EnvironmentSpec, str | None], base.Agent]
  address: str
  server_addresses: Sequence[str]
  total_steps: int
  seed: int
  num_workers: int
  envs_per_worker: int
  unroll_length: int
  replay: feeds.ReplayConfig
  max_gradient_norm: float
  max_staleness: int = 100
  outlier_deviations: float = 5.0
  log_seconds: float = 0.5

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      total_steps=(1, types.MOST),
      num_workers=(1, 2**10),
      envs_per_worker=(1, 2**20),
      unroll_length=(1, 2**20),
      max_gradient_norm=(1e-12, types.MOST),
      max_staleness=(0, 2**31 - 1),
      outlier_deviations=(0.0, types.MOST),
    )
    if not self.server_addresses:
      raise types.ConfigError("expected at least 1 parameter server, found 0")


def servers(config: Config) -> list[launch.Node]:
  """The parameter servers of a run, each of which has an address."""
  return [
    launch.Node(
      role=f"server-{shard}",
      run=parameter_server.run,
      config=parameter_server.Config(
        address=address,
        env=config.env,
        make_agent=config.make_agent,
        shard=shard,
        num_shards=len(config.server_addresses),
        num_workers=config.num_workers,
        max_staleness=config.max_staleness,
      ),
      needs_jax=True,
    )
    for shard, address in enumerate(config.server_addresses)
  ]


def workers(config: Config) -> launch.Node:
  """The workers, to be launched anywhere that reaches all of the others."""
  return launch.Node(
    role="worker",
    run=bundle.run,
    config=bundle.Config(
      address=config.address,
      server_addresses=tuple(config.server_addresses),
      env=config.env,
      make_agent=config.make_agent,
      seed=config.seed,
      num_envs=config.envs_per_worker,
      unroll_length=config.unroll_length,
      replay=config.replay,
      max_gradient_norm=config.max_gradient_norm,
      outlier_deviations=config.outlier_deviations,
    ),
    count=config.num_workers,
    needs_jax=True,
  )


class Coordinator:
  """Counts what workers report, and ends the run.

  Attributes:
    progress: what has been counted of acting.
    tally: what has been counted of learning.
  """

  def __init__(
    self,
    config: Config,
    sinks: Sequence[metrics.Sink],
    stop: threading.Event | None = None,
  ) -> None:
    """Wires everything up; `run` sets it in motion.

    Args:
      config: what is run.
      sinks: take the lines of metrics.
      stop: ends the run early, with everything written.

    Raises:
      types.ConfigError: the environment does not exist, or the agent cannot
        learn so.
    """
    spec = envs.spec(config.env)
    agent = config.make_agent(spec, None)
    _check(agent, config)
    self._config = config
    self._crew = crew.Crew(stop)
    self.progress = progress.Progress()
    self.tally = tally.Tally()
    self._workers = roster.Roster(
      agent,
      config.num_workers * config.envs_per_worker,
      self.progress,
      config.seed,
    )
    self._shards = shards.Shards(agent, config.server_addresses)
    # What parameter servers are to go on from.
    self._restored: list[base.AgentState] | None = None
    self._totals = {
      "gradients_stale": 0,
      "gradients_outliers": 0,
      "wire_bytes": 0,
    }
    self._lock = threading.Lock()
    self._server = wire.Server(config.address, config.num_workers)
    self._server.bind_stream(
      bundle.REPORT,
      lambda hello: _Session(self, self._workers, hello),
      inputs=bundle.report_layout(
        feeds.unroll_length(agent, config.unroll_length),
        config.envs_per_worker,
      ),
      outputs=bundle.GO_ON,
    )
    self._monitor = monitor.Monitor(
      self.progress,
      self.tally,
      self,
      spec.frames_per_step,
      sinks,
      lambda: dict(self._totals),
    )

  def run(
    self, check: Callable[[], None] = lambda: None
  ) -> dict[str, metrics.Value]:
    """Waits until `total_steps`, a stop, or a failure.

    Args:
      check: is called before each line of metrics, and may raise.

    Returns:
      The last line of metrics.

    Raises:
      types.ConfigError: the address is in use.
    """
    if not self._give_restored(check):
      self._crew.stop.set()
    return service.run(
      self._server,
      {},
      self._crew,
      self._monitor,
      lambda: self.progress.env_steps >= self._config.total_steps,
      self._config.log_seconds,
      check,
    )

  def saved(self) -> types.Tree:
    """All that a checkpoint of the run holds.

    Raises:
      wire.WireError: UNAVAILABLE, a parameter server is not there; try again.
    """
    return self._saved(self._shards.save())

  def restore(self, load: Callable[[types.Tree], types.Tree]) -> None:
    """Goes on from a checkpoint, before `run`; replays are filled anew.

    Args:
      load: from a nest like that of `saved` to the one that was.
    """
    saved = load(self._saved(self._shards.form))
    self._restored = saved["shards"]
    self.tally.restore(saved["tally"])
    self.progress.restore(saved["progress"])
    self._workers.seeds.restore(saved["seeds"])

  def acting(self, saved: types.Tree) -> types.Tree:
    """What acts by what was saved."""
    return self._shards.acting(saved["shards"])

  def _saved(self, states: Sequence[base.AgentState]) -> types.Tree:
    return {
      "shards": list(states),
      "tally": self.tally.saved(),
      "progress": self.progress.saved(),
      "seeds": self._workers.seeds.saved(),
    }

  def _give_restored(self, check: Callable[[], None]) -> bool:
    """Gives servers what was restored, before workers come; False on a stop."""
    while self._restored is not None:
      check()
      try:
        self._shards.restore(self._restored)
        self._restored = None
      except wire.WireError as error:
        if error.code is not wire.StatusCode.UNAVAILABLE:
          raise
        if self._crew.stop.wait(_RETRY_SECONDS):
          return False
    return True

  def shares(self) -> dict[str, float]:
    """How the workers spend their time: acting and learning wait in turn."""
    shares = self._workers.shares()
    return {**shares, metrics.WAIT_UNROLLS: 1.0 - shares[metrics.WAIT_QUEUE]}

  def count(self, counts: bundle.Counts) -> None:
    """Adds what a worker counted."""
    one = {name: x[0].item() for name, x in counts._asdict().items()}
    with self._lock:
      self._totals["gradients_stale"] += one["stale"]
      self._totals["gradients_outliers"] += one["outliers"]
      self._totals["wire_bytes"] += one["wire_bytes"]
    if one["gradients"]:
      self.tally.add(
        one["learned_steps"],
        one["staleness"],
        {"loss": one["loss"], "servers_wait": one["wait_servers"]},
        one["gradients"],
      )


class _Session:
  """One worker's reports."""

  def __init__(
    self,
    coordinator: Coordinator,
    workers: roster.Roster,
    hello: Mapping[str, Any],
  ) -> None:
    self._coordinator = coordinator
    self._workers = workers
    self._entry = workers.enter(hello)
    self.welcome = self._entry.welcome

  def __call__(self, inputs: bundle.Report) -> tuple[()]:
    """Takes a report of all the worker's environments.

    Raises:
      wire.Refused: it is not of all of them.
    """
    num_envs = len(self._entry.slots)
    if len(inputs.env_steps) != num_envs:
      raise wire.Refused(
        wire.StatusCode.INVALID_ARGUMENT,
        f"expected a report of all {num_envs} environments, found"
        f" {len(inputs.env_steps)}",
      )
    counts = inputs.counts
    self._entry.waits = (
      float(counts.wait_environments[0]),
      float(counts.learning[0]),
    )
    self._workers.count(self._entry, inputs.env_steps, inputs.episode_return)
    self._coordinator.count(counts)
    return ()

  def close(self) -> None:
    """Frees the worker's place."""
    self._workers.leave(self._entry)


def _check(agent: base.Agent, config: Config) -> None:
  """Raises types.ConfigError for an agent that cannot learn so."""
  feeds.check(
    agent,
    config.replay,
    parts=1,
    item_steps=config.envs_per_worker * config.unroll_length,
    total_steps=config.total_steps,
  )
  parameter_server.Shard(agent, config.max_staleness)
  state = jax.eval_shape(agent.init, jax.random.key(0))
  if jax.tree.leaves(state.statistics):
    raise types.ConfigError(
      "expected an agent without statistics of observations"
      " (normalize_observations False): parameter servers hold parameters"
    )
