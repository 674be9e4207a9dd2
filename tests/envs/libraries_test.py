"""Tests that environments of other libraries equal the libraries' own steps.

Tests with a library are skipped where it is not installed:
`pip install -e '.[test,gymnax,craftax,brax]'` installs all of them.
"""

import sys
import types as python_types

import dm_env
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, types
from seedx.envs import config as env_config
from seedx.envs import functional
from seedx.envs.functional import resets

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)


def assert_same(
  env,
  actions,
  reset,
  step,
  min_last,
  key_of=lambda key: key,
  changed=lambda state, time: state,
):
  """Compares each step and each reset with the library's.

  Args:
    env: ours.
    actions: `[T, ...]`.
    reset: the library's function of a key that returns an observation.
    step: the library's function of key, state and action that returns
      observation, reward, terminated and truncated.
    min_last: least numbers of terminations and of truncations.
    key_of: returns the key that the library's `step` makes from its own.
    changed: changes the library's state before each step.
  """
  actions = jnp.asarray(actions)
  their_keys = jax.random.split(jax.random.PRNGKey(1), len(actions))
  raw_keys = jax.vmap(key_of)(their_keys)

  def act(state, inputs):
    time, *inputs = inputs
    inner, seen = state.inner
    state = state._replace(inner=(changed(inner, time), seen))
    after, timestep = env.step(state, *inputs)
    return after, (state, timestep)

  @jax.jit
  def scan(actions):
    keys = jax.random.wrap_key_data(raw_keys)
    times = jnp.arange(len(actions))
    return jax.lax.scan(act, env.init(keys[0]), (times, actions, keys))[1]

  state, timestep = scan(actions)
  theirs = jax.jit(jax.vmap(step))(their_keys, state.inner[0], actions)
  seen, reward, terminated, truncated = jax.device_get(theirs)
  first = np.asarray(state.over)
  fresh = jax.jit(jax.vmap(reset))(raw_keys[first])
  terminated = ~first & np.asarray(terminated, bool)
  truncated = ~first & ~terminated & np.asarray(truncated, bool)
  last = terminated | truncated
  np.testing.assert_array_equal(
    timestep.step_type, np.where(first, FIRST, np.where(last, LAST, MID))
  )
  np.testing.assert_array_equal(timestep.discount, ~terminated)
  np.testing.assert_allclose(timestep.reward, reward * ~first, atol=1e-5)
  ours = np.asarray(timestep.observation)
  np.testing.assert_allclose(ours[~first], seen[~first], rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(ours[first], fresh, rtol=1e-5, atol=1e-6)
  # A FIRST follows each LAST.
  np.testing.assert_array_equal(first[1:], last[:-1])
  assert np.sum(terminated) >= min_last[0] and np.sum(truncated) >= min_last[1]


def random_actions(env, count):
  rng = np.random.default_rng(0)
  if isinstance(env.action, dm_env.specs.DiscreteArray):
    return rng.integers(env.action.num_values, size=count)
  shape = count, *env.action.shape
  low, high = env.action.minimum, env.action.maximum
  return rng.uniform(low, high, shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "options", "min_last"),
  [
    ("CartPole-v1", {"max_steps_in_episode": 20}, (5, 5)),
    ("Pendulum-v1", {}, (0, 2)),
    ("Breakout-MinAtar", {"max_steps_in_episode": 12}, (5, 1)),
    ("MemoryChain-bsuite", {"memory_length": 3}, (5, 0)),
  ],
)
def test_gymnax_equals_its_own_step(name, options, min_last):
  gymnax = pytest.importorskip("gymnax")
  env = functional.make(envs.Config(f"gymnax:{name}", options))
  theirs, params = gymnax.make(name)
  params = params.replace(**options)

  def step(key, state, action):
    _, _, *result, info = theirs.step(key, state, action, params)
    return info["final_observation"], *result

  assert_same(
    env,
    random_actions(env, 600),
    lambda key: theirs.reset(key, params)[0],
    step,
    min_last,
    key_of=lambda key: jax.random.split(key)[0],
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", ["Craftax-Classic-Symbolic-v1", "Craftax-Symbolic-v1"]
)
def test_craftax_equals_its_own_step(name):
  craftax_env = pytest.importorskip("craftax.craftax_env")
  limit = 40
  env = functional.make(
    envs.Config(f"craftax:{name}", {"max_timesteps": limit})
  )
  theirs = craftax_env.make_craftax_env_from_name(name, auto_reset=False)
  params = theirs.default_params.replace(max_timesteps=limit)

  def step(key, state, action):
    seen, after, reward, over, _ = theirs.step(key, state, action, params)
    # Their `step` reports both ends as one.
    return seen, reward, after.player_health <= 0, over

  def changed(state, time):
    health = jnp.where(time % 50 == 20, 0, state.player_health)
    return state.replace(player_health=health.astype(state.player_health.dtype))

  assert_same(
    env,
    random_actions(env, 130),
    lambda key: theirs.reset(key, params)[0],
    step,
    min_last=(2, 1),
    changed=changed,
  )


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "discount"), [(5, 1), (1000, 0)])
def test_an_episode_of_brax_equals_its_own(limit, discount):
  brax_envs = pytest.importorskip("brax.envs")
  options = {"backend": "spring", "episode_length": limit}
  env = functional.make(envs.Config("brax:hopper", options))
  theirs = brax_envs.create("hopper", auto_reset=False, **options)
  keys = jax.random.split(jax.random.key(1), 200)
  actions = jnp.asarray(random_actions(env, 200))
  _, ours = jax.jit(
    lambda: jax.lax.scan(
      lambda x, y: env.step(x, *y), env.init(keys[0]), (actions, keys)
    )
  )()

  def step(state, action):
    state = theirs.step(state, action)
    return state, (
      state.obs,
      state.reward,
      state.done,
      state.info["truncation"],
    )

  @jax.jit
  def episode():
    start = theirs.reset(jax.random.key_data(keys[0]))
    return start.obs, jax.lax.scan(step, start, actions[1:])[1]

  start, (seen, reward, done, truncation) = jax.device_get(episode())
  end = int(np.argmax(done))
  np.testing.assert_allclose(ours.observation[0], start, atol=1e-5)
  np.testing.assert_allclose(
    ours.observation[1 : end + 2], seen[: end + 1], rtol=1e-3, atol=1e-3
  )
  np.testing.assert_allclose(
    ours.reward[1 : end + 2], reward[: end + 1], rtol=1e-3, atol=1e-3
  )
  assert done[end] and truncation[end] == discount
  expected = [FIRST, *[MID] * end, LAST, FIRST]
  np.testing.assert_array_equal(ours.step_type[: end + 3], expected)
  assert ours.discount[end + 1] == discount and ours.discount[: end + 1].all()


