"""Tests of functional environments, step by step against references."""

import chex
import dm_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, types
from seedx.envs import functional
from seedx.envs.functional import bsuite, classic_control, minatar
from tests import conftest

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
STEPS = 4000


# Actions that often keep CartPole's pole upright, drive the car out of its
# valley and swing Acrobot up. Random actions reach neither CartPole's limit
# nor the goals of the others.
CLEVER = {
  "CartPole-v1": lambda state: int(state[2] + 0.3 * state[3] > 0),
  "MountainCarContinuous-v0": lambda state: np.sign(state[1:]),
  "Acrobot-v1": lambda state: 2 if state[3] > 0 else 0,
}


def gymnasium_steps(name):
  """Yields the steps of a Gymnasium environment as `assert_same` takes them."""
  env = gymnasium.make(name)
  random = np.random.default_rng(0)
  env.action_space.seed(0)
  zero, clever, steps = 0 * env.action_space.sample(), False, 0
  while steps < STEPS:
    before, _ = env.reset(seed=None if steps else 0)
    state = env.unwrapped.state
    yield zero, state, before, before, 0, False, FIRST
    ended = False
    while not ended:
      state, action = env.unwrapped.state, env.action_space.sample()
      if clever and random.random() < 0.8:
        action = CLEVER[name](state)
      after, reward, terminated, truncated, _ = env.step(action)
      ended = terminated or truncated
      step_type = LAST if ended else MID
      yield action, state, before, after, reward, terminated, step_type
      before, steps = after, steps + 1
    clever = not clever and name in CLEVER


def assert_same(env, steps, names=(), scale=0.0):
  """Checks that an environment makes the same steps as a reference.

  Args:
    env: the environment.
    steps: tuples of an action, the state before it, the observations before and
      after it, the reward, whether the episode terminated, and the step type.
    names: fields of the state that are set after each reset to what the
      reference has drawn. If empty, the whole state is set before each step, so
      that rounding errors do not add up.
    scale: relative size of rounding errors; 0 for none.

  Returns:
    The rewards, whether episodes terminated, and the step types.
  """
  columns = map(np.array, zip(*steps, strict=True))
  actions, states, before, after, rewards, terminated, step_types = columns
  first = step_types == FIRST
  forced = np.roll(first, 1) if names else ~first

  def step(state, inputs):
    action, forced, inner = inputs
    if names:
      inner = state.inner._replace(**dict(zip(names, inner, strict=True)))
    inner = jax.tree.map(
      lambda a, b: jnp.where(forced, a, b), inner, state.inner
    )
    key = jax.random.key(0)
    next_state, timestep = env.step(state._replace(inner=inner), action, key)
    return next_state, (env.observe(inner), timestep)

  @jax.jit
  def scan(*inputs):
    return jax.lax.scan(step, env.init(jax.random.key(1)), inputs)[1]

  states = states.astype(np.int32 if names else np.float32)
  observed, timestep = jax.device_get(
    scan(actions.astype(env.action.dtype), forced, states)
  )
  np.testing.assert_array_equal(timestep.step_type, step_types)
  np.testing.assert_array_equal(timestep.discount, ~terminated)
  np.testing.assert_allclose(timestep.reward, rewards, rtol=scale, atol=scale)
  for actual, expected in (
    (observed[forced], before[forced]),
    (timestep.observation[~first], after[~first]),
  ):
    np.testing.assert_allclose(
      actual, expected, rtol=10 * scale, atol=2 * scale
    )
  return rewards, terminated, step_types


@pytest.mark.parametrize(
  "name",
  ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1"],
)
def test_classic_control_equals_gymnasium(name):
  env = functional.ENVIRONMENTS[name]()
  _, terminated, step_types = assert_same(
    env, gymnasium_steps(name), scale=1e-5
  )
  # Some episodes reach the time limit.
  assert np.sum((step_types == LAST) & ~terminated) > 0
  assert (np.sum(terminated) > 0) == (name != "Pendulum-v1")


@pytest.mark.parametrize(
  ("name", "low", "high"),
  [
    ("CartPole-v1", [-0.05] * 4, [0.05] * 4),
    ("Pendulum-v1", [-np.pi, -1], [np.pi, 1]),
    ("MountainCarContinuous-v0", [-0.6, 0], [-0.4, 0]),
    ("Acrobot-v1", [-0.1] * 4, [0.1] * 4),
  ],
)
def test_start_states_cover_gymnasiums_range(name, low, high):
  env = functional.ENVIRONMENTS[name]()
  keys = jax.random.split(jax.random.key(1), 5000)
  starts = np.asarray(jax.vmap(env.reset)(keys))
  assert (starts >= low).all() and (starts <= high).all()
  size = np.subtract(high, low)
  np.testing.assert_allclose(starts.min(0), low, atol=0.01 * size.max())
  np.testing.assert_allclose(starts.max(0), high, atol=0.01 * size.max())
  middle = np.add(low, high) / 2
  np.testing.assert_allclose(starts.mean(0), middle, atol=0.03 * size.max())


