"""Central inference: the server's sessions, and a thread for each device."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import jax
import jax.numpy as jnp
import numpy as np

from seedx import metrics, types, wire
from seedx.agents import base
from seedx.runtime import batcher, leases, parameters, progress, unrolls

Sink = Callable[[types.Unroll], bool]


@dataclasses.dataclass(frozen=True)
class Config:
  """How inference batches and what it assembles.

  Attributes:
    layout: the unroll store of each device.
    unrolls_per_item: unrolls that are handed to the sink at a time.
    target_rows: rows that are worth an inference step.
    max_rows: rows of the largest one.
    max_wait_seconds: how long fewer than `target_rows` are waited with.
  """

  layout: unrolls.Layout
  unrolls_per_item: int
  target_rows: int
  max_rows: int
  max_wait_seconds: float

  @property
  def sizes(self) -> list[int]:
    """The sizes that batches are padded to, ascending."""
    quarter = -(-self.target_rows // 4)
    return sorted({quarter, self.target_rows, self.max_rows})


class Inference:
  """One inference device: its slots, its store, its unrolls.

  Attributes:
    leases: who holds which slots.
    reports: `[N]`, whether a slot's episode returns are reported.
    batcher: call it with an `unrolls.Batch` to act; `run` serves it.
  """

  def __init__(
    self,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    device: jax.Device,
    config: Config,
    snapshots: parameters.Snapshots,
    sink: Sink,
    rng_key: jax.Array,
    waits: metrics.Waits,
  ) -> None:
    """Makes the device's store; nothing is compiled before `run`.

    Args:
      agent: what acts.
      spec: of the environments.
      device: where it acts.
      config: sizes.
      snapshots: the parameters to act with.
      sink: takes finished unrolls `[length, unrolls_per_item, ...]` on this
        device; blocks when it is full, and returns False when all is over.
      rng_key: of this device alone.
      waits: counts `inference_wait_requests` and `inference_wait_device`.
    """
    self.leases = leases.Leases(config.layout.num_slots)
    self.reports = progress.reports(agent.exploration(config.layout.num_slots))
    self.batcher = batcher.Batcher(
      self._act,
      target_rows=config.target_rows,
      max_wait_seconds=config.max_wait_seconds,
      sizes=config.sizes,
      waits=waits,
    )
    self._config = config
    self._device = device
    self._snapshots = snapshots
    self._sink = sink
    self._waits = waits
    self._rng_key = jax.device_put(rng_key, device)
    self._calls = 0
    inputs = base.zero_inputs(spec, 1)
    acting, _ = snapshots.latest(device)
    with jax.default_device(device):
      store = unrolls.empty(agent, inputs, acting, config.layout)
    self._store = jax.device_put(store, device)
    self._inputs = inputs
    self._filling: types.Unroll | None = None
    self._filled = 0
    self._programs = _Programs(agent, config, self._store, device)

  def run(self) -> None:
    """Compiles every size, then serves requests until the batcher closes."""
    layout = self._config.layout
    for size in self._config.sizes:
      rows = np.zeros(size, np.int32)
      padding = np.full(size, layout.num_slots, np.int32)
      timestep = jax.tree.map(
        lambda leaf, size=size: np.repeat(leaf, size, axis=0),
        self._inputs.timestep,
      )
      self._step(unrolls.Batch(padding, rows, timestep))
      self._collect(padding[:0], rows[:0], size)
    self.batcher.run()

  def empty_item(self) -> types.Unroll:
    """What the sink is given, of zeros; from any thread."""
    return self._programs.empty()

  def compiled(self) -> int:
    """How many programs have been compiled; for a test that none are later."""
    return self._programs.compiled()

  def _act(self, batch: unrolls.Batch, rows: int, reply: batcher.Reply) -> None:
    slot, count = batch.slot, batch.count
    if rows < len(slot):
      slot[rows:] = self._config.layout.num_slots
    actions = self._step(batch)
    with self._waits.timed("inference_wait_device"):
      reply(np.asarray(actions))
    finished = np.flatnonzero(self._config.layout.finished(count[:rows]))
    while len(finished):
      room = self._config.unrolls_per_item - self._filled
      taken, finished = finished[:room], finished[room:]
      self._collect(slot[taken], count[taken])
      full = self._filled == self._config.unrolls_per_item
      if full and not self._sink(self._take_item()):
        return

  def _take_item(self) -> types.Unroll:
    assert self._filling is not None
    item, self._filling, self._filled = self._filling, None, 0
    return item

  def _step(self, batch: unrolls.Batch) -> jax.Array:
    acting, version = self._snapshots.latest(self._device)
    self._store, actions = self._programs.act(
      self._store,
      acting,
      np.int32(version),
      self._rng_key,
      np.uint32(self._calls),
      batch,
    )
    self._calls += 1
    return actions

  def _collect(
    self, slot: np.ndarray, count: np.ndarray, size: int | None = None
  ) -> None:
    """Copies finished unrolls out; `size` rows where they have to be padded."""
    rows = len(slot)
    size = size or next(s for s in self._config.sizes if s >= rows)
    place = np.full(size, self._config.unrolls_per_item, np.int32)
    place[:rows] = np.arange(self._filled, self._filled + rows)
    slots, counts = (np.zeros(size, np.int32) for _ in range(2))
    slots[:rows], counts[:rows] = slot, count
    if self._filling is None:
      self._filling = self._programs.empty()
    self._filling = self._programs.collect(
      self._store, self._filling, slots, counts, place
    )
    self._filled += rows


class _Programs:
  """The jitted functions of one device."""

  def __init__(
    self,
    agent: base.Agent,
    config: Config,
    store: unrolls.Store,
    device: jax.Device,
  ) -> None:
    layout = config.layout
    # The store itself is donated at every step: keep its shapes alone.
    shapes = jax.eval_shape(lambda: store)

    def act(
      store: unrolls.Store,
      acting: types.Tree,
      version: jax.Array,
      rng_key: jax.Array,
      call: jax.Array,
      batch: unrolls.Batch,
    ) -> tuple[unrolls.Store, jax.Array]:
      step_key = jax.random.fold_in(rng_key, call)
      return unrolls.act(
        agent, layout, store, acting, jnp.int32(version), step_key, batch
      )

    self.act = jax.jit(act, donate_argnums=0)
    self.collect = jax.jit(
      functools.partial(unrolls.collect, layout), donate_argnums=1
    )
    self.empty = jax.jit(
      lambda: unrolls.empty_unrolls(shapes, config.unrolls_per_item),
      out_shardings=jax.sharding.SingleDeviceSharding(device),
    )

  def compiled(self) -> int:
    """How many programs have been compiled."""
    programs: list[Any] = [self.act, self.collect, self.empty]
    return sum(program._cache_size() for program in programs)


class Sessions:
  """Opens a session for each actor, on the device with the most free slots.

  Attributes:
    seeds: of their environments.
  """

  def __init__(
    self,
    inferences: Sequence[Inference],
    counts: progress.Progress,
    config: Config,
    seed: int,
  ) -> None:
    """`seed`: of the run; the environments' seeds are derived from it."""
    self._inferences = inferences
    self._progress = counts
    self._layout = config.layout
    self._lock = threading.Lock()
    self.seeds = leases.Seeds(seed)

  def __call__(self, hello: Mapping[str, Any]) -> "Session":
    """Leases slots for an actor's hello `{"num_envs": n}`.

    Raises:
      wire.Refused: the hello is malformed or no device has n slots free.
    """
    num_envs = leases.wanted(hello, self._layout.num_slots)
    with self._lock:
      inference = max(self._inferences, key=lambda place: place.leases.free)
      slots = inference.leases.take(num_envs)
    if slots is None:
      raise leases.no_place(inference.leases.free, num_envs)
    first_seed = self.seeds.take(num_envs)
    return Session(inference, slots, first_seed, self._progress, self._layout)


