"""The prioritized replay and its sums, against NumPy and a deque of unrolls."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from seedx import replay, types
from seedx.replay import sum_tree
from tests.replay import cases

WINDOW = 3
WINDOWS = cases.LENGTH - WINDOW + 1
# The paper's names of the exponents.
ALPHA, BETA = 0.6, np.float32(0.4)
BATCH = 160


class Reference:
  """A deque of the newest unrolls' numbers and priorities, oldest first."""

  def __init__(self, capacity):
    self._capacity = capacity
    self._kept = collections.deque(maxlen=capacity)
    self._inserted = 0

  def add(self, priorities):
    for row in priorities:
      self._kept.append((self._inserted, np.array(row, np.float64)))
      self._inserted += 1

  def update(self, numbers, starts, priorities):
    kept = dict(self._kept)
    for number, start, priority in zip(
      numbers, starts, priorities, strict=True
    ):
      if number in kept:
        kept[number][start] = priority

  def numbers(self):
    return [number for number, _ in self._kept]

  def masses(self):
    """Returns priority ** ALPHA by entry of the ring, `[capacity, WINDOWS]`."""
    mass = np.zeros((self._capacity, WINDOWS))
    for number, priorities in self._kept:
      mass[number % self._capacity] = (priorities + 1e-6) ** ALPHA
    return mass


@functools.cache
def programs(capacity=4, alpha=ALPHA):
  """Returns jitted functions of a replay with batches of `BATCH` windows."""
  # With these exponents, beta equals the fraction of the run that is done.
  ring = replay.Prioritized(
    capacity,
    WINDOW,
    priority_exponent=alpha,
    importance_exponent=0.0,
    importance_exponent_rise=1.0,
  )

  def sample(state, key, beta=BETA):
    return ring.sample(state, key, BATCH, beta)

  functions = ring.init, ring.add, sample, ring.update
  return Programs(*map(jax.jit, functions))


class Programs(NamedTuple):
  init: Callable
  add: Callable
  sample: Callable
  update: Callable


total = jax.jit(sum_tree.total)
find = jax.jit(sum_tree.find)
set_leaves = jax.jit(sum_tree.set_leaves)
empty_tree = jax.jit(sum_tree.init, static_argnums=0)
versions = jax.jit(lambda state: state.ring.unrolls.version)


def filled(priorities, capacity=4, alpha=ALPHA):
  """Returns a replay and a reference with unrolls that were added one by one.

  `priorities` is `[unrolls, WINDOWS]`.
  """
  state = programs(capacity, alpha).init(example())
  reference = Reference(capacity)
  for number, row in enumerate(np.asarray(priorities, np.float32)):
    share = cases.share_of([number], row[None])
    state = programs(capacity, alpha).add(state, share)
    reference.add(row[None])
  return state, reference


def example(size=1):
  """Returns a share of unrolls with priorities of 0."""
  priorities = np.zeros((size, WINDOWS), np.float32)
  return cases.share_of(range(size), priorities)


def uneven(rows, seed=0):
  """Returns priorities `[rows, WINDOWS]` that differ by factors up to 40."""
  rng = np.random.default_rng(seed)
  return np.exp(rng.uniform(-1.85, 1.85, (rows, WINDOWS))).astype(np.float32)


def numbers(places, capacity=4):
  """Returns the number of each sampled window's unroll."""
  newest = int(places.newest)
  number = np.arange(newest - capacity + 1, newest + 1)
  entry = np.asarray(places.leaf) // WINDOWS
  return number[np.argsort(number % capacity)][entry]


def check_windows(sample, places, capacity=4):
  """Checks windows; returns the numbers of their unrolls, and their starts."""
  number, start = numbers(places, capacity), np.asarray(places.leaf) % WINDOWS
  expected = cases.expected_windows(number, start, WINDOW)
  chex.assert_trees_all_equal(sample.unroll, expected)
  types_of = functools.partial(jax.tree.map, lambda x: x.dtype)
  assert types_of(sample.unroll) == types_of(expected)
  return number, start


