"""Central inference: each inference device acts for many actors.

The rows of several actors form a batch. One program computes their actions and
writes the steps into the device's unroll store. Finished unrolls leave the
store as shares for the learner.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from seedx import metrics, sharding, types, wire
from seedx.acting import batcher, decoder, protocol, thin_actor, unroll_store
from seedx.agents import acting_step, base
from seedx.on_cpu import random_keys
from seedx.runtime import counters

# Metric of the wait for actions.
WAIT_DEVICE = "acting_wait_device"
# Returns the acting parameters on a device, and their version.
Newest = Callable[[jax.Device], tuple[types.Tree, int]]
# Returns a context that measures a wait for the actions of a device.
Waiting = Callable[[jax.Device], contextlib.AbstractContextManager[None]]
# Takes a share from the device that acted. Blocks while the learner's queue is
# full, and returns False when the run is over.
Sink = Callable[[types.Share], bool]


@dataclasses.dataclass(frozen=True)
class Config:
  """Settings of central inference.

  Attributes:
    inference_devices: indices of the local devices that compute actions.
    inference_batch_size: number of observations that starts an inference batch
      on a device; 0 for half of the number that the device's actors can send at
      once.
    inference_wait_seconds: maximum seconds that an observation waits before a
      smaller batch starts.
  """

  inference_devices: tuple[int, ...] = types.setting((0,), changes="process")
  inference_batch_size: int = types.setting(
    0, changes="resume", low=0, high=2**31 - 1
  )
  inference_wait_seconds: float = types.setting(
    0.005, changes="resume", low=0.0, high=types.MAX_SECONDS
  )

  def __post_init__(self) -> None:
    types.check_settings(self)

  def devices(self) -> list[jax.Device]:
    """Returns the inference devices.

    Raises:
      types.ConfigError: a device does not exist or is named twice.
    """
    return sharding.devices(self.inference_devices, "inference")

  def sizes(
    self,
    agent: base.Agent,
    actors: thin_actor.Config,
    period: int,
    share_size: int,
    process: int = 0,
    processes: int = 1,
  ) -> "list[Sizes]":
    """Returns the sizes of each device; actors are divided evenly over devices.

    Args:
      agent: the agent that acts.
      actors: settings of the actors.
      period: number of new env steps of an unroll (T).
      share_size: number of unrolls in a share.
      process: index of the process that has the devices.
      processes: number of processes that act, each with such devices.

    Raises:
      types.ConfigError: there are more devices than actors.
    """
    num_devices = processes * max(1, len(self.inference_devices))
    if num_devices > actors.num_actors:
      raise types.ConfigError(
        f"expected at most {actors.num_actors} inference_devices, one for each"
        f" actor, found {num_devices}"
        + (f" in {processes} processes" if processes > 1 else "")
      )
    # Environments explore as if one device had all of them.
    exploration = agent.exploration(actors.num_envs)
    reported = counters.explores_least(exploration)
    sizes, first = [], 0
    for device in range(num_devices):
      num_actors = len(range(device, actors.num_actors, num_devices))
      maximum = num_actors * actors.rows
      # One half of the environments steps while inference runs for the other.
      target = min(self.inference_batch_size or -(-maximum // 2), maximum)
      # A batch has at least the rows of one message.
      minimum = min(max(-(-target // 4), actors.rows), target)
      num_slots = num_actors * actors.envs_per_actor
      slots, first = slice(first, first + num_slots), first + num_slots
      sizes.append(
        Sizes(
          layout=unroll_store.Layout.of(agent, period, num_slots),
          exploration=exploration[slots],
          reported=reported[slots],
          share_size=share_size,
          target_rows=target,
          padded=sorted({minimum, target, maximum}),
          max_wait_seconds=self.inference_wait_seconds,
        )
      )
    own = num_devices // processes
    return sizes[process * own : (process + 1) * own]


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
  """Sizes of one device's batches and unroll store.

  Attributes:
    layout: layout of the unroll store.
    exploration: `[N]` float32 exploration of each slot, see `types.Inputs`.
    reported: `[N]` bool, whether a slot's returns enter the metrics, see
      `counters.explores_least`.
    share_size: number of unrolls in a share.
    target_rows: number of rows that starts a batch.
    padded: numbers of rows to which batches are padded, in ascending order.
    max_wait_seconds: maximum seconds for fewer than `target_rows` rows to wait.
  """

  layout: unroll_store.Layout
  exploration: np.ndarray
  reported: np.ndarray
  share_size: int
  target_rows: int
  padded: list[int]
  max_wait_seconds: float


class Devices:
  """The inference devices of a run.

  Attributes:
    spec: specification of the environments.
    layouts: layouts of an actor's rows, and of their actions.
    devices: one `Inference` for each device; none has more slots than the
      first.
    threads: functions to run on threads, by the thread's name.
    example: function that returns a share of zeros; any thread may call it.
  """

  def __init__(
    self,
    config: Config,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    actors: thin_actor.Config,
    acted: counters.ActingCounts,
    *,
    returns_are_sums: bool,
    period: int,
    share_size: int,
    newest: Newest,
    sink: Sink,
    waiting: Waiting,
    rng_key: jax.Array,
    process: int = 0,
    processes: int = 1,
  ) -> None:
    """Makes the unroll stores; the threads compile the programs.

    Args:
      config: settings of the devices.
      agent: the agent that acts.
      spec: specification of the environments.
      actors: settings of the actors, which are divided evenly over the devices.
      acted: counts of the actors' experience.
      returns_are_sums: see `envs.returns_are_sums`.
      period: number of new env steps of an unroll (T).
      share_size: number of unrolls in a share.
      newest: function that returns the newest acting parameters, see `Newest`.
      sink: function that takes shares of finished unrolls, see `Sink`.
      waiting: function that measures waits for actions, see `Waiting`.
      rng_key: random key from which each device derives its own.
      process: index of this process among those that act.
      processes: number of processes that act, over which the actors are
        divided.

    Raises:
      types.ConfigError: a device does not exist or is named twice, or there are
        more devices than actors.
    """
    devices = config.devices()
    names = metrics.WAIT_ENVIRONMENTS, metrics.WAIT_LEARNER, WAIT_DEVICE
    self._waits = metrics.Waits(dict.fromkeys(names, len(devices)))
    self._replies = batcher.Replies()
    self.spec = spec
    sizes = config.sizes(agent, actors, period, share_size, process, processes)
    self.layouts = protocol.act_layouts(spec, sizes[0].padded[-1])
    keys = jax.random.split(rng_key, len(devices))
    self.devices = [
      Inference(
        agent,
        spec,
        *each,
        self.layouts,
        acted,
        returns_are_sums,
        newest,
        sink,
        waiting,
        self._waits,
        self._replies,
      )
      for each in zip(devices, sizes, keys, strict=True)
    ]
    self.threads = {f"inference-{i}": x.run for i, x in enumerate(self.devices)}
    self.example = self.devices[0].example

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the metrics of inference since the last call."""
    return self._waits.measure() | self._replies.measure()

  def close(self) -> None:
    """Ends the threads and all waits for actions; may be called twice."""
    for device in self.devices:
      device.close()


