"""Tests of batched environments of JAX functions, seedx's and a user's."""

import subprocess
import sys
import threading

import dm_env
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, types
from seedx.envs import functional

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
USERS_ENV = f"jax:{__name__}:counting"


def make(env, num_envs, seed=0, batch_size=None, transform="", **options):
  config = envs.Config(env, options, observation_transform=transform)
  made = envs.make(config, num_envs, seed=seed, batch_size=batch_size)
  made.reset()
  return made


def test_rows_match_the_spec():
  environment = make("seedx:DeepSea", 3)
  rows = environment.recv()
  spec = envs.spec(envs.Config("seedx:DeepSea"))
  assert environment.spec == spec
  assert rows.timestep.observation.shape == (3, *spec.observation.shape)
  assert rows.timestep.observation.dtype == spec.observation.dtype
  assert spec.action.num_values == 2
  assert rows.timestep.step_type.dtype == np.uint8
  assert rows.timestep.reward.dtype == np.float32
  assert rows.index.dtype == np.int32


def test_environment_k_of_seed_s_is_environment_0_of_seed_s_plus_k():
  def bits(seed, num_envs):
    environment = make("seedx:MemoryChain", num_envs, seed=seed, length=1)
    shown = []
    for _ in range(60):
      rows = environment.recv()
      shown.append(rows.timestep.observation[:, 2])
      environment.send(rows.index, np.zeros(num_envs, np.int32))
    return np.stack(shown)

  three = bits(5, 3)
  np.testing.assert_array_equal(three[:, 2:], bits(7, 1))
  assert (three[:, 0] != three[:, 1]).any()


def test_recv_returns_ready_rows_and_waits_for_missing_ones():
  environment = make("seedx:MemoryChain", 4, batch_size=2)
  first, second = environment.recv(), environment.recv()
  np.testing.assert_array_equal(first.index, [0, 1])
  np.testing.assert_array_equal(second.index, [2, 3])
  environment.send(np.array([3]), np.array([0]))
  received = []
  waiting = threading.Thread(target=lambda: received.append(environment.recv()))
  waiting.start()
  waiting.join(0.1)
  assert not received
  environment.send(np.array([1, 0]), np.array([0, 0]))
  waiting.join(300)
  np.testing.assert_array_equal(received[0].index, [3, 1])
  assert (received[0].timestep.step_type == MID).all()


def test_rows_of_all_environments_are_sorted_by_index():
  environment = make("seedx:MemoryChain", 4, length=3)
  bits = environment.recv().timestep.observation[:, 2]
  for index in ([3, 1], [0], [2]):
    environment.send(np.array(index), np.zeros(len(index), np.int32))
  rows = environment.recv()
  np.testing.assert_array_equal(rows.index, range(4))
  for _ in range(3):
    environment.send(np.array([2, 3, 0, 1]), np.ones(4, np.int32))
    rows = environment.recv()
  np.testing.assert_array_equal(rows.timestep.reward, bits)


def test_transforms_and_errors_work_as_in_other_environments():
  hide = "seedx.envs.transforms:hide_velocities"
  environment = make("seedx:MemoryChain", 2, transform=hide)
  assert environment.recv().timestep.observation.shape == (2, 2)
  for wrong in (2, -1):
    with pytest.raises(ValueError, match=f"actions from 0 to 1, found {wrong}"):
      environment.send(np.array([0, 1]), np.array([wrong, wrong]))
  with pytest.raises(types.ConfigError, match="no picture"):
    envs.make(envs.Config("seedx:DeepSea"), 1, render=True)


@pytest.mark.parametrize(
  ("env", "options", "message"),
  [
    ("seedx:DeepSeas", {}, "'seedx:DeepSeas'.* Did you mean"),
    ("seedx:DeepSea", {"sizes": 3}, "'sizes'. Did you mean"),
    ("seedx:DeepSea", {"size": 1}, "size from 2 to 100, found 1"),
    ("seedx:MemoryChain", {"length": 2.5}, "length of type int, found 2.5"),
    # A user's functions.
    (USERS_ENV, {"wrong": True}, "object without observation"),
    (USERS_ENV, {"size": 1}, "unexpected keyword"),
    ("jax:nowhere:counting", {}, "jax:"),
    # Another library's name.
    ("MyEnv-v0", {}, "gymnasium:make with the option id=MyEnv-v0"),
  ],
)
def test_wrong_configs_are_refused(env, options, message):
  with pytest.raises(types.ConfigError, match=message):
    envs.spec(envs.Config(env, options))


def test_a_factory_without_the_prefix_has_no_jax_functions():
  with pytest.raises(types.ConfigError, match="another pipeline, or jax:a:b"):
    functional.make(envs.Config("a:b"))


class Counting(functional.Episodic):
  """A user's environment, which counts its steps."""

  observation = dm_env.specs.Array((1,), np.float32, "observation")
  action = dm_env.specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action")
  time_limit = 3
  num_traces = 0

  def reset(self, rng_key):
    return jnp.int32(0)

  def act(self, state, action, rng_key):
    Counting.num_traces += 1
    return functional.Outcome(state + 1, action[1], False)

  def observe(self, state):
    return state[None].astype(jnp.float32)


def counting(wrong=False):
  return object() if wrong else Counting()


def test_a_users_functions_make_an_environment():
  environment = make(USERS_ENV, 2)
  received = []
  for _ in range(5):
    rows = environment.recv()
    received.append(rows)
    environment.send(rows.index, np.array([[0, 0.5], [0, 7]], np.float32))
  steps = [x.timestep for x in received]
  observations = [x.observation[0, 0] for x in steps]
  assert observations == [0, 1, 2, 3, 0]
  assert [x.step_type[0] for x in steps] == [FIRST, MID, MID, LAST, FIRST]
  # A time limit keeps the discount at 1.
  assert [x.discount[0] for x in steps] == [1] * 5
  np.testing.assert_array_equal(received[3].episode_return, [1.5, 3])
  np.testing.assert_array_equal(steps[4].reward, 0)


def test_code_in_names_functions_of_a_user_but_not_of_seedx():
  assert envs.code_in({"env": USERS_ENV}) == {"env": USERS_ENV}
  assert not envs.code_in({"env": "seedx:DeepSea"})


def test_without_jax_the_error_names_it():
  program = """
import sys
sys.modules["jax"] = None
from seedx import envs
envs.spec(envs.Config("seedx:Catch"))
"""
  completed = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True
  )
  last = completed.stderr.splitlines()[-1]
  assert "ConfigError: expected JAX, for an environment of JAX" in last


def test_few_programs_serve_all_numbers_of_rows():
  environment = make(USERS_ENV, 8)
  Counting.num_traces = 0
  for size in range(1, 9):
    environment.send(np.arange(size), np.zeros((size, 2), np.float32))
  assert Counting.num_traces <= 3


def test_a_reset_starts_other_episodes():
  environment = make("seedx:CartPole-v1", 2)
  starts = []
  for _ in range(2):
    rows = environment.recv()
    assert np.all(rows.timestep.step_type == FIRST)
    starts.append(rows.timestep.observation)
    for _ in range(3):
      environment.send(rows.index, np.zeros(2, np.int32))
      rows = environment.recv()
    assert np.all(rows.timestep.step_type == MID)
    environment.reset()
  assert np.all(environment.recv().timestep.reward == 0)
  assert np.all(starts[0] != starts[1])
