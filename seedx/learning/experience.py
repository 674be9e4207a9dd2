"""Between finished unrolls and the learner: what becomes a batch, and when."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from seedx import replay, types
from seedx.agents import base


class Batch(NamedTuple):
  """What one update learns from.

  Attributes:
    parts: on each core its part `[L, B / cores, ...]`: a `types.Unroll`, or a
      `types.Sample` for an agent that needs windows.
    windows: on each core which windows of its replay these are; None where no
      priority has to find its way back.
  """

  parts: Sequence[types.Tree]
  windows: Sequence[replay.Windows] | None = None


class Experience(Protocol):
  """Turns finished unrolls into batches, as many as are due."""

  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Takes a share of each core, and yields the batches that are due."""

  def learned(
    self, windows: Sequence[replay.Windows], priorities: Sequence[jax.Array]
  ) -> None:
    """Takes the new priorities `[B / cores]` of a batch on each core.

    Args:
      windows: `Batch.windows` of that batch.
      priorities: `types.LossOutput.priorities` of it.
    """

  def example(self, shares: Sequence[types.Share]) -> Batch:
    """A batch of the form that shares of this form will have."""

  def resume(self, updates: int) -> None:
    """Goes on behind so many updates, with an empty replay."""


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
  """How experience is learned from more than once.

  Attributes:
    replay_capacity: env steps that are kept.
    replay_min_steps: env steps before learning begins.
    replay_batch_size: windows (n-step transitions) in an update.
    replay_ratio: how often each env step is learned from, on average.
  """

  replay_capacity: int = 200_000
  replay_min_steps: int = 2_000
  replay_batch_size: int = 128
  replay_ratio: float = 4.0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      replay_capacity=(1, 2**31 - 1),
      replay_min_steps=(1, self.replay_capacity),
      replay_batch_size=(1, 2**31 - 1),
      replay_ratio=(1e-6, types.MOST),
    )


@dataclasses.dataclass(frozen=True)
class PrioritizedConfig(ReplayConfig):
  """How experience is learned from the more often, the more there is to learn.

  Attributes:
    priority_exponent: alpha, how much priorities count; 0 for not at all.
    importance_exponent: beta, how far the loss makes up for it; 1 for wholly.
  """

  priority_exponent: float = 0.6
  importance_exponent: float = 0.4

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    types.check_ranges(
      self, priority_exponent=(0.0, 1.0), importance_exponent=(0.0, 1.0)
    )


@dataclasses.dataclass(frozen=True)
class Plan:
  """How much a run learns from, and how much of it at a time.

  Attributes:
    total_steps: env steps of the run.
    batch_steps: env steps of the unrolls that come at a time, on all cores.
    replay: of an agent that learns from one.
    parts: learner devices, times the micro-batches of each.
  """

  total_steps: int
  batch_steps: int
  replay: ReplayConfig | None = None
  parts: int = 1

  @property
  def horizon(self) -> base.Horizon:
    """How many updates the run makes."""
    steps_per_update: float = self.batch_steps
    if self.replay is not None:
      replay = self.replay
      steps_per_update = replay.replay_batch_size / replay.replay_ratio
    return base.Horizon.of(self.total_steps, steps_per_update)

  def agent(
    self,
    config: base.Config,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
  ) -> base.Agent:
    """Makes the agent that learns so; see `base.Config.make`.

    Raises:
      types.ConfigError: it learns from a replay and has none, or the reverse;
        or a batch cannot be divided so; or the replay is too small, or the run
        too short, for anything to be learned.
    """
    agent = config.make(spec, axis_name, self.horizon)
    _check_kind(agent, self.replay)
    least = self.batch_steps
    if self.replay is not None:
      least = max(least, self.replay.replay_min_steps)
      self._check_replay(self.replay)
    if self.total_steps < least:
      raise types.ConfigError(
        f"expected total_steps of at least {least}, before which nothing is"
        f" learned, found {self.total_steps}"
      )
    return agent

  def source(
    self,
    agent: base.Agent,
    period: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
  ) -> Experience:
    """What the agent learns from.

    Args:
      agent: that learns.
      period: T, new env steps of an unroll.
      cores: that learn.
      rng_key: decides what is drawn from a replay.
    """
    if self.replay is None:
      return Once()
    if isinstance(self.replay, PrioritizedConfig):
      return Prioritized(agent, self.replay, period, cores, rng_key)
    return Replayed(agent, self.replay, period, cores, rng_key)

  def _check_replay(self, replay: ReplayConfig) -> None:
    if replay.replay_batch_size % self.parts:
      raise types.ConfigError(
        "expected a replay_batch_size that learner devices and their"
        f" micro-batches, {self.parts} in all, divide, found"
        f" {replay.replay_batch_size}"
      )
    if replay.replay_capacity < self.batch_steps:
      raise types.ConfigError(
        f"expected a replay of at least {self.batch_steps} env steps, as many"
        " as come at a time, found a replay_capacity of"
        f" {replay.replay_capacity}"
      )


class Once:
  """The unrolls themselves, once each."""

  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Yields the shares' unrolls."""
    yield self.example(shares)

  def learned(
    self, windows: Sequence[replay.Windows], priorities: Sequence[jax.Array]
  ) -> None:
    """Is never called: no batch names windows."""
    raise NotImplementedError

  def example(self, shares: Sequence[types.Share]) -> Batch:
    """The shares' unrolls."""
    return Batch([share.unroll for share in shares])

  def resume(self, updates: int) -> None:
    """Does nothing: nothing was kept."""


