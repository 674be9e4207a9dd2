"""Learning from a replay on each learner core."""

import contextlib
import dataclasses
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from seedx import checkpoint, metrics, replay, types
from seedx.agents import base
from seedx.learning import experience
from seedx.on_cpu import random_keys
from seedx.runtime import memory

# How much of the free memory a replay is advised to take.
_MEMORY_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class OfCore:
  """The replay of one learner core: pure functions over its state.

  Attributes:
    replay: stores and samples unrolls.
    needs: the agent's.
    size: windows of the core's part of a batch.
    updates: number of updates of the run, for schedules.
  """

  replay: replay.Replay
  needs: base.Needs
  size: int
  updates: int

  def init(self, example: types.Share) -> types.Tree:
    """Returns the state of an empty replay, for shares like the example."""
    return self.replay.init(self._stored(example))

  def add(self, state: types.Tree, share: types.Share) -> types.Tree:
    """Adds a share."""
    return self.replay.add(state, self._stored(share))

  def draw(
    self,
    state: types.Tree,
    rng_key: jax.Array,
    index: jax.Array,
    clock: jax.Array,
  ) -> tuple[types.Sample, types.Tree]:
    """Draws the core's part of a batch.

    Args:
      state: of the replay.
      rng_key: of the core.
      index: `[]` int32, batches of the run before this one.
      clock: `[]` float32, see `base.AgentState`.

    Returns:
      The sample, and its windows; see `replay.Replay`.
    """
    key = jax.random.fold_in(random_keys.unrolled(rng_key), index)
    # JAX's integers end at 2^31.
    done = jnp.minimum(clock / float(self.updates), 1.0)
    return self.replay.sample(state, key, self.size, done)

  def num_bytes(self, share: types.Share) -> int:
    """Number of bytes of a state for such shares, by their shapes."""
    leaves = jax.tree.leaves(jax.eval_shape(self.init, share))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)

  def sample_of(self, share: types.Share) -> types.Tree:
    """The shapes and dtypes of a sample from such shares."""
    state = jax.eval_shape(self.init, share)
    numbers = jnp.int32(0), jnp.float32(0)
    key = jax.random.key(0)
    return jax.eval_shape(self.draw, state, key, *numbers)[0]

  def _stored(self, share: types.Share) -> types.Share:
    return share._replace(data=self.needs.stored(share.data))


