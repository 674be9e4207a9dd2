"""Functional environments, step by step against their references."""

import dm_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from minatar.environments import asterix, breakout

from seedx import envs
from seedx.envs import functional
from seedx.envs.functional import bsuite, classic_control, minatar

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
STEPS = 10_000


# Actions that often keep CartPole's pole upright, and swing Acrobot up. Random
# actions meet no time limit of the one, and no end of the other.
CLEVER = {
  "CartPole-v1": lambda state: int(state[2] + 0.3 * state[3] > 0),
  "Acrobot-v1": lambda state: 2 if state[3] > 0 else 0,
}


def played(name):
  """Steps of one of Gymnasium's environments: state, action and what came."""
  env = gymnasium.make(name)
  random = np.random.default_rng(0)
  env.action_space.seed(0)
  observation, _ = env.reset(seed=0)
  clever = False
  yield None, observation, 0.0, False, False, env.unwrapped.state
  for _ in range(STEPS):
    action = env.action_space.sample()
    if clever and random.random() < 0.8:
      action = CLEVER[name](env.unwrapped.state)
    observation, reward, terminated, truncated, _ = env.step(action)
    state = env.unwrapped.state
    yield action, observation, reward, terminated, truncated, state
    if terminated or truncated:
      observation, _ = env.reset()
      clever = not clever and name in CLEVER
      yield None, observation, 0.0, False, False, env.unwrapped.state


def stepper(own):
  """Steps one environment, with the n-th key."""

  @jax.jit
  def step(state, action, number):
    return own.step(
      state, action, jax.random.fold_in(jax.random.key(0), number)
    )

  def on_host(state, action, number=0):
    return jax.device_get(step(state, np.int32(action), np.int32(number)))

  return jax.device_get(own.init(jax.random.key(1))), on_host


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_classic_control_is_gymnasiums(name):
  own = functional.ENVIRONMENTS[name]()
  key = jax.random.key(0)
  program = jax.jit(lambda *arguments: own.step(*arguments, key))
  state, ends = own.init(key), {True: 0, False: 0}
  zero = np.zeros(own.action.shape, own.action.dtype)
  for action, observation, reward, terminated, truncated, inner in played(name):
    given = zero if action is None else np.asarray(action, own.action.dtype)
    state, timestep = jax.device_get(program(state, given))
    if action is None:  # The reference draws how an episode starts.
      assert timestep.step_type == FIRST
      assert timestep.reward == 0 and timestep.discount == 1
    else:
      over = terminated or truncated
      assert timestep.step_type == (LAST if over else MID)
      assert timestep.discount == (not terminated)
      np.testing.assert_allclose(timestep.reward, reward, rtol=1e-5, atol=1e-5)
      np.testing.assert_allclose(
        timestep.observation, observation, rtol=1e-4, atol=2e-5
      )
      if over:
        ends[bool(terminated)] += 1
    # Rounding of 32 bits does not build up.
    state = state._replace(inner=np.float32(inner))
  assert ends[False] > 0  # Time limits.
  assert (ends[True] > 0) == (name != "Pendulum-v1")


@pytest.mark.parametrize(
  ("name", "low", "high"),
  [
    ("CartPole-v1", [-0.05] * 4, [0.05] * 4),
    ("Pendulum-v1", [-np.pi, -1], [np.pi, 1]),
    ("Acrobot-v1", [-0.1] * 4, [0.1] * 4),
  ],
)
def test_starts_fill_the_range_of_gymnasiums(name, low, high):
  own = functional.ENVIRONMENTS[name]()
  keys = jax.random.split(jax.random.key(1), 5000)
  starts = np.asarray(jax.vmap(own.reset)(keys))
  assert (starts >= low).all() and (starts <= high).all()
  size = np.subtract(high, low)
  np.testing.assert_allclose(starts.min(0), low, atol=0.01 * size.max())
  np.testing.assert_allclose(starts.max(0), high, atol=0.01 * size.max())
  np.testing.assert_allclose(starts.mean(0), 0, atol=0.03 * size.max())


def test_catch_is_envpools():
  import envpool

  pool = envpool.make("Catch-v0", env_type="gymnasium", num_envs=1, seed=3)
  own = bsuite.Catch()
  state, step = stepper(own)
  observe = jax.jit(own.observe)
  random = np.random.default_rng(0)
  board, _ = pool.reset()
  state, timestep = step(state, 0)
  ended = 0
  for _ in range(STEPS):
    # EnvPool draws where the ball falls.
    (column,) = np.flatnonzero(board[0][0])
    inner = state.inner._replace(column=np.int32(column))
    state = state._replace(inner=inner)
    np.testing.assert_array_equal(observe(inner), board[0])
    terminated = False
    while not terminated:
      action = random.integers(3)
      board, reward, (terminated,), _, _ = pool.step(np.array([action]))
      state, timestep = step(state, action)
      ended += 1
      np.testing.assert_array_equal(timestep.observation, board[0])
      assert timestep.reward == reward[0]
      assert timestep.discount == (not terminated)
      assert timestep.step_type == (LAST if terminated else MID)
    board, *_ = pool.step(np.array([0]))
    state, timestep = step(state, 0)
    assert timestep.step_type == FIRST and timestep.reward == 0
    if ended >= STEPS:
      return