def test_windows_are_drawn_in_proportion_to_priorities():
  """The replay has overwritten unrolls, and its tree has two levels."""
  capacity, batches = 100, 100_000
  state, reference = filled(uneven(130), capacity)
  ring = replay.Prioritized(capacity, WINDOW, priority_exponent=ALPHA)

  @jax.jit
  def leaves(state, key):
    keys = jax.random.split(key, batches)
    return jax.vmap(lambda x: ring.sample(state, x, 1)[1].leaf)(keys)

  leaf = np.ravel(leaves(state, jax.random.key(11)))
  counts = np.bincount(leaf, minlength=capacity * WINDOWS)
  mass = reference.masses().ravel()
  assert not counts[mass == 0].any()
  expected = mass[mass > 0] / mass.sum() * batches
  assert expected.min() > 5
  assert stats.chisquare(counts[mass > 0], expected).pvalue > 1e-3


def test_a_batch_has_each_window_about_as_often_as_expected():
  for seed in range(3):
    state, reference = filled(uneven(6, seed))
    _, places = programs().sample(state, jax.random.key(seed))
    mass = reference.masses()
    expected = mass / mass.sum() * BATCH
    counts = np.bincount(places.leaf, minlength=mass.size).reshape(mass.shape)
    # The windows of an unroll are contiguous, so this holds for unrolls too.
    for actual, exact in (
      (counts, expected),
      (counts.sum(axis=1), expected.sum(axis=1)),
    ):
      assert np.all(actual >= np.floor(exact) - 1)
      assert np.all(actual <= np.ceil(exact) + 1)


def test_windows_with_priority_0_are_drawn_if_there_are_no_others():
  state, _ = filled(np.zeros((4, WINDOWS)))
  drawn, places = programs().sample(state, jax.random.key(0))
  counts = np.bincount(places.leaf, minlength=16)
  assert np.all(abs(counts - 10) <= 1)
  np.testing.assert_array_equal(drawn.importance_weight, np.ones(BATCH))


@pytest.mark.parametrize("items", [3, 7])
def test_importance_weights_are_those_of_the_paper(items):
  state, reference = filled(uneven(items))
  mass = reference.masses().ravel()
  for beta in (0.0, BETA, 1.0):
    batch, places = programs().sample(
      state, jax.random.key(1), np.float32(beta)
    )
    probability = mass[np.asarray(places.leaf)] / mass.sum()
    weight = (np.sum(mass > 0) * probability) ** -beta
    np.testing.assert_allclose(
      batch.importance_weight, weight / weight.max(), rtol=1e-5
    )
    assert batch.importance_weight.dtype == jnp.float32
    # With equal probabilities, this would test nothing.
    assert len(np.unique(probability)) > 5


@pytest.mark.parametrize("broken", [np.nan, -1.0, 1.5e29])
def test_an_invalid_priority_is_replaced_by_0_and_counted(broken):
  # If the priority counted, one window could be drawn again and again.
  _, _, sample, update = programs(4, 1.0)
  priorities = np.ones((4, WINDOWS), np.float32)
  priorities[1, 2] = broken
  state, _ = filled(priorities, alpha=1.0)
  assert state.clamped == 1
  updated, _ = filled(np.ones((4, WINDOWS)), alpha=1.0)
  _, places = sample(updated, jax.random.key(0))
  is_broken = np.asarray(places.leaf) == WINDOWS + 2
  updated = update(updated, places, np.where(is_broken, np.float32(broken), 1))
  assert updated.clamped == is_broken.sum() > 0
  for replay_state in (state, updated):
    batch, places = sample(replay_state, jax.random.key(1))
    counts = np.bincount(places.leaf, minlength=4 * WINDOWS)
    assert counts[WINDOWS + 2] <= 1
    # Each of the other 15 windows is expected 160 / 15 times.
    others = np.delete(counts, WINDOWS + 2)
    assert others.min() >= 9 and others.max() <= 12
    np.testing.assert_allclose(batch.importance_weight, np.ones(BATCH), 1e-5)