class Replayed(experience.Experience):
  """Learns from windows of a replay on each core.

  After each share it yields as many batches as the replay ratio asks for, and
  takes no new share meanwhile: neither acting nor learning can run ahead.

  Where the replay has priorities, each batch is sampled before the one before
  it has been learned from, so without that batch's new priorities.

  It changes while a share is added, and from when a batch is drawn until the
  learner asks for the next one. In between any thread may save it, `paused`.

  Attributes:
    states: each core's replay.
  """

  def __init__(
    self,
    of_core: OfCore,
    config: replay.Config,
    period: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    acted: Callable[[], int] | None = None,
  ) -> None:
    """Allocates the replays only with the first shares.

    Args:
      of_core: the replay of each core.
      config: its settings.
      period: T, new env steps of an unroll.
      cores: the learner devices of this process.
      rng_key: for sampling.
      acted: returns the number of env steps so far; None to take all steps of
        unrolls for env steps, with resets.
    """
    self.states: list[types.Tree] = []
    self._of_core = of_core
    self._config = config
    self._period = period
    self._cores = list(cores)
    self._keys = [
      jax.device_put(jax.random.fold_in(rng_key, i), core)
      for i, core in enumerate(cores)
    ]
    self._acted = acted
    # Steps of unrolls so far, and env steps that are not new any more.
    self._steps = self._seen = 0
    self._ratio = config.ratio(of_core.needs.learned_steps)
    self._drawn = 0
    self._add = jax.jit(of_core.add, donate_argnums=0)
    self._draw = jax.jit(of_core.draw)
    self._update = jax.jit(of_core.replay.update, donate_argnums=0)
    # Not the state itself: the next `add` deletes it.
    self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
    # For any thread.
    self._metrics: list[dict[str, jax.Array]] = []
    self._ahead: experience.Batch | None = None
    # What to continue from when the shapes are known.
    self._restored: Mapping[str, np.ndarray] = {}
    self._pause = _Pause()

  def __call__(
    self, shares: Sequence[types.Share]
  ) -> Iterator[experience.Batch]:
    """Stores one share per core, and yields the batches to learn from now."""
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
        yield self._next()

  def learned(
    self, windows: Sequence[types.Tree], priorities: Sequence[jax.Array]
  ) -> None:
    """Writes a batch's new priorities to the replays."""
    self.states = [
      self._update(state, own, new)
      for state, own, new in zip(self.states, windows, priorities, strict=True)
    ]

  def counted(self, env_steps: float, batches: int = 1) -> None:
    """See `Experience`."""
    self._ratio.learned(env_steps, batches)

  def example(self, shares: Sequence[types.Share]) -> experience.Batch:
    """A batch to compile the update with; it leaves the sampling unchanged."""
    self._begin(shares)
    return self._batch(self.states, self._drawn)

  def resume(self, updates: int, resets: float) -> None:
    """Continues the random numbers and the clock; see `Experience`."""
    self._drawn, self._ratio.missed = updates, resets

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics, as after the last share."""
    sums: dict[str, metrics.Value] = {
      name: sum(own[name].item() for own in self._metrics)
      for name in (self._metrics[0] if self._metrics else ())
    }
    return {"replay_size": min(self._steps, self._most_steps), **sums}

  @property
  def num_bytes(self) -> int:
    """Number of bytes of the replays' arrays; 0 until they are allocated."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(self.states))

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Holds the replays still: what is saved within it is consistent."""
    return self._pause.paused()

  def saved(self) -> Callable[[], Mapping[str, types.Tree]]:
    """Copies its state; call it `paused`.

    Returns:
      A function that returns the state as a nest of arrays, on any thread.
    """
    if not self.states:
      restored = self._restored
      return lambda: restored
    state = {
      "states": [self._copy(state) for state in self.states],
      "keys": [jax.random.key_data(key) for key in self._keys],
      "ahead": self._ahead,
      **self._counts(),
    }
    return lambda: state

  def restore(self, saved: Mapping[str, np.ndarray]) -> None:
    """Continues from what was saved, once the first share has come.

    Args:
      saved: its arrays by their paths.
    """
    self._restored = saved

  @property
  def _most_steps(self) -> int:
    """Env steps that all replays of this process can hold."""
    parts = self._period * len(self._cores)
    return max(1, self._config.replay_capacity // parts) * parts

  def _counts(self) -> dict[str, types.Tree]:
    return {
      "ratio": self._ratio.saved(),
      "steps": np.int64(self._steps),
      "seen": np.int64(self._seen),
      "drawn": np.int64(self._drawn),
    }

  def _begin(self, shares: Sequence[types.Share]) -> None:
    """Allocates the replays, unless they are there."""
    if self.states:
      return
    of_core = self._of_core.num_bytes(shares[0])
    check_memory(self._config, self._cores, of_core)
    states = []
    for share, core in zip(shares, self._cores, strict=True):
      with jax.default_device(core):
        state = self._of_core.init(share)
      states.append(jax.device_put(state, core))
    if self._restored:
      states = self._continued(states, self._restored)
    # From now on `saved` returns what there is.
    self.states, self._restored = states, {}
    self._copy_metrics()

  def _copy_metrics(self) -> None:
    """Copies the replays' own metrics: the next change deletes them."""
    own = map(self._of_core.replay.measure, self.states)
    self._metrics = [self._copy(x) for x in own if x]

  def _continued(
    self, empty: list[types.Tree], saved: Mapping[str, np.ndarray]
  ) -> list[types.Tree]:
    """Restores all that was saved; returns each core's replay."""
    keys = [jax.random.key_data(key) for key in self._keys]
    num_cores = sum(name.startswith("keys/") for name in saved)
    if num_cores != len(keys):
      print(
        f"the replay of {num_cores} learner devices cannot be that of"
        f" {len(keys)}; it starts empty",
        file=sys.stderr,
      )
      return empty
    has_ahead = any(name.startswith("ahead/") for name in saved)
    shapes = {
      "states": empty,
      "keys": keys,
      "ahead": self._batch(empty, 0) if has_ahead else None,
      **self._counts(),
    }
    try:
      found = checkpoint.like(saved, shapes, "the replay of the checkpoint")
    except types.ConfigError as error:
      print(f"the replay starts empty: {error}", file=sys.stderr)
      return empty
    self._keys = [
      jax.random.wrap_key_data(key) for key in self._on_cores(found["keys"])
    ]
    if has_ahead:
      parts, windows = found["ahead"]
      self._ahead = experience.Batch(
        self._on_cores(parts), self._on_cores(windows)
      )
    self._ratio.restore(found["ratio"])
    self._steps, self._seen = int(found["steps"]), int(found["seen"])
    self._drawn = int(found["drawn"])
    return self._on_cores(found["states"])

  def _on_cores(self, nests: Sequence[types.Tree]) -> list[types.Tree]:
    """Copies each nest to its core."""
    return [
      jax.device_put(jax.tree.map(jnp.array, nest), core)
      for nest, core in zip(nests, self._cores, strict=True)
    ]

  def _env_steps(self, new_steps: int) -> int:
    """Number of env steps among the new steps of unrolls; others are resets.

    Acting is ahead of the unrolls, so that they are never taken for too few.
    """
    if self._acted is None:
      return new_steps
    if not self._seen and self._drawn:  # Resumed without its replay.
      self._seen = max(0, self._acted() - new_steps)
    new = max(0, min(new_steps, self._acted() - self._seen))
    self._seen += new
    return new

  def _next(self) -> experience.Batch:
    """The next batch to learn from."""
    batch = self._ahead or self._drawn_now()
    if self._config.has_priorities:
      self._ahead = self._drawn_now()
    return batch

  def _drawn_now(self) -> experience.Batch:
    self._drawn += 1
    return self._batch(self.states, self._drawn - 1)

  def _batch(
    self, states: Sequence[types.Tree], index: int
  ) -> experience.Batch:
    clock = np.float32(index - self._ratio.missed)
    drawn = [
      self._draw(state, key, index, clock)
      for state, key in zip(states, self._keys, strict=True)
    ]
    windows = [own for _, own in drawn] if self._config.has_priorities else ()
    return experience.Batch([sample for sample, _ in drawn], windows)


