"""Replays whose unrolls share rows, and a reference that keeps all rows."""

import itertools

import jax
import numpy as np
import pytest

from seedx import replay, types
from tests import conftest
from tests.replay import cases

CAPACITY, ALPHA = 24, 0.6
# L, T, W, S (unrolls of a share), number of environments (0: S, in order).
SIZES = {
  "transitions": (7, 4, 4, 3, 6),
  "one new step": (4, 1, 4, 3, 5),
  "sequences": (9, 3, 9, 4, 2),
  "in order": (7, 4, 4, 3, 0),
  "sequences in order": (9, 3, 9, 3, 0),
}


class Reference:
  """All rows and unrolls since the start, in Python lists.

  A row has the environment of a step, the step's number, and whether its action
  is provisional, as it is for the last step of an unroll.
  """

  def __init__(self, name):
    self.length, self.period, _, self.size, streams = SIZES[name]
    self.in_order = not streams
    self.late = 2 * (streams or self.size) * self.length
    self.rows, self.unrolls, self.oldest = [], [], 0

  def add(self, origins):
    """Adds a share, and returns the number of new rows of each unroll."""
    total, first = len(self.rows), len(self.unrolls)
    forgotten = first + self.size - CAPACITY
    num_new = []
    for env, number in origins:
      steps = [
        (env, number * self.period + t, t == self.length - 1)
        for t in range(self.length)
      ]
      continued = [
        k
        for k, (origin, rows) in enumerate(self.unrolls)
        if origin == (env, number - 1)
        and k >= max(self.oldest, forgotten)
        and (k >= first or total - rows[self.period] <= self.late)
        and (not self.in_order or k == len(self.unrolls) - self.size)
      ]
      shared = (
        self.unrolls[continued[-1]][1][self.period :] if continued else []
      )
      if shared:
        self.rows[shared[-1]] = steps[len(shared) - 1]
      new = range(len(self.rows), len(self.rows) + self.length - len(shared))
      self.rows += steps[len(shared) :]
      self.unrolls.append(((env, number), [*shared, *new]))
      num_new.append(len(new))
    start = len(self.rows) - CAPACITY * self.period
    while (
      self.oldest < forgotten
      or self.unrolls[self.oldest][1][self.length - self.period] < start
    ):
      self.oldest += 1
    return num_new

  def kept(self):
    """Returns the numbers of the unrolls that are kept, and their steps."""
    numbers = np.arange(self.oldest, len(self.unrolls))
    rows = [self.unrolls[k][1] for k in numbers]
    return numbers, np.moveaxis(np.array(self.rows)[rows], -1, 0)


def shares_of(name, rng):
  """Yields the origins of shares.

  The environments have different speeds. Some environments leave, and others
  take their places. Some unrolls are missing.
  """
  *_, size, streams = SIZES[name]
  count = streams or size
  envs, newcomers = [[k, 0] for k in range(count)], itertools.count(count)
  while True:
    origins = []
    for place in range(size):
      k = int(count * rng.uniform() ** 1.5) if streams else place
      origins.append(tuple(envs[k]))
      envs[k][1] += 1 + (rng.uniform() < 0.08)
      if rng.uniform() < 0.05:
        envs[k] = [next(newcomers), 0]
    yield origins


def share_of(name, origins):
  """Returns a share with the reference's steps, and priorities of 1."""
  length, period, window, size, _ = SIZES[name]
  env, number = np.array(origins).T
  step = number * period + np.arange(length)[:, None]
  unroll = cases.steps_of(100 * env + step, np.broadcast_to(env, step.shape))
  # An agent may act on the last step again, so its action is provisional.
  unroll.action[-1] += 10_000
  priorities = np.ones((size, length - window + 1), np.float32)
  return types.Share(unroll, priorities, np.array(origins, np.int32))


def memory_of(name, kind=replay.Prioritized):
  _, period, window, _, streams = SIZES[name]
  return kind(CAPACITY, window, period, streams)


def check(unroll, steps):
  """Checks the contents of `[B, W, ...]` windows."""
  env, step, provisional = steps
  np.testing.assert_array_equal(unroll.version, env)
  number = 100 * env + step
  np.testing.assert_array_equal(unroll.inputs.timestep.reward, number)
  np.testing.assert_array_equal(unroll.action, number + 10_000 * provisional)


@jax.jit
def compiled_unrolls(state):
  return state.ring.unrolls


def unrolls(state):
  return jax.device_get(compiled_unrolls(state))