def test_the_largest_priorities_have_a_finite_sum():
  state, _ = filled(np.full((4, WINDOWS), 1e29), alpha=1.0)
  assert state.clamped == 0
  # The sum of 2^31 windows, more than fit into a replay, is finite.
  assert np.isfinite(np.float32(total(state.tree)) / 16 * np.float32(2**31))


def test_resets_do_not_change_the_maximum_importance_weight():
  # A reset has a TD error of 0, and thus a priority of 0. The other priorities
  # are so small that resets are drawn, too.
  priorities = 4e-5 * uneven(4)
  priorities[2] = 0.0
  state, reference = filled(priorities)
  batch, places = programs().sample(state, jax.random.key(1))
  reset = np.asarray(places.leaf) // WINDOWS == 2
  assert 0 < reset.sum() < 50
  mass = reference.masses().ravel()[np.asarray(places.leaf)]
  expected = (mass[~reset].min() / mass) ** BETA
  actual = np.asarray(batch.importance_weight)
  np.testing.assert_allclose(actual[~reset], expected[~reset], rtol=1e-5)
  np.testing.assert_array_equal(actual[reset], 1.0)


ACTIONS = st.lists(
  st.one_of(
    st.tuples(st.just("add"), st.sampled_from([1, 3])),
    st.tuples(st.just("sample"), st.just(0)),
    # The number is the age of the batch whose priorities are updated.
    st.tuples(st.just("update"), st.integers(0, 3)),
  ),
  min_size=4,
  max_size=14,
)


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(
  capacity=st.sampled_from([4, 5]), actions=ACTIONS, seed=st.integers(0, 99)
)
def test_calls_in_any_order_match_a_deque(capacity, actions, seed):
  rng = np.random.default_rng(seed)
  init, add, sample, update = programs(capacity)
  state = init(example())
  reference, inserted, batches = Reference(capacity), 0, []
  for kind, count in [("add", 1), *actions]:
    if kind == "add":
      priorities = rng.exponential(size=(count, WINDOWS)).astype(np.float32)
      items = range(inserted, inserted + count)
      state = add(state, cases.share_of(items, priorities))
      reference.add(priorities)
      inserted += count
    elif kind == "sample":
      key = jax.random.key(rng.integers(1000))
      drawn, places = sample(state, key)
      number, start = check_windows(drawn, places, capacity)
      assert set(number) <= set(reference.numbers())
      batches.append((places, number, start))
    elif count < len(batches):
      places, number, start = batches[-1 - count]
      # A window that occurs twice in a batch has the same priority twice.
      table = rng.exponential(size=(inserted, WINDOWS)).astype(np.float32)
      priorities = table[number, start]
      state = update(state, places, priorities)
      reference.update(number, start, priorities)
    mass = reference.masses().ravel()
    leaves = np.asarray(state.tree[0])
    np.testing.assert_allclose(leaves[: mass.size], mass, rtol=1e-5)
    assert not leaves[mass.size :].any()
    np.testing.assert_allclose(total(state.tree), mass.sum(), rtol=1e-5)
    kept = np.asarray(versions(state))[: len(reference.numbers()), 0]
    assert sorted(kept) == reference.numbers()


def test_functions_compile_once_and_change_the_state_in_place():
  ring = replay.Prioritized(4, WINDOW)
  once = chex.assert_max_traces(n=1)
  add, update = (
    jax.jit(once(x), donate_argnums=0) for x in (ring.add, ring.update)
  )
  sample = jax.jit(once(ring.sample), static_argnums=2)
  state = programs().init(example(2))
  addresses = functools.partial(
    jax.tree.map, lambda x: x.unsafe_buffer_pointer()
  )
  for i in range(3):
    before = state
    old_addresses = addresses((state.ring.steps, state.tree[0]))
    new = cases.share_of([2 * i, 2 * i + 1], uneven(2, i))
    state = add(state, new)
    assert all(x.is_deleted() for x in jax.tree.leaves(before))
    before = state
    batch, places = sample(state, jax.random.key(i), 16)
    check_windows(batch, places)
    state = update(state, places, np.ones(16, np.float32))
    assert all(x.is_deleted() for x in jax.tree.leaves(before))
    assert addresses((state.ring.steps, state.tree[0])) == old_addresses