class Replayed:
  """Windows from a replay on each core.

  It yields as many batches as the ratio says for what has come in, and takes
  nothing in meanwhile: neither side can run away from the other.

  Attributes:
    states: each core's replay.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: ReplayConfig,
    period: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
  ) -> None:
    """Makes empty replays when the first shares come; see `Plan.source`."""
    assert agent.needs.window is not None
    capacity = max(1, config.replay_capacity // (period * len(cores)))
    self.states: list[types.Tree] = []
    self._config = config
    self._period = period
    self._cores = list(cores)
    self._keys = [
      jax.device_put(jax.random.fold_in(rng_key, i), core)
      for i, core in enumerate(cores)
    ]
    self._steps = 0
    self._due = 0.0
    self._drawn = 0
    self._replay = self._make_replay(capacity, agent.needs.window)
    self._add = jax.jit(self._replay.add, donate_argnums=0)
    self._sample = jax.jit(self._draw)

  def __call__(self, shares: Sequence[types.Share]) -> Iterator[Batch]:
    """Stores a share of each core, and yields the batches that are due."""
    self._begin(shares)
    pairs = zip(self.states, shares, strict=True)
    self.states = [self._added(state, share) for state, share in pairs]
    unrolls = sum(share.unroll.version.shape[1] for share in shares)
    new_steps = unrolls * self._period
    self._steps += new_steps
    if self._steps < self._config.replay_min_steps:
      return
    self._due += new_steps * self._config.replay_ratio
    while self._due >= self._config.replay_batch_size:
      self._due -= self._config.replay_batch_size
      yield self._next()

  def learned(
    self, windows: Sequence[replay.Windows], priorities: Sequence[jax.Array]
  ) -> None:
    """Is never called: no batch names windows."""
    raise NotImplementedError

  def example(self, shares: Sequence[types.Share]) -> Batch:
    """A batch of zeros, to compile for."""
    self._begin(shares)
    drawn = self._drawn
    batch = self._batch()
    self._drawn = drawn
    return batch

  def resume(self, updates: int) -> None:
    """Draws behind what so many updates have drawn."""
    self._drawn = updates

  def _make_replay(self, capacity: int, window: int) -> Any:
    return replay.Uniform(capacity, window)

  def _begin(self, shares: Sequence[types.Share]) -> None:
    if self.states:
      return
    for share, core in zip(shares, self._cores, strict=True):
      with jax.default_device(core):
        state = self._replay.init(share.unroll)
      self.states.append(jax.device_put(state, core))

  def _added(self, state: types.Tree, share: types.Share) -> types.Tree:
    return self._add(state, share.unroll)

  def _next(self) -> Batch:
    return self._batch()

  def _batch(self) -> Batch:
    return Batch(self._samples())

  def _samples(self) -> list[types.Tree]:
    pairs = zip(self.states, self._keys, strict=True)
    samples = [self._sample(state, key, self._drawn) for state, key in pairs]
    self._drawn += 1
    return samples

  def _draw(
    self, state: types.Tree, rng_key: jax.Array, index: jax.Array
  ) -> types.Tree:
    size = self._config.replay_batch_size // len(self._keys)
    key = jax.random.fold_in(rng_key, index)
    return self._replay.sample(state, key, size)


class Prioritized(Replayed):
  """Windows from a prioritized replay on each core.

  Its shares come with the priorities of their windows. The next batch is drawn
  while the last one is learned from, before its new priorities are known.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: PrioritizedConfig,
    period: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
  ) -> None:
    """Makes empty replays when the first shares come; see `Plan.source`."""
    self._exponents = config.priority_exponent, config.importance_exponent
    super().__init__(agent, config, period, cores, rng_key)
    self._update = jax.jit(self._replay.update, donate_argnums=0)
    self._ahead: Batch | None = None

  def learned(
    self, windows: Sequence[replay.Windows], priorities: Sequence[jax.Array]
  ) -> None:
    """Writes a batch's new priorities where its windows are."""
    self.states = [
      self._update(state, own, new)
      for state, own, new in zip(self.states, windows, priorities, strict=True)
    ]

  def _make_replay(self, capacity: int, window: int) -> Any:
    return replay.Prioritized(capacity, window, *self._exponents)

  def _begin(self, shares: Sequence[types.Share]) -> None:
    if isinstance(shares[0].priorities, tuple):
      raise types.ConfigError(
        "expected priorities with unrolls for a prioritized replay, as the"
        " actors of apex send them, found none"
      )
    super()._begin(shares)

  def _added(self, state: types.Tree, share: types.Share) -> types.Tree:
    return self._add(state, share.unroll, share.priorities)

  def _next(self) -> Batch:
    batch = self._ahead or self._batch()
    self._ahead = self._batch()
    return batch

  def _batch(self) -> Batch:
    drawn = self._samples()
    return Batch([sample for sample, _ in drawn], [own for _, own in drawn])


def _check_kind(agent: base.Agent, config: ReplayConfig | None) -> None:
  """Raises types.ConfigError where an agent needs other experience."""
  window = agent.needs.window
  if window is not None and config is None:
    raise types.ConfigError(
      f"expected a replay: this agent learns from windows of {window} time"
      " steps that it draws there, found none"
    )
  if window is None and config is not None:
    raise types.ConfigError(
      "expected no replay: this agent learns from each unroll once, as it was"
      f" acted, found {config}"
    )
  if isinstance(config, PrioritizedConfig) and agent.priorities is None:
    raise types.ConfigError(
      "expected an agent whose actors can say what a window's priority is,"
      " such as DQN, found one that cannot"
    )