def test_the_car_is_as_fast_as_gymnasiums_at_any_place():
  # A car that starts at rest does not reach its maximum speed.
  reference = gymnasium.make("MountainCarContinuous-v0").unwrapped
  env = classic_control.MountainCarContinuous()
  space, random = reference.observation_space, np.random.default_rng(0)
  states = random.uniform(space.low, space.high, (500, 2)).astype(np.float32)
  actions = random.uniform(-1, 1, (500, 1)).astype(np.float32)
  expected = []
  for state, action in zip(states, actions, strict=True):
    reference.state = state
    expected.append(reference.step(action)[:3])
  act = jax.jit(jax.vmap(env.act, (0, 0, None)))
  for actual, column in zip(
    act(states, actions, jax.random.key(0)),
    zip(*expected, strict=True),
    strict=True,
  ):
    np.testing.assert_allclose(actual, np.array(column), atol=1e-5)


def test_an_environment_is_made_by_its_name():
  assert isinstance(functional.make("CartPole-v1"), functional.CartPole)
  assert isinstance(functional.make("seedx:DeepSea"), functional.DeepSea)
  with pytest.raises(types.ConfigError, match="CartPole-v1"):
    functional.make("CartPole-v0")


def test_catch_equals_envpool():
  import envpool

  pool = envpool.make("Catch-v0", env_type="gymnasium", num_envs=1, seed=3)
  random, steps = np.random.default_rng(0), []
  while len(steps) < STEPS:
    (before,), *_ = pool.reset() if not steps else pool.step(np.array([0]))
    # EnvPool draws the column in which the ball falls.
    column = np.flatnonzero(before[0])
    steps.append((0, column, before, before, 0, False, FIRST))
    terminated = False
    while not terminated:
      action = random.integers(3)
      (after,), (reward,), (terminated,), _, _ = pool.step(np.array([action]))
      step_type = LAST if terminated else MID
      steps.append(
        (action, column, before, after, reward, terminated, step_type)
      )
      before = after
  assert_same(bsuite.Catch(), steps, ("column",))


def memory_chain(length, bit, actions):
  """Yields an episode of MemoryChain: `(observation, reward, is_last)`."""
  for time in range(length + 2):
    observation = [1 - min(time, length) / length, time == length, 0]
    if time == 0:
      observation[2] = 1 if bit else -1
    reward = 0
    if time == length + 1:
      reward = 1 if actions[length] == bit else -1
    yield observation, reward, time == length + 1


def deep_sea(size, bit, actions):
  """Yields an episode of DeepSea: `(observation, reward, is_last)`."""
  column = 0
  yield np.eye(size**2)[0], 0, False
  for row in range(size):
    reward, right = 0, actions[row] == bit
    if right:
      reward = -0.01 / size + (row == size - 1 == column)
    column = column + 1 if right else max(0, column - 1)
    last = row == size - 1
    observation = np.zeros(size**2)
    if not last:
      observation[(row + 1) * size + column] = 1
    yield observation, reward, last


def cued_deep_sea(size, bit, actions):
  cue = 2 * bit - 1
  for observation, reward, last in deep_sea(size, bit, actions):
    yield np.append(observation, cue), reward, last
    cue = 0


@pytest.mark.parametrize(
  ("reference", "env", "size"),
  [
    (memory_chain, bsuite.MemoryChain(length=5), 5),
    (deep_sea, bsuite.DeepSea(size=4), 4),
    (cued_deep_sea, bsuite.DeepSea(size=4, cued=True), 4),
  ],
)
def test_bsuite_tasks_equal_references(reference, env, size):
  random, steps = np.random.default_rng(0), []
  while len(steps) < STEPS:
    bit = 1 if reference is deep_sea else random.integers(2)
    # In a fifth of the episodes all actions are 1, so that treasures are found.
    actions = random.integers(2, size=size + 2)
    actions = actions if random.random() < 0.8 else 0 * actions + 1
    episode = list(reference(size, bit, actions))
    before = episode[0][0]
    steps.append((0, [bit], before, before, 0, False, FIRST))
    for action, (after, reward, last) in zip(
      actions, episode[1:], strict=False
    ):
      step_type = LAST if last else MID
      steps.append((action, [bit], before, after, reward, last, step_type))
      before = after
  assert_same(env, steps, ("bit",), scale=1e-7)