def test_arguments_out_of_range_or_of_wrong_shapes_are_refused():
  wrong = {"capacity": 0, "window": 0, "priority_exponent": 1.1}
  for field, value in wrong.items():
    with pytest.raises(types.ConfigError, match=f"expected {field} from"):
      replay.Prioritized(**{"capacity": 4, "window": 3, field: value})
  with pytest.raises(types.ConfigError, match="windows, found 2147483648"):
    # The error comes before anything is allocated.
    jax.eval_shape(replay.Prioritized(2**29, 3).init, example())
  with pytest.raises(types.ConfigError, match="expected priorities"):
    replay.Prioritized(4, 3).init(cases.share_of([0]))
  state, _ = filled(uneven(2))
  add, sample, update = programs()[1:]
  _, places = sample(state, jax.random.key(0))
  for shape in ((2,), (WINDOWS, 2), (2, 1), ()):
    priorities = np.ones(shape, np.float32)
    with pytest.raises(AssertionError, match=r"expected \(2, 4\).*priorities"):
      add(state, cases.share_of([0, 1], priorities))
    with pytest.raises(AssertionError, match=r"expected \(160\).*priorities"):
      update(state, places, priorities)
  with pytest.raises(AssertionError, match=r"int32 but expected.*priorities"):
    update(state, places, np.ones(BATCH, np.int32))
  for leaf, value in ((np.arange(2), np.ones(1)), (np.ones(2), np.ones(2))):
    with pytest.raises(AssertionError, match="leaf, value"):
      set_leaves(empty_tree(16), leaf, value)


def tree_of(value):
  leaf = np.arange(len(value), dtype=np.int32)
  return set_leaves(empty_tree(len(value)), leaf, np.float32(value))


# Sizes below, at and above whole blocks, with one to five levels.
SIZES = [1, 15, 16, 257, 70_000]


@pytest.mark.parametrize("size", SIZES)
def test_find_agrees_with_searchsorted_of_numpy(size):
  rng = np.random.default_rng(size)
  for zeros in (0.0, 0.5, 0.99):
    # Float32 computes sums of these integers exactly.
    value = rng.integers(1, 10, size) * (rng.random(size) >= zeros)
    value[rng.integers(size)] = 3
    ends = np.cumsum(value)
    amount = np.append(rng.integers(0, ends[-1], 300), [0, ends[-1] - 1])
    start = rng.integers(0, amount + 1)
    leaf = find(tree_of(value), np.float32(start), np.float32(amount - start))
    assert leaf.dtype == jnp.int32
    np.testing.assert_array_equal(
      leaf, np.searchsorted(ends, amount, side="right")
    )


@pytest.mark.parametrize("size", SIZES)
def test_each_node_is_the_sum_of_its_block_after_any_changes(size):
  rng = np.random.default_rng(size)
  tree, expected = empty_tree(size), np.zeros(size, np.float32)
  for _ in range(5):
    leaf = rng.integers(0, size, 40)
    value = rng.integers(0, 100, size)[leaf].astype(np.float32)
    dropped = rng.random(40) < 0.3
    places = np.where(dropped, sum_tree.NOWHERE, leaf).astype(np.int32)
    tree = set_leaves(tree, places, value)
    expected[leaf[~dropped]] = value[~dropped]
    levels = [np.asarray(level) for level in tree]
    np.testing.assert_array_equal(levels[0][:size], expected)
    assert not levels[0][size:].any()
    for lower, upper in itertools.pairwise(levels):
      sums = lower.reshape(-1, sum_tree.RADIX).sum(axis=-1)
      np.testing.assert_array_equal(upper[: len(sums)], sums)
      assert not upper[len(sums) :].any()
    assert total(tree) == expected.sum()


