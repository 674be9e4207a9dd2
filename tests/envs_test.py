"""EnvPool as batched dm_env time steps."""

import subprocess
import sys

import dm_env
import envpool
import numpy as np
import pytest

from seedx import envs, trees, types

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)


def make(env_id, num_envs, **kwargs):
  environment = envs.EnvPoolEnvironment(env_id, num_envs, **kwargs)
  environment.reset()
  return environment


def run(environment, num_steps, policy):
  """Steps a synchronous environment; fields come out as `[T, B, ...]`."""
  rows = []
  for _ in range(num_steps):
    row = environment.recv()
    rows.append(row)
    environment.send(row.index, policy(row))
  return trees.stack(rows)


def constant(action):
  return lambda row: np.full(len(row.index), action, np.int32)


def uniform(num_actions, seed=0):
  rng = np.random.default_rng(seed)
  return lambda row: rng.integers(num_actions, size=len(row.index))


def assert_matches(spec, array, batch_shape):
  assert array.shape == (*batch_shape, *spec.shape)
  assert array.dtype == spec.dtype


def test_termination_has_discount_0_and_the_reset_row_is_first():
  rows = run(make("CartPole-v1", 3), 40, constant(1))
  timestep = rows.timestep
  assert timestep.step_type.dtype == np.uint8
  assert timestep.reward.dtype == timestep.discount.dtype == np.float32
  assert rows.index.dtype == np.int32
  last = timestep.step_type == LAST
  assert last.any(axis=0).all()
  np.testing.assert_array_equal(timestep.discount, 1 - last)
  # A FIRST is at the start and after each LAST, and nowhere else.
  after_last = np.concatenate([np.ones_like(last[:1]), last[:-1]])
  np.testing.assert_array_equal(timestep.step_type == FIRST, after_last)
  np.testing.assert_array_equal(timestep.reward, 1 - after_last)
  # CartPole begins near the origin and falls far from it.
  assert np.abs(timestep.observation[after_last]).max() <= 0.05
  assert np.abs(timestep.observation[last][:, 2]).min() > 0.2


@pytest.mark.parametrize(
  ("env_id", "action", "limit"),
  [("CartPole-v1", 1, 5), ("MountainCar-v0", 1, 200)],
)
def test_a_time_limit_has_discount_1(env_id, action, limit):
  environment = make(env_id, 2, options={"max_episode_steps": limit})
  rows = run(environment, limit + 2, constant(action))
  expected = [FIRST, *[MID] * (limit - 1), LAST, FIRST]
  for env in range(2):
    assert rows.timestep.step_type[:, env].tolist() == expected
  np.testing.assert_array_equal(rows.timestep.discount, 1)


def test_an_episode_of_one_step_goes_from_first_to_last():
  rows = run(make("Blackjack-v1", 4), 20, constant(0))
  np.testing.assert_array_equal(rows.timestep.step_type[::2], FIRST)
  np.testing.assert_array_equal(rows.timestep.step_type[1::2], LAST)
  np.testing.assert_array_equal(
    rows.episode_return[1::2], rows.timestep.reward[1::2]
  )


def test_a_reward_of_the_reset_is_dropped():
  environment = make(
    "CheetahRun-v1", 4, options={"max_episode_steps": 10}, seed=1
  )
  rng = np.random.default_rng(0)
  rows = run(environment, 100, lambda row: rng.uniform(-1, 1, (4, 6)))
  first = rows.timestep.step_type == FIRST
  assert first.sum() == 40
  np.testing.assert_array_equal(rows.timestep.reward[first], 0)
  # EnvPool itself does reward some of these; then nothing was tested.
  assert (rows.timestep.reward[~first] > 0).any()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Taxi-v3"])
def test_episode_return_is_the_sum_of_rewards(env_id):
  environment = make(env_id, 5, options={"max_episode_steps": 30})
  rows = run(
    environment, 200, uniform(environment.spec.action.num_values, seed=1)
  )
  assert rows.episode_return.dtype == np.float32
  for env in range(5):
    total = 0.0
    for step in range(200):
      total += rows.timestep.reward[step, env]
      found = rows.episode_return[step, env]
      if rows.timestep.step_type[step, env] == LAST:
        assert found == pytest.approx(total)
        total = 0.0
      else:
        assert np.isnan(found)
  assert np.isfinite(rows.episode_return).sum() > 20


