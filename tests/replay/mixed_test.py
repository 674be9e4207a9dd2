"""A replay of new experience and of demonstrations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import replay
from seedx.replay import sum_tree
from tests.replay import cases

WINDOW = 3
NEW_WINDOWS = cases.LENGTH - WINDOW + 1
# The only unroll of the demonstrations, and its length.
DEMONSTRATION, TOTAL = 9, 12
RATIO = 0.0625


def demonstrations(has_priorities=True):
  windows = np.ones((1, TOTAL - WINDOW + 1), np.float32)
  share = cases.share_of([DEMONSTRATION], windows, TOTAL)
  return share if has_priorities else share._replace(priorities=())


def mixed(kind=replay.Prioritized, ratio=RATIO, rise=0.0):
  """Returns a mixed replay, and its state with four unrolls."""
  has_priorities = kind is replay.Prioritized
  memory = replay.Mixed.of(
    kind(8, WINDOW), demonstrations(has_priorities), ratio, rise
  )
  priorities = np.ones((4, NEW_WINDOWS), np.float32) if has_priorities else ()
  share = cases.share_of(range(4), priorities)
  state = jax.jit(memory.add)(jax.jit(memory.init)(share), share)
  return memory, state


def draw(memory, state, size, done=0.0, seed=0):
  sample = jax.jit(memory.sample, static_argnums=2)
  return sample(state, jax.random.key(seed), size, done)


@pytest.mark.parametrize("kind", [replay.Prioritized, replay.Uniform])
def test_the_share_of_demonstrations_is_the_ratio(kind):
  size = 100_000
  drawn, _ = draw(*mixed(kind), size)
  item = np.asarray(drawn.unroll.version)
  assert (item == item[0]).all()  # Each window is from one replay.
  share = np.mean(item[0] == DEMONSTRATION)
  assert abs(share - RATIO) < 3 * np.sqrt(RATIO * (1 - RATIO) / size)
  # All windows of both replays are drawn, with all of their steps.
  number = np.asarray(drawn.unroll.action)
  assert (np.diff(number, axis=0) == 1).all()
  starts = [10 * i + k for i in range(4) for k in range(NEW_WINDOWS)]
  starts += [90 + k for k in range(TOTAL - WINDOW + 1)]
  assert {*number[0].tolist()} == {*starts}


@pytest.mark.parametrize(
  ("ratio", "rise", "done", "expected"),
  [(0.5, -0.5, 0.5, 0.25), (0.5, -0.5, 1.0, 0.0), (0.5, 1.0, 1.0, 1.0)],
)
def test_the_ratio_changes_over_the_run(ratio, rise, done, expected):
  drawn, _ = draw(*mixed(ratio=ratio, rise=rise), 4000, done)
  share = np.mean(np.asarray(drawn.unroll.version[0]) == DEMONSTRATION)
  assert share == pytest.approx(expected, abs=0.03)


def test_new_priorities_return_to_the_replay_of_their_window():
  memory, state = mixed(ratio=0.25)
  drawn, windows = draw(memory, state, 4000)
  is_fixed = np.asarray(drawn.unroll.version[0]) == DEMONSTRATION
  after = jax.jit(memory.update)(state, windows, jnp.full(4000, 100.0))
  trees = [
    (state.new.tree[0], after.new.tree[0]),
    (state.fixed.tree[0], after.fixed.tree[0]),
  ]
  for own, (before, now), of_part in zip(
    (~is_fixed, is_fixed), trees, windows, strict=True
  ):
    leaf = np.asarray(of_part.leaf)
    np.testing.assert_array_equal(leaf != sum_tree.NOWHERE, own)
    changed = np.flatnonzero(np.asarray(before != now))
    np.testing.assert_array_equal(changed, np.unique(leaf[own]))
  # Windows with a larger priority are drawn more often.
  one = (jnp.full(4000, sum_tree.NOWHERE), jnp.zeros(4000, jnp.int32))
  of_fixed = windows[1]._replace(leaf=one[1])
  of_new = windows[0]._replace(leaf=one[0])
  state = memory.update(after, (of_new, of_fixed), jnp.full(4000, 1e6))
  drawn, _ = draw(memory, state, 4000, seed=1)
  number = np.asarray(drawn.unroll.action[0])
  of_first = number[number >= 90] == 90
  assert np.mean(of_first) > 0.9


def test_weights_correct_each_replays_own_priorities():
  """The largest weight is 1, and the ratio has no effect on weights."""
  memory, state = mixed(ratio=0.5)
  priorities = np.array([[1.0, 1, 1, 1], [8.0, 8, 8, 8]], np.float32)
  share = cases.share_of([5, 6], priorities[:, :NEW_WINDOWS])
  empty = jax.jit(memory.init)(share)
  state = jax.jit(memory.add)(empty, share)
  drawn, _ = draw(memory, state, 4000)
  weight = np.asarray(drawn.importance_weight)
  item = np.asarray(drawn.unroll.version[0])
  # P is in proportion to p^0.6, and the weight is P^-0.4.
  expected = {5: 1.0, 6: 8.0 ** (-0.6 * 0.4), DEMONSTRATION: 1.0}
  for number, value in expected.items():
    np.testing.assert_allclose(weight[item == number], value, rtol=1e-4)


@pytest.mark.parametrize("kind", [replay.Prioritized, replay.Uniform])
def test_what_is_kept_has_priorities_but_no_demonstrations(kind):
  memory, state = mixed(kind)
  kept = memory.kept(state)
  ring = getattr(state.fixed, "ring", state.fixed)
  image = ring.unrolls.inputs.timestep.observation["image"]
  assert image.shape[:2] == (1, TOTAL)
  sizes = {n for x in jax.tree.leaves(kept) for n in x.shape}
  assert TOTAL not in sizes
  whole = memory.with_kept(memory.recorded(), kept)
  for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(state), strict=True):
    np.testing.assert_array_equal(a, b)
  assert bool(jax.tree.leaves(kept.fixed)) == (kind is replay.Prioritized)
