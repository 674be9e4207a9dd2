"""Between finished unrolls and the learner: what becomes a batch, and when."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import jax

from seedx import replay, types
from seedx.agents import base


class Feed(Protocol):
  """Turns finished unrolls into batches, as many as are due."""

  def __call__(self, items: list[types.Unroll]) -> Iterator[list[types.Tree]]:
    """Takes an item `[L, S, ...]` on each core, and yields batches of them."""

  def example(self, items: list[types.Unroll]) -> list[types.Tree]:
    """A batch of the form that items of this form will have."""


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
  """How experience is learned from more than once.

  Attributes:
    capacity: env steps that are kept.
    min_steps: env steps before learning begins.
    batch_size: windows in an update.
    ratio: how often each env step is learned from, on average.
  """

  capacity: int
  min_steps: int
  batch_size: int
  ratio: float

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      capacity=(1, 2**31 - 1),
      min_steps=(1, self.capacity),
      batch_size=(1, 2**31 - 1),
      ratio=(1e-6, types.MOST),
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


def check(
  agent: base.Agent,
  config: ReplayConfig | None,
  parts: int,
  item_steps: int,
  total_steps: int,
) -> None:
  """Checks that an agent gets what it learns from.

  Args:
    agent: that learns.
    config: of its replay, if it has one.
    parts: learner devices, times the micro-batches of each.
    item_steps: env steps that are finished at a time, on all cores.
    total_steps: of the run.

  Raises:
    types.ConfigError: it learns from a replay and has none, or the reverse; or
      a batch from it cannot be divided so; or
      it is too small, or the run too short, for anything to be learned.
  """
  if agent.window is not None and config is None:
    raise types.ConfigError(
      "expected a replay: this agent learns from windows of"
      f" {agent.window} time steps that it draws there, found none"
    )
  if agent.window is None and config is not None:
    raise types.ConfigError(
      "expected no replay: this agent learns from each unroll once, as it was"
      f" acted, found {config}"
    )
  if config is not None and config.batch_size % parts:
    raise types.ConfigError(
      "expected a batch from the replay that learner devices and their"
      f" micro-batches, {parts} in all, divide, found {config.batch_size}"
    )

  least = item_steps if config is None else max(item_steps, config.min_steps)
  if total_steps < least:
    raise types.ConfigError(
      f"expected total_steps of at least {least}, before which nothing is"
      f" learned, found {total_steps}"
    )
  if config is not None and config.capacity < item_steps:
    raise types.ConfigError(
      f"expected a replay of at least {item_steps} env steps, as many as come"
      f" at a time, found a capacity of {config.capacity}"
    )


def unroll_length(agent: base.Agent, num_steps: int) -> int:
  """Time steps of unrolls, each of which brings `num_steps` new env steps."""
  return num_steps + (1 if agent.window is None else agent.window - 1)


def make(
  agent: base.Agent,
  config: ReplayConfig | None,
  num_steps: int,
  cores: Sequence[jax.Device],
  rng_key: jax.Array,
) -> Feed:
  """The feed that an agent needs.

  Args:
    agent: that learns.
    config: None for an agent without a `window`.
    num_steps: new env steps of an unroll.
    cores: that learn.
    rng_key: decides what is drawn.
  """
  if config is None:
    return AsActed()
  return Replay(agent, config, num_steps, cores, rng_key)


class AsActed:
  """A feed of the unrolls themselves, once each."""

  def __call__(self, items: list[types.Unroll]) -> Iterator[list[types.Unroll]]:
    """Yields the items."""
    yield items

  def example(self, items: list[types.Unroll]) -> list[types.Unroll]:
    """The items."""
    return items


class Replay:
  """A feed of windows from a replay on each core.

  It yields as many batches as the ratio says for what has come in, and takes
  nothing in meanwhile: neither side can run away from the other.

  Attributes:
    states: each core's replay.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: ReplayConfig,
    num_steps: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
  ) -> None:
    """Makes empty replays when the first items come; see `make`."""
    assert agent.window is not None
    capacity = max(1, config.capacity // (num_steps * len(cores)))
    self.states: list[types.Tree] = []
    self._replay: replay.Uniform | replay.Prioritized = replay.Uniform(
      capacity, agent.window
    )
    self._config = config
    self._num_steps = num_steps
    self._cores = list(cores)
    self._keys = [
      jax.device_put(jax.random.fold_in(rng_key, i), core)
      for i, core in enumerate(cores)
    ]
    self._steps = 0
    self._due = 0.0
    self._drawn = 0
    self._add = jax.jit(self._replay.add, donate_argnums=0)
    self._sample = jax.jit(self._draw)

  def __call__(self, items: list[types.Tree]) -> Iterator[list[types.Sample]]:
    """Stores an item of each core, and yields the batches that are due."""
    self._begin(items)
    pairs = zip(self.states, items, strict=True)
    self.states = [self._added(state, item) for state, item in pairs]
    unrolls = sum(_unroll(item).version.shape[1] for item in items)
    new_steps = unrolls * self._num_steps
    self._steps += new_steps
    if self._steps < self._config.min_steps:
      return
    self._due += new_steps * self._config.ratio
    while self._due >= self._config.batch_size:
      self._due -= self._config.batch_size
      yield self._batch()
      self._learned()

  def example(self, items: list[types.Tree]) -> list[types.Sample]:
    """A batch of zeros, to compile for."""
    self._begin(items)
    drawn = self._drawn
    batch = self._batch()
    self._drawn = drawn
    return batch

  def _begin(self, items: list[types.Tree]) -> None:
    if self.states:
      return
    for item, core in zip(items, self._cores, strict=True):
      with jax.default_device(core):
        state = self._replay.init(_unroll(item))
      self.states.append(jax.device_put(state, core))

  def _added(self, state: types.Tree, item: types.Tree) -> types.Tree:
    return self._add(state, item)

  def _batch(self) -> list[types.Sample]:
    return self._samples()

  def _learned(self) -> None:
    """The last batch has been learned from."""

  def _samples(self) -> list[types.Tree]:
    pairs = zip(self.states, self._keys, strict=True)
    samples = [self._sample(state, key, self._drawn) for state, key in pairs]
    self._drawn += 1
    return samples

  def _draw(
    self, state: types.Tree, rng_key: jax.Array, index: jax.Array
  ) -> types.Tree:
    size = self._config.batch_size // len(self._keys)
    key = jax.random.fold_in(rng_key, index)
    return self._replay.sample(state, key, size)


class Prioritized(Replay):
  """A feed of windows from a prioritized replay on each core.

  Its items are unrolls with the priorities of their windows, `(unroll [L, S,
  ...], priorities [S, windows])`. The next batch is drawn while the last one is
  learned from, before its new priorities are known.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: PrioritizedConfig,
    num_steps: int,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    priorities: Callable[[], list[jax.Array]],
  ) -> None:
    """Makes empty replays when the first items come.

    Args:
      agent: that learns.
      config: of the replay.
      num_steps: new env steps of an unroll.
      cores: that learn.
      rng_key: decides what is drawn.
      priorities: of the batch that was learned from last, each core's own.
    """
    super().__init__(agent, config, num_steps, cores, rng_key)
    prioritized = replay.Prioritized(
      self._replay.capacity,
      self._replay.window,
      config.priority_exponent,
      config.importance_exponent,
    )
    self._replay = prioritized
    self._priorities = priorities
    self._add = jax.jit(prioritized.add, donate_argnums=0)
    self._update = jax.jit(prioritized.update, donate_argnums=0)
    self._ahead: list[types.Tree] = []
    self._places: list[replay.Places] = []

  def _added(self, state: types.Tree, item: types.Tree) -> types.Tree:
    return self._add(state, *item)

  def _batch(self) -> list[types.Sample]:
    drawn = self._ahead or self._samples()
    self._ahead = self._samples()
    self._places = [places for _, places in drawn]
    return [sample for sample, _ in drawn]

  def _learned(self) -> None:
    self.states = [
      self._update(state, places, priorities)
      for state, places, priorities in zip(
        self.states, self._places, self._priorities(), strict=True
      )
    ]

  def example(self, items: list[types.Tree]) -> list[types.Sample]:
    """A batch of zeros, to compile for."""
    batch = super().example(items)
    self._ahead = []  # Of nothing.
    return batch


def _unroll(item: types.Tree) -> types.Unroll:
  return item if isinstance(item, types.Unroll) else item[0]
