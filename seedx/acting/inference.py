"""Central inference: a thread for each inference device."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedx import metrics, types
from seedx.acting import batcher, unroll_store
from seedx.acting import slots as slots_lib
from seedx.agents import acting_step, base, random_keys

_WAIT_DEVICE = "acting_wait_device"
Sink = Callable[[types.Share], bool]


@dataclasses.dataclass(frozen=True)
class Config:
  """Devices that compute actions, and the size of their batches.

  Attributes:
    inference_devices: indices of the local devices that compute actions.
    inference_batch_size: number of observations that starts an inference batch;
      0 for half of those that all actors can send at once.
    inference_wait_seconds: seconds after which a smaller batch runs anyway.
  """

  inference_devices: tuple[int, ...] = (0,)
  inference_batch_size: int = 0
  inference_wait_seconds: float = 0.005

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      inference_batch_size=(0, 2**31 - 1),
      inference_wait_seconds=(0.0, types.MOST_SECONDS),
    )

  def sizes(
    self,
    agent: base.Agent,
    actors: slots_lib.Config,
    *,
    rows_per_actor: int,
    period: int,
    share_size: int,
  ) -> "list[Sizes]":
    """The sizes of each device's batches and unroll store.

    Args:
      agent: that acts and learns.
      actors: that connect; the devices divide them.
      rows_per_actor: environments in a message.
      period: T, new env steps of an unroll.
      share_size: unrolls of a share, which the sink takes.

    Raises:
      types.ConfigError: there are more devices than actors.
    """
    num_devices = max(1, len(self.inference_devices))
    if num_devices > actors.num_actors:
      raise types.ConfigError(
        f"expected at most {actors.num_actors} inference_devices, one for each"
        f" actor, found {num_devices}"
      )
    # Split over the devices as one device would have it.
    exploration = agent.exploration(actors.num_envs)
    found, first = [], 0
    for device in range(num_devices):
      num_actors = len(range(device, actors.num_actors, num_devices))
      max_rows = num_actors * rows_per_actor
      # Half of what can be on its way: one half steps while the other acts.
      target_rows = self.inference_batch_size or -(-max_rows // 2)
      num_slots = num_actors * actors.envs_per_actor
      own, first = slice(first, first + num_slots), first + num_slots
      found.append(
        Sizes(
          layout=unroll_store.Layout.of(agent, period, num_slots),
          exploration=exploration[own],
          share_size=share_size,
          target_rows=min(target_rows, max_rows),
          message_rows=rows_per_actor,
          max_rows=max_rows,
          max_wait_seconds=self.inference_wait_seconds,
        )
      )
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
  """How one device batches, and what it assembles.

  Attributes:
    layout: its unroll store.
    exploration: `[N]` float32, of its slots, see `types.Inputs`.
    share_size: unrolls of a share, which the sink takes.
    target_rows: rows at which a batch goes out.
    message_rows: rows of a message; no batch is padded to fewer.
    max_rows: rows of the largest one.
    max_wait_seconds: the longest that fewer than `target_rows` wait.
  """

  layout: unroll_store.Layout
  exploration: np.ndarray
  share_size: int
  target_rows: int
  message_rows: int
  max_rows: int
  max_wait_seconds: float

  @property
  def padded(self) -> list[int]:
    """The sizes that batches are padded to, ascending."""
    least = max(-(-self.target_rows // 4), self.message_rows)
    return sorted(
      {min(least, self.target_rows), self.target_rows, self.max_rows}
    )


class Inference:
  """One inference device: its slots, its store, its unrolls.

  Attributes:
    slots: those that no session holds.
    requests: call it with an `unroll_store.Batch` to act; `run` serves it.
  """

  def __init__(
    self,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    device: jax.Device,
    sizes: Sizes,
    newest: Callable[[jax.Device], tuple[types.Tree, int]],
    sink: Sink,
    rng_key: jax.Array,
    waits: metrics.Waits,
    replies: batcher.Replies,
  ) -> None:
    """Makes the device's store; nothing is compiled before `run`.

    Args:
      agent: what acts.
      spec: of the environments.
      device: where it acts.
      sizes: of its store and its batches.
      newest: the parameters to act with, on a device, and their version.
      sink: takes finished unrolls `[length, share_size, ...]` on this device;
        blocks when it is full, and returns False when all is over.
      rng_key: of this device alone.
      waits: counts `acting_wait_environments` and `acting_wait_device`.
      replies: is told of each batch.
    """
    self.slots = slots_lib.Slots(sizes.layout.num_slots)
    self.requests = batcher.Batcher(
      target_rows=sizes.target_rows,
      max_wait_seconds=sizes.max_wait_seconds,
      sizes=sizes.padded,
      waits=waits,
      replies=replies,
    )
    self._sizes = sizes
    self._device = device
    self._newest = newest
    self._sink = sink
    self._waits = waits
    self._rng_key = jax.device_put(rng_key, device)
    self._calls = 0
    inputs = acting_step.zero_inputs(spec, 1)
    acting, _ = newest(device)
    with jax.default_device(device):
      store = unroll_store.empty(agent, inputs, acting, sizes.layout)
    store = store._replace(exploration=sizes.exploration)
    self._store = jax.device_put(store, device)
    self._inputs = inputs
    self._filling: types.Unroll | None = None
    self._filled = 0
    self._programs = _Programs(agent, sizes, self._store, device)

  def run(self) -> None:
    """Compiles every size, then computes actions until it is closed."""
    with self.requests:
      self._compile()
      for request in self.requests:
        batch: unroll_store.Batch = request.inputs
        batch.slot[request.rows :] = self._sizes.layout.num_slots  # Padding.
        actions = self._step(batch)
        with (
          jax.profiler.TraceAnnotation("reply"),
          self._waits.timed(_WAIT_DEVICE),
        ):
          request.reply(np.asarray(actions))
        for share in self._finished(batch, request.rows):
          with self._waits.timed(metrics.WAIT_LEARNER):
            if not self._sink(share):
              return

  def example(self) -> types.Share:
    """A share of zeros; from any thread."""
    return self._share(self._programs.empty())

  def close(self) -> None:
    """Ends `run`, and every wait for an action; may be called often."""
    self.requests.close()

  def compiled(self) -> int:
    """How many programs have been compiled; for a test that none are later."""
    return self._programs.compiled()

  def _compile(self) -> None:
    layout = self._sizes.layout
    for size in self._sizes.padded:
      rows = np.zeros(size, np.int32)
      padding = np.full(size, layout.num_slots, np.int32)
      timestep = jax.tree.map(
        lambda leaf, size=size: np.repeat(leaf, size, axis=0),
        self._inputs.timestep,
      )
      self._step(unroll_store.Batch(padding, rows, timestep))
      self._collect(padding[:0], rows[:0], size)
    self.example()

  def _finished(
    self, batch: unroll_store.Batch, rows: int
  ) -> Iterator[types.Share]:
    """Copies out the unrolls that a batch finished; yields what is full."""
    slot, count = batch.slot, batch.count
    finished = np.flatnonzero(self._sizes.layout.finished(count[:rows]))
    while len(finished):
      room = self._sizes.share_size - self._filled
      taken, finished = finished[:room], finished[room:]
      self._collect(slot[taken], count[taken])
      if self._filled == self._sizes.share_size:
        assert self._filling is not None
        unroll, self._filling, self._filled = self._filling, None, 0
        yield self._share(unroll)

  def _share(self, unroll: types.Unroll) -> types.Share:
    acting, _ = self._newest(self._device)
    priorities = self._programs.priorities(acting, unroll)
    return types.Share(self._programs.stored(unroll), priorities)

  @functools.partial(jax.profiler.annotate_function, name="act")
  def _step(self, batch: unroll_store.Batch) -> jax.Array:
    acting, version = self._newest(self._device)
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

  @functools.partial(jax.profiler.annotate_function, name="collect")
  def _collect(
    self, slot: np.ndarray, count: np.ndarray, size: int | None = None
  ) -> None:
    """Copies finished unrolls out; `size` rows where they have to be padded."""
    rows = len(slot)
    size = size or next(s for s in self._sizes.padded if s >= rows)
    row = np.full(size, self._sizes.share_size, np.int32)
    row[:rows] = np.arange(self._filled, self._filled + rows)
    slots, counts = (np.zeros(size, np.int32) for _ in range(2))
    slots[:rows], counts[:rows] = slot, count
    if self._filling is None:
      self._filling = self._programs.empty()
    self._filling = self._programs.collect(
      self._store, self._filling, slots, counts, row
    )
    self._filled += rows


class _Programs:
  """The jitted functions of one device."""

  def __init__(
    self,
    agent: base.Agent,
    sizes: Sizes,
    store: unroll_store.Store,
    device: jax.Device,
  ) -> None:
    layout = sizes.layout
    # The store itself is donated at every step: keep its shapes alone.
    shapes = jax.eval_shape(lambda: store)

    def act(
      store: unroll_store.Store,
      acting: types.Tree,
      version: jax.Array,
      rng_key: jax.Array,
      call: jax.Array,
      batch: unroll_store.Batch,
    ) -> tuple[unroll_store.Store, jax.Array]:
      step_key = jax.random.fold_in(random_keys.unrolled(rng_key), call)
      return unroll_store.act(
        agent, layout, store, acting, jnp.int32(version), step_key, batch
      )

    self.stored = agent.needs.stored
    self.priorities = base.priorities(agent)
    self.act = jax.jit(act, donate_argnums=0)
    self.collect = jax.jit(
      functools.partial(unroll_store.collect, layout), donate_argnums=1
    )
    self.empty = jax.jit(
      lambda: unroll_store.empty_unrolls(shapes, sizes.share_size),
      out_shardings=jax.sharding.SingleDeviceSharding(device),
    )

  def compiled(self) -> int:
    """How many programs have been compiled."""
    programs: list[Any] = [self.act, self.collect, self.empty, self.priorities]
    return sum(program._cache_size() for program in programs)


def waits(num_devices: int) -> metrics.Waits:
  """The timed waits of so many inference devices together."""
  names = (metrics.WAIT_ENVIRONMENTS, metrics.WAIT_LEARNER, _WAIT_DEVICE)
  return metrics.Waits(dict.fromkeys(names, num_devices))


def close(devices: Iterable[Inference]) -> None:
  """Closes each of them."""
  for device in devices:
    device.close()
