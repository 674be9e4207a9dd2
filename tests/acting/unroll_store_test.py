"""The unroll store, compared with lists of steps."""

import functools

import dm_env
import jax
import numpy as np
import pytest

from seedx import types
from seedx.acting import unroll_store
from seedx.agents import acting_step
from tests import fakes

FIRST, MID, LAST = (int(kind) for kind in dm_env.StepType)
_FEATURES = 3
_SPEC = types.EnvironmentSpec(
  observation=dm_env.specs.Array((_FEATURES,), np.float32),
  action=dm_env.specs.DiscreteArray(2),
)


class _Reference:
  """The expected steps: a list for the current lease of each slot."""

  def __init__(self, layout):
    self.layout = layout
    self.history = {slot: [] for slot in range(layout.num_slots)}

  def step(self, slot, timestep, version, acting):
    past = self.history[slot]
    first = not past or timestep.step_type == FIRST
    before = 0.0 if first else past[-1]["after"]
    after = np.float32(before + timestep.observation.sum() + acting)
    past.append(
      {
        "timestep": timestep,
        "action_tm1": 0 if first else past[-1]["action"],
        "before": before,
        "after": after,
        "action": int(np.round(after)) % 2,
        "version": version,
      }
    )
    steps = len(past) - self.layout.length
    if steps >= 0 and steps % self.layout.period == 0:
      return past[steps:]
    return None


def _assert_same(unroll, place, expected):
  """Compares one unroll of a batch with steps of the reference."""

  def column(get):
    return np.stack([get(step) for step in expected])

  def actual(leaf):
    return np.asarray(leaf)[:, place]

  timestep = unroll.inputs.timestep
  for name in ("step_type", "reward", "discount", "observation"):
    np.testing.assert_allclose(
      actual(getattr(timestep, name)),
      column(lambda step, name=name: getattr(step["timestep"], name)),
      rtol=1e-6,
      err_msg=name,
    )
  np.testing.assert_array_equal(
    actual(unroll.inputs.action_tm1), column(lambda step: step["action_tm1"])
  )
  for name in ("action", "version"):
    np.testing.assert_array_equal(
      actual(getattr(unroll, name)), column(lambda step, n=name: step[n])
    )
  np.testing.assert_allclose(
    actual(unroll.extras["sum"]), column(lambda step: step["after"]), rtol=1e-5
  )
  np.testing.assert_allclose(
    np.asarray(unroll.core_state)[place], expected[0]["before"], rtol=1e-5
  )


def _programs(layout, agent):
  """Returns an empty store, a batch of 3 empty unrolls, `act` and `collect`."""
  store = unroll_store.empty(
    agent, acting_step.zero_inputs(_SPEC, 1), 0.0, layout
  )
  zeros = np.zeros(3, np.int32)
  batch = unroll_store.unrolls(layout, store, zeros, zeros)
  act = functools.partial(unroll_store.act, agent, layout)
  collect = functools.partial(unroll_store.collect, layout)
  return store, batch, jax.jit(act, donate_argnums=0), jax.jit(collect)


def test_store_equals_a_python_list_of_steps():
  """Slots, numbers of rows, resets and new leases are random."""
  rng = np.random.default_rng(6)
  layout = unroll_store.Layout(num_slots=7, length=6, period=2)
  agent = fakes.counting_agent()
  store, empty, act, collect = _programs(layout, agent)
  # With 99 in place of 0, values that were never written are noticed.
  store = jax.tree.map(lambda leaf: np.full_like(leaf, 99), store)
  reference = _Reference(layout)
  counts = np.zeros(layout.num_slots, np.int32)
  size, compared, key = 5, 0, jax.random.key(0)

  for call in range(120):
    if rng.random() < 0.1:  # A lease ends, and another begins.
      slot = rng.integers(layout.num_slots)
      counts[slot], reference.history[slot] = 0, []
    rows = rng.integers(1, size + 1)
    slots = rng.permutation(layout.num_slots)[:rows].astype(np.int32)
    timestep = dm_env.TimeStep(
      step_type=rng.choice([FIRST, MID, MID, LAST], size).astype(np.uint8),
      reward=rng.normal(size=size).astype(np.float32),
      discount=rng.random(size).astype(np.float32),
      observation=rng.normal(size=(size, _FEATURES)).astype(np.float32),
    )
    padded = np.full(size, layout.num_slots, np.int32)
    padded[:rows] = slots
    count = np.zeros(size, np.int32)
    count[:rows] = counts[slots]
    acting = np.float32(0.25 * call)
    store, actions = act(
      store,
      acting,
      np.int32(call),
      key,
      unroll_store.Batch(padded, count, timestep),
    )
    expected, actions = {}, np.asarray(actions)
    for row, slot in enumerate(slots):
      step = jax.tree.map(lambda leaf, row=row: leaf[row], timestep)
      done = reference.step(slot, step, call, acting)
      assert reference.history[slot][-1]["action"] == int(actions[row])
      if done is not None:
        expected[row] = done
    counts[slots] += 1

    finished = np.flatnonzero(layout.finished(count[:rows]))
    assert finished.tolist() == list(expected)
    place = np.full(size, 3, np.int32)  # Index 3 is padding.
    taken = finished[:3]
    place[: len(taken)] = np.arange(len(taken))[::-1]
    padded_taken = np.zeros(size, np.int32)
    padded_taken[: len(taken)] = taken
    batch = collect(
      store, empty, padded[padded_taken], count[padded_taken], place
    )
    for position, row in enumerate(taken):
      _assert_same(batch, place[position], expected[row])
      compared += 1
  assert compared > 20


def test_collect_leaves_other_rows_unchanged():
  layout = unroll_store.Layout(num_slots=7, length=1, period=1)
  store, empty, _, collect = _programs(layout, fakes.counting_agent())
  batch = jax.tree.map(lambda leaf: np.full_like(leaf, 7), empty)
  index = np.array([1, 0, 0, 0, 0], np.int32)
  row = np.array([1, 3, 3, 3, 3], np.int32)  # 3 is padding.
  after = collect(store, batch, index, np.zeros(5, np.int32), row)
  assert np.asarray(after.action)[0].tolist() == [7, 0, 7]
  assert np.asarray(after.core_state).tolist() == [7, 0, 7]


def test_layouts_with_impossible_sizes_are_refused():
  with pytest.raises(types.ConfigError, match="period from 1 to"):
    unroll_store.Layout(num_slots=1, length=3, period=4)
  with pytest.raises(types.ConfigError, match="at least 1 environment"):
    unroll_store.Layout(num_slots=0, length=3, period=3)
