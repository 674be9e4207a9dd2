"""The uniform replay, against a Python list of windows."""

import dataclasses
import functools

import chex
import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from seedx import replay, types
from seedx.acting import unroll_store
from seedx.agents import base
from tests import fakes
from tests.replay import cases

BATCH = 1000


@pytest.mark.parametrize("kind", [replay.Uniform, replay.Prioritized])
def test_anything_but_a_share_of_unrolls_is_refused(kind):
  memory = kind(capacity=4, window=cases.LENGTH)
  share = types.Share(cases.make_unrolls([0]), np.ones((1, 1), np.float32))
  state = memory.init(share)
  for wrong in ({"reward": 1.0}, types.Share({"reward": 1.0})):
    for call in (memory.init, functools.partial(memory.add, state)):
      with pytest.raises(TypeError, match=r"expected types\.Share.*dict"):
        call(wrong)


def drawn(sample):
  """Returns the unrolls and starts `[B]` of windows, and checks the windows."""
  items = np.asarray(sample.unroll.version[0])
  starts = np.asarray(sample.unroll.action[0]) - 10 * items
  window = len(sample.unroll.version)
  expected = cases.expected_windows(items, starts, window)
  chex.assert_trees_all_equal(sample.unroll, expected)
  types_of = functools.partial(jax.tree.map, lambda x: x.dtype)
  assert types_of(sample.unroll) == types_of(expected)
  np.testing.assert_array_equal(sample.importance_weight, np.ones(len(items)))
  return items, starts


@functools.cache
def programs(capacity=4, window=3):
  """Returns jitted `init`, `add` and `sample`, which draws `BATCH` windows."""
  ring = replay.Uniform(capacity, window)

  def sample(state, key):
    drawn, windows = ring.sample(state, key, BATCH)
    assert windows == () and ring.update(state, windows, None) is state
    return drawn

  return jax.jit(ring.init), jax.jit(ring.add), jax.jit(sample)


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True)
@hypothesis.given(
  sizes=st.sampled_from([(1, cases.LENGTH), (3, 1)]), data=st.data()
)
def test_samples_all_windows_of_the_newest_unrolls_and_no_others(sizes, data):
  capacity, window = sizes
  sizes = data.draw(
    st.lists(st.integers(1, capacity), min_size=1, max_size=4), label="sizes"
  )
  init, add, sample = programs(capacity, window)
  state = init(cases.share_of([0]))
  model, inserted = [], 0
  for i, size in enumerate(sizes):
    items = range(inserted, inserted + size)
    state = add(state, cases.share_of(items))
    # New unrolls replace the oldest.
    model, inserted = [*model, *items][-capacity:], inserted + size
    actual = zip(*drawn(sample(state, jax.random.key(i))), strict=True)
    starts = range(cases.LENGTH - window + 1)
    assert set(actual) == {(item, start) for item in model for start in starts}
    assert int(state.inserted) == inserted


@pytest.mark.parametrize(
  ("keys", "batch_size", "items", "kept"),
  [(1, 20_000, 3, [0, 1, 2]), (5_000, 4, 7, [3, 4, 5, 6])],
)
def test_windows_are_equally_probable(keys, batch_size, items, kept):
  init, add, _ = programs()
  state = init(cases.share_of([0]))
  for item in range(items):
    state = add(state, cases.share_of([item]))

  @functools.partial(jax.jit, static_argnums=(2, 3))
  def firsts(state, rng_key, keys, batch_size):
    def first(key):
      sample, _ = replay.Uniform(4, 3).sample(state, key, batch_size)
      unroll = sample.unroll
      return unroll.version[0], unroll.action[0]

    return jax.vmap(first)(jax.random.split(rng_key, keys))

  item, number = map(
    np.ravel, firsts(state, jax.random.key(7), keys, batch_size)
  )
  start = number - 10 * item
  windows = cases.LENGTH - 3 + 1
  assert set(item) == set(kept)
  # Unrolls, starts and their pairs are uniform.
  place = np.searchsorted(kept, item)
  for counts in (
    np.bincount(place, minlength=len(kept)),
    np.bincount(start, minlength=windows),
    np.bincount(place * windows + start, minlength=len(kept) * windows),
  ):
    assert counts.sum() == 20_000
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
  ("capacity", "window", "size", "length"),
  [(4, 7, 1, 6), (4, 3, 5, 6), (1, 2, 1, 1)],
)
def test_unrolls_that_do_not_fit_are_refused(capacity, window, size, length):
  ring = replay.Uniform(capacity, window)
  message = f"{window} .*{capacity} .*found {size} of {length}"
  with pytest.raises(types.ConfigError, match=message):
    ring.init(cases.share_of(range(size), length=length))


def test_unrolls_of_another_length_are_refused():
  # Without a check, an unroll of one step would be broadcast.
  ring = replay.Uniform(4, 3)
  state = programs()[0](cases.share_of([0]))
  for length in (1, cases.LENGTH + 1):
    with pytest.raises(
      AssertionError, match=r"expected \(6, 1, \d+\).*unrolls"
    ):
      jax.eval_shape(ring.add, state, cases.share_of([1], length=length))


def test_sizes_out_of_range_are_refused():
  for size, name in (((0, 1), "capacity"), ((1, 0), "window")):
    with pytest.raises(types.ConfigError, match=f"expected {name} from 1"):
      replay.Uniform(*size)


def test_all_fields_of_steps_are_in_one_array():
  # Programs with many arrays wait for other threads, see `on_cpu.packing`.
  state = jax.eval_shape(replay.Uniform(5, 3).init, cases.share_of([3, 4]))
  assert len(jax.tree.leaves(state.steps)) == 1


@pytest.mark.parametrize("window", [1, 5])
def test_each_step_of_an_environment_starts_exactly_one_window(window):
  num_steps, total = 3, 21 + window - 1
  agent = dataclasses.replace(fakes.counting_agent(), needs=base.Needs(window))
  layout = unroll_store.Layout.of(agent, num_steps, num_slots=1)
  length = layout.length
  init, add, sample = programs(10, window)
  state, added = None, 0
  for count in range(total):
    if not layout.finished(np.array([count]))[0]:
      continue
    number = np.arange(count - length + 1, count + 1)[:, None]
    unroll = cases.steps_of(number, np.full_like(number, added))
    share = types.Share(unroll)
    state = add(state or init(share), share)
    added += 1
  batch = sample(state, jax.random.key(0)).unroll
  version, action = np.asarray(batch.version)[0], np.asarray(batch.action)[0]
  windows = set(zip(version.tolist(), action.tolist(), strict=True))
  firsts = sorted(first for _, first in windows)
  assert firsts == list(range(21))
  assert added == 7
