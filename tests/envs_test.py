"""EnvPool as batched dm_env time steps."""

import subprocess
import sys
from unittest import mock

import dm_env
import envpool
import numpy as np
import pytest
import tree

from seedx import envs, trees, types
from seedx.envs import envpool_adapter, envpool_spec

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)


def make(env_id, num_envs, options=None, info_keys=(), **kwargs):
  config = envs.Config(env_id, options or {}, info_keys)
  return start(config, num_envs, **kwargs)


def start(config, num_envs, **kwargs):
  environment = envs.EnvPoolEnvironment(config, num_envs, **kwargs)
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
  assert environment.spec == envs.spec(envs.Config(env_id))
  spec = environment.spec.observation
  assert isinstance(spec, dm_env.specs.DiscreteArray)
  assert (spec.num_values, spec.dtype) == (num_states, np.int32)
  assert environment.spec.action.num_values == num_actions
  rows = run(environment, 20, uniform(num_actions))
  assert_matches(spec, rows.timestep.observation, (20, 4))
  assert rows.timestep.observation.max() < num_states


def test_vizdooms_combined_actions_are_discrete():
  options = {"use_combined_action": True}
  spec = envs.spec(envs.Config("D1Basic-v1", options))
  assert (spec.action.num_values, spec.action.dtype) == (6, np.int32)
  assert spec.observation.shape == (1, 84, 84)
  assert spec.frames_per_step == 1


@pytest.mark.parametrize(
  ("env_id", "num_dimensions", "bound"),
  # HalfCheetah itself charges for what is beyond its bounds.
  [("Pendulum-v1", 1, 2.0), ("HalfCheetah-v4", 6, 1.0)],
)
def test_continuous_actions_are_clipped(env_id, num_dimensions, bound):
  spec = envs.spec(envs.Config(env_id)).action
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
  spec = envs.spec(envs.Config("Pong-v5"))
  assert spec.observation.shape == (1, 84, 84)
  assert spec.observation.dtype == np.uint8
  assert spec.action.num_values == 6
  assert spec.frames_per_step == 4
  assert (
    envs.spec(envs.Config("Pong-v5", {"frame_skip": 2})).frames_per_step == 2
  )
  assert (
    envs.spec(envs.Config("Pong-v5", {"stack_num": 3})).observation.shape[0]
    == 3
  )
  assert envs.spec(envs.Config("HalfCheetah-v4")).frames_per_step == 1
  environment = make("Pong-v5", 2, info_keys=("lives", "ram"))
  assert environment.spec == envs.spec(
    envs.Config("Pong-v5", {}, ("lives", "ram"))
  )
  rows = run(environment, 3, uniform(6))
  for key, leaf_spec in environment.spec.observation.items():
    assert_matches(leaf_spec, rows.timestep.observation[key], (3, 2))


@pytest.mark.parametrize(
  ("env_id", "key", "shape"),
  [
    ("MiniGrid-Empty-5x5-v0", "image", (3, 7, 7)),
    ("BabyAI-GoToRedBall-v0", "image", (3, 7, 7)),
    ("Sokoban-v0", "grid", (2, 10, 10)),
    ("CarRacing-v3", None, (3, 96, 96)),
    ("gfootball/11_vs_11_easy_stochastic-v1", None, (4, 72, 96)),
  ],
)
def test_images_have_their_channels_first(env_id, key, shape):
  environment = make(env_id, 2)
  pool, raw = environment._pool, []

  def recv():
    received = pool.recv()
    raw.append(tree.map_structure(np.copy, received[0]))
    return received

  environment._pool = mock.Mock(recv=recv)
  image = environment.recv().timestep.observation
  spec = environment.spec.observation
  if key:
    raw[0], image, spec = raw[0][key], image[key], spec[key]
  assert_matches(spec, image, (2,))
  assert image.shape == (2, *shape)
  np.testing.assert_array_equal(image, np.moveaxis(raw[0], -1, 1))
  assert image.flags.c_contiguous


@pytest.mark.slow
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


# Several choices at once


