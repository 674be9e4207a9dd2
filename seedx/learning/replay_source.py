"""Experience from replays, one on each learner core."""

import contextlib
import dataclasses
import functools
import math
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedx import checkpoint, metrics, replay, sharding, types
from seedx.agents import base
from seedx.learning import experience
from seedx.on_cpu import random_keys
from seedx.runtime import memory

# An error message suggests a capacity that needs this fraction of free memory.
_MEMORY_SHARE = 0.8
# Most updates of one program, for whose end checkpoints wait.
_MAX_UPDATES = 8


@dataclasses.dataclass(frozen=True)
class CoreReplay:
  """The replay of one learner core, as pure functions over its state.

  Attributes:
    replay: the replay, which stores and samples unrolls.
    needs: needs of the agent.
    num_windows: number of windows in the core's part of a batch.
    updates: number of updates of the run, for schedules.
  """

  replay: replay.Replay
  needs: base.Needs
  num_windows: int
  updates: int

  def init(self, example: types.Share) -> types.Tree:
    """Returns the state of an empty replay, from an example of a share."""
    return self.replay.init(self._stored(example))

  def add(self, state: types.Tree, share: types.Share) -> types.Tree:
    """Returns the state after adding a share."""
    return self.replay.add(state, self._stored(share))

  def draw(
    self,
    state: types.Tree,
    rng_key: jax.Array,
    index: jax.Array,
    clock: jax.Array,
  ) -> tuple[types.Sample, types.Tree]:
    """Draws the core's part of a batch, with the results of `Replay.sample`.

    Args:
      state: state of the replay.
      rng_key: random key of the core.
      index: `[]` int32, number of earlier batches of the run.
      clock: `[]` float32, see `base.AgentState`.
    """
    key = jax.random.fold_in(random_keys.unrolled(rng_key), index)
    # A float, because `updates` may exceed JAX's int32.
    done = jnp.minimum(clock / float(self.updates), 1.0)
    return self.replay.sample(state, key, self.num_windows, done)

  def num_bytes(self, share: types.Share) -> int:
    """Returns the size in bytes of a state, from the shapes of a share."""
    leaves = jax.tree.leaves(jax.eval_shape(self.init, share))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)

  def sample_of(self, share: types.Share) -> types.Tree:
    """Returns the shapes and dtypes of a sample, from those of a share."""
    state = jax.eval_shape(self.init, share)
    numbers = jnp.int32(0), jnp.float32(0)
    key = jax.random.key(0)
    return jax.eval_shape(self.draw, state, key, *numbers)[0]

  def _stored(self, share: types.Share) -> types.Share:
    return share._replace(data=self.needs.stored(share.data))