def test_rounding_errors_of_large_values_do_not_remain_in_sums():
  tree = tree_of(np.full(257, 0.1))
  expected = total(tree)
  for leaf in range(3):
    for value in (1e8, 0.1):
      tree = set_leaves(tree, np.int32([leaf]), np.float32([value]))
  assert total(tree) == expected


def test_a_leaf_that_is_set_twice_gets_one_of_its_values():
  leaf, value = np.int32([3, 20, 3, 20]), np.float32([1, 2, 4, 8])
  tree = set_leaves(empty_tree(257), leaf, value)
  leaves = np.asarray(tree[0])
  assert leaves[3] in (1.0, 4.0)
  assert leaves[20] in (2.0, 8.0)
  assert total(tree) == leaves[3] + leaves[20]


@pytest.mark.parametrize("kind", ["any", "zeros", "descending"])
def test_find_in_a_million_leaves_returns_one_above_0_near_the_amount(kind):
  # The sums of these leaves in float32 are far from exact.
  rng = np.random.default_rng(0)
  value = 10.0 ** rng.uniform(-6, 6, 2**20)
  if kind == "zeros":
    value *= rng.random(2**20) < 0.01
    value[-50_000:] = 0.0
  if kind == "descending":
    value = np.sort(value)[::-1]
  tree = tree_of(value)
  leaves, tree_total = np.asarray(tree[0]), np.float32(total(tree))
  # Amounts at and around the edges of a level's blocks, and beyond the end.
  edge = np.cumsum(np.asarray(tree[1]))[:: 2**6]
  beyond = tree_total * np.float32([1.1, 0, 1, 1 + 1e-6])
  start = np.concatenate([beyond, edge])
  above, below = (np.nextafter(start, np.float32(x)) for x in (np.inf, -np.inf))
  start = np.concatenate([start, above, below])
  for scale in (0.0, 1e-9, 1e-7):
    offset = np.full(start.shape, scale * tree_total, np.float32)
    leaf = np.asarray(find(tree, start, offset))
    assert leaf.min() >= 0 and leaf.max() < 2**20
    assert np.all(leaves[leaf] > 0)
    # An amount beyond the end gives the last leaf above 0.
    assert leaf[0] == np.flatnonzero(leaves)[-1]
  # Except for rounding errors, the leaf contains the amount.
  ends = np.cumsum(leaves, dtype=np.float64)
  amount = np.linspace(0, 1, len(start), endpoint=False) * ends[-1]
  leaf = np.asarray(find(tree, np.float32(amount), np.zeros_like(start)))
  slack = 1e-6 * ends[-1]
  assert np.all(ends[leaf] > amount - slack)
  assert np.all(np.append(0, ends)[leaf] <= amount + slack)


@pytest.mark.slow
def test_small_priorities_among_a_million_are_drawn_in_proportion():
  capacity = 2**20 // WINDOWS
  ring = replay.Prioritized(capacity, WINDOW)
  number = np.zeros((cases.LENGTH, 1), int)
  unroll = cases.steps_of(number, number)._replace(core_state=())
  priorities = np.zeros((1, WINDOWS), np.float32)
  state = jax.jit(ring.init)(types.Share(unroll, priorities))
  # In the upper half of amounts, float32 has only multiples of 1 / 32. Every
  # second small leaf contains none of these, and the others contain one each.
  mass = np.tile([1.0, 1 / 64], 2**19)
  state = state._replace(
    ring=state.ring._replace(
      book=dataclasses.replace(state.ring.book, inserted=np.int32(capacity))
    ),
    tree=tree_of(mass),
  )

  @jax.jit
  def leaves(rng_key):
    keys = jax.random.split(rng_key, 1024)
    return jax.lax.map(lambda key: ring.sample(state, key, 512)[1].leaf, keys)

  leaf = np.ravel(leaves(jax.random.key(0)))
  leaf = leaf[leaf >= 2**19]
  counts = np.bincount(leaf % 4, minlength=4)
  expected = np.tile([32 / 65, 0.5 / 65], 2) * len(leaf)
  assert stats.chisquare(counts, expected).pvalue > 1e-3
