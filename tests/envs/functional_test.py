"""Functional environments, step by step against their references."""

import chex
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
STEPS = 4000


# Actions that often keep CartPole's pole upright, and swing Acrobot up. Random
# actions meet no time limit of the one, and no end of the other.
CLEVER = {
  "CartPole-v1": lambda state: int(state[2] + 0.3 * state[3] > 0),
  "Acrobot-v1": lambda state: 2 if state[3] > 0 else 0,
}


def played(name):
  """Steps of one of Gymnasium's environments, see `assert_same`."""
  env = gymnasium.make(name)
  random = np.random.default_rng(0)
  env.action_space.seed(0)
  zero, clever, steps = 0 * env.action_space.sample(), False, 0
  while steps < STEPS:
    was, _ = env.reset(seed=None if steps else 0)
    yield zero, env.unwrapped.state, was, was, 0, False, FIRST
    over = False
    while not over:
      state, action = env.unwrapped.state, env.action_space.sample()
      if clever and random.random() < 0.8:
        action = CLEVER[name](state)
      seen, reward, terminated, truncated, _ = env.step(action)
      over = terminated or truncated
      yield action, state, was, seen, reward, terminated, LAST if over else MID
      was, steps = seen, steps + 1
    clever = not clever and name in CLEVER


def assert_same(own, steps, names=(), scale=0.0):
  """An environment does what a reference did.

  Args:
    own: the environment.
    steps: each an action, the state before it, the observations before and
      after it, the reward, whether the episode terminated, the step's type.
    names: fields of the state that are set after each reset, which a reference
      draws. None: all is set before each step, so that rounding of 32 bits does
      not build up.
    scale: of rounding; 0 for numbers that are the same to the bit.

  Returns:
    Rewards, whether episodes terminated, and the step types.
  """
  columns = map(np.array, zip(*steps, strict=True))
  actions, before, was, seen, rewards, terminated, kinds = columns
  first = kinds == FIRST
  forced = np.roll(first, 1) if names else ~first

  def step(state, given):
    action, forced, inner = given
    if names:
      inner = state.inner._replace(**dict(zip(names, inner, strict=True)))
    inner = jax.tree.map(
      lambda a, b: jnp.where(forced, a, b), inner, state.inner
    )
    key = jax.random.key(0)
    after, timestep = own.step(state._replace(inner=inner), action, key)
    return after, (own.observe(inner), timestep)

  @jax.jit
  def scan(*given):
    return jax.lax.scan(step, own.init(jax.random.key(1)), given)[1]

  before = before.astype(np.int32 if names else np.float32)
  found, timestep = jax.device_get(
    scan(actions.astype(own.action.dtype), forced, before)
  )
  np.testing.assert_array_equal(timestep.step_type, kinds)
  np.testing.assert_array_equal(timestep.discount, ~terminated)
  np.testing.assert_allclose(timestep.reward, rewards, rtol=scale, atol=scale)
  for one, other in (
    (found[forced], was[forced]),
    (timestep.observation[~first], seen[~first]),
  ):
    np.testing.assert_allclose(one, other, rtol=10 * scale, atol=2 * scale)
  return rewards, terminated, kinds


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_classic_control_is_gymnasiums(name):
  own = functional.ENVIRONMENTS[name]()
  _, terminated, kinds = assert_same(own, played(name), scale=1e-5)
  assert np.sum((kinds == LAST) & ~terminated) > 0  # Time limits.
  assert (np.sum(terminated) > 0) == (name != "Pendulum-v1")


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
  random, steps = np.random.default_rng(0), []
  while len(steps) < STEPS:
    (was,), *_ = pool.reset() if not steps else pool.step(np.array([0]))
    # EnvPool draws where the ball falls.
    column = np.flatnonzero(was[0])
    steps.append((0, column, was, was, 0, False, FIRST))
    terminated = False
    while not terminated:
      action = random.integers(3)
      (seen,), (reward,), (terminated,), _, _ = pool.step(np.array([action]))
      kind = LAST if terminated else MID
      steps.append((action, column, was, seen, reward, terminated, kind))
      was = seen
  assert_same(bsuite.Catch(), steps, ("column",))


def chain(length, bit, actions):
  """MemoryChain's episode: observations, rewards, ends."""
  for time in range(length + 2):
    seen = [1 - min(time, length) / length, time == length, 0]
    if time == 0:
      seen[2] = 1 if bit else -1
    reward = 0
    if time == length + 1:
      reward = 1 if actions[length] == bit else -1
    yield seen, reward, time == length + 1