@pytest.mark.parametrize(
  ("env_id", "most"),
  [
    ("RubiksCube-v0", [5, 0, 2]),
    ("Connector-v2", [4] * 10),
  ],
)
def test_a_vector_of_integers_is_bounded_for_each_choice(env_id, most):
  spec = envs.spec(envs.Config(env_id)).action
  assert type(spec) is dm_env.specs.BoundedArray
  assert (spec.shape, spec.dtype) == ((len(most),), np.int32)
  np.testing.assert_array_equal(spec.minimum, np.zeros(spec.shape))
  np.testing.assert_array_equal(np.broadcast_to(spec.maximum, spec.shape), most)


def test_each_choice_reaches_the_environment():
  """Turns face k of cube k, and turns it back."""
  environment = make("RubiksCube-v0", 6)
  clockwise = np.array([[face, 0, 0] for face in range(6)])
  script = iter([clockwise, np.add(clockwise, [0, 0, 1]), clockwise])
  rows = run(environment, 3, lambda row: next(script))
  cube = rows.timestep.observation["cube"]
  assert_matches(environment.spec.observation["cube"], cube, (3, 6))
  np.testing.assert_array_equal(cube[0], cube[2])
  for face, opposite in enumerate([5, 3, 4, 1, 2, 0]):
    moved = (cube[1, face] != cube[0, face]).sum(axis=(1, 2))
    assert moved[opposite] == 0
    assert np.delete(moved, opposite).sum() > 0


@pytest.mark.parametrize(
  "wrong", [[6, 0, 0], [0, 1, 0], [0, 0, 3], [-1, 0, 0], [0, 0, -1]]
)
def test_send_checks_each_choice(wrong):
  environment = make("RubiksCube-v0", 2)
  index = environment.recv().index
  with pytest.raises(ValueError, match=r"from 0 to \[5 0 2\], found"):
    environment.send(index, np.array([[0, 0, 0], wrong]))
  with pytest.raises(ValueError, match=r"shape \(2, 3\), found \(2,\)"):
    environment.send(index, np.zeros(2, np.int32))
  environment.send(index, np.array([[0, 0, 0], [5, 0, 2]]))
  assert len(environment.recv().index) == 2


# Legal actions


@pytest.mark.parametrize(
  ("config", "mask"),
  [
    (envs.Config("Game2048-v1"), "action_mask"),
    (envs.Config("Game2048-v1", info_keys=("elapsed_step",)), "action_mask"),
    (
      envs.Config("Play2048-v1", action_mask="legal_action_mask"),
      "legal_action_mask",
    ),
    (
      envs.Config(
        "Play2048-v1",
        info_keys=("legal_action_mask", "elapsed_step"),
        action_mask="legal_action_mask",
      ),
      "legal_action_mask",
    ),
    (
      envs.Config(
        "CartPole-v1", observation_transform=f"{__name__}:with_a_mask"
      ),
      "action_mask",
    ),
    (envs.Config("Play2048-v1"), None),
    (envs.Config("CartPole-v1"), None),
    (envs.Config("Tetris-v0"), "action_mask"),
    (
      envs.Config(
        "Play2048-v1", observation_transform=f"{__name__}:with_a_mask"
      ),
      None,  # It has two numbers, for four actions.
    ),
  ],
)
def test_the_action_mask_is_found(config, mask):
  environment = start(config, 2)
  assert environment.spec.action_mask == mask
  assert envs.spec(config) == environment.spec
  observation = environment.recv().timestep.observation
  tree.map_structure(
    lambda spec, leaf: assert_matches(spec, leaf, (2,)),
    environment.spec.observation,
    observation,
  )
  if mask:
    num_actions = environment.spec.action.num_values
    assert observation[mask].shape == (2, num_actions)
    assert observation[mask].any()