def published(game, **options):
  """Returns a game of MinAtar, which the extra `test` does not install."""
  pytest.importorskip("minatar")
  from minatar.environments import asterix, breakout

  return {"asterix": asterix, "breakout": breakout}[game].Env(**options)


@pytest.mark.slow
def test_breakout_equals_minatar():
  reference = published("breakout")
  reference.random = np.random.RandomState(0)
  random, steps = np.random.default_rng(0), []

  def board():
    return reference.state().transpose(2, 0, 1)

  while len(steps) < STEPS:
    reference.reset()
    steps.append((0, (0, 0, 0), board(), board(), 0, False, FIRST))
    terminal = False
    while not terminal:
      # The paddle mostly follows the ball, so that bricks are hit.
      side = np.sign(reference.ball_x - reference.pos)
      wanted = {-1: 1, 0: 0, 1: 3}[side]
      action = wanted if random.random() < 0.9 else random.integers(6)
      ball = reference.ball_x, reference.last_x, reference.ball_dir
      before, (reward, terminal) = board(), reference.act(action)
      step_type = LAST if terminal else MID
      steps.append((action, ball, before, board(), reward, terminal, step_type))
  env, names = minatar.Breakout(sticky=0.0), ("x", "last_x", "direction")
  rewards, terminated, _ = assert_same(env, steps, names)
  # More bricks were hit than three walls have.
  assert terminated.sum() > 8 and rewards.sum() > 30 * 3


class Draws:
  """MinAtar's random numbers, chosen by a test."""

  def __init__(self, goes_right, gold, rank):
    self._numbers = iter([0.0 if goes_right else 1.0, 0.0 if gold else 1.0])
    self._rank = rank

  def rand(self):
    return next(self._numbers)

  def randint(self, size):
    return self._rank % size


@pytest.mark.slow
@pytest.mark.parametrize("ramping", [True, False])
def test_asterix_equals_minatar(ramping):
  reference = published("asterix", ramping=ramping)
  env = minatar.Asterix(ramping=ramping)
  random = np.random.default_rng(0)
  timers = ("spawn_timer", "spawn_speed", "move_timer", "move_speed")
  timers += ("ramp_timer", "ramp_index")
  inputs, expected = [], []
  while len(inputs) < STEPS:
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
      drawn = minatar.Spawn(goes_right, gold, rank)
      inputs.append((begins, np.int32(action), drawn))
      times = np.array([getattr(reference, name) for name in timers])
      board, begins = reference.state().transpose(2, 0, 1), False
      expected.append((board, reward, terminal, times))

  @jax.jit
  def play(inputs):
    start = env.reset(jax.random.key(0))

    def step(state, inputs):
      begins, action, drawn = inputs
      state = jax.tree.map(lambda a, b: jnp.where(begins, a, b), start, state)
      state, reward, terminal = env.advance(state, action, drawn)
      times = jnp.stack([getattr(state, name) for name in timers])
      return state, (env.observe(state), reward, terminal, times)

    return jax.lax.scan(step, start, inputs)[1]

  inputs, expected = (
    jax.tree.map(lambda *x: np.stack(x), *x) for x in (inputs, expected)
  )
  chex.assert_trees_all_equal(play(inputs), expected)
  _, rewards, _, times = expected
  assert rewards.sum() > 30
  assert (times[:, 1].min() < 10) == ramping


def states_after(env, state, action):
  """Returns the states, `[4000, ...]`, after one action with 4000 keys."""

  @jax.jit
  def act(keys):
    start = env.reset(keys[0])
    start = start._replace(
      **{name: jnp.int32(value) for name, value in state.items()}
    )
    return jax.vmap(env.act, (None, None, 0))(start, action, keys).state

  return jax.device_get(act(jax.random.split(jax.random.key(0), 4000)))


def test_new_objects_in_asterix_have_the_published_probabilities():
  state = states_after(minatar.Asterix(sticky=0.0), {"spawn_timer": 0}, 0)
  there = state.there
  assert (there.sum(1) == 1).all()
  np.testing.assert_allclose(there.mean(0), 1 / 8, atol=0.025)
  gold, right = state.gold[there], state.goes_right[there]
  np.testing.assert_allclose(gold.mean(), 1 / 3, atol=0.03)
  np.testing.assert_allclose(right.mean(), 1 / 2, atol=0.03)


@pytest.mark.parametrize("game", [minatar.Breakout, minatar.Asterix])
def test_sticky_actions_repeat_the_last_action(game):
  last = states_after(game(sticky=0.25), {"last_action": 5}, 2).last_action
  repeated = last == 5
  np.testing.assert_allclose(repeated.mean(), 0.25, atol=0.025)
  assert (last[~repeated] == 2).all()


