"""The learner: takes finished unrolls, updates, publishes parameters."""

import collections
import dataclasses
import threading
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from seedx import metrics, sharding, types
from seedx.agents import base
from seedx.learning import experience, updates
from seedx.runtime import counters


@dataclasses.dataclass(frozen=True)
class Config:
  """The config of a learner.

  Attributes:
    unroll_length: T, env steps of each environment in an unroll.
    learner_devices: indices of the local devices that learn.
    micro_batches: gradient accumulation steps of an update; inference on the
      same device can run between them.
  """

  unroll_length: int = 20
  learner_devices: tuple[int, ...] = (0,)
  micro_batches: int = 1

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_ranges(self, unroll_length=(1, 2**20), micro_batches=(1, 2**20))

  def cores(self) -> list[jax.Device]:
    """The learner devices.

    Raises:
      types.ConfigError: there is no such device, or one is named twice.
    """
    return sharding.devices(self.learner_devices, "learner")

  @property
  def num_cores(self) -> int:
    """Number of learner devices, at least 1."""
    return max(1, len(self.learner_devices))

  @property
  def parts(self) -> int:
    """Parts of a batch: learner devices times micro-batches."""
    return self.num_cores * self.micro_batches

  def check_divides(self, name: str, size: int, parts: int) -> None:
    """Checks that `parts` divides `size`.

    Args:
      name: of the setting that `size` is.
      size: unrolls.
      parts: equal parts to divide them into.

    Raises:
      types.ConfigError: it does not.
    """
    if size % parts:
      raise types.ConfigError(
        f"expected {name} that is a multiple of {parts}, for {self.num_cores}"
        f" learner devices with {self.micro_batches} micro-batches each, found"
        f" {size}"
      )

  def parts_of_unrolls(self, replay: experience.ReplayConfig | None) -> int:
    """Equal parts into which a batch of unrolls is divided.

    Args:
      replay: which takes the unrolls; None if updates are made of them.

    Raises:
      types.ConfigError: there are micro-batches and a prioritized replay.
    """
    prioritized = isinstance(replay, experience.PrioritizedConfig)
    if prioritized and self.micro_batches > 1:
      raise types.ConfigError(
        "expected 1 micro-batch: new priorities are those of a whole batch,"
        f" found micro_batches {self.micro_batches}"
      )
    return self.parts if replay is None else self.num_cores

  def check_batches(self, parts: int) -> None:
    """Checks that batches can be divided into `parts`; see `InboxConfig`.

    Raises:
      types.ConfigError: they cannot, or there is no `batch_size`.
    """
    raise types.ConfigError(
      "expected a learner.InboxConfig, which has a batch_size, found a"
      " learner.Config, which is for the pipeline sync"
    )


@dataclasses.dataclass(frozen=True)
class InboxConfig(Config):
  """The config of a learner with an inbox.

  Attributes:
    batch_size: unrolls in a batch, for an update or to add to the replay.
    queue_capacity: batches that may wait for the learner.
  """

  batch_size: int = 64
  queue_capacity: int = 1

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    super().__post_init__()
    types.check_ranges(self, batch_size=(1, 2**20), queue_capacity=(1, 2**20))

  def check_batches(self, parts: int) -> None:
    """Checks that `parts` divides `batch_size`.

    Raises:
      types.ConfigError: it does not.
    """
    self.check_divides("batch_size", self.batch_size, parts)

  @property
  def batch_steps(self) -> int:
    """Env steps in the unrolls of a batch."""
    return self.batch_size * self.unroll_length

  @property
  def share_size(self) -> int:
    """Unrolls in each core's share of a batch."""
    return self.batch_size // self.num_cores