class Ball(flax.struct.PyTreeNode):
  """The state of `Counter`, whose first time is a number of Python."""

  time: int
  start: jax.Array


class Params(flax.struct.PyTreeNode):
  max_steps_in_episode: int = 4
  last: float = 100.0


class Space:
  """A space of gymnax."""

  def __init__(self, **fields):
    vars(self).update(fields)


class Counter:
  """An environment with gymnax's functions, which counts from a random start.

  It terminates at `last`.
  """

  def __init__(self, size=2):
    self._size = size

  def observation_space(self, params):
    return Space(low=0, high=1, shape=(self._size,), dtype=np.float32)

  def action_space(self, params):
    return Space(n=3)

  def _seen(self, state):
    return jnp.full(self._size, state.start + state.time)

  def reset_env(self, key, params):
    state = Ball(0, jax.random.uniform(key))
    return self._seen(state), state

  def step_env(self, key, state, action, params):
    state = state.replace(time=state.time + 1)
    over = state.time >= params.last
    return self._seen(state), state, action.astype(jnp.float32), over, {}

  def is_truncated(self, state, params):
    return state.time >= params.max_steps_in_episode


@pytest.fixture
def library(monkeypatch):
  """A module `gymnax` with one environment."""
  module = python_types.ModuleType("gymnax")
  module.registered_envs = ["Counter-v0"]
  module.make = lambda name, **options: (Counter(**options), Params())
  adapter = f"{functional.__name__}.gymnax_adapter"
  monkeypatch.setitem(sys.modules, "gymnax", module)
  monkeypatch.delitem(sys.modules, adapter, raising=False)
  yield module
  sys.modules.pop(adapter, None)