def test_reset_starts_returns_afresh():
  environment = make("CartPole-v1", 2, options={"max_episode_steps": 6})
  run(environment, 4, constant(1))
  environment.recv()
  environment.reset()
  rows = run(environment, 7, constant(1))
  np.testing.assert_array_equal(rows.timestep.step_type[0], FIRST)
  np.testing.assert_array_equal(rows.episode_return[-1], 6)


def test_asynchronous_streams_equal_synchronous_ones():
  num_envs, batch_size, length = 8, 3, 60
  options = {"max_episode_steps": 25}
  environment = make(
    "CartPole-v1",
    num_envs,
    batch_size=batch_size,
    num_threads=2,
    options=options,
    info_keys=("elapsed_step",),
  )
  streams = [[] for _ in range(num_envs)]
  ages = np.zeros(num_envs, np.int32)
  for _ in range(20_000):
    row = environment.recv()
    assert len(row.index) == len(set(row.index.tolist())) == batch_size
    for k, env in enumerate(row.index):
      timestep = row.timestep
      streams[env].append(
        (
          timestep.step_type[k],
          timestep.observation["elapsed_step"][k],
          row.episode_return[k],
          *timestep.observation["observation"][k],
        )
      )
    environment.send(row.index, ages[row.index] // 2 % 2)
    ages[row.index] += 1
    if min(len(stream) for stream in streams) >= length:
      break
  expected = make(
    "CartPole-v1", num_envs, options=options, info_keys=("elapsed_step",)
  )
  step = iter(range(length))
  rows = run(
    expected, length, lambda row: np.full(num_envs, next(step) // 2 % 2)
  )
  for env in range(num_envs):
    stream = np.array(streams[env][:length])
    np.testing.assert_array_equal(stream[:, 0], rows.timestep.step_type[:, env])
    np.testing.assert_array_equal(
      stream[:, 1], rows.timestep.observation["elapsed_step"][:, env]
    )
    np.testing.assert_array_equal(stream[:, 2], rows.episode_return[:, env])
    np.testing.assert_allclose(
      stream[:, 3:], rows.timestep.observation["observation"][:, env]
    )
  elapsed = rows.timestep.observation["elapsed_step"]
  np.testing.assert_array_equal(elapsed == 0, rows.timestep.step_type == FIRST)


def test_environment_k_of_seed_s_is_environment_0_of_seed_s_plus_k():
  many = run(make("CartPole-v1", 3, seed=7), 30, constant(0)).timestep
  for k in range(3):
    one = run(make("CartPole-v1", 1, seed=7 + k), 30, constant(0)).timestep
    np.testing.assert_array_equal(many.observation[:, k], one.observation[:, 0])
  assert (many.observation[0, 0] != many.observation[0, 1]).any()


@pytest.mark.parametrize(
  ("env_id", "num_states", "num_actions"),
  [("Taxi-v3", 500, 6), ("FrozenLake-v1", 16, 4)],
)
def test_integer_observations(env_id, num_states, num_actions):
  environment = make(env_id, 4)
  assert environment.spec == envs.spec(env_id)
  spec = environment.spec.observation
  assert isinstance(spec, dm_env.specs.DiscreteArray)
  assert (spec.num_values, spec.dtype) == (num_states, np.int32)
  assert environment.spec.action.num_values == num_actions
  rows = run(environment, 20, uniform(num_actions))
  assert_matches(spec, rows.timestep.observation, (20, 4))
  assert rows.timestep.observation.max() < num_states


def test_vizdooms_combined_actions_are_discrete():
  options = {"use_combined_action": True}
  spec = envs.spec("D1Basic-v1", options)
  assert (spec.action.num_values, spec.action.dtype) == (6, np.int32)
  assert spec.observation.shape == (1, 84, 84)
  assert spec.frames_per_step == 1


@pytest.mark.parametrize(
  ("env_id", "num_dimensions", "bound"),
  # HalfCheetah itself charges for what is beyond its bounds.
  [("Pendulum-v1", 1, 2.0), ("HalfCheetah-v4", 6, 1.0)],
)
def test_continuous_actions_are_clipped(env_id, num_dimensions, bound):
  spec = envs.spec(env_id).action
  assert (spec.shape, spec.dtype) == ((num_dimensions,), np.float32)
  np.testing.assert_array_equal(spec.minimum, -bound)
  np.testing.assert_array_equal(spec.maximum, bound)

  def timestep(action):
    actions = np.full((2, num_dimensions), action, np.float32)
    return run(make(env_id, 2), 8, lambda row: actions).timestep

  within, beyond, below = timestep(bound), timestep(70.0), timestep(-70.0)
  np.testing.assert_array_equal(within.reward, beyond.reward)
  np.testing.assert_array_equal(within.observation, beyond.observation)
  np.testing.assert_array_equal(timestep(-bound).reward, below.reward)
  assert (below.reward != beyond.reward).any()


def test_64_bit_observations_are_narrowed():
  environment = make("HalfCheetah-v4", 2, info_keys=("x_velocity",))
  rows = run(environment, 3, lambda row: np.zeros((2, 6), np.float32))
  for key, shape in [("observation", (17,)), ("x_velocity", ())]:
    spec = environment.spec.observation[key]
    assert (spec.shape, spec.dtype) == (shape, np.float32)
    assert_matches(spec, rows.timestep.observation[key], (3, 2))
  plain = make("HalfCheetah-v4", 2)
  assert_matches(
    plain.spec.observation, plain.recv().timestep.observation, (2,)
  )


def test_dicts_stay_nested_and_info_joins_them():
  environment = make("Maze-v0", 2, info_keys=("elapsed_step",))
  spec = environment.spec.observation
  observation = environment.recv().timestep.observation
  assert set(spec) == set(observation)
  assert set(spec["agent_position"]) == {"row", "col"}
  for key in ("walls", "action_mask", "elapsed_step"):
    assert_matches(spec[key], observation[key], (2,))
  for key in ("row", "col"):
    assert_matches(
      spec["agent_position"][key], observation["agent_position"][key], (2,)
    )


def test_atari_shapes():
  spec = envs.spec("Pong-v5")
  assert spec.observation.shape == (1, 84, 84)
  assert spec.observation.dtype == np.uint8
  assert spec.action.num_values == 6
  assert spec.frames_per_step == 4
  assert envs.spec("Pong-v5", {"frame_skip": 2}).frames_per_step == 2
  assert envs.spec("Pong-v5", {"stack_num": 3}).observation.shape[0] == 3
  assert envs.spec("HalfCheetah-v4").frames_per_step == 1
  environment = make("Pong-v5", 2, info_keys=("lives", "ram"))
  assert environment.spec == envs.spec("Pong-v5", {}, ("lives", "ram"))
  rows = run(environment, 3, uniform(6))
  for key, leaf_spec in environment.spec.observation.items():
    assert_matches(leaf_spec, rows.timestep.observation[key], (3, 2))


def test_atari_return_is_the_score_on_the_screen():
  """Lost lives and clipped rewards do not change it; RAM has the score."""
  environment = make(
    "SpaceInvaders-v5",
    8,
    num_threads=2,
    seed=3,
    options={
      "episodic_life": True,
      "reward_clip": True,
      "max_episode_steps": 400,
      "img_height": 20,
      "img_width": 20,
    },
    info_keys=("ram", "lives", "elapsed_step"),
  )
  timestep = (rows := run(environment, 1200, uniform(6))).timestep
  game_ended = np.isfinite(rows.episode_return)
  ram = timestep.observation["ram"].astype(np.int64)
  score = _decimal(ram[..., 104]) + 100 * _decimal(ram[..., 102])
  np.testing.assert_array_equal(
    rows.episode_return[game_ended], score[game_ended]
  )
  last = timestep.step_type == LAST
  assert timestep.reward.max() == 1
  assert np.nanmax(rows.episode_return) > 10
  # All three ways to end an episode occur: life, game and time limit.
  life_lost = last & ~game_ended
  time_limit = game_ended & (timestep.observation["lives"] > 0)
  assert life_lost.sum() > 10
  assert time_limit.sum() > 3
  assert (game_ended & ~time_limit).sum() > 3
  np.testing.assert_array_equal(timestep.discount == 0, last & ~time_limit)
  # After a life loss the game, and EnvPool's count, goes on.
  first = timestep.step_type == FIRST
  np.testing.assert_array_equal(first[1:], last[:-1])
  assert (timestep.observation["elapsed_step"][first] > 0).any()


def _decimal(byte):
  return (byte >> 4) * 10 + (byte & 15)


def test_errors_name_what_is_known():
  with pytest.raises(types.ConfigError, match="CartPole-v1"):
    envs.spec("Cartpol-v1")
  with pytest.raises(types.ConfigError, match="Pong-v5"):
    envs.spec("PongNoFrameskip-v4")
  with pytest.raises(types.ConfigError, match="list_all_envs"):
    envs.spec("zzz")
  with pytest.raises(types.ConfigError, match=r"mean frame_skip.*reward_clip"):
    envs.spec("Pong-v5", {"frame_skp": 2})
  with pytest.raises(types.ConfigError, match="incompatible"):
    envs.spec("Pong-v5", {"frame_skip": "two"})
  with pytest.raises(types.ConfigError, match="episodic_life"):
    envs.spec("Pong-v5", {"zero_discount_on_life_loss": True})
  with pytest.raises(types.ConfigError, match="argument seed"):
    envs.EnvPoolEnvironment("Pong-v5", 1, options={"seed": 1})
  with pytest.raises(types.ConfigError, match="mean lives"):
    envs.spec("Pong-v5", info_keys=("live",))
  with pytest.raises(types.ConfigError, match="already"):
    envs.spec("Pong-v5", info_keys=("lives", "lives"))


@pytest.mark.parametrize(
  ("env_id", "found"),
  [
    ("BinPack-v2", r"shape \(2,\), dtype int32"),
    ("Go9x9-v1", "2 players"),
    ("SearchAndRescue-v0", r"shape \(2, 2\), dtype float32"),
    ("D1Basic-v1", r"shape \(3,\), dtype float64"),
  ],
)
def test_unsupported_actions(env_id, found):
  with pytest.raises(types.ConfigError, match=rf"{found}(?s:.*)Supported"):
    envs.spec(env_id)


def test_a_missing_library_repeats_envpools_advice(monkeypatch):
  def fail(*args, **kwargs):
    raise ImportError("`apt install qtbase5-dev`")

  monkeypatch.setattr(envpool, "make_spec", fail)
  with pytest.raises(types.ConfigError, match="apt install qtbase5-dev"):
    envs.spec("BigfishEasy-v0")


@pytest.mark.parametrize(
  ("numbers", "message"),
  [
    ({"num_envs": 0}, "num_envs from 1 to .* found 0"),
    ({"num_envs": 4, "batch_size": 5}, "batch_size from 1 to 4, found 5"),
    ({"num_envs": 4, "batch_size": 0}, "batch_size from 1 to 4, found 0"),
    ({"num_envs": 4, "num_threads": 0}, "num_threads from 1 .* found 0"),
    ({"num_envs": 4, "seed": 2**31 - 3}, "seed from 0"),
  ],
)
def test_numbers_out_of_range(numbers, message):
  with pytest.raises(types.ConfigError, match=message):
    envs.EnvPoolEnvironment("CartPole-v1", **numbers)


def test_send_refuses_what_envpool_would_misread():
  environment = make("CartPole-v1", 4)
  index = environment.recv().index
  with pytest.raises(ValueError, match=r"shape \(4,\), found \(3,\)"):
    environment.send(index, np.zeros(3, np.int32))
  with pytest.raises(ValueError, match="from 0 to 1, found 0 to 2"):
    environment.send(index, np.array([0, 1, 2, 0]))
  with pytest.raises(ValueError, match="found -1"):
    environment.send(index, np.array([0, 1, -1, 0]))
  environment.send(index, np.ones(4, np.int32))
  assert len(environment.recv().index) == 4


def test_rows_stay_valid_and_close_may_be_repeated():
  environment = make("CartPole-v1", 4)
  kept, copies = [], []
  for _ in range(50):
    row = environment.recv()
    leaves = [row.index, *row.timestep, row.episode_return]
    kept.append(leaves)
    copies.append([leaf.copy() for leaf in leaves])
    environment.send(row.index, np.ones(4, np.int32))
  environment.close()
  environment.close()
  for leaves, expected in zip(kept, copies, strict=True):
    for leaf, copy in zip(leaves, expected, strict=True):
      np.testing.assert_array_equal(leaf, copy)


def test_needs_no_jax_and_warns_of_nothing():
  script = """
import sys
sys.modules["jax"] = None
import warnings
warnings.simplefilter("error")
from seedx import envs
environment = envs.EnvPoolEnvironment("CartPole-v1", 2)
environment.reset()
assert len(environment.recv().index) == 2
loaded = {name.split(".")[0] for name in sys.modules if sys.modules[name]}
assert not loaded & {"jax", "jaxlib", "flax", "grpc"}, loaded
"""
  subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
