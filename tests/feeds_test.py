"""What becomes a batch, and when."""

import dataclasses
import fractions
import functools
import math

import jax
import numpy as np
import pytest

from seedx import types
from seedx.runtime import feeds
from tests import fakes

NUM_STEPS, WINDOW = 4, 3
LENGTH = NUM_STEPS + WINDOW - 1


def agent_of(window=WINDOW):
  return dataclasses.replace(fakes.counting_agent(), window=window)


def replay_config(**changes):
  options = {"capacity": 64, "min_steps": 1, "batch_size": 8, "ratio": 1.0}
  return feeds.ReplayConfig(**{**options, **changes})


def make(cores=1, seed=0, **changes):
  return feeds.make(
    agent_of(),
    replay_config(**changes),
    NUM_STEPS,
    jax.devices()[:cores],
    jax.random.key(seed),
  )


@functools.cache
def items_of(index, cores=1, size=2):
  """Item `index` of each core; all unrolls have numbers of their own."""
  firsts = [(index * cores + core) * size for core in range(cores)]
  return [
    jax.device_put(unrolls(np.arange(first, first + size)), core)
    for first, core in zip(firsts, jax.devices(), strict=False)
  ]


def unrolls(numbers):
  """Their actions are the time steps, their versions these numbers."""
  time = np.arange(LENGTH, dtype=np.int32)[:, None]
  return types.Unroll(
    inputs=(),
    action=time + 0 * numbers,
    extras=(),
    version=(0 * time + numbers).astype(np.int32),
    core_state=numbers.astype(np.float32),
  )


def drawn(sample):
  """The windows of a core's batch: `(unroll, start)` pairs."""
  unroll, start = sample.unroll.version[0], sample.unroll.action[0]
  return list(zip(unroll.tolist(), start.tolist(), strict=True))


def test_as_acted_every_item_is_a_batch_once():
  feed = feeds.make(agent_of(None), None, 4, jax.devices(), jax.random.key(0))
  assert isinstance(feed, feeds.AsActed)
  for index in range(3):
    items = items_of(index, cores=2)
    batches = list(feed(items))
    assert len(batches) == 1
    assert all(a is b for a, b in zip(batches[0], items, strict=True))
    assert all(a is b for a, b in zip(feed.example(items), items, strict=True))


@pytest.mark.parametrize(
  ("min_steps", "silent"), [(1, 0), (8, 0), (9, 1), (24, 2), (25, 3)]
)
def test_learning_begins_at_min_steps(min_steps, silent):
  feed = make(min_steps=min_steps)
  counts = [len(list(feed(items_of(i)))) for i in range(5)]
  # 8 steps an item, and 8 in a batch; those of before are not made up for.
  assert counts == [0] * silent + [1] * (5 - silent)


@pytest.mark.parametrize(
  ("ratio", "batch_size"),
  [(4, 8), (0.25, 8), (0.3, 8), (1.7, 6), (0.01, 2)],
)
@pytest.mark.parametrize("cores", [1, 2])
def test_the_number_of_batches_follows_the_ratio(ratio, batch_size, cores):
  feed = make(cores, ratio=ratio, batch_size=batch_size, min_steps=30)
  steps = learned = batches = 0
  for index in range(120):
    new = 2 * NUM_STEPS * cores
    steps += new
    learned += new if steps >= 30 else 0
    for batch in feed(items_of(index % 4, cores)):
      assert [len(x.importance_weight) for x in batch] == [
        batch_size // cores
      ] * cores
      batches += 1
    due = fractions.Fraction(str(ratio)) * learned / batch_size
    # Sums of 0.3 are rounded: what is due now may come with the next item.
    assert math.floor(due - fractions.Fraction(1, 10**9)) <= batches
    assert batches <= math.floor(due + fractions.Fraction(1, 10**9))
  assert batches > 1