class Learner:
  """Updates an agent's state with batches sharded over the learner cores.

  If acting runs concurrently, the pipeline puts shares into `inbox`, calls
  `run` on a thread, and reads `newest`. In lock step, it calls `learn`.

  Attributes:
    steps: updates so far, with those that were skipped; also the version of the
      newest parameters.
    learned_steps: env steps learned from, without resets.
    state: the newest state, on every core.
    cores: the learner devices, in order.
    inbox: bounded queues of shares.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: Config,
    source: experience.Experience,
    rng_key: jax.Array,
    *,
    acting_on: Sequence[jax.Device] = (),
    stop: threading.Event | None = None,
  ) -> None:
    """Makes the initial state; no update is compiled yet.

    Args:
      agent: made with `axis_name=sharding.CORES`.
      config: the learner devices and micro-batches.
      source: turns shares into batches.
      rng_key: for the initial state and all updates.
      acting_on: the devices that act, for `newest`; the first core if empty.
      stop: ends `run`, and every wait at the inbox.

    Raises:
      types.ConfigError: a device does not exist, or there are several
        micro-batches and the agent needs whole batches.
    """
    micro_batches = config.micro_batches
    if micro_batches > 1 and agent.needs.whole_batches:
      raise types.ConfigError(
        "expected micro_batches 1: this agent takes several steps on a batch,"
        f" with minibatches of its own, found {micro_batches}"
      )
    self.cores = config.cores()
    self.steps = 0
    self.learned_steps = 0.0
    self._mesh = sharding.mesh(self.cores)
    init_key, self._rng_key = jax.random.split(rng_key)
    self.state = sharding.replicate(jax.jit(agent.init)(init_key), self._mesh)
    # Held while the state and its counters change together.
    self._changing = threading.Lock()
    self._source = source
    self._stop = stop or threading.Event()
    self._acting = jax.jit(agent.acting)
    self._specs = updates.specs(agent)
    self._update = (
      updates.whole(agent, self._mesh)
      if micro_batches == 1
      else updates.accumulated(agent, self._mesh, micro_batches)
    )
    self._skipped = counters.Skipped()
    # Outputs of updates that may still be running; whether each was skipped.
    self._pending: list[tuple[types.LossOutput, jax.Array]] = []
    self._metrics: dict[str, float] = {}
    self._waits = metrics.Waits({metrics.WAIT_EXPERIENCE: 1})
    self.inbox = Inbox(
      self.cores,
      config.queue_capacity if isinstance(config, InboxConfig) else 1,
      self._stop,
      self._waits,
    )
    self._acting_on = tuple(dict.fromkeys(acting_on or self.cores[:1]))
    self._publishing = threading.Lock()
    self._newest: dict[jax.Device, types.Tree] = {}
    self._version = 0
    self.publish()

  def run(self, example: Callable[[], types.Share]) -> None:
    """Learns from the inbox until stopped.

    Args:
      example: makes a share of zeros, to compile the update with.
    """
    self.warm_up([jax.device_put(example(), core) for core in self.cores])
    batches = (
      batch
      for shares in iter(self.inbox.get, None)
      for batch in self._source(shares)
    )
    for batch in batches:
      self.learn(batch)
      self.publish()
      if self._stop.is_set():
        break
    self.finish()

  def warm_up(self, shares: Sequence[types.Share]) -> None:
    """Compiles the update for shares like these; keeps the state."""
    batch = self._source.example(shares)
    whole = sharding.assemble(batch.parts, self._mesh, self._specs)
    jax.block_until_ready(
      self._update(self.state, jnp.int32(0), self._rng_key, whole)
    )

  def shares(
    self, unroll: types.Unroll, priorities: types.Tree = ()
  ) -> list[types.Share]:
    """Splits unrolls `[L, B, ...]` into a share for each core.

    Args:
      unroll: `[L, B, ...]`.
      priorities: `[B, windows]`, of each unroll's windows; () without.
    """
    share, parts = types.Share(unroll, priorities), len(self.cores)
    return [
      jax.device_put(sharding.shard(share, sharding.SHARE, i, parts), core)
      for i, core in enumerate(self.cores)
    ]

  def learn(self, batch: experience.Batch) -> None:
    """Makes one update, and gives the batch's new priorities to the source.

    An update that is not finite is skipped: the state stays as it is.

    Raises:
      RuntimeError: many updates in a row were skipped.
    """
    whole = sharding.assemble(batch.parts, self._mesh, self._specs)
    key = jax.random.fold_in(self._rng_key, self.steps)
    version = jnp.int32(self.steps)
    state, output, skipped = self._update(self.state, version, key, whole)
    with self._changing:
      self.state = state
      self.steps += 1
      self._pending.append((output, skipped))
    # At most one update runs while the next is prepared: inference on the same
    # device waits for all of them.
    self._finish(keep=1)
    self._skipped.check()
    if batch.windows is not None:
      assert output.priorities is not None
      own = {x.device: x.data for x in output.priorities.addressable_shards}
      self._source.learned(batch.windows, [own[core] for core in self.cores])

  def publish(self) -> None:
    """Publishes the newest state: `newest` returns its acting parameters.

    No later update may donate them: `device_put` to the same device only
    aliases them.
    """
    acting = self.acting()
    newest = {x: jax.device_put(acting, x) for x in self._acting_on}
    with self._publishing:
      self._newest, self._version = newest, self.steps

  def newest(self, device: jax.Device | None = None) -> tuple[types.Tree, int]:
    """The acting parameters published last, and their version.

    Args:
      device: where to have them; the first of `acting_on` if None.
    """
    with self._publishing:
      return self._newest[device or self._acting_on[0]], self._version

  def acting(self, state: base.AgentState | None = None) -> types.Tree:
    """The acting parameters of a state; of the newest one if None."""
    return self._acting(self.state if state is None else state)

  @property
  def replay(self) -> experience.Replayed | None:
    """The replay that it learns from, if there is one, for checkpoints."""
    source = self._source
    return source if isinstance(source, experience.Replayed) else None

  def policy(self, saved: types.Tree) -> types.Tree:
    """The acting parameters of a saved process whose `learner` part this is."""
    return self.acting(saved["learner"]["agent"])

  def measure(self) -> dict[str, metrics.Value]:
    """The learner's fields in a line of metrics."""
    return {
      "learner_steps": self.steps - self._skipped.updates,
      "learned_steps": int(self.learned_steps),
      "updates_skipped": self._skipped.updates,
      "policy_lag": None,
      **self._metrics,
      **self._waits.shares(),
      **self._source.measure(),
    }

  def saved(self) -> types.Tree:
    """What a checkpoint keeps; any thread may call it."""
    with self._changing:
      state, steps = self.state, self.steps
      learned, skipped = self.learned_steps, self._skipped.updates
      pending = list(self._pending)
    for output, was_skipped in pending:
      if was_skipped:
        skipped += 1
      else:
        learned += float(output.weight)
    return {
      "agent": state,
      "rng_key": jax.random.key_data(self._rng_key),
      "steps": np.int64(steps),
      "learned_steps": np.float64(learned),
      "updates_skipped": np.int64(skipped),
    }

  def restore(self, saved: types.Tree) -> None:
    """Restores what `saved` returned; call it before learning starts."""
    self.state = sharding.replicate(saved["agent"], self._mesh)
    self._rng_key = jax.random.wrap_key_data(jnp.asarray(saved["rng_key"]))
    self.steps = int(saved["steps"])
    self.learned_steps = float(saved["learned_steps"])
    self._skipped.updates = int(saved["updates_skipped"])
    self._source.resume(self.steps)
    self.publish()

  def finish(self) -> None:
    """Waits for the running update, and reads its outputs."""
    self._finish(keep=0)

  def _finish(self, keep: int) -> None:
    """Reads the outputs of all but the newest `keep` updates."""
    while len(self._pending) > keep:
      output, skipped = jax.device_get(self._pending[0])
      if not skipped:
        self._metrics = {k: float(v) for k, v in output.metrics.items()}
      with self._changing:
        self._skipped.add(int(skipped), int(not skipped))
        if not skipped:
          self.learned_steps += float(output.weight)
        del self._pending[0]


