"""Synchronous training: one process, in lock step.

    EnvPool --- observations ---> act -> unroll store --- unrolls ---.
       '------- actions ---------'  ^                                v
                                    '-- parameters <- update <- (replay)

Every environment takes a step, then every environment is acted for; when an
unroll has been finished it is learned from before anything else is done. So no
action is ever older than the newest parameters, and the same seed gives
bitwise the same parameters on the same machine. It is the loop of A2C (Mnih et
al. 2016, https://arxiv.org/abs/1602.01783, made synchronous), of PPO (Schulman
et al. 2017, https://arxiv.org/abs/1707.06347, algorithm 1), and of DQN (Mnih et
al. 2015, https://doi.org/10.1038/nature14236, algorithm 1).
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from seedx import envs, metrics, sharding, types
from seedx.agents import base
from seedx.runtime import (
  feeds,
  learner,
  leases,
  local_actor,
  monitor,
  progress,
  unrolls,
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What a synchronous run is made of.

  Attributes:
    env: which environment.
    make_agent: `(spec, axis_name) -> Agent`.
    total_steps: env steps to learn for.
    seed: fixes environments, initial parameters and sampling.
    num_envs: environments.
    unroll_length: T, steps of each environment between two times of learning.
    micro_batches: parts that each core's share of an update is learned in.
    env_threads: threads that step the environments.
    learner_devices: indices of the local devices that learn; the first acts.
    replay: of an agent that learns from one.
    log_seconds: between two lines of metrics.
  """

  env: envs.Config
  make_agent: Callable[[types.EnvironmentSpec, str | None], base.Agent]
  total_steps: int
  seed: int
  num_envs: int
  unroll_length: int
  micro_batches: int = 1
  env_threads: int = 1
  learner_devices: Sequence[int] = (0,)
  replay: feeds.ReplayConfig | None = None
  log_seconds: float = 0.5

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      total_steps=(1, types.MOST),
      num_envs=(1, 2**20),
      unroll_length=(1, 2**20),
      micro_batches=(1, 2**20),
    )
    parts = max(1, len(self.learner_devices))
    if self.replay is None:
      parts *= self.micro_batches
    if self.num_envs % parts:
      raise types.ConfigError(
        f"expected num_envs that {len(self.learner_devices)} learner devices"
        f" with {self.micro_batches} micro-batches each divide, found"
        f" {self.num_envs}"
      )


class Trainer:
  """The one process: environments, acting, unrolls, updates.

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
        agent cannot learn from what this pipeline gives it.
    """
    cores = sharding.devices(config.learner_devices, "learner")
    mesh = sharding.mesh(cores)
    spec = envs.spec(config.env)
    agent = config.make_agent(spec, sharding.CORES)
    feeds.check(
      agent,
      config.replay,
      parts=len(cores) * config.micro_batches,
      item_steps=config.num_envs * config.unroll_length,
      total_steps=config.total_steps,
    )
    init_key, learner_key, replay_key, acting_key = jax.random.split(
      jax.random.key(config.seed), 4
    )
    state = jax.jit(agent.init)(init_key)
    self.progress = progress.Progress()
    self.learner = learner.Learner(
      agent, mesh, state, learner_key, config.micro_batches
    )
    self._config = config
    self._stop = stop or threading.Event()
    self._agent = agent
    self._replay_key, self._acting_key = replay_key, acting_key
    self._waits = metrics.Waits(
      {
        metrics.WAIT_REQUESTS: 1,  # For environments.
        metrics.WAIT_QUEUE: 1,  # Acting waits while there is learning,
        metrics.WAIT_UNROLLS: 1,  # and learning the rest of the time.
      }
    )
    layout = unrolls.Layout(
      num_slots=config.num_envs,
      length=feeds.unroll_length(agent, config.unroll_length),
      period=config.unroll_length,
    )
    self._programs = local_actor.Programs(agent, spec, layout)
    self._seeds = leases.Seeds(config.seed)
    self._actor, self._feed = self._make_actor(), self._make_feed()
    self._monitor = monitor.Monitor(
      self.progress, self.learner, self._waits, spec.frames_per_step, sinks
    )

  def run(
    self, check: Callable[[], None] = lambda: None
  ) -> dict[str, metrics.Value]:
    """Learns until `total_steps` or a stop.

    Args:
      check: is called before each line of metrics, and may raise.

    Returns:
      The last line of metrics.
    """
    written = time.monotonic()
    try:
      for _ in self.steps():
        if time.monotonic() - written >= self._config.log_seconds:
          check()
          self._monitor.write()
          written = time.monotonic()
        if self._stop.is_set():
          break
    finally:
      self.learner.finish()
      last = self._monitor.write()
      self._monitor.close()
      self._actor.close()
    return last

  def saved(self) -> types.Tree:
    """All that a checkpoint of the run holds; any thread may ask."""
    return {
      "learner": self.learner.saved(),
      "progress": self.progress.saved(),
      "seeds": self._seeds.saved(),
    }

  def restore(self, load: Callable[[types.Tree], types.Tree]) -> None:
    """Goes on from a checkpoint, before `run`; a replay is filled anew.

    Args:
      load: from a nest like that of `saved` to the one that was.
    """
    saved = load(self.saved())
    self.learner.restore(saved["learner"])
    self.progress.restore(saved["progress"])
    self._seeds.restore(saved["seeds"])
    self._actor.close()
    self._actor, self._feed = self._make_actor(), self._make_feed()

  def acting(self, saved: types.Tree) -> types.Tree:
    """What acts by what was saved."""
    return self.learner.acting(saved["learner"]["agent"])

  def steps(self) -> Iterator[None]:
    """Trains, and yields after each step of all environments."""
    reports = progress.reports(self._agent.exploration(self._config.num_envs))
    acting, version = self._newest()
    while self.progress.env_steps < self._config.total_steps:
      with self._waits.timed(metrics.WAIT_UNROLLS):
        rows, unroll = self._actor.observe(acting, version)
        self.progress.add_rows(rows, reports)
      if unroll is not None:
        with self._waits.timed(metrics.WAIT_QUEUE):
          for batch in self._feed(self._shared_out(unroll)):
            self.learner.learn(batch)
          acting, version = self._newest()
          jax.block_until_ready(acting)
      with self._waits.timed(metrics.WAIT_UNROLLS):
        self._actor.act(acting, version)
      yield

  def _make_actor(self) -> local_actor.LocalActor:
    first_seed = self._seeds.take(self._config.num_envs)
    return local_actor.LocalActor(
      self._programs,
      self._config.env,
      seed=first_seed,
      rng_key=jax.random.fold_in(self._acting_key, first_seed),
      device=self.learner.cores[0],
      waits=self._waits,
      num_threads=self._config.env_threads,
    )

  def _make_feed(self) -> feeds.Feed:
    return feeds.make(
      self._agent,
      self._config.replay,
      self._config.unroll_length,
      self.learner.cores,
      jax.random.fold_in(self._replay_key, self.learner.steps),
    )

  def _newest(self) -> tuple[types.Tree, np.int32]:
    acting = jax.device_put(self.learner.acting(), self.learner.cores[0])
    return acting, np.int32(self.learner.steps)

  def _shared_out(self, unroll: types.Unroll) -> list[types.Unroll]:
    """Each core's share of the unrolls."""
    cores = self.learner.cores
    return [
      jax.device_put(
        sharding.shard(unroll, sharding.UNROLL, i, len(cores)), core
      )
      for i, core in enumerate(cores)
    ]