def chain(length, bit, actions):
  """MemoryChain's episode: observations, rewards."""
  for time in range(length + 2):
    seen = [1 - min(time, length) / length, time == length, 0]
    if time == 0:
      seen[2] = 1 if bit else -1
    reward = 0
    if time == length + 1:
      reward = 1 if actions[length] == bit else -1
    yield seen, reward, time == length + 1


def sea(size, bit, actions):
  """DeepSea's episode: observations, rewards."""
  column = 0
  yield np.eye(size**2)[0], 0, False
  for row in range(size):
    reward, right = 0, actions[row] == bit
    if right:
      reward = -0.01 / size + (row == size - 1 == column)
    column = column + 1 if right else max(0, column - 1)
    last = row == size - 1
    seen = np.zeros(size**2)
    if not last:
      seen[(row + 1) * size + column] = 1
    yield seen, reward, last


@pytest.mark.parametrize(
  ("reference", "own", "size"),
  [
    (chain, bsuite.MemoryChain(length=5), 5),
    (sea, bsuite.DeepSea(size=4), 4),
    (sea, bsuite.DeepSea(size=4, cued=True), 4),
  ],
)
def test_tasks_are_their_descriptions(reference, own, size):
  state, step = stepper(own)
  random = np.random.default_rng(0)
  steps, bits = 0, set()
  while steps < STEPS:
    # Often all to the right, so that treasures are found.
    actions = random.integers(2, size=size + 2)
    actions = actions if random.random() < 0.8 else 0 * actions + 1
    state, timestep = step(state, 0, steps)
    assert timestep.step_type == FIRST
    bit = int(state.inner.bit)
    bits.add(bit)
    for k, (seen, reward, last) in enumerate(reference(size, bit, actions)):
      if k:
        steps += 1
        state, timestep = step(state, actions[k - 1])
        assert timestep.step_type == (LAST if last else MID)
      found = timestep.observation
      if len(found) > len(seen):
        assert found[-1] == (2 * bit - 1) * (k == 0)
        found = found[:-1]
      np.testing.assert_allclose(found, seen, atol=1e-6)
      np.testing.assert_allclose(timestep.reward, reward, atol=1e-6)
      assert timestep.discount == (not last)
  always_1 = reference is sea and own.observation.shape == (16,)
  assert bits == ({1} if always_1 else {0, 1})


def test_breakout_is_minatars():
  reference = breakout.Env()
  reference.random = np.random.RandomState(0)
  own = minatar.Breakout(sticky=0.0)
  state, step = stepper(own)
  random = np.random.default_rng(0)
  rewards = ends = steps = 0
  while steps < STEPS:
    reference.reset()
    state, timestep = step(state, 0)
    assert timestep.step_type == FIRST and timestep.reward == 0
    state = state._replace(
      inner=state.inner._replace(
        x=np.int32(reference.ball_x),
        last_x=np.int32(reference.last_x),
        direction=np.int32(reference.ball_dir),
      )
    )
    np.testing.assert_array_equal(
      own.observe(state.inner), reference.state().transpose(2, 0, 1)
    )
    terminal = False
    while not terminal:
      # Mostly after the ball, so that walls are broken.
      side = np.sign(reference.ball_x - reference.pos)
      wanted = {-1: 1, 0: 0, 1: 3}[side]
      action = wanted if random.random() < 0.9 else random.integers(6)
      reward, terminal = reference.act(action)
      state, timestep = step(state, action)
      steps, rewards = steps + 1, rewards + reward
      np.testing.assert_array_equal(
        timestep.observation, reference.state().transpose(2, 0, 1)
      )
      assert timestep.reward == reward
      assert timestep.discount == (not terminal)
      assert timestep.step_type == (LAST if terminal else MID)
    ends += 1
  assert ends > 20 and rewards > 30 * 3  # Whole walls were broken.


class Draws:
  """Random numbers that a test has chosen, as MinAtar asks for them."""

  def __init__(self, goes_right, gold, rank):
    self._numbers = iter([0.0 if goes_right else 1.0, 0.0 if gold else 1.0])
    self._rank = rank

  def rand(self):
    return next(self._numbers)

  def randint(self, size):
    return self._rank % size


@pytest.mark.parametrize("ramping", [True, False])
def test_asterix_is_minatars(ramping):
  reference = asterix.Env(ramping=ramping)
  own = minatar.Asterix(ramping=ramping)
  advance, observe = jax.jit(own.advance), jax.jit(own.observe)
  random = np.random.default_rng(0)
  key, steps, rewards, fastest = jax.random.key(0), 0, 0, 10
  while steps < STEPS:
    reference.reset()
    state, terminal = own.reset(key), False
    while not terminal:
      goes_right, gold = random.random(2) < (0.5, 0.5)
      place, action = random.integers(8), int(random.integers(6))
      free = [k for k, x in enumerate(reference.entities) if x is None]
      rank = np.zeros(8)
      if free:
        rank[free[place % len(free)]] = 1
      reference.random = Draws(goes_right, gold, place)
      reward, terminal = reference.act(action)
      drawn = minatar.Spawned(goes_right, gold, np.float32(rank))
      state, found, over = jax.device_get(advance(state, action, drawn))
      np.testing.assert_array_equal(
        observe(state), reference.state().transpose(2, 0, 1)
      )
      assert (found, over) == (reward, terminal)
      timers = ("spawn_timer", "spawn_speed", "move_timer", "move_speed")
      for name in (*timers, "ramp_timer", "ramp_index"):
        assert getattr(state, name) == getattr(reference, name)
      steps, rewards = steps + 1, rewards + reward
      fastest = min(fastest, reference.spawn_speed)
  assert rewards > 50
  assert (fastest < 10) == ramping


