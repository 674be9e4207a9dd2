"""The learner: updates an agent's state and publishes acting parameters."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedx import metrics, replay, sharding, types
from seedx.agents import base
from seedx.learning import (
  blocking,
  experience,
  inbox,
  pending,
  plans,
  updates,
)
from seedx.runtime import hosts, process_parts, progress, publication


@dataclasses.dataclass(frozen=True)
class DevicesConfig(hosts.Config):
  """Settings of a learner that need no environment.

  Attributes:
    learner_devices: indices of the local devices that learn.
  """

  learner_devices: tuple[int, ...] = types.setting(
    (0,), changes="process", alike=True
  )

  def cores(self) -> list[jax.Device]:
    """Returns the learner devices.

    Raises:
      types.ConfigError: a device is missing or given twice, or none is given.
    """
    return sharding.devices(self.learner_devices, "learner")

  @property
  def num_cores(self) -> int:
    """Number of learner devices of all hosts, at least 1."""
    return self.hosts * max(1, len(self.learner_devices))

  @property
  def parts(self) -> int:
    """Number of equal parts of a batch."""
    return self.num_cores


@dataclasses.dataclass(frozen=True)
class Config(DevicesConfig):
  """Settings of a learner.

  Attributes:
    unroll_length: number of env steps of each environment in an unroll (T).
    micro_batches: number of parts of a batch whose gradients are accumulated
      for one update; inference on the same device can run between them.
  """

  unroll_length: int = types.setting(20, low=1, high=2**20)
  micro_batches: int = types.setting(
    1, changes="resume", alike=True, low=1, high=2**20
  )

  @property
  def parts(self) -> int:
    """Number of learner devices of all hosts, times `micro_batches`."""
    return self.num_cores * self.micro_batches

  def plan(
    self,
    total_steps: int,
    batch_steps: int,
    replay: replay.Config | None = None,
    num_envs: int = 0,
  ) -> plans.Plan:
    """Returns the amounts of experience of a run; see `plans.Plan`."""
    return plans.Plan(
      total_steps,
      batch_steps,
      replay,
      parts=self.parts,
      processes=self.hosts,
      unroll_length=self.unroll_length,
      num_envs=num_envs,
    )

  def check_divides(self, name: str, size: int, parts: int) -> None:
    """Checks that `parts` divides `size`, the value of the setting `name`.

    Raises:
      types.ConfigError: there is a remainder.
    """
    if size % parts:
      raise types.ConfigError(
        f"expected {name} that is a multiple of {parts}, because there are"
        f" {self.num_cores} learner devices and micro_batches is"
        f" {self.micro_batches}, found {size}"
      )

  def parts_of_unrolls(self, replay: replay.Config | None) -> int:
    """Returns the number of equal parts into which a batch of unrolls is split.

    The number is `parts`; or `num_cores` with a replay, whose samples are then
    split into micro-batches instead.

    Raises:
      types.ConfigError: the replay is prioritized and `micro_batches` is above
        1.
    """
    if replay and replay.has_priorities and self.micro_batches > 1:
      raise types.ConfigError(
        "expected 1 micro-batch: new priorities are those of a whole batch,"
        f" found micro_batches {self.micro_batches}"
      )
    return self.parts if replay is None else self.num_cores

  def check_batches(self, parts: int) -> None:
    """Raises types.ConfigError: only an `InboxConfig` has a `batch_size`."""
    raise types.ConfigError(
      "expected a learner.InboxConfig, which has a batch_size, found a"
      " learner.Config, which is for the pipelines sync and anakin"
    )


@dataclasses.dataclass(frozen=True)
class InboxConfig(Config):
  """Settings of a learner that receives experience through an inbox.

  Attributes:
    batch_size: number of unrolls in a batch, over all learner hosts. A batch
      makes one update, or is added to the replay.
    queue_capacity: number of batches that may wait for the learner.
  """

  batch_size: int = types.setting(64, low=1, high=2**20)
  queue_capacity: int = types.setting(1, changes="resume", low=1, high=2**20)

  def check_batches(self, parts: int) -> None:
    """Checks that `parts` divides `batch_size`.

    Raises:
      types.ConfigError: there is a remainder.
    """
    self.check_divides("batch_size", self.batch_size, parts)

  @property
  def batch_steps(self) -> int:
    """Number of env steps in a batch of unrolls."""
    return self.batch_size * self.unroll_length

  @property
  def share_size(self) -> int:
    """Number of unrolls in each core's share of a batch."""
    return self.batch_size // self.num_cores