def sea(size, bit, actions):
  """DeepSea's episode: observations, rewards, ends."""
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


def cued(size, bit, actions):
  """As `sea`, with the bit at the start."""
  cue = 2 * bit - 1
  for seen, reward, last in sea(size, bit, actions):
    yield np.append(seen, cue), reward, last
    cue = 0


@pytest.mark.parametrize(
  ("reference", "own", "size"),
  [
    (chain, bsuite.MemoryChain(length=5), 5),
    (sea, bsuite.DeepSea(size=4), 4),
    (cued, bsuite.DeepSea(size=4, cued=True), 4),
  ],
)
def test_tasks_are_their_descriptions(reference, own, size):
  random, steps = np.random.default_rng(0), []
  while len(steps) < STEPS:
    bit = 1 if reference is sea else random.integers(2)
    # Often all to the right, so that treasures are found.
    actions = random.integers(2, size=size + 2)
    actions = actions if random.random() < 0.8 else 0 * actions + 1
    episode = list(reference(size, bit, actions))
    was = episode[0][0]
    steps.append((0, [bit], was, was, 0, False, FIRST))
    for action, (seen, reward, last) in zip(actions, episode[1:], strict=False):
      kind = LAST if last else MID
      steps.append((action, [bit], was, seen, reward, last, kind))
      was = seen
  assert_same(own, steps, ("bit",), scale=1e-7)


def test_breakout_is_minatars():
  reference = breakout.Env()
  reference.random = np.random.RandomState(0)
  random, steps = np.random.default_rng(0), []

  def board():
    return reference.state().transpose(2, 0, 1)

  while len(steps) < STEPS:
    reference.reset()
    steps.append((0, (0, 0, 0), board(), board(), 0, False, FIRST))
    terminal = False
    while not terminal:
      # Mostly after the ball, so that walls are broken.
      side = np.sign(reference.ball_x - reference.pos)
      wanted = {-1: 1, 0: 0, 1: 3}[side]
      action = wanted if random.random() < 0.9 else random.integers(6)
      ball = reference.ball_x, reference.last_x, reference.ball_dir
      was, (reward, terminal) = board(), reference.act(action)
      kind = LAST if terminal else MID
      steps.append((action, ball, was, board(), reward, terminal, kind))
  own, names = minatar.Breakout(sticky=0.0), ("x", "last_x", "direction")
  rewards, terminated, _ = assert_same(own, steps, names)
  # Whole walls were broken.
  assert terminated.sum() > 8 and rewards.sum() > 30 * 3


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
  random = np.random.default_rng(0)
  timers = ("spawn_timer", "spawn_speed", "move_timer", "move_speed")
  timers += ("ramp_timer", "ramp_index")
  given, expected = [], []
  while len(given) < STEPS:
    reference.reset()
    begins, terminal = True, False
    while not terminal:
      goes_right, gold = random.random(2) < (0.5, 0.5)
      place, action = random.integers(8), random.integers(6)
      free = [k for k, x in enumerate(reference.entities) if x is None]
      rank = np.zeros(8, np.float32)
      if free:
        rank[free[place % len(free)]] = 1
      reference.random = Draws(goes_right, gold, place)
      reward, terminal = reference.act(action)
      drawn = minatar.Spawned(goes_right, gold, rank)
      given.append((begins, np.int32(action), drawn))
      known = np.array([getattr(reference, name) for name in timers])
      board, begins = reference.state().transpose(2, 0, 1), False
      expected.append((board, reward, terminal, known))

  @jax.jit
  def play(given):
    start = own.reset(jax.random.key(0))

    def step(state, given):
      begins, action, drawn = given
      state = jax.tree.map(lambda a, b: jnp.where(begins, a, b), start, state)
      state, reward, terminal = own.advance(state, action, drawn)
      known = jnp.stack([getattr(state, name) for name in timers])
      return state, (own.observe(state), reward, terminal, known)

    return jax.lax.scan(step, start, given)[1]

  given, expected = (
    jax.tree.map(lambda *x: np.stack(x), *x) for x in (given, expected)
  )
  chex.assert_trees_all_equal(play(given), expected)
  _, rewards, _, known = expected
  assert rewards.sum() > 30
  assert (known[:, 1].min() < 10) == ramping