class Inference:
  """One inference device, with its unroll store.

  Attributes:
    sizes: sizes of the device's batches and store.
    received: decoder of the actors' messages, which checks and counts them.
    env: `[slots]` int32, the seed of the environment in each leased slot; all
      environments have different seeds.
    requests: batcher of the actors' messages, which `run` answers; any thread
      may add some.
  """

  def __init__(
    self,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    device: jax.Device,
    sizes: Sizes,
    rng_key: jax.Array,
    layouts: tuple[wire.Layout, wire.Layout],
    acted: counters.ActingCounts,
    returns_are_sums: bool,
    newest: Newest,
    sink: Sink,
    waiting: Waiting,
    waits: metrics.Waits,
    replies: batcher.Replies,
  ) -> None:
    self.sizes = sizes
    self.env = np.zeros(sizes.layout.num_slots, np.int32)
    inputs, self._outputs = layouts
    self.received = decoder.Decoder(
      inputs, sizes.layout, sizes.reported, acted, returns_are_sums
    )
    self.requests = batcher.Batcher[decoder.Message](
      target_rows=sizes.target_rows,
      max_rows=sizes.padded[-1],
      max_wait_seconds=sizes.max_wait_seconds,
      waits=waits,
    )
    self._replies = replies
    self._device = device
    self._newest = newest
    self._sink = sink
    self._waiting = waiting
    self._waits = waits
    self._rng_key = jax.device_put(rng_key, device)
    self._calls = 0
    self._inputs = acting_step.zero_inputs(spec, 1)
    acting, _ = newest(device)
    with jax.default_device(device):
      store = unroll_store.empty(agent, self._inputs, acting, sizes.layout)
    store = store._replace(exploration=sizes.exploration)
    self._store = jax.device_put(store, device)
    # The next share's unrolls, and the number of them that are filled so far.
    self._filling: types.Unroll | None = None
    self._filled = 0
    self._origins: list[types.Tree] = []
    self._act = jax.jit(
      functools.partial(_act, agent, sizes.layout), donate_argnums=0
    )
    # Makes a share's arrays by copying its first unrolls, padded. Making arrays
    # of zeros instead would take as long.
    self._begin = jax.jit(functools.partial(unroll_store.unrolls, sizes.layout))
    self._add = jax.jit(
      functools.partial(unroll_store.collect, sizes.layout), donate_argnums=1
    )
    # Sizes to which groups of added unrolls are padded.
    self._added = sorted({min(x, sizes.share_size) for x in sizes.padded})
    # Keeps shapes for `example`, because each step donates the store itself.
    of_share = jax.ShapeDtypeStruct((sizes.share_size,), np.int32)
    self._shapes = jax.eval_shape(self._begin, store, of_share, of_share)
    self._needs = agent.needs
    self._priorities = base.priorities(agent)

  def run(self) -> None:
    """Compiles for each batch size, then acts until `close`.

    Also ends when `sink` returns False.
    """
    with self.requests:
      self._compile()
      for messages in self.requests:
        messages, batch = self.received.take(messages, self.sizes.padded)
        if batch is None:
          continue
        actions = self._step(batch)
        # Read now, because after the reply a slot may get another environment.
        rows = sum(message.rows for message in messages)
        env = self.env[batch.slot[:rows]]
        with (
          jax.profiler.TraceAnnotation("reply"),
          self._waits.timed(WAIT_DEVICE),
        ):
          with self._waiting(self._device):
            of_rows = np.asarray(actions)
          self._reply(messages, of_rows)
        # The next step may overwrite finished unrolls, so they leave before it.
        for share in self._finished(batch, env):
          with self._waits.timed(metrics.WAIT_LEARNER):
            if not self._sink(share):
              return

  def example(self) -> types.Share:
    """Returns a share of zeros; any thread may call it."""
    env = np.zeros(self.sizes.share_size, np.int32)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self._shapes)
    unroll = jax.device_put(zeros, self._device)
    return self._share(unroll, [self._needs.origin(env, 0)])

  def close(self) -> None:
    """Ends `run` and all waits for actions; may be called twice."""
    self.requests.close()

  def _compile(self) -> None:
    layout = self.sizes.layout
    for size in self.sizes.padded:
      rows = np.zeros(size, np.int32)
      padding = np.full(size, layout.num_slots, np.int32)
      timestep = jax.tree.map(
        lambda leaf, size=size: np.repeat(leaf, size, axis=0),
        self._inputs.timestep,
      )
      self._step(unroll_store.Batch(padding, rows, timestep))
    slot = np.zeros(self.sizes.share_size, np.int32)
    unroll = self._begin(self._store, slot, slot)
    for size in self._added:
      unroll = self._add(self._store, unroll, *(slot[:size],) * 3)
    self.example()

  def _reply(
    self, messages: Sequence[decoder.Message], actions: np.ndarray
  ) -> None:
    replies = self._outputs.encode_all(actions, [x.rows for x in messages])
    for message, reply in zip(messages, replies, strict=True):
      message.reply(reply)
    self._replies.add(messages)

  def _finished(
    self, batch: unroll_store.Batch, env: np.ndarray
  ) -> Iterator[types.Share]:
    """Collects the unrolls that a batch finished, and yields full shares.

    `env` has the seed of each row's environment, without rows of padding.
    """
    slot, count = batch.slot, batch.count
    finished = np.flatnonzero(self.sizes.layout.finished(count[: len(env)]))
    while len(finished):
      room = self.sizes.share_size - self._filled
      taken, finished = finished[:room], finished[room:]
      self._collect(slot[taken], count[taken], env[taken])
      if self._filled == self.sizes.share_size:
        assert self._filling is not None
        unroll, self._filling, self._filled = self._filling, None, 0
        origins, self._origins = self._origins, []
        yield self._share(unroll, origins)

  def _share(
    self, unroll: types.Unroll, origins: list[types.Tree]
  ) -> types.Share:
    acting, _ = self._newest(self._device)
    return types.Share(
      data=self._needs.stored(unroll),
      priorities=self._priorities(acting, unroll),
      origin=jax.tree.map(lambda *x: np.concatenate(x), *origins),
    )

  @functools.partial(jax.profiler.annotate_function, name="act")
  def _step(self, batch: unroll_store.Batch) -> jax.Array:
    acting, version = self._newest(self._device)
    # This is the only copy of observations to the device.
    self._store, actions = self._act(
      self._store,
      acting,
      np.int32(version),
      self._rng_key,
      np.uint32(self._calls),
      batch,
    )
    self._calls += 1
    sharding.begin_copy(actions, self._device)
    return actions

  @functools.partial(jax.profiler.annotate_function, name="collect")
  def _collect(
    self, slot: np.ndarray, count: np.ndarray, env: np.ndarray
  ) -> None:
    rows, share_size = len(slot), self.sizes.share_size
    if self._filling is None:
      self._filling = self._begin(
        self._store, _padded(slot, share_size), _padded(count, share_size)
      )
    else:
      size = next(size for size in self._added if size >= rows)
      row = np.full(size, share_size, np.int32)
      row[:rows] = np.arange(self._filled, self._filled + rows)
      self._filling = self._add(
        self._store,
        self._filling,
        _padded(slot, size),
        _padded(count, size),
        row,
      )
    self._filled += rows
    number = self.sizes.layout.number(count)
    self._origins.append(self._needs.origin(env, number))


def _padded(numbers: np.ndarray, size: int) -> np.ndarray:
  """Returns `[size]` int32: the numbers, then zeros."""
  padded = np.zeros(size, np.int32)
  padded[: len(numbers)] = numbers
  return padded


def _act(
  agent: base.Agent,
  layout: unroll_store.Layout,
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