class Learner:
  """Learner of an agent, whose batches are sharded over the learner cores.

  When acting runs concurrently, the pipeline puts shares into `inbox`, calls
  `run` on a thread, and acts with the parameters that `newest` returns. When
  acting and learning alternate, the pipeline calls `learn_from`.

  Attributes:
    agent: the agent that learns.
    version: version of the newest parameters: the number of updates so far,
      including skipped updates and updates for which no host had a batch.
    learned_steps: number of env steps learned from in finished updates; resets
      and skipped updates do not count.
    cores: the learner devices of this host, in order.
    inbox: bounded queues of shares.
    source: experience that turns shares into batches.
    blocking: meter of the time for which updates make acting wait.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: DevicesConfig,
    source: experience.Experience,
    rng_key: jax.Array,
    *,
    acting_on: Sequence[jax.Device] = (),
    stop: threading.Event | None = None,
  ) -> None:
    """Initializes the agent's state and publishes its parameters.

    Args:
      agent: agent made with `axis_name=sharding.CORES`.
      config: settings of the learner.
      source: experience that turns shares into batches.
      rng_key: random key of the initial state and all updates.
      acting_on: devices that act; the first learner core if empty.
      stop: event that ends `run`; the inbox must be closed as well.

    Raises:
      types.ConfigError: a device does not exist, or there are several
        micro-batches and the agent needs whole batches.
    """
    micro_batches = config.parts // config.num_cores
    if micro_batches > 1 and agent.needs.whole_batches:
      raise types.ConfigError(
        "expected micro_batches 1, because this agent takes several steps on"
        f" each batch, with minibatches of its own, found {micro_batches}"
      )
    self.agent = agent
    self.cores = config.cores()
    self.version = 0
    self.learned_steps = 0.0
    self._mesh = sharding.mesh(self._all_cores(config))
    init_key, rng_key = jax.random.split(rng_key)
    self._rng_key = np.asarray(jax.random.key_data(rng_key))
    # Replicated over all cores of all hosts. Only updates may compute with the
    # state, because all hosts must run the same computation.
    self._state = sharding.replicate(jax.jit(agent.init)(init_key), self._mesh)
    # Keeps the state consistent with its counters.
    self._changing = threading.Lock()
    self.source = source
    self._stop = stop or threading.Event()
    self._acting = jax.jit(agent.acting)
    # Whether the acting parameters are arrays of the state.
    program = jax.make_jaxpr(agent.acting)(self._state).jaxpr
    self._acts_with_state = all(
      any(output is x for x in program.invars) for output in program.outvars
    )
    on_core = self._on_core(agent)
    self._update: updates.Program = (
      updates.Whole(on_core, self._mesh)
      if micro_batches == 1
      else updates.Accumulation(on_core, self._mesh, micro_batches)
    )
    if micro_batches == config.hosts == 1 and self._may_wait(acting_on):
      source.combine(updates.packed(on_core.whole))
    self._skipped = progress.SkippedUpdates()
    # Number of updates for which no host had a batch, see `together`.
    self._idle = 0
    self._pending: list[pending.Update] = []
    # Env steps and batches of the restored checkpoint that were learned from,
    # but not yet reported to the source. The next update reports them.
    self._uncounted = 0.0, 0
    # Whether an update is being dispatched: it is not yet in `_pending`.
    self._dispatching = False
    # Metrics of the last finished update, on the device until `measure`.
    self._metrics: updates.Metrics | None = None
    self.inbox = inbox.Inbox(
      self.cores,
      config.queue_capacity if isinstance(config, InboxConfig) else 1,
    )
    self._published = publication.Publication(acting_on or self.cores[:1])
    self.blocking = blocking.Blocking(
      self.cores, acting_on or (), micro_batches, self._is_updating
    )
    self.publish()

  @property
  def state(self) -> base.AgentState:
    """The newest state, on the first core of this host.

    Any thread may use this state: no update donates it.
    """
    return sharding.local(self._state)

  def run(self, example: Callable[[], types.Share]) -> None:
    """Learns from the inbox until stopped; `example` makes a share of zeros."""
    self.warm_up([jax.device_put(example(), core) for core in self.cores])
    for batch in self._batches():
      self.learn(batch)
      self.publish(wait=False)
      if self._is_over():
        break
    self.finish()

  def warm_up(self, shares: Sequence[types.Share]) -> None:
    """Compiles the update for shares of these shapes; the state stays the same.

    If there is a replay, it is allocated.
    """
    if make := self.source.example(shares).updates:
      self._learn_several(make)
      return
    inputs = self._inputs(self._zeros(shares))
    jax.block_until_ready(self._update(self._state, inputs))

  def shares(
    self,
    data: types.Tree,
    priorities: types.Tree = (),
    origin: types.Tree = (),
  ) -> list[types.Share]:
    """Splits data into one share for each core of this host.

    The data are `[L, B, ...]` unrolls, see `types.Share`, with B instead of S;
    or the batch of an agent that learns from anything else.
    """
    share, parts = types.Share(data, priorities, origin), len(self.cores)
    specs: Any = sharding.SHARE
    if self.agent.needs.window is None:
      specs = specs._replace(data=self.agent.needs.specs)
    return [
      sharding.put(sharding.shard(share, specs, i, parts), core)
      for i, core in enumerate(self.cores)
    ]

  def learn_from(self, shares: Sequence[types.Share]) -> None:
    """Takes one new share per core, and makes the updates that are then due."""
    for batch in self.source(shares):
      self.learn(batch)
      if self._is_over():
        break  # The remaining updates stay due after a resume.

  @functools.partial(jax.profiler.annotate_function, name="learn")
  def learn(self, batch: experience.Batch | None) -> None:
    """Makes one update, and sends the batch's new priorities to its source.

    An update whose result is not finite is skipped (`updates.keep_finite`): the
    state stays the same, and the version increases. The batch is None on a host
    that has no batch for an update of all hosts.

    Raises:
      RuntimeError: many updates in a row were skipped.
    """
    if batch is not None and batch.updates:
      self._learn_several(batch.updates)
      return
    inputs = self._inputs_of(batch)
    self._release()
    self._dispatching = True
    result = self._update(self._state, inputs)
    priorities = result.output.priorities
    with self._changing:
      output = result.output._replace(priorities=None)
      # A checkpoint needs the old state if this update hangs.
      is_done = publication.is_ready(result.skipped)
      old_state = None if is_done else self._state
      outputs = result._replace(state=(), output=output)
      self._pending.append(
        pending.Update(old_state, outputs, batch is not None)
      )
      self._state = result.state
      self.version += 1
    self._count()
    if batch is not None and batch.windows:
      assert priorities is not None
      shards = sharding.own_shards(priorities)
      self.source.learned(batch.windows, [shards[core] for core in self.cores])

  def _learn_several(self, make: Callable[..., Any]) -> None:
    """Makes updates that a checkpoint leaves out until the last has ended."""
    self._dispatching = True
    inputs = updates.Inputs(np.int32(self.version), self._rng_key, ())
    state, results = make(self._state, inputs)
    with self._changing:
      self._state = state
      self.version += len(results)
      self._pending += [pending.Update(None, x, True) for x in results]
    if results:
      self._count()

  def _count(self) -> None:
    """Counts the updates that have ended."""
    self._dispatching = False
    self.source.counted(*self._uncounted)
    self._uncounted = 0.0, 0
    # Inference on the same device waits for all dispatched updates, so at most
    # one of them may be running.
    self._finish(keep=1)
    self._skipped.check()

  def publish(self, wait: bool = True) -> None:
    """Publishes the newest acting parameters; waits until they are computed.

    Without `wait`, `newest` returns older parameters until then.
    """
    self._published.put(self.acting(), self.version, wait)

  def newest(self, device: jax.Device | None = None) -> tuple[types.Tree, int]:
    """Returns the newest computed acting parameters, and their version.

    The parameters are on `device`; on the first of `acting_on` if None.
    """
    return self._published.newest(device)

  def acting(self, state: base.AgentState | None = None) -> types.Tree:
    """Returns the acting parameters of a state, by default the newest."""
    if state is not None:
      return self._acting(state)
    if self._acts_with_state:  # No other array of the state is touched.
      return sharding.local(self.agent.acting(self._state))
    return self._acting(self.state)

  @property
  def replay(self) -> process_parts.Replay | None:
    """The part of the source of batches that a checkpoint stores."""
    return self.source.kept

  def policy(self, saved: types.Tree) -> types.Tree:
    """Computes acting parameters from the saved parts of a process."""
    return self.acting(saved["agent"])

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the learner's fields of a line of metrics."""
    return {
      "learner_steps": self.version - self._skipped.updates - self._idle,
      "learned_steps": int(self.learned_steps),
      "updates_skipped": self._skipped.updates,
      "policy_lag": None,
      **(self._metrics.copied() if self._metrics else {}),
      **self.inbox.measure(),
      **self.source.measure(),
      **self.blocking.measure(),
    }

  def saved(self) -> process_parts.PartState:
    """Returns the newest computed state for a checkpoint, with its counts.

    It waits up to two seconds for a running update. An update that takes longer
    or fails is left out. Any thread may call it.
    """
    with self._changing:
      state, steps, idle = self._state, self.version, self._idle
      learned, skipped = self.learned_steps, self._skipped.updates
      running, uncounted = list(self._pending), self._uncounted
    state, computed = pending.newest_computed(state, running)
    steps -= len(running) - len(computed)
    for update in computed:
      batches = self._batches_in(update.result)
      idle += not batches
      if update.result.skipped:
        skipped += 1
        continue
      weight = float(update.result.output.weight)
      learned += weight
      if update.has_batch:
        uncounted = uncounted[0] + weight / batches, uncounted[1] + 1
    counts = {
      "rng_key": self._rng_key,
      "steps": np.int64(steps - idle),
      "learned_steps": np.float64(learned),
      "uncounted_steps": np.float64(uncounted[0]),
      "uncounted_batches": np.int64(uncounted[1]),
      "updates_skipped": np.int64(skipped),
    }
    return process_parts.PartState(sharding.local(state), counts)

  def restore(self, saved: process_parts.PartState) -> None:
    """Restores what `saved` returned, before learning starts."""
    state, counts = saved
    self._state = sharding.replicate(state, self._mesh)
    self._rng_key = np.asarray(counts["rng_key"])
    self.version = int(counts["steps"])
    self.learned_steps = float(counts["learned_steps"])
    self._skipped.updates = int(counts["updates_skipped"])
    steps, batches = counts["uncounted_steps"], counts["uncounted_batches"]
    self._uncounted = float(steps), int(batches)
    self.source.resume(self.version, float(state.resets))
    self.publish()

  def leave_out(self, updates: float) -> None:
    """Moves the restored schedules; see `base.AgentState.leave_out`."""
    saved = self.saved()
    self.restore(saved._replace(agent=saved.agent.leave_out(updates)))

  def begin(self, params: types.Tree, statistics: types.Tree) -> None:
    """Replaces the initial state before learning starts; see `base.begin`."""
    begin = jax.jit(functools.partial(base.begin, self.agent))
    self._state = sharding.replicate(begin(params, statistics), self._mesh)
    self.publish()

  def finish(self) -> None:
    """Waits for the running update and reads its outputs."""
    self._finish(keep=0)

  def _finish(self, keep: int) -> None:
    """Reads the outputs of all but the newest `keep` updates."""
    while len(self._pending) > keep:
      result = self._pending[0].result
      output, output_metrics = result.output, result.output.metrics
      # Metrics stay on the device until `measure`: each copy takes time.
      # For so few numbers, `jax.device_get` takes six times as long.
      result = jax.tree.map(
        np.asarray, result._replace(output=output._replace(metrics=()))
      )
      batches = self._batches_in(result)
      self._read(result)
      if not result.skipped and batches:
        self._metrics = output_metrics
      with self._changing:
        self._skipped.add(int(result.skipped), int(not result.skipped))
        self._idle += not batches
        if not result.skipped:
          self.learned_steps += float(result.output.weight)
          if self._pending[0].has_batch:
            self.source.counted(float(result.output.weight) / batches)
        del self._pending[0]

  def _release(self) -> None:
    """Releases the states before updates that have ended.

    Otherwise, the next update would allocate a third state on the devices.
    """
    with self._changing:
      self._pending = [
        dataclasses.replace(x, before=None) if x.has_ended() else x
        for x in self._pending
      ]

  def _is_updating(self) -> bool:
    with self._changing:
      running = [x.result.skipped for x in self._pending]
    return self._dispatching or not publication.is_ready(running)

  def _may_wait(self, acting_on: Sequence[jax.Device]) -> bool:
    """Returns whether one program may make several updates.

    Acting on a learner device would wait for all of them. In a loop, XLA for
    CPU computes a convolution's gradient 13 times slower.
    """
    acts = not {*self.cores}.isdisjoint(acting_on)
    has_images = any(x.ndim > 3 for x in jax.tree.leaves(self._state))
    return not acts and not (self.cores[0].platform == "cpu" and has_images)

  def _zeros(self, shares: Sequence[types.Share]) -> list[types.Tree]:
    """Returns each core's part of a batch of zeros; allocates the replay."""
    needs, batch = self.agent.needs, self.source.example(shares)
    # New priorities need a whole batch.
    if not (needs.whole_batches or batch.windows):
      self.blocking.divisible = sharding.size(batch.parts[0], needs.specs)
    return [jax.tree.map(jnp.zeros_like, part) for part in batch.parts]

  def _inputs(self, parts: Sequence[types.Tree]) -> updates.Inputs:
    specs = self.agent.needs.specs
    batch = sharding.assemble(parts, self._mesh, specs)
    return updates.Inputs(np.int32(self.version), self._rng_key, batch)

  # `multihost.MultihostLearner` overrides these methods.

  def _all_cores(self, config: DevicesConfig) -> Sequence[jax.Device]:
    return self.cores

  def _on_core(self, agent: base.Agent) -> updates.OnCore:
    return updates.OnCore(agent)

  def _is_over(self) -> bool:
    return self._stop.is_set()

  def _batches(self) -> Iterator[experience.Batch | None]:
    for shares in iter(self.inbox.get, None):
      yield from self.source(shares)

  def _inputs_of(self, batch: experience.Batch | None) -> Any:
    assert batch is not None
    return self._inputs(batch.parts)

  def _batches_in(self, result: Any) -> int:
    """Returns the number of hosts whose batches an update learned from."""
    del result
    return 1

  def _read(self, result: Any) -> None:
    """Receives each update's result, copied from the devices, in order."""
