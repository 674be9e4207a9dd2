"""IMPALA: actors with a copy of the parameters, and one learner.

    actor: EnvPool <-> act --.     unrolls      .-> bounded queues -> update
    actor: EnvPool <-> act ----- over gRPC ----<    (sharded over cores)  |
    actor: EnvPool <-> act --'  <- parameters   '--- newest parameters <--'

Actors act by themselves, on their CPUs, send whole unrolls, and fetch newer
parameters between unrolls. A full queue holds them back. So what is learned
from was acted some updates ago: V-trace corrects that, and `policy_lag` says
how many. Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with
Importance Weighted Actor-Learner Architectures",
https://arxiv.org/abs/1802.01561, figure 1.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

import jax

from seedx import envs, launch, metrics, sharding, types, wire
from seedx.agents import base
from seedx.runtime import (
  collection,
  crew,
  feeds,
  learner,
  monitor,
  parameters,
  progress,
  queues,
  service,
  unroll_actor,
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What an IMPALA run is made of.

  Attributes:
    env: which environment.
    make_agent: `(spec, axis_name) -> Agent`; it can be pickled.
    address: where the learner listens: `host:port` or `unix:/path`.
    total_steps: env steps to learn for.
    seed: fixes environments, initial parameters and sampling.
    num_actors: actors that there is place for.
    envs_per_actor: environments of each.
    unroll_length: T, new transitions in an unroll.
    batch_size: unrolls in an update.
    micro_batches: parts that each core's share of an update is learned in.
    learner_devices: indices of the local devices that learn.
    queue_capacity: training batches that may wait for the learner.
    log_seconds: between two lines of metrics.
  """

  env: envs.Config
  make_agent: Callable[[types.EnvironmentSpec, str | None], base.Agent]
  address: str
  total_steps: int
  seed: int
  num_actors: int
  envs_per_actor: int
  unroll_length: int
  batch_size: int
  micro_batches: int = 1
  learner_devices: Sequence[int] = (0,)
  queue_capacity: int = 1
  log_seconds: float = 0.5

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      total_steps=(1, types.MOST),
      num_actors=(1, 2**20),
      envs_per_actor=(1, 2**20),
      unroll_length=(1, 2**20),
      batch_size=(1, 2**20),
      micro_batches=(1, 2**20),
      queue_capacity=(1, 2**20),
    )
    if self.batch_size % max(1, len(self.learner_devices) * self.micro_batches):
      raise types.ConfigError(
        f"expected a batch_size that {len(self.learner_devices)} learner"
        f" devices with {self.micro_batches} micro-batches each divide, found"
        f" {self.batch_size}"
      )


def actors(config: Config) -> launch.Node:
  """The actors of a run, to be launched anywhere that reaches the learner."""
  return launch.Node(
    role="actor",
    run=unroll_actor.run,
    config=unroll_actor.Config(
      address=config.address,
      env=config.env,
      make_agent=config.make_agent,
      num_envs=config.envs_per_actor,
      unroll_length=config.unroll_length,
    ),
    count=config.num_actors,
    needs_jax=True,
  )


class Learner:
  """The learner process: takes unrolls in, updates, hands parameters out.

  Attributes:
    progress: what has been counted.
    learner: the updates, and the newest state.
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
      types.ConfigError: the environment or a device does not exist, or the
        agent learns from a replay.
    """
    mesh = sharding.mesh(sharding.devices(config.learner_devices, "learner"))
    cores = list(mesh.devices)
    spec = envs.spec(config.env)
    agent = config.make_agent(spec, sharding.CORES)
    feeds.check(
      agent,
      None,
      parts=len(cores) * config.micro_batches,
      item_steps=config.batch_size * config.unroll_length,
      total_steps=config.total_steps,
    )
    init_key, learner_key = jax.random.split(jax.random.key(config.seed))
    state = jax.jit(agent.init)(init_key)
    self._config = config
    self._crew = crew.Crew(stop)
    self._waits = metrics.Waits({metrics.WAIT_UNROLLS: 1})
    self.progress = progress.Progress()
    self.learner = learner.Learner(
      agent, mesh, state, learner_key, config.micro_batches
    )
    self._snapshots = parameters.Snapshots(cores[:1])
    self._snapshots.publish(agent.acting(state), 0)
    self._queues = queues.UnrollQueues(
      cores, config.queue_capacity, self._crew.stop, self._waits
    )
    self._server = wire.Server(config.address, config.num_actors)
    self._collection, self._actors = collection.serve(
      self._server,
      config,
      agent,
      spec,
      self.progress,
      newest=functools.partial(self._snapshots.latest, cores[0]),
      sink=lambda item: self._queues.put(item[0]),
    )
    self._monitor = monitor.Monitor(
      self.progress,
      self.learner,
      self._waits,
      spec.frames_per_step,
      sinks,
      lambda: {
        **self._actors.shares(),
        "wire_bytes": self._server.transferred_bytes,
      },
    )

  def run(
    self, check: Callable[[], None] = lambda: None
  ) -> dict[str, metrics.Value]:
    """Learns until `total_steps`, a stop, or a failure.

    Args:
      check: is called before each line of metrics, and may raise.

    Returns:
      The last line of metrics.

    Raises:
      types.ConfigError: the address is in use.
      Exception: whatever a thread of the run failed with.
    """
    return service.run(
      self._server,
      {"learner": self._learn},
      self._crew,
      self._monitor,
      lambda: self.progress.env_steps >= self._config.total_steps,
      self._config.log_seconds,
      check,
    )

  def saved(self) -> types.Tree:
    """All that a checkpoint of the run holds; any thread may ask."""
    return {
      "learner": self.learner.saved(),
      "progress": self.progress.saved(),
      "seeds": self._actors.seeds.saved(),
    }

  def restore(self, load: Callable[[types.Tree], types.Tree]) -> None:
    """Goes on from a checkpoint, before `run`.

    Args:
      load: from a nest like that of `saved` to the one that was.
    """
    saved = load(self.saved())
    self.learner.restore(saved["learner"])
    self.progress.restore(saved["progress"])
    self._actors.seeds.restore(saved["seeds"])
    self._snapshots.publish(self.learner.acting(), self.learner.steps)

  def acting(self, saved: types.Tree) -> types.Tree:
    """What acts by what was saved."""
    return self.learner.acting(saved["learner"]["agent"])

  def _learn(self) -> None:
    items = [self._collection.example(core) for core in self.learner.cores]
    self.learner.warm_up([unroll for unroll, _ in items])
    self.learner.run(
      iter(self._queues.get, None), self._snapshots.publish, self._crew.stop
    )