class _Pause:
  """Lets other threads hold still what one thread changes."""

  def __init__(self) -> None:
    # A thread that wants to pause holds the turn, so that changes wait for it.
    self._turn, self._changing = threading.Lock(), threading.Lock()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Waits for a change to end; nothing changes within."""
    with self._turn, self._changing:
      yield

  @contextlib.contextmanager
  def changes(self) -> Iterator[None]:
    """Waits for the end of a pause; nobody pauses within."""
    with self._turn:
      self._changing.acquire()
    try:
      yield
    finally:
      self._changing.release()


def check_memory(
  config: replay.Config, cores: Sequence[jax.Device], replay_bytes: int
) -> None:
  """Checks that there is room for replays, before they are allocated.

  Args:
    config: of the replays, for the message.
    cores: the device of each replay; those on CPU share the machine's memory.
    replay_bytes: bytes of one of them.

  Raises:
    types.ConfigError: there is none.
  """
  cpus = [core for core in cores if core.platform == "cpu"]
  places = {core: 1 for core in cores if core.platform != "cpu"}
  if cpus:
    places[cpus[0]] = len(cpus)
  for device, count in places.items():
    needed, free = count * replay_bytes, memory.free_bytes(device)
    if free is not None and needed > free:
      capacity = config.replay_capacity
      fits = int(_MEMORY_SHARE * capacity * free / needed)
      raise types.ConfigError(
        f"expected a replay that fits into memory: --replay-capacity"
        f" {capacity} needs {needed / 2**30:.2f} GiB of {free / 2**30:.2f}"
        f" that are free; --replay-capacity {fits} fits"
      )