class Inbox:
  """A bounded queue of shares for each learner core, filled evenly.

  `put` blocks while all queues are full; nothing is dropped.
  """

  def __init__(
    self,
    cores: Sequence[jax.Device],
    capacity: int,
    stop: threading.Event,
    waits: metrics.Waits,
  ) -> None:
    """Makes empty queues.

    Args:
      cores: the learner devices, all different.
      capacity: shares in each queue.
      stop: ends every wait within 0.1 seconds.
      waits: measures how long the learner waits here.
    """
    self._cores = list(cores)
    self._capacity = capacity
    self._stop = stop
    self._waits = waits
    self._queues: list[collections.deque[types.Share]] = [
      collections.deque() for _ in cores
    ]
    self._changed = threading.Condition()

  def put(self, share: types.Share) -> bool:
    """Moves a share to the core with the shortest queue; False if stopped."""
    with self._changed:
      while min(len(queue) for queue in self._queues) >= self._capacity:
        if self._stop.is_set():
          return False
        self._changed.wait(0.1)
      lengths = [len(queue) for queue in self._queues]
      shortest = lengths.index(min(lengths))
      self._queues[shortest].append(
        jax.device_put(share, self._cores[shortest])
      )
      self._changed.notify_all()
      return True

  def get(self) -> list[types.Share] | None:
    """Takes one share per core, in order; None if stopped."""
    with self._waits.timed(metrics.WAIT_EXPERIENCE), self._changed:
      while not all(self._queues):
        if self._stop.is_set():
          return None
        self._changed.wait(0.1)
      shares = [queue.popleft() for queue in self._queues]
      self._changed.notify_all()
      return shares
