"""The unroll store: keeps each slot's steps until its unroll is finished.

A store is on one device. The `count` of a step is the number of earlier steps
of the slot's session. Step n is written at index `n % length` of a ring. Unroll
k of a slot has the steps from `k * period` to `k * period + length - 1`. Once
its last step is written, the unroll must be collected before the slot's next
step, which may overwrite the unroll's first step.

All functions are pure, have fixed shapes, and should be jitted. `act` should
donate the store, and `collect` the unrolls that it fills. Padding is dropped:
`act` drops rows whose slot is `num_slots`, and `collect` drops unrolls whose
`row` is the number of unrolls to fill. `unrolls` makes new arrays instead.
"""

import dataclasses
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.agents import acting_step, base


@dataclasses.dataclass(frozen=True)
class Layout:
  """Sizes of a store.

  Attributes:
    num_slots: number of slots, one for each environment (N).
    length: number of time steps of an unroll (L).
    period: number of steps from one unroll's start to the next one's (T), at
      most `length`. Consecutive unrolls overlap in `length - period` steps.
  """

  num_slots: int
  length: int
  period: int

  def __post_init__(self) -> None:
    if not 1 <= self.period <= self.length:
      raise types.ConfigError(
        f"expected a period from 1 to the unroll's length {self.length},"
        f" found {self.period}"
      )
    if self.num_slots < 1:
      raise types.ConfigError(
        f"expected at least 1 environment, found {self.num_slots}"
      )

  @classmethod
  def of(cls, agent: base.Agent, period: int, num_slots: int) -> "Layout":
    """Returns the layout for unrolls of the length that an agent needs."""
    return cls(num_slots, agent.needs.time_steps(period), period)

  @property
  def unrolls_under_way(self) -> int:
    """Largest number of unfinished unrolls that a slot has at a time."""
    return -(-self.length // self.period)

  def finished(self, counts: np.ndarray) -> np.ndarray:
    """Returns `[B]` bool, whether the steps with these counts end an unroll."""
    since_first = counts - (self.length - 1)
    return (since_first >= 0) & (since_first % self.period == 0)

  def number(self, counts: types.Array) -> types.Array:
    """Returns `[B]`, the number of the unroll that each of these steps ends.

    The unrolls of a slot's session have the numbers 0, 1, ...
    """
    return (counts - (self.length - 1)) // self.period

  def unfinished(self, counts: np.ndarray) -> np.ndarray:
    """Returns `[B]`, the number of unfinished unrolls of each slot.

    `counts`, `[B]`, has the number of steps so far of each slot's session.
    """
    begun = -(-counts // self.period)
    finished = np.maximum(0, (counts - self.length) // self.period + 1)
    return begun - finished


class Steps(NamedTuple):
  """The stored steps, `[length, N, ...]`; see `types.Unroll`."""

  inputs: types.Inputs
  action: types.Array
  extras: types.Tree
  version: types.Array


class Store(NamedTuple):
  """The state of all slots.

  Attributes:
    steps: `[length, N, ...]`, the ring.
    first_core_state: `[unrolls_under_way, N, ...]`, the core state before the
      first step of each unfinished unroll.
    core_state: `[N, ...]`, the core state before the next step.
    action: `[N, ...]`, the last action.
    exploration: `[N]` exploration of each slot, see `types.Inputs`.
  """

  steps: Steps
  first_core_state: types.Tree
  core_state: types.Tree
  action: types.Array
  exploration: types.Array


class Batch(NamedTuple):
  """Inputs of an inference step, one row for each environment.

  Attributes:
    slot: `[B]` int32 slots; `num_slots` for padding.
    count: `[B]` int32, number of steps of the slot's session before this one.
    timestep: `[B, ...]` time steps.
  """

  slot: types.Array
  count: types.Array
  timestep: dm_env.TimeStep


def empty(
  agent: base.Agent, inputs: types.Inputs, acting: types.Tree, layout: Layout
) -> Store:
  """Returns a store of zeros, with initial core states.

  Only the shapes and dtypes of the `[B, ...]` inputs and of the acting
  parameters matter.
  """
  example, _ = jax.eval_shape(
    agent.step,
    acting,
    jax.random.key(0),
    inputs,
    agent.initial_core_state(len(inputs.timestep.reward)),
  )
  steps = Steps(
    inputs=inputs,
    action=example.action,
    extras=example.extras,
    version=np.zeros(len(inputs.timestep.reward), np.int32),
  )

  def zeros(*leading: int) -> types.Tree:
    return lambda leaf: jnp.zeros((*leading, *leaf.shape[1:]), leaf.dtype)

  # Copies: an array that occurred twice in the store could not be donated.
  core_state = jax.tree.map(
    jnp.copy, agent.initial_core_state(layout.num_slots)
  )
  return Store(
    steps=jax.tree.map(zeros(layout.length, layout.num_slots), steps),
    first_core_state=jax.tree.map(
      zeros(layout.unrolls_under_way, layout.num_slots), core_state
    ),
    core_state=core_state,
    action=zeros(layout.num_slots)(example.action),
    exploration=jnp.asarray(agent.exploration(layout.num_slots)),
  )


def act(
  agent: base.Agent,
  layout: Layout,
  store: Store,
  acting: types.Tree,
  version: jax.Array,
  rng_key: jax.Array,
  batch: Batch,
) -> tuple[Store, jax.Array]:
  """Computes actions for a batch, and writes its steps into the store.

  Two programs, with which the host could read the actions earlier, take 1.4
  times as long on CPU. The core state and the previous action of a slot are
  reset at the first step of an episode and of a session.

  Args:
    agent: the agent that acts.
    layout: sizes of the store.
    store: store before the step.
    acting: acting parameters.
    version: `[]` int32 version of the acting parameters.
    rng_key: random key of this step.
    batch: `[B, ...]` inputs; only padding may repeat a slot.

  Returns:
    The store after the step, and the `[B, ...]` actions.
  """
  slot, count, timestep = batch
  first = (timestep.step_type == int(dm_env.StepType.FIRST)) | (count == 0)
  state = jax.tree.map(
    lambda leaf: leaf[slot],
    acting_step.ActingState(store.core_state, store.action),
  )
  inputs, core_state, output, state = acting_step.take(
    agent,
    acting,
    rng_key,
    timestep,
    state,
    exploration=store.exploration[slot],
    first=first,
  )

  # An unroll keeps only the core state before its first step.
  starting = jnp.where(count % layout.period == 0, slot, layout.num_slots)
  index = (count // layout.period) % layout.unrolls_under_way
  steps = Steps(
    inputs=inputs,
    action=output.action,
    extras=output.extras,
    version=jnp.broadcast_to(version, slot.shape),
  )
  store = Store(
    steps=_scatter(store.steps, (count % layout.length, slot), steps),
    first_core_state=_scatter(
      store.first_core_state, (index, starting), core_state
    ),
    core_state=_scatter(store.core_state, (slot,), state.core_state),
    action=_scatter(store.action, (slot,), state.action),
    exploration=store.exploration,
  )
  return store, output.action


def unrolls(
  layout: Layout, store: Store, slot: jax.Array, count: jax.Array
) -> types.Unroll:
  """Returns finished unrolls, `[length, B, ...]`.

  Args:
    layout: sizes of the store.
    store: store, which stays the same.
    slot: `[B]` slots whose last step finished an unroll.
    count: `[B]` counts of these steps.
  """
  first = count - (layout.length - 1)
  time = (first + jnp.arange(layout.length)[:, None]) % layout.length
  index = (first // layout.period) % layout.unrolls_under_way
  steps = jax.tree.map(lambda ring: ring[time, slot], store.steps)
  core_state = jax.tree.map(
    lambda firsts: firsts[index, slot], store.first_core_state
  )
  return types.Unroll(**steps._asdict(), core_state=core_state)


def collect(
  layout: Layout,
  store: Store,
  into: types.Unroll,
  slot: jax.Array,
  count: jax.Array,
  row: jax.Array,
) -> types.Unroll:
  """Copies finished unrolls from the store into a batch of unrolls.

  Args:
    layout: sizes of the store.
    store: store, which stays the same.
    into: `[length, S, ...]` batch of unrolls to fill.
    slot: `[B]` slots whose last step finished an unroll.
    count: `[B]` counts of these steps.
    row: `[B]`, places of the unrolls in `into`, 0 to S - 1; S for padding.

  Returns:
    `into` with these unrolls.
  """
  finished = unrolls(layout, store, slot, count)
  # A slice in place of the times takes four times as long on CPU.
  place = jnp.arange(layout.length)[:, None], row
  steps = _scatter(Steps(*into[:-1]), place, Steps(*finished[:-1]))
  core_state = _scatter(into.core_state, (row,), finished.core_state)
  return types.Unroll(**steps._asdict(), core_state=core_state)


def _scatter(
  into: types.Tree, index: tuple[jax.Array | slice, ...], rows: types.Tree
) -> types.Tree:
  return jax.tree.map(
    lambda leaf, row: leaf.at[index].set(row, mode="drop"), into, rows
  )
