"""Experience: turns finished unrolls into batches, directly or via a replay."""

import abc
import contextlib
import dataclasses
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from seedx import checkpoint, metrics, replay, types
from seedx.agents import base, random_keys
from seedx.runtime import counters, memory

# Returns the number of env steps so far; None where that is not known.
_Acted = Callable[[], int] | None
# How much of the free memory a replay is advised to take.
_MEMORY_SHARE = 0.8


class Batch(NamedTuple):
  """The batch of one update.

  Attributes:
    parts: for each core, its part `[L, B / cores, ...]`: a `types.Unroll`, or a
      `types.Sample` for an agent that needs windows.
    windows: for each core, the part's windows in the core's replay; None if
      the replay has no priorities to update.
  """

  parts: Sequence[types.Tree]
  windows: Sequence[replay.Windows] | None = None


class Experience(abc.ABC):
  """Decides what each update learns from.

  The learner calls it on its own thread. Each batch that it yields becomes one
  update, before the next one is asked for.
  """

  @abc.abstractmethod
  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Takes one share per core, and yields any number of batches.

    Each has the shapes of `example`, its parts on the learner's cores.
    """

  @abc.abstractmethod
  def example(self, shares: Sequence[types.Share]) -> Batch:
    """A batch with the shapes and dtypes that such shares lead to."""

  def learned(
    self, windows: Sequence[replay.Windows], priorities: Sequence[jax.Array]
  ) -> None:
    """Writes the new priorities of a batch that has `windows`.

    Args:
      windows: `Batch.windows` of the batch.
      priorities: for each core, its part of `types.LossOutput.priorities`,
        `[B / cores]`.
    """
    raise NotImplementedError

  def counted(self, env_steps: float, batches: int = 1) -> None:
    """Is called when it is known how many env steps were in batches.

    That is once for each batch, about one update later.

    Args:
      env_steps: number of env steps that were learned from; resets are none.
      batches: number of batches that they were in.
    """
    del env_steps, batches

  def resume(self, updates: int, resets: float) -> None:
    """Continues a run; called once, before the first share.

    Args:
      updates: number of updates so far.
      resets: how many of them the resets would fill, see `base.AgentState`.
    """
    del updates, resets

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics."""
    return {}


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
  """The config of a replay.

  Attributes:
    replay_capacity: capacity in env steps.
    replay_min_steps: env steps in the replay before learning starts.
    replay_batch_size: batch size, in windows (n-step transitions, or R2D2's
      sequences).
    replay_ratio: env steps learned from per env step, on average. A transition
      is one step, a sequence of R2D2's is many; resets are none.
  """

  replay_capacity: int = 200_000
  replay_min_steps: int = 2_000
  replay_batch_size: int = 128
  replay_ratio: float = 4.0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_ranges(
      self,
      replay_capacity=(1, 2**31 - 1),
      replay_min_steps=(1, self.replay_capacity),
      replay_batch_size=(1, 2**31 - 1),
      replay_ratio=(1e-6, 1e6),
    )

  def due(self, learned_steps: int) -> replay.Ratio:
    """Makes the count of batches that are due.

    Args:
      learned_steps: steps of a window that are learned from.
    """
    batch_steps = self.replay_batch_size * learned_steps
    return replay.Ratio(self.replay_ratio, self.replay_min_steps, batch_steps)

  def steps_per_update(self, learned_steps: int) -> float:
    """Env steps for each update.

    Args:
      learned_steps: steps of a window that are learned from.
    """
    return self.replay_batch_size * learned_steps / self.replay_ratio

  def of_host(self, hosts: int) -> Self:
    """The part of each of so many hosts, which share it evenly."""
    return dataclasses.replace(
      self,
      replay_capacity=max(1, self.replay_capacity // hosts),
      replay_min_steps=max(1, self.replay_min_steps // hosts),
      replay_batch_size=self.replay_batch_size // hosts,
    )


@dataclasses.dataclass(frozen=True)
class PrioritizedConfig(ReplayConfig):
  """The config of a prioritized replay.

  Attributes:
    priority_exponent: alpha, the exponent of priorities; 0 samples uniformly.
    importance_exponent: initial beta, the exponent of importance weights; 1
      corrects the sampling bias fully.
    importance_exponent_rise: how much beta rises over the run, linearly; it
      ends at 1 where that would be more.
  """

  priority_exponent: float = 0.6
  importance_exponent: float = 0.4
  importance_exponent_rise: float = 0.0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    super().__post_init__()
    types.check_ranges(
      self,
      priority_exponent=(0.0, 1.0),
      importance_exponent=(0.0, 1.0),
      importance_exponent_rise=(0.0, 1.0),
    )


@dataclasses.dataclass(frozen=True)
class Plan:
  """How many env steps a run and a batch have, and the replay.

  Attributes:
    total_steps: env steps of the run.
    batch_steps: env steps in a batch of unrolls, over all cores.
    replay: the replay; None for an agent that learns without one.
    parts: learner devices of all hosts times micro-batches; it divides batches.
    hosts: learner hosts, each with a replay of its own.
    unroll_length: env steps of an unroll.
  """

  total_steps: int
  batch_steps: int
  replay: ReplayConfig | None = None
  parts: int = 1
  hosts: int = 1
  unroll_length: int = 1

  @property
  def horizon(self) -> base.Horizon:
    """The length of the run in env steps and updates.

    An agent that learns from several steps of a window makes fewer of these,
    see `base.Horizon.with_windows`.
    """
    steps_per_update: float = self.batch_steps
    if self.replay is not None:
      steps_per_update = self.replay.steps_per_update(learned_steps=1)
    return base.Horizon.of(self.total_steps, steps_per_update)

  def agent(
    self,
    config: base.Config,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
  ) -> base.Agent:
    """Makes the agent, and checks it against the plan.

    Args:
      config: of the agent.
      spec: the environment's observations and actions.
      axis_name: the mesh axis over which batches are sharded, or None.

    Raises:
      types.ConfigError: the agent needs a replay and there is none, or the
        reverse; `parts` or the agent's minibatches do not divide a batch; the
        replay is too small, or the run too short, to learn anything.
    """
    agent = config.make(spec, axis_name, self.horizon)
    _check_kind(agent, self.replay)
    self._check_minibatches(agent.needs)
    if not isinstance(self.replay, PrioritizedConfig):
      agent = base.without_priorities(agent)
    least = self.batch_steps
    if self.replay is not None:
      least = max(least, self.replay.replay_min_steps)
      self._check_replay(self.replay)
    if self.total_steps < least:
      raise types.ConfigError(
        f"expected total_steps of at least {least}, so that learning starts,"
        f" found {self.total_steps}"
      )
    return agent

  def source(
    self,
    agent: base.Agent,
    period: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    acted: counters.Acted | None = None,
  ) -> Experience:
    """Makes the source of the agent's batches.

    Args:
      agent: the agent that learns.
      period: T, new env steps of an unroll.
      cores: the learner devices of this host.
      rng_key: for sampling from the replay.
      acted: counts env steps, of all hosts; None to take all steps of unrolls
        for env steps, with resets.
    """
    if self.replay is None:
      return Once()
    replay = self.replay.of_host(self.hosts)
    env_steps = self._of_host(acted)
    if isinstance(replay, PrioritizedConfig):
      horizon = self.horizon.with_windows(agent.needs.learned_steps)
      return Prioritized(
        *(agent, replay, period, cores, rng_key, horizon.updates, env_steps)
      )
    return Replayed(agent, replay, period, cores, rng_key, env_steps)

  def _of_host(self, acted: counters.Acted | None) -> _Acted:
    """A host's part of env steps: each has the same, and so as many updates."""
    if acted is None:
      return None
    return lambda: acted.env_steps // self.hosts

  def _check_minibatches(self, needs: base.Needs) -> None:
    size, of = self.batch_steps // self.parts, "env steps"
    if needs.divides_unrolls:
      size, of = size // self.unroll_length, "unrolls"
    if size % needs.minibatches:
      divisors = [n for n in range(1, size + 1) if size % n == 0]
      near = sorted(divisors, key=lambda n: abs(n - needs.minibatches))[:2]
      raise types.ConfigError(
        f"expected minibatches that divide the {size} {of} that each learner"
        f" device has of a batch, such as {' or '.join(map(str, near))}, found"
        f" {needs.minibatches}"
      )

  def _check_replay(self, replay: ReplayConfig) -> None:
    if replay.replay_batch_size % self.parts:
      raise types.ConfigError(
        f"expected a replay_batch_size that is a multiple of {self.parts}"
        " (learner devices times micro-batches), found"
        f" {replay.replay_batch_size}"
      )
    if replay.replay_capacity < self.batch_steps:
      raise types.ConfigError(
        f"expected a replay_capacity of at least {self.batch_steps} env steps,"
        f" a batch of unrolls, found {replay.replay_capacity}"
      )


def check_memory(
  config: ReplayConfig, cores: Sequence[jax.Device], replay_bytes: int
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


class Once(Experience):
  """Learns from each unroll once."""

  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Yields the shares' unrolls as one batch."""
    yield self.example(shares)

  def example(self, shares: Sequence[types.Share]) -> Batch:
    """The shares' unrolls as a batch."""
    return Batch([share.unroll for share in shares])


class Replayed(Experience):
  """Learns from windows of a replay on each core.

  After each share it yields as many batches as the replay ratio asks for, and
  takes no new share meanwhile: neither acting nor learning can run ahead.

  It changes while a share is added, and from when a batch is drawn until the
  learner asks for the next one. In between any thread may save it, `paused`.

  Attributes:
    states: each core's replay.
    replay: the pure functions over such a state.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: ReplayConfig,
    period: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    acted: _Acted = None,
  ) -> None:
    """Allocates the replays only with the first shares; see `Plan.source`."""
    assert agent.needs.window is not None
    capacity = max(1, config.replay_capacity // (period * len(cores)))
    self._most_steps = capacity * period * len(cores)
    self.states: list[types.Tree] = []
    self._config = config
    self._needs = agent.needs
    self._period = period
    self._cores = list(cores)
    self._keys = [
      jax.device_put(jax.random.fold_in(rng_key, i), core)
      for i, core in enumerate(cores)
    ]
    self._acted = acted
    self._steps = 0
    # Env steps that are not new any more.
    self._seen = 0
    self._ratio = config.due(agent.needs.learned_steps)
    self._drawn = 0
    self.replay = self._make_replay(capacity, agent.needs.window)
    self._add = jax.jit(self.replay.add, donate_argnums=0)
    self._sample = jax.jit(self.draw)
    # Not the state itself: the next `add` deletes it.
    self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
    self._ahead: Batch | None = None
    # What to go on from when the shapes are known.
    self._restored: Mapping[str, np.ndarray] = {}
    # Who wants to pause holds the turn, so that changes wait for it.
    self._turn, self._changing = threading.Lock(), threading.Lock()

  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Stores one share per core, and yields the batches to learn from now."""
    with self._changes():
      self._begin(shares)
      pairs = zip(self.states, shares, strict=True)
      self.states = [self._added(state, share) for state, share in pairs]
      unrolls = sum(share.unroll.version.shape[1] for share in shares)
      new_steps = unrolls * self._period
      self._steps += new_steps
      self._ratio.add(self._env_steps(new_steps))
    while True:
      with self._changes():
        if not self._ratio.take():
          return
        yield self._next()

  def counted(self, env_steps: float, batches: int = 1) -> None:
    """See `Experience`."""
    self._ratio.learned(env_steps, batches)

  def example(self, shares: Sequence[types.Share]) -> Batch:
    """A batch to compile the update with; it leaves the sampling unchanged."""
    self._begin(shares)
    return self._batch(self.states, self._drawn)

  def resume(self, updates: int, resets: float) -> None:
    """Continues the random numbers and the clock; see `Experience`."""
    self._drawn, self._ratio.missed = updates, resets

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics."""
    return {"replay_size": min(self._steps, self._most_steps)}

  @property
  def num_bytes(self) -> int:
    """Of the replays' arrays; 0 until they are allocated."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(self.states))

  def bytes_for(self, share: types.Share) -> int:
    """Of one core's replay of such unrolls, by their shapes and dtypes."""
    leaves = jax.tree.leaves(self._state_for(share))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)

  def batch_for(self, share: types.Share) -> types.Tree:
    """One core's part of a batch from such unrolls: its shapes and dtypes."""
    state = self._state_for(share)
    index, clock = jnp.int32(0), jnp.float32(0)
    return jax.eval_shape(self.draw, state, jax.random.key(0), index, clock)

  def draw(
    self,
    state: types.Tree,
    rng_key: jax.Array,
    index: jax.Array,
    clock: jax.Array,
  ) -> types.Tree:
    """Draws a core's part of a batch; pure.

    Args:
      state: of the core's replay.
      rng_key: of the core.
      index: `[]` int32, batches of the run before this one.
      clock: `[]` float32, see `base.AgentState`.

    Returns:
      A `types.Sample`; of a prioritized replay a pair, with its windows.
    """
    del clock
    key = jax.random.fold_in(random_keys.unrolled(rng_key), index)
    return self.replay.sample(state, key, self._part_size)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """What is saved within it is of one moment between two updates."""
    with self._turn, self._changing:
      yield

  def saved(self) -> Callable[[], Mapping[str, types.Tree]]:
    """Copies its state; call it `paused`.

    Returns:
      A function that says the state as a nest of arrays, on any thread.
    """
    if not self.states:
      restored = self._restored
      return lambda: restored
    state = {
      "states": [self._copy(state) for state in self.states],
      "keys": [jax.random.key_data(key) for key in self._keys],
      "ahead": self._ahead,
      "ratio": self._ratio.saved(),
      "steps": np.int64(self._steps),
      "seen": np.int64(self._seen),
      "drawn": np.int64(self._drawn),
    }
    return lambda: state

  def restore(self, saved: Mapping[str, np.ndarray]) -> None:
    """Goes on from what was saved, once the first share has come.

    Args:
      saved: its arrays by their paths.
    """
    self._restored = saved

  def _make_replay(self, capacity: int, window: int) -> Any:
    return replay.Uniform(capacity, window)

  def _state_for(self, share: types.Share) -> types.Tree:
    unroll = self._needs.stored(share.unroll)
    return jax.eval_shape(self.replay.init, unroll)

  def _begin(self, shares: Sequence[types.Share]) -> None:
    if self.states:
      return
    check_memory(self._config, self._cores, self.bytes_for(shares[0]))
    states = []
    for share, core in zip(shares, self._cores, strict=True):
      with jax.default_device(core):
        state = self.replay.init(self._needs.stored(share.unroll))
      states.append(jax.device_put(state, core))
    if self._restored:
      states = self._go_on(states, self._restored)
    # From now on `saved` says what there is.
    self.states, self._restored = states, {}

  def _go_on(
    self, empty: list[types.Tree], saved: Mapping[str, np.ndarray]
  ) -> list[types.Tree]:
    """Takes over what was saved; returns each core's replay."""
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
      "ratio": self._ratio.saved(),
      "steps": np.int64(0),
      "seen": np.int64(0),
      "drawn": np.int64(0),
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
      self._ahead = Batch(self._on_cores(parts), self._on_cores(windows))
    self._ratio.restore(found["ratio"])
    self._steps, self._drawn = int(found["steps"]), int(found["drawn"])
    self._seen = int(found["seen"])
    return self._on_cores(found["states"])

  def _on_cores(self, nests: Sequence[types.Tree]) -> list[types.Tree]:
    """Copies each nest to its core."""
    return [
      jax.device_put(jax.tree.map(jnp.array, nest), core)
      for nest, core in zip(nests, self._cores, strict=True)
    ]

  @contextlib.contextmanager
  def _changes(self) -> Iterator[None]:
    """Waits for who has it paused, and lets nobody pause it within."""
    with self._turn:
      self._changing.acquire()
    try:
      yield
    finally:
      self._changing.release()

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

  def _added(self, state: types.Tree, share: types.Share) -> types.Tree:
    return self._add(state, self._needs.stored(share.unroll))

  def _next(self) -> Batch:
    self._drawn += 1
    return self._batch(self.states, self._drawn - 1)

  def _batch(self, states: Sequence[types.Tree], index: int) -> Batch:
    return Batch(self._samples(states, index))

  def _samples(
    self, states: Sequence[types.Tree], index: int
  ) -> list[types.Tree]:
    pairs = zip(states, self._keys, strict=True)
    clock = np.float32(index - self._ratio.missed)
    return [self._sample(state, key, index, clock) for state, key in pairs]

  @property
  def _part_size(self) -> int:
    """Windows of each core's part of a batch."""
    return self._config.replay_batch_size // len(self._keys)


class Prioritized(Replayed):
  """Learns from windows of a prioritized replay on each core.

  Shares must have priorities. Each batch is sampled before the one before it
  has been learned from, so without that batch's new priorities.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: PrioritizedConfig,
    period: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    updates: int,
    acted: _Acted = None,
  ) -> None:
    """Allocates the replays only with the first shares.

    Args:
      agent: see `Plan.source`.
      config: of the replay.
      period: see `Plan.source`.
      cores: see `Plan.source`.
      rng_key: see `Plan.source`.
      updates: of the run, over which the importance exponent rises.
      acted: see `Plan.source`.
    """
    self._alpha = config.priority_exponent
    self._beta = config.importance_exponent, config.importance_exponent_rise
    self._updates = float(updates)  # JAX's integers end at 2^31.
    super().__init__(agent, config, period, cores, rng_key, acted)
    self._update = jax.jit(self.replay.update, donate_argnums=0)
    # Copies, for any thread: the states are donated.
    self._clamped: list[jax.Array] = []

  def learned(
    self, windows: Sequence[replay.Windows], priorities: Sequence[jax.Array]
  ) -> None:
    """Writes a batch's new priorities to the replays."""
    self.states = [
      self._update(state, own, new)
      for state, own, new in zip(self.states, windows, priorities, strict=True)
    ]

  def measure(self) -> dict[str, metrics.Value]:
    """Counts what `replay.PrioritizedState` clamped before the last share."""
    clamped = sum(int(x) for x in self._clamped)
    return {**super().measure(), "priorities_clamped": clamped}

  def _make_replay(self, capacity: int, window: int) -> Any:
    return replay.Prioritized(capacity, window, self._alpha)

  def _begin(self, shares: Sequence[types.Share]) -> None:
    if isinstance(shares[0].priorities, tuple):
      raise types.ConfigError(
        "expected priorities with the unrolls for a prioritized replay, found"
        " none"
      )
    super()._begin(shares)
    self._clamped = [jnp.copy(state.clamped) for state in self.states]

  def _added(self, state: types.Tree, share: types.Share) -> types.Tree:
    unroll = self._needs.stored(share.unroll)
    return self._add(state, unroll, share.priorities)

  def draw(
    self,
    state: types.Tree,
    rng_key: jax.Array,
    index: jax.Array,
    clock: jax.Array,
  ) -> types.Tree:
    """See `Replayed`."""
    key = jax.random.fold_in(random_keys.unrolled(rng_key), index)
    start, rise = self._beta
    done = jnp.minimum(clock / self._updates, 1.0)
    beta = jnp.minimum(start + rise * done, 1.0)
    return self.replay.sample(state, key, self._part_size, beta)

  def _next(self) -> Batch:
    batch = self._ahead or super()._next()
    self._ahead = super()._next()
    return batch

  def _batch(self, states: Sequence[types.Tree], index: int) -> Batch:
    drawn = self._samples(states, index)
    return Batch([sample for sample, _ in drawn], [own for _, own in drawn])


def _check_kind(agent: base.Agent, config: ReplayConfig | None) -> None:
  """Raises types.ConfigError if the agent and the replay do not match."""
  window = agent.needs.window
  if window is not None and config is None:
    raise types.ConfigError(
      f"expected a replay: this agent learns from windows of {window} time"
      " steps that it samples from one, found none"
    )
  if window is None and config is not None:
    raise types.ConfigError(
      "expected no replay: this agent learns from each unroll once, found"
      f" {config}"
    )
  if isinstance(config, PrioritizedConfig) and agent.priorities is None:
    raise types.ConfigError(
      "expected an agent whose actors can compute a window's priority, such as"
      " DQN, found one that cannot"
    )