@pytest.mark.parametrize(
  ("name",), conftest.slow_but([("transitions",)], [(x,) for x in SIZES])
)
def test_the_replay_keeps_the_references_unrolls_and_their_priorities(name):
  length, period, window, *_ = SIZES[name]
  memory, reference = memory_of(name), Reference(name)
  init, add, update = map(jax.jit, (memory.init, memory.add, memory.update))
  sample = jax.jit(memory.sample, static_argnums=2)
  shares, num_new = shares_of(name, np.random.default_rng(0)), []
  state = init(share_of(name, next(shares)))
  entries = np.zeros((CAPACITY, length - window + 1))
  for call, origins in enumerate(itertools.islice(shares, 60)):
    # Windows may be overwritten between their sampling and their priorities.
    drawn = sample(state, jax.random.key(call), 64)[1] if call else None
    state = add(state, share_of(name, origins))
    num_new += reference.add(origins)
    if drawn is not None:
      state = update(state, drawn, np.ones(64, np.float32))
    number, steps = reference.kept()
    assert int(state.ring.book.oldest) == number[0]
    mass = np.zeros_like(entries)
    mass[number % CAPACITY] = (1 + 1e-6) ** ALPHA
    leaves = np.asarray(state.tree[0])[: mass.size].reshape(mass.shape)
    np.testing.assert_allclose(leaves, mass, rtol=1e-6)
    kept = number % CAPACITY
    check(jax.tree.map(lambda x, k=kept: x[k], unrolls(state)), steps)
  assert {period, length} == set(num_new)


@pytest.mark.parametrize(
  ("name", "kind"),
  conftest.slow_but(
    [("sequences in order", replay.Prioritized)],
    [
      ("sequences in order", replay.Prioritized),
      ("transitions", replay.Uniform),
    ],
  ),
)
def test_all_windows_of_kept_unrolls_are_sampled_equally_often(name, kind):
  length, _, window, *_ = SIZES[name]
  memory, reference = memory_of(name, kind), Reference(name)
  init, add = map(jax.jit, (memory.init, memory.add))
  shares = shares_of(name, np.random.default_rng(1))
  state = init(share_of(name, next(shares)))
  for origins in itertools.islice(shares, 30):
    state = add(state, share_of(name, origins))
    reference.add(origins)
  number, steps = reference.kept()
  windows = len(number) * (length - window + 1)
  sample = jax.jit(memory.sample, static_argnums=2)
  sample, _ = sample(state, jax.random.key(0), 200 * windows)
  np.testing.assert_allclose(sample.importance_weight, 1.0, rtol=1e-6)
  starts = np.arange(length - window + 1)[:, None] + np.arange(window)
  expected = steps[:, :, starts].reshape(3, windows, window)
  order = np.lexsort((expected[1, :, 0], expected[0, :, 0]))
  unroll = jax.tree.map(
    lambda x: np.swapaxes(x, 0, 1), sample.unroll._replace(core_state=())
  )
  keys = expected[0, order, 0] * 1000 + expected[1, order, 0]
  assert len(set(keys)) == windows or name == "sequences in order"
  own = unroll.version[:, 0] * 1000 + np.int32(
    unroll.inputs.timestep.reward[:, 0] - 100 * unroll.version[:, 0]
  )
  place = order[np.searchsorted(keys, own)]
  check(unroll, expected[:, place])
  counts = np.bincount(place, minlength=windows)
  assert np.all(np.abs(counts - 200) < 6 * 200**0.5)


@pytest.mark.slow
def test_in_order_a_full_replay_has_its_capacity_and_stores_each_step_once():
  for name in ("in order", "sequences in order"):
    _, period, _, size, _ = SIZES[name]
    memory, reference = memory_of(name), Reference(name)
    state, add = None, jax.jit(memory.add)
    for number in range(20):
      origins = [(env, number) for env in range(size)]
      share = share_of(name, origins)
      state = add(state or memory.init(share), share)
      reference.add(origins)
    book = state.ring.book
    assert int(book.inserted - book.oldest) == CAPACITY
    used = np.unique(book.rows)
    # The oldest unrolls begin with rows of unrolls that are no longer kept.
    extra = len(used) - CAPACITY * period
    assert extra <= size * memory_of(name).window
    number, steps = reference.kept()
    kept = number % CAPACITY
    check(jax.tree.map(lambda x, k=kept: x[k], unrolls(state)), steps)