@pytest.mark.parametrize(
  ("env_id", "shape"),
  [
    ("BinPack-v2", (40 * 20,)),
    ("FlatPack-v0", (25 * 4 * 9 * 9,)),
    ("Minesweeper-v0", (10 * 10,)),
    ("Sudoku-v0", (9 * 9 * 9,)),
    ("Sudoku-very-easy-v0", (9 * 9 * 9,)),
    ("Tetris-v0", (4 * 10,)),
    ("Cleaner-v0", (3, 4)),
    ("Connector-v2", (10, 5)),
    ("JobShop-v0", (10, 21)),
    ("LevelBasedForaging-v0", (2, 6)),
    ("MMST-v0", (3, 36)),
    ("MultiCVRP-v0", (2, 21)),
    ("RobotWarehouse-v0", (4, 5)),
  ],
)
def test_masks_of_several_choices_are_masks(env_id, shape):
  spec = envs.spec(envs.Config(env_id))
  assert spec.action_mask == "action_mask"
  assert spec.observation["action_mask"].shape == shape
  assert envs.spec(envs.Config(f"Jumanji/{env_id}")) == spec
  # One action for all combinations, or each choice its own.
  assert spec.action.shape == (() if len(shape) == 1 else shape[:1])
  if env_id.startswith("Sudoku"):
    return  # EnvPool's wheel may lack its puzzles.
  environment, rng = make(env_id, 3), np.random.default_rng(0)
  for _ in range(30):
    rows = environment.recv()
    mask = rows.timestep.observation["action_mask"]
    assert mask.shape == (3, *shape) and mask.any(axis=-1).all()
    action = np.argmax(rng.uniform(size=mask.shape) * mask, axis=-1)
    environment.send(rows.index, action)


def test_a_joint_action_is_that_of_its_place_in_the_mask():
  environment = make("Minesweeper-v0", 1)
  rows = environment.recv()
  assert rows.timestep.observation["action_mask"].all()
  environment.send(rows.index, np.array([37]))
  observation = environment.recv().timestep.observation
  # The square is seen; it may not be chosen again.
  assert np.argwhere(observation["board"][0] >= 0).tolist() == [[3, 7]]
  assert np.flatnonzero(observation["action_mask"] == 0).tolist() == [37]


@pytest.mark.parametrize(
  "config",
  [
    envs.Config("CartPole-v1", action_mask="legal"),
    envs.Config("Play2048-v1", action_mask="legal"),
    envs.Config("Game2048-v1", action_mask="board"),
    envs.Config("Pong-v5", info_keys=("lives",), action_mask="lives"),
    envs.Config(
      "Play2048-v1",
      action_mask="legal_action_mask",
      observation_transform=f"{__name__}:without_a_mask",
    ),
    # Not of discrete actions: the shape of two choices alone is not enough.
    envs.Config(
      "Minesweeper-v0",
      action_mask="mask",
      observation_transform=f"{__name__}:with_a_mask",
    ),
  ],
)
def test_an_unknown_action_mask_is_refused(config):
  with pytest.raises(
    types.ConfigError,
    match=f"{config.env}: expected action_mask.*{config.action_mask!r}",
  ):
    envs.spec(config)


def legal_moves(board):
  """Which of up, right, down and left move or merge a tile of 2048."""
  legal = []
  for turns in (1, 2, 3, 0):  # Rotates the board so that the move is left.
    rotated = np.rot90(board, turns)
    left, right = rotated[:, :-1], rotated[:, 1:]
    legal.append(bool(np.any((right > 0) & ((left == 0) | (left == right)))))
  return legal


def test_action_masks_are_legal_moves_and_all_where_an_episode_ends():
  rng = np.random.default_rng(0)

  def legal(row):
    masks = row.timestep.observation["action_mask"]
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])

  timestep = run(make("Game2048-v1", 4), 300, legal).timestep
  boards = timestep.observation["board"].reshape(-1, 4, 4)
  masks = timestep.observation["action_mask"].reshape(-1, 4)
  moves = np.array([legal_moves(board) for board in boards])
  last = timestep.step_type.reshape(-1) == LAST
  np.testing.assert_array_equal(masks[~last], moves[~last])
  assert not masks[~last].all()
  # The games were lost: no move was left.
  assert last.sum() > 4
  assert not moves[last].any()
  assert masks[last].all()