@pytest.mark.parametrize(
  ("options", "length", "discount"),
  [({}, 4, 1), ({"last": 3}, 3, 0), ({"max_steps_in_episode": 3}, 3, 1)],
)
def test_a_time_limit_truncates_and_all_other_ends_terminate(
  library, options, length, discount
):
  environment = envs.make(envs.Config("gymnax:Counter-v0", options), 2)
  environment.reset()
  received = []
  for _ in range(length + 2):
    rows = environment.recv()
    received.append(rows)
    environment.send(rows.index, np.full(2, 2, np.int32))
  steps = [rows.timestep for rows in received]
  kinds = [FIRST, *[MID] * (length - 1), LAST, FIRST]
  assert [int(x.step_type[0]) for x in steps] == kinds
  discounts = [*[1] * length, discount, 1]
  assert [float(x.discount[0]) for x in steps] == discounts
  assert [float(x.reward[0]) for x in steps] == [0, *[2] * length, 0]
  numbers = np.array([x.observation[0, 0] for x in steps])
  start, again = numbers[0], numbers[-1]
  np.testing.assert_allclose(numbers[:-1] - start, range(length + 1))
  assert again != start and 0 <= again < 1
  np.testing.assert_array_equal(received[length].episode_return, 2 * length)


def test_the_options_are_parameters_and_arguments(library):
  config = envs.Config("gymnax:Counter-v0", {"size": 5, "last": 3})
  spec = envs.spec(config)
  assert spec.observation.shape == (5,)
  assert spec.action.num_values == 3
  assert envs.is_functional(config) and not env_config.is_own(config)
  assert not env_config.code_in({"env": config.env, "env_options": {"last": 3}})


@pytest.mark.parametrize(
  ("env", "options", "message"),
  [
    ("gymnax:Counter-v1", {}, "Did you mean gymnax:Counter-v0. Known"),
    ("gymnax:Counter-v0", {"lasts": 1}, "Counter-v0: .*'lasts'. .* last"),
    ("gymnax:Counter-v0", {"last": "x"}, "last of type float, found 'x'"),
    ("gymnax:Counter-v0", {"max_steps_in_episode": 0}, "time limit from 1"),
    ("gymnax:Counter-v0", {"size": -1}, "Counter-v0: "),
  ],
)
def test_wrong_names_and_options_are_refused(library, env, options, message):
  with pytest.raises(types.ConfigError, match=message) as caught:
    envs.spec(envs.Config(env, options))
  assert "\n" not in str(caught.value)


def test_a_gymnax_that_hides_time_limits_is_refused(library, monkeypatch):
  monkeypatch.delattr(Counter, "is_truncated")
  with pytest.raises(types.ConfigError, match="found an older one"):
    functional.make("gymnax:Counter-v0")


@pytest.mark.parametrize("name", ["brax", "craftax", "gymnax"])
def test_a_missing_library_is_named_with_its_extra(name, monkeypatch):
  adapter = f"{functional.__name__}.{name}_adapter"
  monkeypatch.delitem(sys.modules, adapter, raising=False)
  monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(types.ConfigError, match=rf"seedx\[{name}\]") as caught:
    envs.spec(envs.Config(f"{name}:Any-v0"))
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_seeds", [0, 2])
def test_only_the_environments_that_are_due_are_reset(num_seeds):
  count, calls = 70, []

  def reset(key):
    jax.debug.callback(calls.append, key)
    return key + 1.0, jnp.int32(7)

  shape = (num_seeds, count) if num_seeds else (count,)
  due = np.zeros(shape, bool)
  due[..., [0, 3, 69]] = True
  state = np.arange(due.size, dtype=np.float32).reshape(shape)
  keys = -state
  function = jax.vmap(lambda *x: resets.restarted(reset, *x), (0, (0, None), 0))
  if num_seeds:
    function = jax.vmap(function, (0, (0, None), 0))
  first, second = jax.jit(function)(due, (state, jnp.int32(3)), keys)
  jax.effects_barrier()
  np.testing.assert_array_equal(first, np.where(due, keys + 1, state))
  np.testing.assert_array_equal(second, np.where(due, 7, 3))
  assert len(calls) == 3 * max(1, num_seeds)
