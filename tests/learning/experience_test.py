"""Experience: the batches that are learned from, and when they are due."""

import dataclasses
import fractions
import functools
import itertools
import math
import threading
import time
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest

from seedx import checkpoint, replay, types
from seedx.agents import base
from seedx.learning import experience, plans, replay_source
from seedx.runtime import memory
from tests import conftest, fakes

NUM_STEPS, WINDOW = 4, 3
LENGTH = NUM_STEPS + WINDOW - 1
WINDOWS = LENGTH - WINDOW + 1


def agent_of(window=WINDOW):
  """Returns an agent that needs windows of this length, and cannot learn."""
  return dataclasses.replace(
    fakes.counting_agent(),
    needs=base.Needs(window),
    priorities=None if window is None else NotImplemented,
  )


def replay_config(kind=replay.Config, **changes):
  """Returns a config; the names in `changes` omit the prefix `replay_`."""
  options = {"capacity": 64, "min_steps": 1, "batch_size": 8, "ratio": 1.0}
  return kind(
    **{
      name if "exponent" in name else f"replay_{name}": value
      for name, value in {**options, **changes}.items()
    }
  )


# Jitted functions of sources, by the settings that their programs depend on.
_COMPILED = {}


def source_of(config, cores=2, seed=0, total_steps=100):
  plan = plans.Plan(
    total_steps, batch_steps=8, replay=config, unroll_length=NUM_STEPS
  )
  source = plan.source(agent_of(), jax.devices()[:cores], jax.random.key(seed))
  # Programs depend on these numbers only if the importance exponent rises.
  numbers = {"replay_ratio": 1.0, "replay_min_steps": 1}
  rises = getattr(config, "importance_exponent_rise", 0)
  config = config if rises else dataclasses.replace(config, **numbers)
  key = config, cores, total_steps
  for name, value in _COMPILED.setdefault(key, dict(vars(source))).items():
    if isinstance(value, jax.stages.Wrapped):
      setattr(source, name, value)
  return source


def make(cores=2, seed=0, **changes):
  return source_of(replay_config(**changes), cores, seed)


@functools.cache
def shares_of(index, cores=2, size=2):
  """Returns share `index` of each core; unroll numbers are consecutive."""
  firsts = [(index * cores + core) * size for core in range(cores)]
  return [
    jax.device_put(types.Share(unrolls(np.arange(first, first + size))), core)
    for first, core in zip(firsts, jax.devices(), strict=False)
  ]


def unrolls(numbers):
  """Returns unrolls: versions are their `numbers`, actions are step indices."""
  time = np.arange(LENGTH, dtype=np.int32)[:, None]
  return types.Unroll(
    inputs=(),
    action=time + 0 * numbers,
    extras=(),
    version=(0 * time + numbers).astype(np.int32),
    core_state=numbers.astype(np.float32),
  )


def drawn(sample):
  """Returns windows in a core's part of a batch, as `(unroll, start)` pairs."""
  unroll, start = (
    np.asarray(x)[0].tolist()
    for x in (sample.unroll.version, sample.unroll.action)
  )
  return list(zip(unroll, start, strict=True))


def test_without_a_replay_each_unroll_is_in_exactly_one_batch():
  source = plans.Plan(100, 8).source(
    agent_of(None), jax.devices()[:2], jax.random.key(0)
  )
  assert type(source) is experience.Once
  for index in range(3):
    shares = shares_of(index)
    (batch,) = source(shares)
    for each in (batch, source.example(shares)):
      assert not each.windows
      pairs = zip(each.parts, shares, strict=True)
      assert all(part is share.data for part, share in pairs)