@pytest.mark.parametrize(
  ("env_id", "mask"),
  [("Game2048-v1", "action_mask"), ("Play2048-v1", "legal_action_mask")],
)
def test_an_environment_without_a_legal_action_is_named(
  env_id, mask, monkeypatch
):
  config = envs.Config(env_id, action_mask=mask)
  environment = start(config, 6, batch_size=3)
  pool = environment._pool

  def recv(index, terminated, truncated):
    observation, reward, _, _, info = pool.recv()
    masks = (observation if env_id == "Game2048-v1" else info)[mask]
    masks[:] = [[1, 0, 0, 1], [0] * 4, [0] * 4]
    info["env_id"][:] = index
    ends = (np.array(x, np.bool_) for x in (terminated, truncated))
    return observation, reward, *ends, info

  fake = mock.Mock(recv=lambda: recv([3, 5, 0], [0, 0, 1], [0, 0, 0]))
  monkeypatch.setattr(environment, "_pool", fake)
  with pytest.raises(ValueError, match=rf"'{mask}' of .* none in \[5\]:"):
    environment.recv()
  # On LAST the action is ignored, so a mask without a legal action becomes one
  # where all are legal; other masks do not change.
  fake.recv = lambda: recv([1, 2, 4], [1, 1, 0], [0, 0, 1])
  observation = environment.recv().timestep.observation
  np.testing.assert_array_equal(
    observation[mask], [[1, 0, 0, 1], [1] * 4, [1] * 4]
  )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["observation", "reward"])
def test_a_number_that_is_not_finite_is_refused_with_its_seed(
  part, value, monkeypatch
):
  environment = make("CartPole-v1", 4, batch_size=2, seed=30)
  pool = environment._pool

  def recv():
    observation, reward, *rest, info = pool.recv()
    info["env_id"][:] = [3, 1]
    wrong = {"observation": observation, "reward": reward}[part]
    wrong[1] = value
    return observation, reward, *rest, info

  environment._episode_ended[:] = False  # A reward of the reset is dropped.
  monkeypatch.setattr(environment, "_pool", mock.Mock(recv=recv))
  with pytest.raises(
    RuntimeError,
    match=f"environment 1 of CartPole-v1, with the seed 31, .* {value} in its"
    f" {part}$",
  ):
    environment.recv()


def test_integers_of_envpool_that_do_not_fit_are_refused():
  fits = np.array([2**31 - 1, -(2**31)])
  assert envpool_adapter._narrow(fits).tolist() == fits.tolist()
  with pytest.raises(ValueError, match=r"int32, .* found 1099511627783"):
    envpool_adapter._narrow(np.array([0, 2**40 + 7]))
  with pytest.raises(ValueError, match=r"uint32, .* found 4294967296"):
    envpool_adapter._narrow(np.array([2**32], np.uint64))


# Transforms of observations


def doubled(observation):
  return 2 * observation


def of_64_bits(observation):
  return {
    "floats": observation.astype(np.float64),
    "integers": np.arange(len(observation)),
    "bytes": np.zeros((len(observation), 1, 6, 5), np.uint8),
  }


def without_velocities(observation):
  return {
    "position": observation["observation"][:, ::2],
    "elapsed_step": observation["elapsed_step"],
  }


def of_a_float(observation):
  """A dtype that depends on the data, once there are steps."""
  return observation.astype(np.int32 if not observation.any() else np.float64)


def with_a_mask(observation):
  size = len(tree.flatten(observation)[0])
  return {
    "rest": observation,
    "mask": np.ones((size, 2), np.bool_),
    "action_mask": np.ones((size, 2), np.bool_),
  }


def with_a_view(observation):
  mask = np.broadcast_to(np.ones(2, np.bool_), (len(observation), 2))
  return {"rest": observation, "action_mask": mask}


def without_a_mask(observation):
  return observation["observation"]


def mean(observation):
  return observation.mean(axis=0)


def total(observation):
  return observation.sum()


def broken(observation):
  raise ZeroDivisionError("never divide")


NOT_A_FUNCTION = 3


def test_a_transform_changes_spec_and_rows():
  config = envs.Config(
    "CartPole-v1", observation_transform=f"{__name__}:doubled"
  )
  plain, changed = make("CartPole-v1", 3), start(config, 3)
  assert changed.spec == envs.spec(config)
  expected = run(plain, 5, constant(1)).timestep.observation
  observation = run(changed, 5, constant(1)).timestep.observation
  assert_matches(changed.spec.observation, observation, (5, 3))
  np.testing.assert_array_equal(observation, 2 * expected)
  assert np.abs(expected).min() > 0


