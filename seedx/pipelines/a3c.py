"""A3C: asynchronous actor-learners, the threads of one process.

    thread: EnvPool <-> act -> unroll -> gradients --.
    thread: EnvPool <-> act -> unroll -> gradients ----> shared parameters
    thread: EnvPool <-> act -> unroll -> gradients --'   and optimizer
               ^                                               |
               '------------- a copy of the parameters <-------'

Each worker has environments of its own and acts with its own copy of the
parameters, which it also differentiates, and brings up to date between unrolls.
Its gradients are applied to the shared parameters one at a time, and it waits
for nobody else's. `gradient_staleness` says how many others were applied since
a gradient's parameters were current. Mnih et al. 2016, "Asynchronous Methods
for Deep Reinforcement Learning", https://arxiv.org/abs/1602.01783, algorithms
S2 (n-step Q-learning, here a DQN that is not `replayed`) and S3 (A3C). There
the parameters are written without locks (Hogwild), which takes memory that can
be changed in place; here an update replaces them whole, under a lock.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

import jax
import numpy as np

from seedx import envs, metrics, sharding, types
from seedx.agents import base
from seedx.runtime import (
  crew,
  feeds,
  leases,
  local_actor,
  monitor,
  progress,
  tally,
  unrolls,
)

_STOP_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Config:
  """What an A3C run is made of.

  Attributes:
    env: which environment.
    make_agent: `(spec, axis_name) -> Agent`.
    total_steps: env steps to learn for.
    seed: fixes environments, initial parameters and sampling.
    num_workers: threads that act and learn.
    envs_per_worker: environments of each.
    unroll_length: t_max, steps of each environment in a gradient.
    device: index of the local device that computes.
    log_seconds: between two lines of metrics.
  """

  env: envs.Config
  make_agent: Callable[[types.EnvironmentSpec, str | None], base.Agent]
  total_steps: int
  seed: int
  num_workers: int
  envs_per_worker: int
  unroll_length: int
  device: int = 0
  log_seconds: float = 0.5

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      total_steps=(1, types.MOST),
      num_workers=(1, 2**10),
      envs_per_worker=(1, 2**20),
      unroll_length=(1, 2**20),
    )


class Trainer:
  """The one process: its workers, and the parameters that they share.

  Attributes:
    progress: what has been counted of acting.
    tally: what has been counted of learning.
    shared: the newest state.
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
      types.ConfigError: the environment or the device does not exist, or the
        agent cannot learn from gradients of single unrolls.
    """
    (device,) = sharding.devices([config.device], "learner")
    spec = envs.spec(config.env)
    agent = config.make_agent(spec, None)
    if not agent.applies_once:
      raise types.ConfigError(
        "expected an agent that applies the gradients of an unroll once: one"
        " that takes several steps on it, as PPO does, has none to share"
      )
    feeds.check(
      agent,
      None,
      parts=1,
      item_steps=config.envs_per_worker * config.unroll_length,
      total_steps=config.total_steps,
    )
    init_key, *self._keys = jax.random.split(
      jax.random.key(config.seed), 1 + config.num_workers
    )
    self.progress = progress.Progress()
    self.tally = tally.Tally()
    self.shared = Shared(
      agent, jax.device_put(jax.jit(agent.init)(init_key), device)
    )
    self._config = config
    self._crew = crew.Crew(stop)
    self._seeds = leases.Seeds(config.seed)
    self._agent = agent
    self._device = device
    self._exploration = agent.exploration(
      config.num_workers * config.envs_per_worker
    ).reshape(config.num_workers, -1)
    self._reports = progress.reports(self._exploration)
    layout = unrolls.Layout(
      num_slots=config.envs_per_worker,
      length=config.unroll_length + 1,
      period=config.unroll_length,
    )
    self._programs = local_actor.Programs(agent, spec, layout)
    self._acting = jax.jit(agent.acting)
    self._gradients = jax.jit(agent.gradients)
    # Workers that began together would each compile the same programs.
    self._compiled = threading.Event()
    self._waits = metrics.Waits(
      {
        metrics.WAIT_REQUESTS: config.num_workers,  # For environments.
        metrics.WAIT_QUEUE: config.num_workers,  # Acting waits for learning,
        metrics.WAIT_UNROLLS: config.num_workers,  # and learning for acting.
      }
    )
    self._monitor = monitor.Monitor(
      self.progress, self.tally, self._waits, spec.frames_per_step, sinks
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
      Exception: whatever a worker failed with.
    """
    config = self._config
    self._first_seed = self._seeds.take(
      config.num_workers * config.envs_per_worker
    )
    self.progress.start()
    try:
      for place in range(config.num_workers):
        work = functools.partial(self._work, place)
        self._crew.start(f"worker-{place}", work)
      while self.progress.env_steps < config.total_steps:
        check()
        if self._crew.stop.wait(config.log_seconds):
          break
        self._monitor.write()
    finally:
      try:
        self._crew.join(_STOP_SECONDS)
      finally:
        last = self._monitor.write()
        self._monitor.close()
    return last

  def saved(self) -> types.Tree:
    """All that a checkpoint of the run holds; any thread may ask."""
    return {
      "agent": self.shared.newest()[0],
      "tally": self.tally.saved(),
      "progress": self.progress.saved(),
      "seeds": self._seeds.saved(),
    }

  def restore(self, load: Callable[[types.Tree], types.Tree]) -> None:
    """Goes on from a checkpoint, before `run`.

    Args:
      load: from a nest like that of `saved` to the one that was.
    """
    saved = load(self.saved())
    self.shared = Shared(
      self._agent, jax.device_put(saved["agent"], self._device)
    )
    self.tally.restore(saved["tally"])
    self.progress.restore(saved["progress"])
    self._seeds.restore(saved["seeds"])

  def acting(self, saved: types.Tree) -> types.Tree:
    """What acts by what was saved."""
    return self._acting(saved["agent"])

  def _work(self, place: int) -> None:
    """One worker, until the run is over."""
    config = self._config
    while place and not self._compiled.wait(0.1):
      if self._crew.stop.is_set():
        return
    act_key, learn_key = jax.random.split(self._keys[place])
    first_seed = self._first_seed + place * config.envs_per_worker
    actor = local_actor.LocalActor(
      self._programs,
      config.env,
      seed=first_seed,
      rng_key=jax.random.fold_in(act_key, first_seed),
      device=self._device,
      waits=self._waits,
      exploration=self._exploration[place],
    )
    try:
      state, version = self.shared.newest()
      acting = self._acting(state)
      while (
        not self._crew.stop.is_set()
        and self.progress.env_steps < config.total_steps
      ):
        with self._waits.timed(metrics.WAIT_UNROLLS):
          rows, unroll = actor.observe(acting, version)
          self.progress.add_rows(rows, self._reports[place])
        if unroll is not None:
          with self._waits.timed(metrics.WAIT_QUEUE):
            self._learn(state, version, learn_key, unroll)
            state, version = self.shared.newest()
            acting = self._acting(state)
          self._compiled.set()
        with self._waits.timed(metrics.WAIT_UNROLLS):
          actor.act(acting, version)
    finally:
      actor.close()

  def _learn(
    self,
    state: base.AgentState,
    version: np.int32,
    rng_key: jax.Array,
    unroll: types.Unroll,
  ) -> None:
    """Computes gradients with a worker's copy, and applies them to all's."""
    key = jax.random.fold_in(rng_key, version)
    gradients, output = self._gradients(state, key, unroll)
    # Whoever applies next would otherwise wait for this gradient.
    jax.block_until_ready(gradients)
    staleness = self.shared.apply(gradients) - int(version)
    weight, values = jax.device_get((output.weight, output.metrics))
    self.tally.add(
      float(weight),
      staleness,
      {name: float(value) for name, value in values.items()}
      | {"policy_lag": staleness},
    )


class Shared:
  """The parameters that all workers update, and their optimizer's state."""

  def __init__(self, agent: base.Agent, state: base.AgentState) -> None:
    """Begins with `state`."""
    self._apply = jax.jit(agent.apply)
    self._lock = threading.Lock()
    self._state = state
    self._version = int(state.updates)

  def newest(self) -> tuple[base.AgentState, np.int32]:
    """The newest state, which nothing will change, and its version."""
    with self._lock:
      return self._state, np.int32(self._version)

  def apply(self, gradients: base.Gradients) -> int:
    """Applies gradients; returns the version that they were applied to."""
    with self._lock:
      self._state = self._apply(self._state, gradients)
      self._version += 1
      return self._version - 1