class Session:
  """One actor's lease: its slots, from the stream's start to its end.

  Attributes:
    welcome: what the actor is told first.
  """

  def __init__(
    self,
    inference: Inference,
    slots: np.ndarray,
    first_seed: int,
    counts: progress.Progress,
    layout: unrolls.Layout,
  ) -> None:
    """Holds `slots` until it is closed."""
    self.welcome = {"first_seed": first_seed}
    self._inference = inference
    self._slots = slots
    self._counts = np.zeros(len(slots), np.int32)
    self._progress = counts
    self._layout = layout
    self._lock = threading.Lock()
    self._busy = False
    self._closed = False

  def __call__(self, inputs: types.Rows) -> types.Tree:
    """Acts for some of the lease's environments.

    Raises:
      wire.Refused: an index is out of the lease's range, or comes twice; or
        the run is over.
    """
    index = inputs.index
    self._check(index)
    with self._lock:
      if self._closed:
        raise _over()
      self._busy = True
    try:
      slot = self._slots[index]
      self._progress.add_rows(inputs, self._inference.reports[slot])
      batch = unrolls.Batch(
        slot=slot,
        count=self._counts[index],
        timestep=inputs.timestep,
      )
      self._counts[index] += 1
      return self._inference.batcher(batch, len(index))
    except batcher.Closed:
      raise _over() from None
    finally:
      with self._lock:
        self._busy = False
        if self._closed:
          self._release()

  def close(self) -> None:
    """Gives the slots back, once a step that is under way has ended."""
    with self._lock:
      self._closed = True
      if not self._busy:
        self._release()

  def _release(self) -> None:
    self._inference.leases.give_back(self._slots)
    begun = -(-self._counts // self._layout.period)
    past_first = self._counts - self._layout.length
    finished = np.where(
      past_first < 0, 0, past_first // self._layout.period + 1
    )
    self._progress.add_discarded(int(np.sum(begun - finished)))

  def _check(self, index: np.ndarray) -> None:
    if index.min() < 0 or index.max() >= len(self._slots):
      raise wire.Refused(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"expected indices from 0 to {len(self._slots) - 1}, the lease's"
        f" environments, found {index.min()} to {index.max()}",
      )
    times = np.bincount(index)
    if times.max() > 1:
      raise wire.Refused(
        grpc.StatusCode.INVALID_ARGUMENT,
        "expected each environment at most once in a message, found"
        f" {times.argmax()} {times.max()} times",
      )


def _over() -> wire.Refused:
  return wire.Refused(grpc.StatusCode.UNAVAILABLE, "this run is over")