def test_transformed_observations_of_64_bits_are_narrowed():
  config = envs.Config(
    "CartPole-v1", observation_transform=f"{__name__}:of_64_bits"
  )
  environment = start(config, 3)
  spec = environment.spec.observation
  assert {k: (x.shape, x.dtype) for k, x in spec.items()} == {
    "floats": ((4,), np.float32),
    "integers": ((), np.int32),
    "bytes": ((1, 6, 5), np.uint8),
  }
  observation = environment.recv().timestep.observation
  assert set(observation) == set(spec)
  for key, leaf in observation.items():
    assert_matches(spec[key], leaf, (3,))
  assert observation["integers"].tolist() == [0, 1, 2]


def test_transforms_see_info_and_unchanged_parts_keep_their_specs():
  config = envs.Config(
    "CartPole-v1",
    {},
    ("elapsed_step",),
    observation_transform=f"{__name__}:without_velocities",
  )
  environment = start(config, 2)
  spec = environment.spec.observation
  before = envs.spec(envs.Config("CartPole-v1", {}, ("elapsed_step",)))
  assert spec["elapsed_step"] == before.observation["elapsed_step"]
  assert spec["position"].shape == (2,)
  plain = run(make("CartPole-v1", 2), 4, constant(0)).timestep
  observation = run(environment, 4, constant(0)).timestep.observation
  np.testing.assert_array_equal(
    observation["position"], plain.observation[..., ::2]
  )
  np.testing.assert_array_equal(observation["elapsed_step"].T, [range(4)] * 2)


def test_rows_have_the_dtype_of_the_spec():
  config = envs.Config(
    "CartPole-v1", observation_transform=f"{__name__}:of_a_float"
  )
  environment = start(config, 2)
  assert environment.spec.observation.dtype == np.int32
  assert_matches(
    environment.spec.observation,
    environment.recv().timestep.observation,
    (2,),
  )


def test_a_transform_may_return_a_mask_that_is_a_view():
  """Such as a mask broadcast to all rows, which NumPy cannot write to."""
  config = envs.Config(
    "CartPole-v1", observation_transform=f"{__name__}:with_a_view"
  )
  rows = run(start(config, 2), 30, constant(1))
  assert (rows.timestep.step_type == LAST).any()
  assert rows.timestep.observation["action_mask"].all()


def test_transforms_of_the_current_directory_come_first(tmp_path, monkeypatch):
  name = "a_transform_of_this_test"
  for folder, factor in (("elsewhere", 2), ("here", 3)):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / f"{name}.py").write_text(
      f"def scaled(observation):\n  return {factor} * observation\n"
    )
  monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere"), *sys.path])
  monkeypatch.chdir(tmp_path / "here")
  config = envs.Config("CartPole-v1", observation_transform=f"{name}:scaled")
  try:
    scaled = start(config, 2).recv().timestep.observation
  finally:
    sys.modules.pop(name, None)
  plain = make("CartPole-v1", 2).recv().timestep.observation
  np.testing.assert_array_equal(scaled, 3 * plain)


@pytest.mark.parametrize("module", ["seedx.envs", "experiments"])
def test_hide_velocities_by_its_name_and_its_earlier_name(module):
  config = envs.Config(
    "CartPole-v1",
    observation_transform=f"{module}.transforms:hide_velocities",
  )
  rows = run(start(config, 3), 20, constant(1))
  plain = run(make("CartPole-v1", 3), 20, constant(1))
  assert envs.spec(config).observation.shape == (2,)
  np.testing.assert_array_equal(
    rows.timestep.observation, plain.timestep.observation[..., [0, 2]]
  )


