"""The simplest use of a loaded policy: `policy.predict(observation)`."""

import collections
import dataclasses
import functools

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs

from seedx import app, envs, files, types
from seedx.agents import a2c, ppo
from seedx.app import policies
from seedx.envs import actions as actions_lib
from tests.app import cases
from tests.repository import documentation

VECTOR = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)
IMAGE = types.EnvironmentSpec(
  specs.BoundedArray((2, 8, 8), np.uint8, 0, 255), specs.DiscreteArray(3)
)
NEST = types.EnvironmentSpec(
  {"place": specs.Array((2,), np.float32), "room": specs.DiscreteArray(3)},
  specs.BoundedArray((2,), np.float32, -1.0, 1.0),
)
CHOICE = specs.BoundedArray((), np.int64, -1, 1)
NUMBERS = specs.BoundedArray((2, 1), np.float64, -0.5, np.inf)
PACKED = actions_lib.Actions("env", {"turn": CHOICE, "pull": (NUMBERS,)})
HYBRID = types.EnvironmentSpec(
  VECTOR.observation, PACKED.spec, native_action=PACKED.native
)
SEEN = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


@functools.cache
def policy_of(kind="vector"):
  """Returns an untrained policy, as `app.load` would."""
  config, spec = {
    "vector": (a2c.Config(hidden_sizes=(8,)), VECTOR),
    "recurrent": (
      ppo.Config(hidden_sizes=(8,), recurrent=True, lstm_size=8),
      VECTOR,
    ),
    "uniform": (a2c.Config(hidden_sizes=(8,)), VECTOR),
    "image": (a2c.Config(image_torso="minatar"), IMAGE),
    "nest": (a2c.Config(hidden_sizes=(8,)), NEST),
    "hybrid": (a2c.Config(hidden_sizes=(8,)), HYBRID),
  }[kind]
  agent = config.make(spec)
  state = jax.jit(agent.init)(jax.random.key(1))
  # With large parameters, the policy's memory changes its actions.
  scale = 0.0 if kind == "uniform" else 8.0
  params = jax.tree.map(lambda x: scale * x, state.params)
  acting = agent.acting(dataclasses.replace(state, params=params))
  folder = files.Folder(".")
  return policies.Policy(folder, kind, 0, 0, envs.Config(), spec, agent, acting)


def test_one_observation_and_a_batch_have_the_same_actions():
  policy = policy_of()
  batch, _ = policy.predict(SEEN)
  assert type(batch) is np.ndarray and batch.shape == (6,)
  assert len(set(batch.tolist())) > 1
  for observation, expected in zip(SEEN, batch, strict=True):
    action, _ = policy.predict(observation)
    assert action.shape == () and action == expected
    same, _ = policy.predict(observation.tolist())
    assert same == expected


def test_an_action_is_what_the_environment_takes():
  policy = policy_of("hybrid")
  batch, _ = policy.predict(SEEN)
  (numbers,) = batch["pull"]
  assert batch["turn"].dtype == np.int64 and numbers.dtype == np.float64
  assert set(batch["turn"].tolist()) <= {-1, 0, 1}
  assert numbers.shape == (6, 2, 1)
  for k, observation in enumerate(SEEN):
    action, _ = policy.predict(observation)
    assert action["turn"] == batch["turn"][k]
    np.testing.assert_allclose(action["pull"][0], numbers[k], rtol=1e-4)
  # An exported policy computes the same actions with JAX.
  timestep = dm_env.TimeStep(
    np.zeros(6, np.uint8), np.zeros(6, np.float32), np.ones(6), SEEN
  )
  jitted, _ = jax.jit(policy.act)(timestep, policy.initial_state(6))
  np.testing.assert_array_equal(jitted["turn"], batch["turn"])
  np.testing.assert_allclose(jitted["pull"][0], numbers, rtol=1e-4)


def test_an_observation_may_be_a_nest_and_an_action_a_vector():
  observation = {"place": np.zeros(2), "room": 1}
  action, state = policy_of("nest").predict(observation)
  assert action.shape == (2,) and action.dtype == np.float32
  batch = {"place": np.zeros((3, 2)), "room": np.array([1, 1, 2])}
  actions, _ = policy_of("nest").predict(batch)
  np.testing.assert_allclose(actions[0], action, rtol=1e-5)
  again, _ = policy_of("nest").predict(observation, state)
  np.testing.assert_array_equal(again, action)
  # dm_control's observations are ordered dictionaries.
  ordered = collections.OrderedDict(observation)
  again, _ = policy_of("nest").predict(ordered | {"mission": "a text"})
  np.testing.assert_array_equal(again, action)


