"""SEED: thin actors, and one learner process that acts for all of them.

    actor: EnvPool --.  observations   .-> batcher -> act -> unroll store -.
    actor: EnvPool ---- over gRPC ----<    (on each inference device)      |
    actor: EnvPool --'  <- actions     '-                       unrolls    |
                                                                           v
                    parameters <- update, sharded over cores <- bounded queues

Espeholt et al. 2019, "SEED RL: Scalable and Efficient Deep-RL with Accelerated
Central Inference", https://arxiv.org/abs/1910.06591, figures 1 and 3.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence

import jax

from seedx import envs, launch, metrics, sharding, types, wire
from seedx.agents import base
from seedx.runtime import (
  actor,
  crew,
  feeds,
  inference,
  learner,
  monitor,
  parameters,
  progress,
  protocol,
  queues,
  service,
  unrolls,
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What a SEED run is made of.

  Attributes:
    env: which environment.
    make_agent: `(spec, axis_name) -> Agent`.
    address: where the learner listens: `host:port` or `unix:/path`.
    total_steps: env steps to learn for.
    seed: fixes environments, initial parameters and sampling.
    num_actors: actors that there is place for.
    envs_per_actor: environments of each.
    actor_batch_size: environments in a message; fewer than all of them let
      the rest step in the meantime.
    unroll_length: T, new transitions in an unroll.
    batch_size: unrolls in an update, or that go into the replay at a time.
    micro_batches: parts that each core's share of an update is learned in.
    inference_devices: indices of the local devices that act.
    learner_devices: indices of the local devices that learn.
    inference_batch_size: rows that are worth an inference step.
    inference_wait_seconds: how long fewer rows are waited with.
    queue_capacity: training batches that may wait for the learner.
    replay: of an agent that learns from one.
    log_seconds: between two lines of metrics.
  """

  env: envs.Config
  make_agent: Callable[[types.EnvironmentSpec, str | None], base.Agent]
  address: str
  total_steps: int
  seed: int
  num_actors: int
  envs_per_actor: int
  actor_batch_size: int
  unroll_length: int
  batch_size: int
  micro_batches: int = 1
  inference_devices: Sequence[int] = (0,)
  learner_devices: Sequence[int] = (0,)
  inference_batch_size: int = 0
  inference_wait_seconds: float = 0.005
  queue_capacity: int = 1
  replay: feeds.ReplayConfig | None = None
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
    if not 1 <= self.actor_batch_size <= self.envs_per_actor:
      raise types.ConfigError(
        f"expected actor_batch_size from 1 to {self.envs_per_actor}, the"
        f" actor's environments, found {self.actor_batch_size}"
      )
    parts = max(1, len(self.learner_devices))
    if self.replay is None:
      parts *= self.micro_batches
    if self.batch_size % parts:
      raise types.ConfigError(
        f"expected a batch_size that {len(self.learner_devices)} learner"
        f" devices with {self.micro_batches} micro-batches each divide, found"
        f" {self.batch_size}"
      )

  def inference(self, agent: base.Agent) -> inference.Config:
    """The share of each inference device."""
    devices = len(self.inference_devices)
    actors = -(-self.num_actors // devices)
    rows = actors * self.actor_batch_size
    # Half of what can be on its way: one half steps while the other acts.
    target = min(self.inference_batch_size or -(-rows // 2), rows)
    return inference.Config(
      layout=unrolls.Layout(
        num_slots=actors * self.envs_per_actor,
        length=feeds.unroll_length(agent, self.unroll_length),
        period=self.unroll_length,
      ),
      unrolls_per_item=self.batch_size // len(self.learner_devices),
      target_rows=target,
      max_rows=rows,
      max_wait_seconds=self.inference_wait_seconds,
    )


def actors(config: Config) -> launch.Node:
  """The actors of a run, to be launched anywhere that reaches the learner."""
  return launch.Node(
    role="actor",
    run=actor.run,
    config=actor.Config(
      address=config.address,
      env=config.env,
      num_envs=config.envs_per_actor,
      batch_size=config.actor_batch_size,
    ),
    count=config.num_actors,
  )


class Learner:
  """The learner process: server, inference, unrolls, updates.

  Attributes:
    progress: what has been counted.
    learner: the updates, and the newest state.
    inferences: one for each inference device.
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
      types.ConfigError: the environment or a device does not exist.
    """
    acting_on = sharding.devices(config.inference_devices, "inference")
    mesh = sharding.mesh(sharding.devices(config.learner_devices, "learner"))
    spec = envs.spec(config.env)
    agent = config.make_agent(spec, sharding.CORES)
    feeds.check(
      agent,
      config.replay,
      parts=mesh.devices.size * config.micro_batches,
      item_steps=config.batch_size * config.unroll_length,
      total_steps=config.total_steps,
    )
    inference_config = config.inference(agent)
    init_key, learner_key, replay_key, *acting_keys = jax.random.split(
      jax.random.key(config.seed), 3 + len(acting_on)
    )

    self._config = config
    self._crew = crew.Crew(stop)
    waits = (metrics.WAIT_REQUESTS, metrics.WAIT_QUEUE, "inference_wait_device")
    self._waits = metrics.Waits(
      {**dict.fromkeys(waits, len(acting_on)), metrics.WAIT_UNROLLS: 1}
    )
    self.progress = progress.Progress()
    state = jax.jit(agent.init)(init_key)
    self.learner = learner.Learner(
      agent, mesh, state, learner_key, config.micro_batches
    )
    cores = self.learner.cores
    self._agent, self._replay_key = agent, replay_key
    self._feed = self._make_feed()
    self._snapshots = parameters.Snapshots(acting_on)
    self._snapshots.publish(agent.acting(state), 0)
    self._queues = queues.UnrollQueues(
      cores, config.queue_capacity, self._crew.stop, self._waits
    )
    self.inferences = [
      inference.Inference(
        agent,
        spec,
        device,
        inference_config,
        self._snapshots,
        self._queues.put,
        rng_key,
        self._waits,
      )
      for device, rng_key in zip(acting_on, acting_keys, strict=True)
    ]
    self._server = self._serve(spec, inference_config)
    self._monitor = monitor.Monitor(
      self.progress,
      self.learner,
      self._waits,
      spec.frames_per_step,
      sinks,
      lambda: {"wire_bytes": self._server.transferred_bytes},
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
    acting = {f"inference-{i}": x.run for i, x in enumerate(self.inferences)}
    return service.run(
      self._server,
      {**acting, "learner": self._learn},
      self._crew,
      self._monitor,
      lambda: self.progress.env_steps >= self._config.total_steps,
      self._config.log_seconds,
      check,
      self._close,
    )

  def saved(self) -> types.Tree:
    """All that a checkpoint of the run holds; any thread may ask."""
    return {
      "learner": self.learner.saved(),
      "progress": self.progress.saved(),
      "seeds": self._sessions.seeds.saved(),
    }

  def restore(self, load: Callable[[types.Tree], types.Tree]) -> None:
    """Goes on from a checkpoint, before `run`; a replay is filled anew.

    Args:
      load: from a nest like that of `saved` to the one that was.
    """
    saved = load(self.saved())
    self.learner.restore(saved["learner"])
    self.progress.restore(saved["progress"])
    self._sessions.seeds.restore(saved["seeds"])
    self._feed = self._make_feed()
    self._snapshots.publish(self.learner.acting(), self.learner.steps)

  def acting(self, saved: types.Tree) -> types.Tree:
    """What acts by what was saved."""
    return self.learner.acting(saved["learner"]["agent"])

  def _make_feed(self) -> feeds.Feed:
    return feeds.make(
      self._agent,
      self._config.replay,
      self._config.unroll_length,
      self.learner.cores,
      jax.random.fold_in(self._replay_key, self.learner.steps),
    )

  def _serve(
    self, spec: types.EnvironmentSpec, config: inference.Config
  ) -> wire.Server:
    """A server, not started yet, on which actors open sessions."""
    server = wire.Server(self._config.address, self._config.num_actors)
    self._sessions = inference.Sessions(
      self.inferences, self.progress, config, self._config.seed
    )
    server.bind_stream(
      protocol.ACT,
      self._sessions,
      inputs=protocol.rows_layout(spec, config.max_rows),
      outputs=protocol.actions_layout(spec, config.max_rows),
    )
    return server

  def _learn(self) -> None:
    items = [
      jax.device_put(self.inferences[0].empty_item(), core)
      for core in self.learner.cores
    ]
    self.learner.warm_up(self._feed.example(items))
    batches = (
      batch
      for items in iter(self._queues.get, None)
      for batch in self._feed(items)
    )
    self.learner.run(batches, self._snapshots.publish, self._crew.stop)

  def _close(self) -> None:
    for place in self.inferences:
      place.batcher.close()