@pytest.mark.parametrize(
  ("transform", "found"),
  [
    ("no_such_module:f", "No module named 'no_such_module'"),
    ("seedx.no_such_module:f", "No module named 'seedx.no_such_module'"),
    (f"{__name__}:no_such_function", "no attribute 'no_such_function'"),
    (f"{__name__}.doubled", "no colon"),
    (":doubled", "Empty module name"),
    (".envs_test:doubled", "relative import"),
    (f"{__name__}:NOT_A_FUNCTION", "not callable"),
    (f"{__name__}:broken", r"shape=\(4,\).*ZeroDivisionError.*never divide"),
    (f"{__name__}:mean", r"batch axis of size 2, found shape \(4,\)"),
    (f"{__name__}:total", r"batch axis of size 2, found shape \(\)"),
  ],
)
def test_a_transform_that_cannot_be_used_is_named(transform, found):
  config = envs.Config("CartPole-v1", observation_transform=transform)
  for refuse in (envs.spec, lambda config: start(config, 2)):
    with pytest.raises(types.ConfigError, match=found) as caught:
      refuse(config)
    assert transform in str(caught.value)


# Errors


def test_errors_name_what_is_known():
  with pytest.raises(types.ConfigError, match="CartPole-v1"):
    envs.spec(envs.Config("Cartpol-v1"))
  with pytest.raises(types.ConfigError, match="Pong-v5"):
    envs.spec(envs.Config("PongNoFrameskip-v4"))
  with pytest.raises(types.ConfigError, match="list_all_envs"):
    envs.spec(envs.Config("zzz"))
  with pytest.raises(types.ConfigError, match=r"mean frame_skip.*reward_clip"):
    envs.spec(envs.Config("Pong-v5", {"frame_skp": 2}))
  with pytest.raises(types.ConfigError, match="incompatible"):
    envs.spec(envs.Config("Pong-v5", {"frame_skip": "two"}))
  with pytest.raises(types.ConfigError, match="episodic_life"):
    envs.spec(envs.Config("Pong-v5", {"zero_discount_on_life_loss": True}))
  with pytest.raises(types.ConfigError, match="argument seed"):
    make("Pong-v5", 1, options={"seed": 1})
  with pytest.raises(types.ConfigError, match="mean lives"):
    envs.spec(envs.Config("Pong-v5", info_keys=("live",)))
  with pytest.raises(types.ConfigError, match="already"):
    envs.spec(envs.Config("Pong-v5", info_keys=("lives", "lives")))


@pytest.mark.parametrize(
  ("env_id", "found"),
  [
    ("Go9x9-v1", "2 players"),
    ("SearchAndRescue-v0", r"shape \(2, 2\), dtype float32"),
    ("D1Basic-v1", r"shape \(3,\), dtype float64"),
  ],
)
def test_unsupported_actions(env_id, found):
  with pytest.raises(types.ConfigError, match=rf"{found}(?s:.*)Supported"):
    envs.spec(envs.Config(env_id))


def test_a_vector_of_integers_that_counts_from_1_is_refused():
  # No environment of EnvPool has one.
  config = envs.Config("RubiksCube-v0")
  pool_spec, _ = envpool_spec.pool_spec_and_options(config)
  name, array_spec = list(pool_spec.action_array_spec.items())[-1]
  array_spec.minimum = np.array([0, 0, 1])
  fake = mock.Mock(
    wraps=pool_spec,
    config=pool_spec.config,
    state_array_spec=pool_spec.state_array_spec,
    action_array_spec={name: array_spec},
  )
  with pytest.raises(
    types.ConfigError, match=r"(?s)bounds \[0 0 1\].*Supported"
  ):
    envpool_spec.environment_spec(config, fake)


def test_a_missing_library_repeats_envpools_advice(monkeypatch):
  def fail(*args, **kwargs):
    raise ImportError("`apt install qtbase5-dev`")

  monkeypatch.setattr(envpool, "make_spec", fail)
  with pytest.raises(types.ConfigError, match="apt install qtbase5-dev"):
    envs.spec(envs.Config("BigfishEasy-v0"))


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
    envs.EnvPoolEnvironment(envs.Config("CartPole-v1"), **numbers)


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
environment = envs.EnvPoolEnvironment(envs.Config("CartPole-v1"), 2)
environment.reset()
assert len(environment.recv().index) == 2
loaded = {name.split(".")[0] for name in sys.modules if sys.modules[name]}
assert not loaded & {"jax", "jaxlib", "flax", "grpc"}, loaded
"""
  subprocess.run([sys.executable, "-c", script], check=True)