def test_every_core_has_a_replay_of_its_own():
  cores = 3
  feed = make(cores, batch_size=60 * cores, ratio=20.0)
  seen = [set() for _ in range(cores)]
  for index in range(3):
    for batch in feed(items_of(index, cores)):
      found = [drawn(sample) for sample in batch]
      for core, (sample, windows) in enumerate(zip(batch, found, strict=True)):
        devices = {
          x for leaf in jax.tree.leaves(sample) for x in leaf.devices()
        }
        assert devices == {jax.devices()[core]}
        # Unroll u came with item u // 6, to core u % 6 // 2.
        assert {unroll % 6 // 2 for unroll, _ in windows} == {core}
        seen[core] |= set(windows)
      local = [[(u // 6, u % 2, s) for u, s in windows] for windows in found]
      for a, b in ((0, 1), (0, 2), (1, 2)):
        same = np.mean(
          [x == y for x, y in zip(local[a], local[b], strict=True)]
        )
        assert same < 0.5
  assert [len(x) for x in seen] == [3 * 2 * NUM_STEPS] * cores


def test_capacity_is_in_env_steps_of_all_cores():
  feed = make(2, capacity=16, batch_size=128, ratio=100.0)
  for index in range(4):
    batches = list(feed(items_of(index, cores=2, size=1)))
  # 16 env steps are 2 unrolls on each of the 2 cores.
  windows = [drawn(sample) for batch in batches for sample in batch]
  assert {unroll for of_one in windows for unroll, _ in of_one} == {4, 5, 6, 7}
  with pytest.raises(types.ConfigError, match="at most 1 at a time, found 2"):
    list(make(2, capacity=8)(items_of(0, cores=2)))


def draws(feed, items=4):
  return [
    drawn(sample)
    for index in range(items)
    for batch in feed(items_of(index, cores=2))
    for sample in batch
  ]


def test_the_key_decides_what_is_drawn():
  one, same, other = (
    draws(make(2, seed, batch_size=32, ratio=8.0)) for seed in (0, 0, 1)
  )
  assert one == same
  assert len(one) == len(other) > 20
  assert all(a != b for a, b in zip(one, other, strict=True))
  # No two batches are drawn alike either.
  assert len({tuple(x) for x in one[-8:]}) == 8


def test_an_example_has_a_batchs_form_and_changes_nothing():
  options = {"batch_size": 32, "ratio": 8.0}
  feed = make(2, **options)
  zeros = jax.tree.map(np.zeros_like, items_of(0, cores=2))
  zeros = [
    jax.device_put(x, d) for x, d in zip(zeros, jax.devices(), strict=False)
  ]
  example = feed.example(zeros)
  assert all(not leaf.any() for leaf in jax.tree.leaves(example[0].unroll))
  batch = next(iter(make(2, **options)(items_of(0, cores=2))))

  def form(nest):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.devices()), nest)

  assert form(example) == form(batch)
  programs = feed._sample._cache_size()
  expected = draws(make(2, **options))
  actual = [
    drawn(sample)
    for index in range(4)
    for batch in feed(items_of(index, cores=2))
    for sample in (feed.example(zeros) and batch)
  ]
  assert actual == expected
  assert feed._sample._cache_size() == programs


@pytest.mark.parametrize(
  ("window", "changes", "cores", "message"),
  [
    (3, None, 1, "expected a replay: .* 3 time steps .*found none"),
    (None, {}, 1, "expected no replay: .*found ReplayConfig"),
    (3, {"batch_size": 10}, 4, "batch from the replay .* 4 in all.*found 10"),
  ],
)
def test_what_an_agent_cannot_learn_from_is_refused(
  window, changes, cores, message
):
  config = None if changes is None else replay_config(**changes)
  with pytest.raises(types.ConfigError, match=message):
    feeds.check(agent_of(window), config, cores, 1, 100)


@pytest.mark.parametrize(("window", "config"), [(None, False), (3, True)])
def test_what_an_agent_learns_from_is_taken(window, config):
  config = replay_config(batch_size=12) if config else None
  feeds.check(agent_of(window), config, 4, 1, 100)


@pytest.mark.parametrize(
  ("window", "length"), [(None, 21), (1, 20), (2, 21), (6, 25)]
)
def test_unroll_length_brings_that_many_new_steps(window, length):
  assert feeds.unroll_length(agent_of(window), 20) == length


@pytest.mark.parametrize(
  "fields",
  [
    {"capacity": 0},
    {"min_steps": 0},
    {"min_steps": 65},
    {"batch_size": 0},
    {"ratio": 0.0},
    {"ratio": float("nan")},
  ],
  ids=str,
)
def test_config_out_of_range_is_refused_with_its_name(fields):
  with pytest.raises(types.ConfigError, match=f"expected {next(iter(fields))}"):
    replay_config(**fields)


# Prioritized


def make_prioritized(learned, cores=1, **changes):
  """A feed that asks `learned` for the priorities of the batch before."""
  options = {"capacity": 64, "min_steps": 1, "batch_size": 8, "ratio": 1.0}
  return feeds.Prioritized(
    agent_of(),
    feeds.PrioritizedConfig(**{**options, **changes}),
    NUM_STEPS,
    jax.devices()[:cores],
    jax.random.key(0),
    learned,
  )


def with_priorities(index, cores=1, priority=1.0):
  windows = LENGTH - WINDOW + 1
  return [
    (item, jax.device_put(np.full((2, windows), priority, np.float32), core))
    for item, core in zip(items_of(index, cores), jax.devices(), strict=False)
  ]


@pytest.mark.parametrize("cores", [1, 2])
def test_neither_inserting_nor_sampling_runs_away(cores):
  ones = [
    jax.device_put(np.ones(8 // cores, np.float32), x)
    for x in jax.devices()[:cores]
  ]
  feed = make_prioritized(lambda: ones, cores, ratio=1.5, min_steps=40)
  inserted = sampled = 0
  for index in range(30):
    inserted += 2 * NUM_STEPS * cores
    for batch in feed(with_priorities(index, cores)):
      sampled += sum(len(x.importance_weight) for x in batch)
    began = 39 // (2 * NUM_STEPS * cores) * (2 * NUM_STEPS * cores)
    assert sampled <= 1.5 * inserted
    if inserted >= 40:
      assert sampled > 1.5 * (inserted - began) - 8 - 1e-6
    else:
      assert sampled == 0


def test_priorities_find_the_way_back_to_the_batch_that_was_learned():
  # Only one window is worth anything, and only as long as nothing is learned.
  feed = make_prioritized(lambda: [worth], ratio=4.0, priority_exponent=1.0)
  worth = np.zeros(8, np.float32)
  ((item, priorities),) = with_priorities(0)
  priorities = priorities.at[:].set(0.0).at[1, 2].set(1.0)
  batches = [drawn(batch) for (batch,) in feed([(item, priorities)])]
  assert len(batches) == 4
  only = batches[0][0]
  # The second batch was drawn before the first one's priorities were known.
  for batch in batches[:2]:
    assert all(x == only for x in batch)
  for batch in batches[2:]:
    assert len(set(batch)) > 2


def test_an_example_of_a_prioritized_feed_is_not_learned_from():
  feed = make_prioritized(lambda: [np.ones(8, np.float32)])
  example = feed.example(with_priorities(0))
  assert len(feed.states) == 1 and feed.states[0].ring.inserted == 0
  same = make_prioritized(lambda: [np.ones(8, np.float32)])
  for _ in range(2):
    ours = [drawn(x) for (x,) in feed(with_priorities(3))]
    theirs = [drawn(x) for (x,) in same(with_priorities(3))]
    assert ours == theirs and ours
  assert example[0].importance_weight.shape == (8,)