def test_what_comes_in_asterix_has_the_published_probabilities():
  own = minatar.Asterix(sticky=0.0)
  keys = jax.random.split(jax.random.key(0), 4000)
  start = own.reset(keys[0])._replace(spawn_timer=jnp.int32(0))
  state = jax.vmap(own.act, (None, None, 0))(start, jnp.int32(0), keys).state
  there = np.asarray(state.there)
  assert (there.sum(1) == 1).all()
  rows = there.mean(0)
  np.testing.assert_allclose(rows, 1 / 8, atol=0.025)
  gold, right = (np.asarray(x)[there] for x in (state.gold, state.goes_right))
  np.testing.assert_allclose(gold.mean(), 1 / 3, atol=0.03)
  np.testing.assert_allclose(right.mean(), 1 / 2, atol=0.03)


@pytest.mark.parametrize("game", [minatar.Breakout, minatar.Asterix])
def test_sticky_actions_repeat_the_last_one(game):
  own = game(sticky=0.25)
  keys = jax.random.split(jax.random.key(0), 4000)
  state = own.reset(keys[0])._replace(last_action=jnp.int32(5))
  after = jax.vmap(own.act, (None, None, 0))(state, jnp.int32(2), keys).state
  repeated = np.asarray(after.last_action) == 5
  np.testing.assert_allclose(repeated.mean(), 0.25, atol=0.025)
  assert (np.asarray(after.last_action)[~repeated] == 2).all()


@pytest.mark.parametrize(
  ("game", "reference"),
  [
    (minatar.Breakout, breakout.Env()),
    (minatar.Asterix, asterix.Env(ramping=True)),
  ],
)
def test_minimal_actions_are_minatars(game, reference):
  known = reference.minimal_action_set()
  own, full = game(sticky=0.0, minimal_actions=True), game(sticky=0.0)
  assert (own.action.num_values, full.action.num_values) == (len(known), 6)
  key = jax.random.key(0)
  state = full.reset(key)
  for action, meant in enumerate(known):
    found = own.act(state, jnp.int32(action), key)
    expected = full.act(state, jnp.int32(meant), key)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_whole_number_is_as_good_as_a_float():
  config = envs.Config("seedx:Breakout-MinAtar", {"sticky": 0})
  own = functional.make(config)
  key = jax.random.key(0)
  assert own.act(own.reset(key), jnp.int32(1), key).state.paddle == 3


@pytest.mark.parametrize("name", functional.ENVIRONMENTS)
def test_jit_and_vmap_and_keys_change_nothing(name):
  own = functional.ENVIRONMENTS[name]()
  num_envs = 5
  keys = functional.keys(3, num_envs)

  @jax.jit
  def step(state, time):
    action = jnp.zeros((num_envs, *own.action.shape), own.action.dtype)
    times = jnp.full(num_envs, time)
    return functional.step(own, state, action, keys, times)

  many = jax.jit(lambda: functional.init(own, keys))()
  one = own.init(keys[4])
  again = jax.jit(lambda: functional.init(own, keys))()
  for time in range(30):
    many, timestep = step(many, time)
    again, same = step(again, time)
    jax.tree.map(np.testing.assert_array_equal, timestep, same)
    own_key = jax.random.fold_in(keys[4], time)
    action = jnp.zeros(own.action.shape, own.action.dtype)
    one, single = own.step(one, action, own_key)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a[4], b, rtol=1e-5, atol=1e-6),
      timestep,
      single,
    )
    for leaf, spec in zip(
      timestep[:3], (np.uint8, *[np.float32] * 2), strict=True
    ):
      assert leaf.dtype == spec
    assert timestep.observation.dtype == own.observation.dtype
    assert timestep.observation.shape[1:] == own.observation.shape


def test_floats_beyond_their_bounds_are_clipped():
  own = classic_control.Pendulum()
  keys = functional.keys(0, 2)
  state, _ = functional.step(
    *(own, functional.init(own, keys), jnp.zeros((2, 1)), keys),
    jnp.zeros(2, jnp.int32),
  )
  state = jax.tree.map(lambda x: x[:1].repeat(2, axis=0), state)
  action, time = jnp.array([[2.0], [50.0]]), jnp.ones(2, jnp.int32)
  _, timestep = functional.step(own, state, action, keys, time)
  for leaf in timestep:
    np.testing.assert_array_equal(leaf[0], leaf[1])