class ReplaySource(experience.Experience):
  """Experience that samples windows from a replay on each core.

  After one share per core, the source yields the batches that are due by the
  replay ratio, and takes no new shares until these are learned from: neither
  acting nor learning can run ahead. With priorities, each batch is sampled
  before the previous one is learned from, so it lacks the new priorities of the
  previous one.

  Attributes:
    states: state of each core's replay; it may change while shares are added,
      and from the sampling of a batch until the learner asks for the next one.
  """

  def __init__(
    self,
    core_replay: CoreReplay,
    config: replay.Config,
    period: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    acted: Callable[[], int] | None = None,
  ) -> None:
    """Makes the programs; the first shares allocate the replays.

    Args:
      core_replay: functions of the replay of each core.
      config: settings of the replays of this process.
      period: number of new env steps of an unroll (T).
      cores: the learner devices of this process.
      rng_key: random key of the sampling.
      acted: function that returns the number of env steps so far; None to count
        all new steps of unrolls, resets included.
    """
    self.states: list[types.Tree] = []
    self._core_replay = core_replay
    self._config = config
    self._period = period
    self._cores = list(cores)
    self._keys = [
      jax.device_put(jax.random.fold_in(rng_key, i), core)
      for i, core in enumerate(cores)
    ]
    self._acted = acted
    # Number of unrolls' new steps so far, and of the env steps among them.
    self._steps = self._seen = 0
    self._ratio = config.ratio(core_replay.needs.learned_steps)
    # Number of batches sampled so far.
    self._num_drawn = 0
    self._add = jax.jit(core_replay.add, donate_argnums=0)
    self._draw = jax.jit(core_replay.draw)
    self._update = jax.jit(core_replay.replay.update, donate_argnums=0)
    # The next `add` deletes the state, but not its copy.
    self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
    # Copied metrics of the replays, which any thread may read.
    self._metrics: list[dict[str, jax.Array]] = []
    self._ahead: experience.Batch | None = None
    self._mesh = sharding.mesh(self._cores)
    # Program of all due updates; None to make them one by one.
    self._several: jax.stages.Wrapped | None = None
    # Saved arrays; the first shares provide the shapes to restore them.
    self._restored: Mapping[str, np.ndarray] = {}
    self._pause = _Pause()

  def __call__(
    self, shares: Sequence[types.Share]
  ) -> Iterator[experience.Batch]:
    """Stores one share per core, and yields the batches that are due."""
    with self._pause.changes():
      self._begin(shares)
      pairs = zip(self.states, shares, strict=True)
      self.states = [self._add(state, share) for state, share in pairs]
      self._copy_metrics()
      unrolls = sum(share.data.version.shape[1] for share in shares)
      new_steps = unrolls * self._period
      self._steps += new_steps
      self._ratio.add(self._env_steps(new_steps))
    while True:
      with self._pause.changes():
        if not self._ratio.take():
          return
        if self._several:
          count = 1
          while count < _MAX_UPDATES and self._ratio.take():
            count += 1
          make = functools.partial(self._make, count)
          yield experience.Batch((), updates=make)
          continue
        batch = self._ahead or self._draw_batch()
        if self._config.has_priorities:
          self._ahead = self._draw_batch()
        yield batch

  def combine(self, update: Callable[..., Any]) -> None:
    """Makes up to 8 due updates in one program, unless there are priorities."""
    one = sharding.REPLICATED
    if not self._config.has_priorities:
      self._several = sharding.per_core(
        functools.partial(_several, self._core_replay, update),
        self._mesh,
        (one,) * 4,
        one,
      )

  def learned(
    self, windows: Sequence[types.Tree], priorities: Sequence[jax.Array]
  ) -> None:
    """Writes a batch's new priorities to the replays."""
    self.states = [
      self._update(state, sampled, new)
      for state, sampled, new in zip(
        self.states, windows, priorities, strict=True
      )
    ]

  def counted(self, env_steps: float, batches: int = 1) -> None:
    """Corrects the replay ratio for the env steps that batches really had."""
    self._ratio.learned(env_steps, batches)

  def example(self, shares: Sequence[types.Share]) -> experience.Batch:
    """Returns a batch to compile with; later batches do not depend on it.

    The first call allocates the replays.
    """
    self._begin(shares)
    if self._several:  # The program draws its batches.
      return experience.Batch((), updates=functools.partial(self._make, 0))
    return self._batch(self.states, self._num_drawn)

  def resume(self, updates: int, resets: float) -> None:
    """Continues the random numbers and the clock."""
    self._num_drawn, self._ratio.missed = updates, resets

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the replays' metrics after the last shares.

    `replay_size` counts the new steps of unrolls, resets included.
    """
    sums: dict[str, metrics.Value] = {
      name: sum(counts[name].item() for counts in self._metrics)
      for name in (self._metrics[0] if self._metrics else ())
    }
    unroll_steps = self._period * len(self._cores)  # One unroll on each core.
    max_unrolls = max(1, self._config.replay_capacity // unroll_steps)
    size = min(self._steps, max_unrolls * unroll_steps)
    return {"replay_size": size, **sums}

  @property
  def kept(self) -> "ReplaySource":
    """The replays, as far as they are `kept`."""
    return self

  @property
  def num_bytes(self) -> int:
    """Size in bytes of the arrays to save; 0 until they are allocated."""
    kept = map(self._core_replay.replay.kept, self.states)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(list(kept)))

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Holds the replays still, so that what is saved is consistent."""
    return self._pause.paused()

  def saved(self) -> Callable[[], Mapping[str, types.Tree]]:
    """Copies the replays; call it within `paused`.

    Returns a function that any thread may call for the nest of copied arrays.
    """
    if not self.states:
      restored = self._restored
      return lambda: restored
    state = {
      "states": [
        self._copy(self._core_replay.replay.kept(x)) for x in self.states
      ],
      "keys": [jax.random.key_data(key) for key in self._keys],
      "ahead": self._ahead,
      **self._counts(),
    }
    return lambda: state

  def restore(self, saved: Mapping[str, np.ndarray]) -> None:
    """Takes saved arrays by path, to restore them with the first shares.

    If the arrays do not fit, the replays start empty, which a warning reports.

    Raises:
      types.ConfigError: the arrays are of another number of learner devices.
    """
    num_cores = sum(name.startswith("keys/") for name in saved)
    if saved and num_cores != len(self._cores):
      raise types.ConfigError(
        f"the checkpoint has a replay of {num_cores} learner devices, and this"
        f" run has {len(self._cores)}"
      )
    self._restored = saved

  def _counts(self) -> dict[str, types.Tree]:
    return {
      "ratio": self._ratio.saved(),
      "steps": np.int64(self._steps),
      "seen": np.int64(self._seen),
      "drawn": np.int64(self._num_drawn),
    }

  def _begin(self, shares: Sequence[types.Share]) -> None:
    """Allocates replays that fit the first shares."""
    if self.states:
      return
    num_bytes = self._core_replay.num_bytes(shares[0])
    check_memory(self._config, self._cores, num_bytes)
    states = []
    for share, core in zip(shares, self._cores, strict=True):
      with jax.default_device(core):
        state = self._core_replay.init(share)
      states.append(jax.device_put(state, core))
    if self._restored:
      states = self._continued(states, self._restored)
    self.states, self._restored = states, {}
    self._copy_metrics()

  def _copy_metrics(self) -> None:
    """Copies the replays' metrics, because the next change deletes them."""
    metrics_of_cores = map(self._core_replay.replay.measure, self.states)
    self._metrics = [self._copy(x) for x in metrics_of_cores if x]

  def _continued(
    self, empty: list[types.Tree], saved: Mapping[str, np.ndarray]
  ) -> list[types.Tree]:
    """Restores what was saved; returns the states of the replays.

    If saved arrays do not fit, nothing is restored: all replays are empty.
    """
    memory = self._core_replay.replay
    keys = [jax.random.key_data(key) for key in self._keys]
    has_ahead = any(name.startswith("ahead/") for name in saved)
    shapes = {
      "states": [*map(memory.kept, empty)],
      "keys": keys,
      "ahead": self._batch(empty, 0) if has_ahead else None,
      **self._counts(),
    }
    try:
      state = checkpoint.like(saved, shapes, "the replay of the checkpoint")
    except types.ConfigError as error:
      print(f"the replay starts empty: {error}", file=sys.stderr)
      return empty
    self._keys = [
      jax.random.wrap_key_data(key) for key in self._on_cores(state["keys"])
    ]
    if has_ahead:
      parts, windows, _ = state["ahead"]
      self._ahead = experience.Batch(
        self._on_cores(parts), self._on_cores(windows)
      )
    self._ratio.restore(state["ratio"])
    self._steps, self._seen = int(state["steps"]), int(state["seen"])
    self._num_drawn = int(state["drawn"])
    kept = self._on_cores(state["states"])
    return [memory.with_kept(*x) for x in zip(empty, kept, strict=True)]

  def _on_cores(self, nests: Sequence[types.Tree]) -> list[types.Tree]:
    return [
      jax.device_put(jax.tree.map(jnp.array, nest), core)
      for nest, core in zip(nests, self._cores, strict=True)
    ]

  def _env_steps(self, new_steps: int) -> int:
    """Returns the number of new steps that are env steps, not resets.

    Acting counts a step before its unroll arrives, so the number is never too
    small.
    """
    if self._acted is None:
      return new_steps
    if not self._seen and self._num_drawn:
      # The run resumed without its replay.
      self._seen = max(0, self._acted() - new_steps)
    new = max(0, min(new_steps, self._acted() - self._seen))
    self._seen += new
    return new

  def _draw_batch(self) -> experience.Batch:
    self._num_drawn += 1
    return self._batch(self.states, self._num_drawn - 1)

  def _make(
    self, count: int, state: base.AgentState, inputs: Any
  ) -> tuple[base.AgentState, list[Any]]:
    """Makes several updates, and waits for them; see `experience.Batch`."""
    assert self._several is not None
    clock = np.float32(self._num_drawn - self._ratio.missed)
    inputs = inputs._replace(batch=(count, self._num_drawn, clock))
    keys, states = (
      sharding.assemble(x, self._mesh, sharding.REPLICATED)
      for x in (self._keys, self.states)
    )
    results, state = self._several(state, inputs, keys, states)
    results = jax.tree.map(np.asarray, results)
    self._num_drawn += count
    each = [jax.tree.map(operator.itemgetter(i), results) for i in range(count)]
    return state, each

  def _batch(
    self, states: Sequence[types.Tree], index: int
  ) -> experience.Batch:
    clock = np.float32(index - self._ratio.missed)
    drawn = [
      self._draw(state, key, index, clock)
      for state, key in zip(states, self._keys, strict=True)
    ]
    windows = [x for _, x in drawn] if self._config.has_priorities else ()
    return experience.Batch([sample for sample, _ in drawn], windows)