@pytest.mark.slow
@pytest.mark.parametrize(
  ("game", "name"),
  [(minatar.Breakout, "breakout"), (minatar.Asterix, "asterix")],
)
def test_minimal_actions_equal_those_of_minatar(game, name):
  minimal = np.array(published(name).minimal_action_set())
  env, full = game(sticky=0.0, minimal_actions=True), game(sticky=0.0)
  assert (env.action.num_values, full.action.num_values) == (len(minimal), 6)

  @jax.jit
  def act(key):
    state = full.reset(key)
    return [
      jax.vmap(lambda action, game=game: game.act(state, action, key))(actions)
      for game, actions in ((env, np.arange(len(minimal))), (full, minimal))
    ]

  chex.assert_trees_all_equal(*act(jax.random.key(0)))


def test_a_float_option_accepts_an_int():
  env = functional.make(envs.Config("seedx:Breakout-MinAtar", {"sticky": 0}))
  assert env.action.num_values == 6
  act = jax.jit(lambda key: env.act(env.reset(key), jnp.int32(1), key))
  assert act(jax.random.key(0)).state.paddle == 3


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(x, marks=pytest.mark.slow) if x == "Chess" else x
    for x in functional.ENVIRONMENTS
  ],
)
def test_batched_steps_match_the_specs(name):
  env = functional.ENVIRONMENTS[name]()

  def play(action):
    keys, times = functional.keys(3, 3), jnp.zeros(3, jnp.int32)
    state = functional.init(env, keys)
    return functional.step(env, state, action, keys, times)[1]

  action = np.zeros((3, *env.action.shape), env.action.dtype)
  timestep = jax.eval_shape(play, action)
  dtypes = tuple(leaf.dtype for leaf in timestep[:3])
  assert dtypes == (np.uint8, np.float32, np.float32)
  chex.assert_trees_all_equal_shapes_and_dtypes(
    timestep.observation,
    jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), env.observation
    ),
  )


def test_each_environment_is_stepped_with_its_own_key():
  env = bsuite.Catch()
  zeros = np.zeros(3, np.int32)

  @jax.jit
  def play():
    keys = functional.keys(3, 3)

    def step(states, time):
      many, one = states
      times = jnp.full(3, time)
      many, timestep = functional.step(env, many, zeros, keys, times)
      one, single = env.step(one, zeros[2], jax.random.fold_in(keys[2], time))
      return (many, one), (timestep, single)

    start = functional.init(env, keys), env.init(keys[2])
    return jax.lax.scan(step, start, jnp.arange(30))[1]

  timestep, single = play()
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a[:, 2], b), timestep, single
  )
  assert (timestep.observation[:, 0] != timestep.observation[:, 1]).any()


# Games and options; other tests compare the steps of other environments. A
# large number of opening moves stands for the largest.
_RANDOM = {"opponent": "random", "opening_moves": 10**9}
_SEARCH = _RANDOM | {"opponent": "search", "opponent_simulations": 1}
_FAST = (
  ("TicTacToe", _RANDOM),
  ("TicTacToe", {"opponent": "perfect", "opening_moves": 6, "seat": "first"}),
)


@pytest.mark.parametrize(
  ("name", "options"),
  conftest.slow_but(
    _FAST,
    [
      *_FAST,
      ("Asterix-MinAtar", {}),
      ("TicTacToe", {"opponent": "perfect", "opening_moves": 9}),
      ("TicTacToe", _SEARCH),
      ("Hex", _RANDOM),
    ],
  ),
)
def test_a_step_is_a_first_at_the_beginning_and_after_a_last_only(
  name, options
):
  kind = functional.ENVIRONMENTS[name]
  if options.get("opening_moves") == 10**9:
    options = options | {"opening_moves": kind().game.max_moves}
  env = kind(**options)
  # pgx's games are slow, and differ only in their rules.
  steps, size = (150, 8) if name == "Hex" else (1000, 64)
  keys = functional.keys(0, size)

  def step(carry, time):
    state, mask = carry
    key = jax.random.fold_in(jax.random.key(1), time)
    action = jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))
    action = action.astype(jnp.int32)
    times = jnp.full(size, time)
    state, timestep = functional.step(env, state, action, keys, times)
    if isinstance(timestep.observation, dict):
      mask = timestep.observation.get("action_mask", mask)
    return (state, mask), timestep.step_type

  mask = jnp.ones((size, env.action.num_values), bool)
  start = functional.init(env, keys), mask
  run = jax.jit(lambda: jax.lax.scan(step, start, jnp.arange(steps))[1])
  step_type = run()
  first, last = step_type == FIRST, step_type == LAST
  assert np.all(first[0]) and not np.any(last[0])
  np.testing.assert_array_equal(first[1:], last[:-1])