def acted(own, state, action):
  """States after many draws of one action, `[4000, ...]`."""

  @jax.jit
  def act(keys):
    start = own.reset(keys[0])
    start = start._replace(
      **{name: jnp.int32(value) for name, value in state.items()}
    )
    return jax.vmap(own.act, (None, None, 0))(start, action, keys).state

  return jax.device_get(act(jax.random.split(jax.random.key(0), 4000)))


def test_what_comes_in_asterix_has_the_published_probabilities():
  state = acted(minatar.Asterix(sticky=0.0), {"spawn_timer": 0}, 0)
  there = state.there
  assert (there.sum(1) == 1).all()
  np.testing.assert_allclose(there.mean(0), 1 / 8, atol=0.025)
  gold, right = state.gold[there], state.goes_right[there]
  np.testing.assert_allclose(gold.mean(), 1 / 3, atol=0.03)
  np.testing.assert_allclose(right.mean(), 1 / 2, atol=0.03)


@pytest.mark.parametrize("game", [minatar.Breakout, minatar.Asterix])
def test_sticky_actions_repeat_the_last_one(game):
  last = acted(game(sticky=0.25), {"last_action": 5}, 2).last_action
  repeated = last == 5
  np.testing.assert_allclose(repeated.mean(), 0.25, atol=0.025)
  assert (last[~repeated] == 2).all()


@pytest.mark.parametrize(
  ("game", "reference"),
  [
    (minatar.Breakout, breakout.Env()),
    (minatar.Asterix, asterix.Env(ramping=True)),
  ],
)
def test_minimal_actions_are_minatars(game, reference):
  known = np.array(reference.minimal_action_set())
  own, full = game(sticky=0.0, minimal_actions=True), game(sticky=0.0)
  assert (own.action.num_values, full.action.num_values) == (len(known), 6)

  @jax.jit
  def act(key):
    state = full.reset(key)
    return [
      jax.vmap(lambda action, game=game: game.act(state, action, key))(actions)
      for game, actions in ((own, np.arange(len(known))), (full, known))
    ]

  chex.assert_trees_all_equal(*act(jax.random.key(0)))


def test_a_whole_number_is_as_good_as_a_float():
  own = functional.make(envs.Config("seedx:Breakout-MinAtar", {"sticky": 0}))
  assert own.action.num_values == 6
  act = jax.jit(lambda key: own.act(own.reset(key), jnp.int32(1), key))
  assert act(jax.random.key(0)).state.paddle == 3


@pytest.mark.parametrize("name", functional.ENVIRONMENTS)
def test_steps_of_many_have_the_shapes_of_the_specs(name):
  own = functional.ENVIRONMENTS[name]()

  def play(action):
    keys, times = functional.keys(3, 3), jnp.zeros(3, jnp.int32)
    state = functional.init(own, keys)
    return functional.step(own, state, action, keys, times)[1]

  action = np.zeros((3, *own.action.shape), own.action.dtype)
  timestep = jax.eval_shape(play, action)
  dtypes = np.uint8, np.float32, np.float32, own.observation.dtype
  assert tuple(leaf.dtype for leaf in timestep) == dtypes
  assert timestep.observation.shape == (3, *own.observation.shape)


def test_each_of_many_is_stepped_with_its_own_key():
  own = bsuite.Catch()
  zeros = np.zeros(3, np.int32)

  @jax.jit
  def play():
    keys = functional.keys(3, 3)

    def step(states, time):
      many, one = states
      times = jnp.full(3, time)
      many, timestep = functional.step(own, many, zeros, keys, times)
      one, single = own.step(one, zeros[2], jax.random.fold_in(keys[2], time))
      return (many, one), (timestep, single)

    start = functional.init(own, keys), own.init(keys[2])
    return jax.lax.scan(step, start, jnp.arange(30))[1]

  timestep, single = play()
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a[:, 2], b), timestep, single
  )
  assert (timestep.observation[:, 0] != timestep.observation[:, 1]).any()


def test_floats_beyond_their_bounds_are_clipped():
  own = classic_control.Pendulum()

  @jax.jit
  def play(actions):
    # Of equal states: the key of a reset is of one environment.
    keys = functional.keys(0, 1)[jnp.zeros(2, jnp.int32)]
    state = functional.init(own, keys)
    for time, action in enumerate(actions):
      times = jnp.full(2, time)
      state, timestep = functional.step(own, state, action, keys, times)
    return timestep

  for leaf in play(np.float32([[[0], [0]], [[2], [50]]])):
    np.testing.assert_array_equal(leaf[0], leaf[1])