def _several(
  replay: CoreReplay,
  update: Callable[..., Any],
  state: base.AgentState,
  inputs: Any,
  rng_key: jax.Array,
  memory: types.Tree,
) -> tuple[types.Tree, base.AgentState]:
  """Draws batches and updates in turn; returns the results `[8, ...]` first.

  In place of a batch, `inputs` has the number of updates, and the index and the
  clock of the first draw.
  """
  count, first, clock = inputs.batch

  def step(i: jax.Array, state: base.AgentState) -> tuple[Any, Any]:
    sample, _ = replay.draw(memory, rng_key, first + i, clock + i)
    made = update(
      state, inputs._replace(version=inputs.version + i, batch=sample)
    )
    output = made.output._replace(priorities=())
    return made._replace(output=output, state=()), made.state

  def body(i: jax.Array, carry: Any) -> Any:
    made, state = step(i, carry[1])
    return jax.tree.map(lambda x, y: x.at[i].set(y), carry[0], made), state

  results = jax.tree.map(
    lambda x: jnp.zeros((_MAX_UPDATES, *x.shape), x.dtype),
    jax.eval_shape(step, count, state)[0],
  )
  return jax.lax.fori_loop(0, count, body, (results, state))


class _Pause:
  """A lock with which other threads pause the changes of one thread."""

  def __init__(self) -> None:
    # A waiting pause holds the turn, so that it precedes the next change.
    self._turn, self._changing = threading.Lock(), threading.Lock()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Waits for the running change, and prevents new ones."""
    with self._turn, self._changing:
      yield

  @contextlib.contextmanager
  def changes(self) -> Iterator[None]:
    """Waits for all pauses, and prevents new ones."""
    with self._turn:
      self._changing.acquire()
    try:
      yield
    finally:
      self._changing.release()


def check_memory(
  config: replay.Config, cores: Sequence[jax.Device], replay_bytes: int
) -> None:
  """Checks that each core has memory for a replay of `replay_bytes`.

  CPU devices share the machine's memory.

  Raises:
    types.ConfigError: a replay does not fit.
  """
  cpus = [core for core in cores if core.platform == "cpu"]
  places = {core: 1 for core in cores if core.platform != "cpu"}
  if cpus:
    places[cpus[0]] = len(cpus)
  for device, num_replays in places.items():
    needed, free = num_replays * replay_bytes, memory.free_bytes(device)
    if free is not None and needed > free:
      capacity = config.replay_capacity
      fits = int(_MEMORY_SHARE * capacity * free / needed)
      raise types.ConfigError(
        "expected a replay that fits into memory: --replay-capacity"
        f" {capacity} needs {needed / 2**30:.2f} GiB, and only"
        f" {free / 2**30:.2f} GiB are free; --replay-capacity {fits} fits"
      )