@pytest.mark.parametrize("min_steps", [32, 33])
@pytest.mark.parametrize(
  ("ratio", "batch_size"),
  conftest.slow_but([(1.7, 32)], [(0.3, 8), (1.7, 32)]),
)
def test_batches_follow_the_replay_ratio_from_min_steps_on(
  ratio, batch_size, min_steps
):
  source = make(ratio=ratio, batch_size=batch_size, min_steps=min_steps)
  steps = learned = batches = 0
  for index in range(40):
    new = 2 * NUM_STEPS * 2
    steps += new
    # Shares before `min_steps` never make a batch due.
    learned += new if steps >= min_steps else 0
    for batch in source(shares_of(index % 4)):
      sizes = [len(x.importance_weight) for x in batch.parts]
      assert sizes == [batch_size // 2] * 2
      batches += 1
    due = fractions.Fraction(str(ratio)) * learned / batch_size
    # Sums of 0.3 are rounded, so a batch may be due one share later.
    assert math.floor(due - fractions.Fraction(1, 10**9)) <= batches
    assert batches <= math.floor(due + fractions.Fraction(1, 10**9))
  assert batches > 1


def test_each_core_has_its_own_replay():
  source = make(ratio=20.0)
  seen, equal = [set(), set()], []
  for index in range(3):
    for batch in source(shares_of(index)):
      windows_of_cores = [drawn(sample) for sample in batch.parts]
      for core, windows in enumerate(windows_of_cores):
        devices = {
          x
          for leaf in jax.tree.leaves(batch.parts[core])
          for x in leaf.devices()
        }
        assert devices == {jax.devices()[core]}
        # Share u // 4 brought unroll u to core u % 4 // 2.
        assert {unroll % 4 // 2 for unroll, _ in windows} == {core}
        seen[core] |= set(windows)
      local = [
        [(u // 4, u % 2, s) for u, s in windows] for windows in windows_of_cores
      ]
      equal += [a == b for a, b in zip(*local, strict=True)]
  assert [len(x) for x in seen] == [3 * 2 * NUM_STEPS] * 2
  assert np.mean(equal) < 0.2


def test_the_capacity_counts_the_env_steps_of_all_cores():
  source = make(capacity=64, ratio=20.0)
  for index in range(6):
    batches = list(source(shares_of(index)))
  # 64 env steps are 8 unrolls on each of the 2 cores.
  windows = [drawn(sample) for batch in batches for sample in batch.parts]
  assert {unroll for of_one in windows for unroll, _ in of_one} == {
    *range(8, 24)
  }
  with pytest.raises(types.ConfigError, match="at most 1 at a time, found 2"):
    list(make(capacity=8)(shares_of(0)))


def draws(source, shares=4):
  return [
    drawn(sample)
    for index in range(shares)
    for batch in source(shares_of(index))
    for sample in batch.parts
  ]


def test_the_random_key_determines_the_samples():
  one, same, other = (draws(make(seed=seed, ratio=8.0)) for seed in (0, 0, 1))
  assert one == same
  assert len(one) == len(other) > 20
  assert all(a != b for a, b in zip(one, other, strict=True))
  # The batches differ from each other, too.
  assert len({tuple(x) for x in one[-8:]}) == 8


def test_the_example_has_the_shapes_of_a_batch_and_changes_nothing():
  source = make(ratio=8.0)
  zeros = jax.tree.map(
    lambda x: jax.device_put(np.zeros_like(x), x.sharding), shares_of(0)
  )
  example = source.example(zeros)
  assert not any(np.any(x) for x in jax.tree.leaves(example.parts[0].unroll))
  batch = next(iter(make(ratio=8.0)(shares_of(0))))

  def form(nest):
    return jax.tree.map(lambda x: (x.aval, x.devices()), nest)

  assert form(example) == form(batch)
  actual = [
    drawn(sample)
    for index in range(4)
    for batch in source(shares_of(index))
    for sample in (source.example(zeros) and batch.parts)
  ]
  assert actual == draws(make(ratio=8.0))


def test_a_resumed_run_continues_the_random_numbers():
  source, resumed = (make(ratio=8.0) for _ in range(2))
  first = draws(source, shares=1)
  resumed.resume(123, 0.0)
  assert draws(resumed, shares=1) != first
  resumed.resume(len(first) // 2, 0.0)
  assert draws(resumed, shares=1) == draws(source, shares=1)


# The plan


class Making:
  """A config of a fake agent; it records the arguments of `make`."""

  def __init__(self, window, priorities=NotImplemented):
    self._agent = dataclasses.replace(agent_of(window), priorities=priorities)
    self.made = []

  def make(self, spec, axis_name=None, horizon=None):
    self.made.append((spec, axis_name, horizon))
    return self._agent


@pytest.mark.parametrize(
  ("replay", "updates"),
  [
    (None, 11),
    (replay_config(batch_size=16, ratio=0.5), 28),
    # 480 env steps fill the replay.
    (replay_config(batch_size=16, ratio=0.5, min_steps=481, capacity=600), 13),
    (replay_config(replay.PrioritizedConfig, ratio=0.001), 1),
  ],
)
def test_the_horizon_has_the_number_of_updates_of_the_run(replay, updates):
  plan = plans.Plan(1000, 80, replay)
  assert (plan.horizon.env_steps, plan.horizon.updates) == (1000, updates)


class Reporting(replay.Config):
  """The config of a replay that samples the part of the run that is done."""

  def make(self, **sizes):
    return SimpleNamespace(sample=lambda state, key, size, done: (done, ()))


def test_a_replays_schedules_end_with_the_updates_of_its_windows():
  """A window with more learned steps counts as more updates."""
  plan = plans.Plan(1024, 8, replay_config(Reporting), unroll_length=8)

  def done(clock, learned_steps):
    needs = base.Needs(WINDOW, learned_steps=learned_steps)
    agent = dataclasses.replace(agent_of(), needs=needs)
    draw = plan.replay_of_core(agent, cores=1).draw
    return float(draw((), jax.random.key(0), 0, np.float32(clock))[0])

  assert done(64, 1) == pytest.approx(0.5, abs=0.05)
  assert done(16, 4) == pytest.approx(done(64, 1), abs=0.05)
  assert done(32, 4) == pytest.approx(1.0, abs=0.05)


PRIORITIZED = replay.PrioritizedConfig


@pytest.mark.parametrize(
  ("config", "plan", "message"),
  [
    (Making(3), {}, "expected a replay, .* 3 time steps, found none"),
    (
      Making(None),
      {"replay": replay_config()},
      "expected no replay, .*found Config",
    ),
    (
      Making(3),
      {"replay": replay_config(batch_size=10), "parts": 4},
      "replay_batch_size that is a multiple of 4 .*found 10",
    ),
    (
      Making(3, priorities=None),
      {"replay": replay_config(PRIORITIZED)},
      "expected an agent whose actors can compute .* priority",
    ),
    (
      Making(3),
      {"replay": replay_config(capacity=15)},
      "replay_capacity of at least 16 env steps, .*found 15",
    ),
    (
      Making(3),
      {"replay": replay_config(min_steps=32), "total_steps": 31},
      "total_steps of at least 32, .*found 31",
    ),
    (Making(None), {"total_steps": 15}, "total_steps of at least 16, .*15"),
  ],
)
def test_a_plan_that_does_not_fit_the_agent_is_refused(config, plan, message):
  options = {"total_steps": 100, "batch_steps": 16}
  with pytest.raises(types.ConfigError, match=message):
    plans.Plan(**options | plan).agent(config, None)


def test_the_smallest_sufficient_plan_is_accepted():
  config = replay_config(capacity=16, min_steps=16)
  plans.Plan(16, 16).agent(Making(None), None)
  # A uniform replay needs no priorities.
  making, plan = Making(3, priorities=None), plans.Plan(16, 16, config)
  assert plan.agent(making, "spec", "axis").needs.window == 3
  assert making.made == [("spec", "axis", plan.horizon)]


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("capacity", 0),
    ("min_steps", 65),
    ("importance_exponent", 1.1),
  ],
)
def test_the_error_names_the_setting_that_is_out_of_range(name, value):
  with pytest.raises(types.ConfigError, match=f"expected (replay_)?{name}"):
    replay_config(PRIORITIZED, **{name: value})


# Prioritized


def make_prioritized(seed=0, **changes):
  changes = {"priority_exponent": 1.0, **changes}
  source = source_of(replay_config(PRIORITIZED, **changes), seed=seed)
  assert type(source) is replay_source.ReplaySource
  return source


def with_priorities(index, priority=1.0, changed=()):
  """Returns shares whose windows have priorities.

  Args:
    index: index of the shares, as in `shares_of`.
    priority: priority of all windows, except those in `changed`.
    changed: pairs of an index `(core, unroll, window)` and a priority.
  """
  priorities = np.full((2, 2, WINDOWS), priority, np.float32)
  for where, value in changed:
    priorities[where] = value
  return [
    share._replace(priorities=jax.device_put(of_core, core))
    for share, of_core, core in zip(
      shares_of(index), priorities, jax.devices()[:2], strict=True
    )
  ]


def report(source, batch, priority_of):
  """Reports new priorities of a batch to the source."""
  if not batch.windows:
    return  # The replay has no priorities.
  source.learned(
    batch.windows,
    [
      jax.device_put(
        np.array([priority_of(core, *x) for x in drawn(part)], np.float32),
        jax.devices()[core],
      )
      for core, part in enumerate(batch.parts)
    ],
  )


def masses(source, core):
  """Returns the sampling weights in a core's replay, by `(unroll, start)`."""
  state = source.states[core]
  unroll = np.asarray(state.ring.unrolls.version)[:, 0]
  mass = np.asarray(state.tree[0])[: len(unroll) * WINDOWS]
  mass = mass.reshape(len(unroll), WINDOWS)
  return {
    (int(unroll[place]), start): float(mass[place, start])
    for place in range(len(unroll))
    for start in range(WINDOWS)
    if mass[place, start] > 0
  }


def test_new_priorities_reach_the_windows_of_their_batch():
  """Several batches may be taken before the first is reported."""
  # The order in which batches that were taken together are reported.
  source, order = make_prioritized(ratio=12.0), (2, 0, 1)
  expected = [
    {(2 * core + u, start): 1.0 for u in range(2) for start in range(WINDOWS)}
    for core in range(2)
  ]
  batches, seen = source(with_priorities(0)), []
  while taken := list(itertools.islice(batches, len(order))):
    for batch in [taken[place] for place in order]:
      seen.append([drawn(part) for part in batch.parts])
      number = 10 * len(seen)

      def priority_of(core, unroll, start, number=number):
        return 1000 * core + number + WINDOWS * (unroll % 2) + start

      report(source, batch, priority_of)
      for core, windows in enumerate(seen[-1]):
        for window in windows:
          expected[core][window] = priority_of(core, *window)
        assert masses(source, core) == pytest.approx(expected[core], rel=1e-5)
  # If all batches were alike, the test would prove nothing.
  assert len(seen) == 24
  assert sum(a != b for a, b in itertools.pairwise(seen)) > 12


def test_invalid_priorities_are_counted_in_the_metrics():
  source = make_prioritized(ratio=0.5)
  # The first shares allocate the replay.
  assert "priorities_clamped" not in source.measure()
  (batch,) = source(with_priorities(0, changed=[((0, 1), np.nan)]))
  report(source, batch, lambda *window: -1.0)
  list(source(with_priorities(1)))
  assert source.measure()["priorities_clamped"] == WINDOWS + 8


# Checkpoints


def saved_and_read(source):
  """Returns the saved state of a source, written to bytes and read back."""
  with source.paused():
    fetch = source.saved()
  content = np.frombuffer(checkpoint.to_bytes(fetch()), np.uint8)
  return checkpoint.from_bytes(content)


def learn(source, indices):
  """Feeds shares to a source, reports priorities, and returns the batches."""
  batches = []
  for index in indices:
    for batch in source(with_priorities(index, 1.0 + index % 5)):
      batches.append(jax.tree.map(np.asarray, batch))
      if batch.windows is not None:
        report(source, batch, lambda core, unroll, start: 1.0 + unroll + start)
  return batches


@pytest.mark.parametrize(
  ("make", "num_before"),
  [
    (make, 30),
    (make_prioritized, 0),
    (make_prioritized, 1),
    (make_prioritized, 30),
  ],
)
def test_a_restored_replay_continues_bitwise(make, num_before):
  """Priorities, random numbers, the ratio and the next batch are restored."""
  options = {"ratio": 1.7, "min_steps": 12}
  source, other = make(**options), make(seed=9, **options)
  learn(source, range(num_before))
  saved = saved_and_read(source)
  other.restore(saved)
  # Until the first shares arrive, the restored state is kept as it is.
  chex.assert_trees_all_equal(saved_and_read(other), saved)
  other.example(with_priorities(0))
  if num_before:
    chex.assert_trees_all_equal(saved_and_read(other), saved)
    expected = learn(source, range(num_before, num_before + 6))
    actual = learn(other, range(num_before, num_before + 6))
    assert len(expected) > 4
    chex.assert_trees_all_equal(actual, expected)
    chex.assert_trees_all_equal(saved_and_read(other), saved_and_read(source))


class Overlapping:
  """A prioritized source of two environments whose unrolls share rows.

  A step's version is its environment, and its action is its number.
  """

  def __init__(self, seed=0):
    config = replay_config(PRIORITIZED, capacity=128, ratio=1.7)
    plan = plans.Plan(1000, 8, config, unroll_length=NUM_STEPS, num_envs=2)
    core = jax.devices()[:1]
    self.source = plan.source(agent_of(), core, jax.random.key(seed))

  def add(self, env, numbers):
    """Adds the unrolls of `[2]` environments, and returns the batches."""
    batches = []
    for number in numbers:
      unroll = unrolls(env)
      unroll = unroll._replace(action=unroll.action + number * NUM_STEPS)
      priorities = np.ones((2, WINDOWS), np.float32)
      origin = np.stack([env, np.full_like(env, number)], axis=1)
      share = types.Share(unroll, priorities, origin)
      for batch in self.source([jax.device_put(share, jax.devices()[0])]):
        part = jax.tree.map(np.asarray, batch.parts[0])
        batches.append(part)
        new = part.unroll.version[0] + 1.0 + part.unroll.action[0] % 5
        self.source.learned(batch.windows, [new])
    return batches

  @property
  def num_rows(self):
    """Number of rows written so far, which are fewer than in the ring."""
    return int(self.source.states[0].ring.book.next_row)


def test_after_a_resume_rows_are_shared_with_the_unrolls_that_are_continued():
  env, rows = np.array([5, 6], np.int32), 2 * (LENGTH - NUM_STEPS)
  whole = Overlapping()
  whole.add(env, range(6))
  saved = saved_and_read(whole.source)
  same, later = (Overlapping(seed=9) for _ in range(2))
  for resumed in (same, later):
    resumed.source.restore(saved)
  expected, actual = (x.add(env, range(6, 9)) for x in (whole, same))
  assert len(expected) > 4
  chex.assert_trees_all_equal(actual, expected)
  chex.assert_trees_all_equal(*map(saved_and_read, (same.source, whole.source)))
  assert same.num_rows == rows + 2 * 9 * NUM_STEPS
  # The environments of a resumed run are new, and so are their first unrolls.
  later.add(env + 2, range(3))
  assert later.num_rows == 2 * rows + 2 * 9 * NUM_STEPS
  kept = jax.device_get(later.source.states[0].ring.unrolls)
  version, action = (x[: 2 * 9] for x in (kept.version, kept.action))
  expected = np.repeat([*range(6), *range(3)], 2) * NUM_STEPS
  np.testing.assert_array_equal(action, expected[:, None] + np.arange(LENGTH))
  expected = np.array([5, 6] * 6 + [7, 8] * 3)
  np.testing.assert_array_equal(version, expected[:, None] + 0 * version)


def test_a_saved_state_stays_the_same_while_learning_continues():
  source = make_prioritized(ratio=4.0)
  learn(source, range(3))
  with source.paused():
    fetch = source.saved()
  expected = saved_and_read(source)
  learn(source, range(3, 9))
  content = np.frombuffer(checkpoint.to_bytes(fetch()), np.uint8)
  chex.assert_trees_all_equal(checkpoint.from_bytes(content), expected)


def test_a_pause_begins_soon_and_only_between_two_updates():
  source = make_prioritized(ratio=1000.0)
  pauses, learning = [], threading.Event()

  def pause():
    while len(pauses) < 20:
      with source.paused():
        pauses.append(learning.is_set())

  saver = threading.Thread(target=pause, daemon=True)
  batches = source(with_priorities(0))
  for batch in batches:
    learning.set()
    if not saver.is_alive() and not pauses:
      saver.start()
    report(source, batch, lambda *window: 1.0)
    time.sleep(0.001)
    learning.clear()
    if len(pauses) >= 20:
      break
  # The learner ends without asking for the next batch.
  batches.close()
  saver.join(300)
  assert not saver.is_alive() and not any(pauses)


def test_a_replay_starts_empty_with_a_message_if_the_saved_one_does_not_fit(
  capfd,
):
  source, other = make(), make(2, capacity=32)
  learn(source, range(3))
  other.restore(saved_and_read(source))
  assert list(other(shares_of(0, 2)))
  assert other.states[0].inserted == 2
  assert "the replay starts empty: expected" in capfd.readouterr().err
  with pytest.raises(types.ConfigError, match="replay of 2 learner devices"):
    make(1).restore(saved_and_read(source))


@pytest.mark.slow
def test_the_importance_exponent_rises_over_the_whole_run():
  """Importance weights for beta are those for beta = 1, raised to beta."""
  uneven = with_priorities(0, changed=[((slice(None), 0, 0), 50.0)])

  def weights(resumed, start, rise):
    source = source_of(
      replay_config(
        PRIORITIZED,
        ratio=10.0,
        importance_exponent=start,
        importance_exponent_rise=rise,
      )
    )
    # Half of the steps in `2 * resumed` earlier batches were resets.
    source.resume(2 * resumed, float(resumed))
    return [np.asarray(x.parts[0].importance_weight) for x in source(uneven)]

  for resumed in (0, 40, 1000):
    full = weights(resumed, 1.0, 0.0)
    rising = weights(resumed, 0.2, 0.6)
    assert len(full) == 20
    for index, (actual, plain) in enumerate(zip(rising, full, strict=True)):
      # 100 env steps at a ratio of 10 make 125 batches of 8, and 115 without
      # the last unrolls.
      power = 0.2 + 0.6 * min((resumed + index) / 115, 1)
      np.testing.assert_allclose(actual, plain**power, rtol=1e-4)
      assert np.min(actual) < 0.9
  # The exponent does not rise above 1.
  chex.assert_trees_all_equal(weights(1000, 0.8, 0.9), full)


def test_a_run_may_have_more_updates_than_int32_can_count():
  config = replay_config(PRIORITIZED, importance_exponent_rise=0.5)
  source = source_of(config, total_steps=10**15)
  part = source.example(with_priorities(0)).parts[0]
  assert np.isfinite(part.importance_weight).all()


def test_resets_in_a_share_make_no_batch_due():
  """Half of the steps of shares and of batches are resets."""
  acted, batches = SimpleNamespace(env_steps=0), 0
  config = replay_config(batch_size=8, min_steps=8)
  plan = plans.Plan(100, 8, config, unroll_length=NUM_STEPS)
  source = plan.source(agent_of(), jax.devices()[:1], jax.random.key(0), acted)
  for index in range(10):
    acted.env_steps += 4  # The other 4 of 8 steps are resets.
    for _ in source(shares_of(index, cores=1)):
      batches += 1
      source.counted(4.0)
  # The first 4 env steps come before `min_steps`; the last 4 make half a batch.
  assert batches == 8
  # Env steps whose unrolls have not arrived make no batch due.
  acted.env_steps += 100
  assert len(list(source(shares_of(0, cores=1)))) == 1


def test_a_resumed_run_without_its_replay_counts_only_new_steps():
  acted = SimpleNamespace(env_steps=1000)
  config = replay_config(min_steps=8)
  plan = plans.Plan(2000, 8, config, unroll_length=NUM_STEPS)
  source = plan.source(agent_of(), jax.devices()[:1], jax.random.key(0), acted)
  source.resume(90, 0.0)
  acted.env_steps += 8
  assert len(list(source(shares_of(0, cores=1)))) == 1
  acted.env_steps += 4
  assert not list(source(shares_of(1, cores=1)))


@pytest.mark.parametrize("make_source", [make, make_prioritized])
def test_a_batch_is_drawn_without_a_loop(make_source):
  # JAX's own random keys need a loop, which takes longer than the rest.
  source = make_source()
  list(source(with_priorities(0)))
  (state, *_) = source.states
  lowered = source._draw.lower(state, jax.random.key(0), 0, 0.0)
  assert "while(" not in lowered.compile().as_text()


def test_a_replay_larger_than_the_memory_is_refused_before_it_is_made(
  monkeypatch,
):
  """The message has the capacity that fits; CPU cores share one memory."""
  source, shares = make(capacity=1000), shares_of(0)
  needed = 2 * source._core_replay.num_bytes(shares[0])
  monkeypatch.setattr(memory, "free_bytes", lambda _: needed // 2)
  with pytest.raises(types.ConfigError) as caught:
    list(source(shares))
  assert "--replay-capacity 1000 needs" in str(caught.value)
  assert str(caught.value).endswith("--replay-capacity 400 fits")
  assert not source.states
  monkeypatch.setattr(memory, "free_bytes", lambda _: needed)
  list(source(shares))
  assert len(source.states) == 2


_GROUPS = {
  "of version 2": {
    "proc/self/cgroup": "0::/jobs/this\n",
    "sys/fs/cgroup/jobs/this/memory.max": "max\n",
    "sys/fs/cgroup/jobs/this/memory.current": "100\n",
    "sys/fs/cgroup/jobs/memory.max": "5000\n",
    "sys/fs/cgroup/jobs/memory.current": "1500\n",
    "sys/fs/cgroup/jobs/memory.stat": "anon 1000\ninactive_file 300\n",
  },
  "of version 1": {
    "proc/self/cgroup": "3:cpu:/\n7:memory:/this\n",
    "sys/fs/cgroup/memory/this/memory.limit_in_bytes": "5000\n",
    "sys/fs/cgroup/memory/this/memory.usage_in_bytes": "1500\n",
    "sys/fs/cgroup/memory/this/memory.stat": "total_inactive_file 300\n",
  },
  "without a limit": {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/fs/cgroup/memory.current": "100\n",
  },
}


@pytest.mark.parametrize("kind", _GROUPS)
def test_free_memory_is_what_the_machine_and_its_control_groups_leave(
  kind, tmp_path
):
  device = jax.devices("cpu")[0]
  assert memory.free_bytes(device, tmp_path) is None
  files = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 7 kB\n"}
  for name, text in (files | _GROUPS[kind]).items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  limited = kind.startswith("of version")
  assert memory.free_bytes(device, tmp_path) == (3800 if limited else 7 * 1024)
  assert memory.free_bytes(device) > 2**20