def test_images_may_have_their_channels_last():
  policy, rng = policy_of("image"), np.random.default_rng(0)
  images = rng.integers(0, 256, (9, 2, 8, 8), np.uint8)
  expected, _ = policy.predict(images)
  assert len({*expected.tolist()}) > 1
  of_environment = np.moveaxis(images, 1, -1)
  np.testing.assert_array_equal(policy.predict(of_environment)[0], expected)
  assert policy.predict(of_environment[3])[0] == expected[3]


def test_actions_are_sampled_on_request():
  policy = policy_of("uniform")
  same = np.repeat(SEEN[:1], 3000, axis=0)
  np.random.seed(0)
  sampled, _ = policy.predict(same, deterministic=False)
  counts = np.bincount(sampled, minlength=3)
  np.testing.assert_allclose(counts / 3000, 1 / 3, atol=0.04)
  assert (policy.predict(same, deterministic=False)[0] != sampled).any()
  np.random.seed(0)
  again, _ = policy.predict(same, deterministic=False)
  np.testing.assert_array_equal(again, sampled)


@pytest.mark.slow
def test_predict_agrees_with_act_over_several_steps():
  """Half of the rows begin a new episode at step 3."""
  policy, rng = policy_of("recurrent"), np.random.default_rng(1)
  act, state, memory = jax.jit(policy.act), policy.initial_state(6), None
  differences = 0
  for time in range(5):
    start = np.arange(6) < 3 if time == 3 else np.full(6, time == 0)
    rewards = np.where(start, 0, rng.normal(size=6)).astype(np.float32)
    timestep = dm_env.TimeStep(
      step_type=np.where(start, 0, 1).astype(np.uint8),
      reward=rewards,
      discount=np.ones(6, np.float32),
      observation=SEEN,
    )
    expected, state = act(timestep, state)
    # Without a state, all rows begin an episode.
    episode_start = None if time == 0 else start
    actions, memory = policy.predict(
      SEEN, memory, episode_start=episode_start, reward=rewards
    )
    np.testing.assert_array_equal(actions, expected)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), memory, state
    )
    without_state, _ = policy.predict(SEEN)
    differences += np.sum(actions != without_state)
  assert differences > 0
  again, _ = policy.predict(SEEN, memory, episode_start=True)
  np.testing.assert_array_equal(again, without_state)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"observation": SEEN[:, :3]}, r"float32 \(4,\), or a batch .*\(6, 3\)"),
    ({"observation": SEEN[None, None]}, r"found float32 \(1, 1, 6, 4\)"),
    ({"observation": np.full(4, "a")}, "found <U1"),
    ({"observation": [[1.0], [1.0, 2.0]]}, "expected an observation"),
    ({"observation": SEEN, "reward": np.ones(5)}, r"reward .*\(5,\)"),
  ],
)
def test_a_wrong_argument_is_refused_in_one_line(arguments, message):
  with pytest.raises(types.ConfigError, match=message) as raised:
    policy_of().predict(**arguments)
  assert "\n" not in str(raised.value)


def test_a_nest_or_a_state_that_does_not_fit_is_refused():
  for observation, message in (
    ({"place": np.zeros(2)}, "another nest"),
    ({"place": np.zeros(3), "room": 1}, r"\(2,\) in its part \['place'\]"),
    ({"place": np.zeros((3, 2)), "room": 1}, "the same number"),
  ):
    with pytest.raises(types.ConfigError, match=message) as raised:
      policy_of("nest").predict(observation)
    assert "\n" not in str(raised.value)
  _, state = policy_of().predict(SEEN)
  with pytest.raises(types.ConfigError, match=r"1 rows, .* found 6"):
    policy_of().predict(SEEN[0], state)


def test_the_example_in_the_docs_plays_an_episode(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  app.train(cases.small(), run_dir="runs/my_ppo", quiet=True)
  text = documentation.file_named("predict.py")
  exec(compile(text, "predict.py", "exec"), {})
  *_, last = capsys.readouterr().out.splitlines()
  assert 8 <= float(last.split()[-1]) <= 500
