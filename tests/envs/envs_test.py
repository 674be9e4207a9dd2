"""Tests of EnvPool environments as batched dm_env time steps."""

import subprocess
import sys

import dm_env
import numpy as np
import pytest
import tree

from seedx import envs, types
from seedx.envs import families

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)


def make(env_id, num_envs, options=None, info_keys=(), **kwargs):
  config = envs.Config(env_id, options or {}, info_keys)
  return start(config, num_envs, **kwargs)


def start(config, num_envs, **kwargs):
  environment = envs.make(config, num_envs, **kwargs)
  environment.reset()
  return environment


def run(environment, num_steps, policy):
  """Steps a synchronous environment; returns rows `[T, B, ...]`."""
  rows = []
  for _ in range(num_steps):
    row = environment.recv()
    rows.append(row)
    environment.send(row.index, policy(row))
  return tree.map_structure(lambda *leaves: np.stack(leaves), *rows)


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
  # FIRST occurs at the start and after each LAST, and nowhere else.
  after_last = np.concatenate([np.ones_like(last[:1]), last[:-1]])
  np.testing.assert_array_equal(timestep.step_type == FIRST, after_last)
  np.testing.assert_array_equal(timestep.reward, 1 - after_last)
  # CartPole begins near the origin and falls far from it.
  assert np.abs(timestep.observation[after_last]).max() <= 0.05
  assert np.abs(timestep.observation[last][:, 2]).min() > 0.2


def test_a_time_limit_has_discount_1():
  environment = make("CartPole-v1", 2, options={"max_episode_steps": 5})
  timestep = run(environment, 7, constant(1)).timestep
  expected = [FIRST, *[MID] * 4, LAST, FIRST]
  np.testing.assert_array_equal(timestep.step_type.T, [expected] * 2)
  np.testing.assert_array_equal(timestep.discount, 1)


def test_an_episode_of_one_step_goes_from_first_to_last():
  rows = run(make("Blackjack-v1", 4), 20, constant(0))
  np.testing.assert_array_equal(rows.timestep.step_type[::2], FIRST)
  np.testing.assert_array_equal(rows.timestep.step_type[1::2], LAST)
  np.testing.assert_array_equal(
    rows.episode_return[1::2], rows.timestep.reward[1::2]
  )


def test_a_reward_at_a_reset_is_dropped():
  environment = make(
    "CheetahRun-v1", 4, options={"max_episode_steps": 10}, seed=1
  )
  rng = np.random.default_rng(0)
  rows = run(environment, 100, lambda row: rng.uniform(-1, 1, (4, 6)))
  first = rows.timestep.step_type == FIRST
  assert first.sum() == 40
  np.testing.assert_array_equal(rows.timestep.reward[first], 0)
  # If all rewards were 0, the check above would prove nothing.
  assert (rows.timestep.reward[~first] > 0).any()


def test_a_reset_clears_episode_returns():
  environment = make("CartPole-v1", 2, options={"max_episode_steps": 6})
  run(environment, 4, constant(1))
  environment.recv()
  environment.reset()
  rows = run(environment, 7, constant(1))
  np.testing.assert_array_equal(rows.timestep.step_type[0], FIRST)
  np.testing.assert_array_equal(rows.episode_return[-1], 6)


def test_asynchronous_rows_equal_synchronous_ones():
  num_envs, batch_size, length = 8, 3, 60
  options = {"max_episode_steps": 25}
  environment = make(
    "CartPole-v1",
    num_envs,
    batch_size=batch_size,
    num_threads=2,
    options=options,
  )
  received = [[] for _ in range(num_envs)]
  while min(map(len, received)) < length:
    row = environment.recv()
    assert len(row.index) == len(set(row.index.tolist())) == batch_size
    num_received = np.array([len(received[env]) for env in row.index])
    environment.send(row.index, num_received // 2 % 2)
    leaves = *row.timestep, row.episode_return
    for k, env in enumerate(row.index):
      received[env].append([leaf[k] for leaf in leaves])
  step = iter(range(length))
  rows = run(
    make("CartPole-v1", num_envs, options=options),
    length,
    lambda row: np.full(num_envs, next(step) // 2 % 2),
  )
  for env, env_rows in enumerate(received):
    actual = map(np.stack, zip(*env_rows[:length], strict=True))
    expected = *rows.timestep, rows.episode_return
    for leaf, expected_leaf in zip(actual, expected, strict=True):
      np.testing.assert_allclose(leaf, expected_leaf[:, env])


def test_environment_k_of_seed_s_is_environment_0_of_seed_s_plus_k():
  many = run(make("CartPole-v1", 3, seed=7), 30, constant(0)).timestep
  for k in range(3):
    one = run(make("CartPole-v1", 1, seed=7 + k), 30, constant(0)).timestep
    np.testing.assert_array_equal(many.observation[:, k], one.observation[:, 0])
  assert (many.observation[0, 0] != many.observation[0, 1]).any()


def test_an_integer_observation_has_a_discrete_spec():
  environment = make("Taxi-v3", 4)
  assert environment.spec == envs.spec(envs.Config("Taxi-v3"))
  spec = environment.spec.observation
  assert isinstance(spec, dm_env.specs.DiscreteArray)
  assert (spec.num_values, spec.dtype) == (500, np.int32)
  assert environment.spec.action.num_values == 6
  rows = run(environment, 20, uniform(6))
  assert_matches(spec, rows.timestep.observation, (20, 4))


def test_vizdooms_combined_actions_are_discrete():
  options = {"use_combined_action": True}
  spec = envs.spec(envs.Config("D1Basic-v1", options))
  assert (spec.action.num_values, spec.action.dtype) == (6, np.int32)


def test_continuous_actions_are_clipped():
  # HalfCheetah's rewards would depend on the size of unclipped actions.
  spec = envs.spec(envs.Config("HalfCheetah-v4")).action
  assert (spec.shape, spec.dtype) == ((6,), np.float32)
  np.testing.assert_array_equal(spec.minimum, -1)
  np.testing.assert_array_equal(spec.maximum, 1)

  def timestep(action):
    actions = np.full((2, 6), action, np.float32)
    return run(make("HalfCheetah-v4", 2), 8, lambda row: actions).timestep

  within, above, below = timestep(1), timestep(70), timestep(-70)
  np.testing.assert_array_equal(within.reward, above.reward)
  np.testing.assert_array_equal(within.observation, above.observation)
  np.testing.assert_array_equal(timestep(-1).reward, below.reward)
  assert (below.reward != above.reward).any()


def test_64_bit_observations_are_narrowed():
  environment = make("HalfCheetah-v4", 2, info_keys=("x_velocity",))
  rows = run(environment, 3, lambda row: np.zeros((2, 6), np.float32))
  for key, shape in [("observation", (17,)), ("x_velocity", ())]:
    spec = environment.spec.observation[key]
    assert (spec.shape, spec.dtype) == (shape, np.float32)
    assert_matches(spec, rows.timestep.observation[key], (3, 2))


def test_dicts_stay_nested_and_include_info_entries():
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


def test_atari_specs_follow_the_options():
  def spec(**options):
    return envs.spec(envs.Config("Pong-v5", options))

  assert spec().observation.shape == (1, 84, 84)
  assert spec().observation.dtype == np.uint8
  assert spec().action.num_values == 6
  assert spec().frames_per_step == 4
  assert spec(frame_skip=2).frames_per_step == 2
  assert spec(stack_num=3).observation.shape == (3, 84, 84)
  assert envs.spec(envs.Config("HalfCheetah-v4")).frames_per_step == 1
  environment = make("Pong-v5", 2, info_keys=("lives", "ram"))
  rows = run(environment, 3, uniform(6))
  for key, leaf_spec in environment.spec.observation.items():
    assert_matches(leaf_spec, rows.timestep.observation[key], (3, 2))


@pytest.mark.parametrize(
  ("env_id", "key", "shape"),
  [
    ("MiniGrid-Empty-5x5-v0", "image", (3, 7, 7)),
    ("CarRacing-v3", None, (3, 96, 96)),
  ],
)
def test_images_have_their_channels_first(env_id, key, shape):
  environment = make(env_id, 1, seed=3)
  spec, image = environment.spec.observation, environment.recv()
  image = image.timestep.observation
  make_pool = families.envpool().make
  pool = make_pool(env_id, env_type="gymnasium", num_envs=1, seed=3)
  raw, _ = pool.reset()
  if key:
    raw, image, spec = raw[key], image[key], spec[key]
  assert_matches(spec, image, (1,))
  assert image.shape == (1, *shape)
  np.testing.assert_array_equal(image, np.moveaxis(raw, -1, 1))
  assert image.flags.c_contiguous


@pytest.mark.slow
def test_atari_return_is_the_score_on_the_screen():
  """The return is exact although lives are lost and rewards are clipped."""
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
  # These bytes of the RAM have the four decimal digits of the score.
  score = _decimal(ram[..., 104]) + 100 * _decimal(ram[..., 102])
  np.testing.assert_array_equal(
    rows.episode_return[game_ended], score[game_ended]
  )
  last = timestep.step_type == LAST
  assert timestep.reward.max() == 1
  assert np.nanmax(rows.episode_return) > 10
  # Episodes end in all three ways: by a lost life, a lost game, a time limit.
  life_lost = last & ~game_ended
  time_limit = game_ended & (timestep.observation["lives"] > 0)
  assert life_lost.sum() > 10
  assert time_limit.sum() > 3
  assert (game_ended & ~time_limit).sum() > 3
  np.testing.assert_array_equal(timestep.discount == 0, last & ~time_limit)
  # After a lost life, the game and EnvPool's count of steps continue.
  first = timestep.step_type == FIRST
  np.testing.assert_array_equal(first[1:], last[:-1])
  assert (timestep.observation["elapsed_step"][first] > 0).any()


def _decimal(byte):
  return (byte >> 4) * 10 + (byte & 15)


# Actions of several choices


def test_each_choice_of_an_action_reaches_the_environment():
  """Turns face k of cube k, and turns it back."""
  environment = make("RubiksCube-v0", 6)
  spec = environment.spec.action
  assert (spec.shape, spec.dtype) == ((3,), np.int32)
  np.testing.assert_array_equal(spec.minimum, [0, 0, 0])
  np.testing.assert_array_equal(spec.maximum, [5, 0, 2])
  clockwise = np.array([[face, 0, 0] for face in range(6)])
  script = iter([clockwise, np.add(clockwise, [0, 0, 1]), clockwise])
  rows = run(environment, 3, lambda row: next(script))
  cube = rows.timestep.observation["cube"]
  np.testing.assert_array_equal(cube[0], cube[2])
  for face, opposite in enumerate([5, 3, 4, 1, 2, 0]):
    moved = (cube[1, face] != cube[0, face]).sum(axis=(1, 2))
    assert moved[opposite] == 0
    assert np.delete(moved, opposite).sum() > 0


@pytest.mark.parametrize(
  ("env_id", "right", "wrong", "message"),
  [
    ("CartPole-v1", [0, 1], [1], r"shape \(2,\), found \(1,\)"),
    (
      "RubiksCube-v0",
      [[0, 0, 0], [5, 0, 2]],
      [[0, 0, 0], [0, 1, 0]],
      r"from 0 to \[5 0 2\], found",
    ),
  ],
)
def test_send_refuses_wrong_actions_of_envpool(env_id, right, wrong, message):
  environment = make(env_id, 2)
  index = environment.recv().index
  with pytest.raises(ValueError, match=message):
    environment.send(index, np.array(wrong))
  environment.send(index, np.array(right))
  assert len(environment.recv().index) == 2


# Legal actions


LEGAL = "legal_action_mask"
WITH_A_MASK = f"{__name__}:with_a_mask"


@pytest.mark.parametrize(
  ("config", "mask"),
  [
    (envs.Config("Game2048-v1"), "action_mask"),
    (envs.Config("Play2048-v1", action_mask=LEGAL), LEGAL),
    (envs.Config("Play2048-v1", {}, (LEGAL,), LEGAL), LEGAL),
    (envs.Config("Play2048-v1"), None),
    (
      envs.Config("CartPole-v1", observation_transform=WITH_A_MASK),
      "action_mask",
    ),
    # This mask has two numbers, but there are four actions.
    (envs.Config("Play2048-v1", observation_transform=WITH_A_MASK), None),
  ],
)
def test_the_action_mask_is_found(config, mask):
  environment = start(config, 2)
  assert environment.spec.action_mask == mask
  assert envs.spec(config) == environment.spec
  if mask:
    legal = environment.recv().timestep.observation[mask]
    assert legal.shape == (2, environment.spec.action.num_values)
    assert legal.any()


@pytest.mark.parametrize(
  ("env_id", "shape"),
  [
    # A mask of joint actions, and one with a row for each choice.
    ("Tetris-v0", (4 * 10,)),
    ("Connector-v2", (10, 5)),
  ],
)
def test_masks_of_several_choices_are_recognized(env_id, shape):
  spec = envs.spec(envs.Config(env_id))
  assert spec.action_mask == "action_mask"
  assert spec.observation["action_mask"].shape == shape
  assert spec.action.shape == shape[:-1]
  environment, rng = make(env_id, 3), np.random.default_rng(0)
  for _ in range(30):
    rows = environment.recv()
    mask = rows.timestep.observation["action_mask"]
    assert mask.shape == (3, *shape) and mask.any(axis=-1).all()
    action = np.argmax(rng.uniform(size=mask.shape) * mask, axis=-1)
    environment.send(rows.index, action)


def test_a_joint_action_is_its_index_in_the_flat_mask():
  environment = make("Minesweeper-v0", 1)
  rows = environment.recv()
  assert rows.timestep.observation["action_mask"].all()
  environment.send(rows.index, np.array([37]))
  observation = environment.recv().timestep.observation
  # The square is revealed, and may not be chosen again.
  assert np.argwhere(observation["board"][0] >= 0).tolist() == [[3, 7]]
  assert np.flatnonzero(observation["action_mask"] == 0).tolist() == [37]


@pytest.mark.parametrize(
  "config",
  [
    envs.Config("CartPole-v1", action_mask="legal"),
    envs.Config("Game2048-v1", action_mask="board"),
    # The mask has two numbers, but Minesweeper has 100 joint actions.
    envs.Config(
      "Minesweeper-v0", action_mask="mask", observation_transform=WITH_A_MASK
    ),
  ],
)
def test_an_action_mask_that_is_missing_or_does_not_fit_is_refused(config):
  message = f"{config.env}: expected action_mask.*{config.action_mask!r}"
  with pytest.raises(types.ConfigError, match=message):
    envs.spec(config)


def test_masks_have_all_moves_on_last_steps_where_no_move_is_legal():
  rng = np.random.default_rng(0)

  def legal(row):
    masks = row.timestep.observation["action_mask"]
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])

  timestep = run(make("Game2048-v1", 4), 300, legal).timestep
  masks = timestep.observation["action_mask"]
  last = timestep.step_type == LAST
  assert last.sum() > 4
  assert masks[last].all() and not masks[~last].all()


# Transforms of observations


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


def mean(observation):
  return observation.mean(axis=0)


def broken(observation):
  raise ZeroDivisionError("never divide")


def test_transformed_observations_of_64_bits_are_narrowed():
  config = envs.Config(
    "CartPole-v1", observation_transform=f"{__name__}:of_64_bits"
  )
  environment = start(config, 3)
  assert environment.spec == envs.spec(config)
  spec = environment.spec.observation
  assert {k: (x.shape, x.dtype) for k, x in spec.items()} == {
    "floats": ((4,), np.float32),
    "integers": ((), np.int32),
    "bytes": ((1, 6, 5), np.uint8),
  }
  plain = make("CartPole-v1", 3).recv().timestep.observation
  observation = environment.recv().timestep.observation
  for key, leaf in observation.items():
    assert_matches(spec[key], leaf, (3,))
  np.testing.assert_array_equal(observation["floats"], plain)
  assert observation["integers"].tolist() == [0, 1, 2]


def test_transforms_get_info_entries_and_unchanged_parts_keep_their_specs():
  config = envs.Config(
    "CartPole-v1",
    {},
    ("elapsed_step",),
    observation_transform=f"{__name__}:without_velocities",
  )
  environment = start(config, 2)
  spec = environment.spec.observation
  plain_spec = envs.spec(envs.Config("CartPole-v1", {}, ("elapsed_step",)))
  assert spec["elapsed_step"] == plain_spec.observation["elapsed_step"]
  assert spec["position"].shape == (2,)
  plain = run(make("CartPole-v1", 2), 4, constant(0)).timestep
  observation = run(environment, 4, constant(0)).timestep.observation
  np.testing.assert_array_equal(
    observation["position"], plain.observation[..., ::2]
  )
  np.testing.assert_array_equal(observation["elapsed_step"].T, [range(4)] * 2)


def test_a_transform_may_return_a_mask_that_is_a_view():
  """NumPy cannot write to a mask that is broadcast to all rows."""
  config = envs.Config(
    "CartPole-v1", observation_transform=f"{__name__}:with_a_view"
  )
  rows = run(start(config, 2), 30, constant(1))
  assert (rows.timestep.step_type == LAST).any()
  assert rows.timestep.observation["action_mask"].all()


def test_the_transform_hide_velocities_is_found_by_its_name():
  hide = "seedx.envs.transforms:hide_velocities"
  config = envs.Config("CartPole-v1", observation_transform=hide)
  rows = run(start(config, 3), 20, constant(1))
  plain = run(make("CartPole-v1", 3), 20, constant(1))
  np.testing.assert_array_equal(
    rows.timestep.observation, plain.timestep.observation[..., [0, 2]]
  )


@pytest.mark.parametrize(
  ("function", "message"),
  [
    ("no_such_function", "no attribute 'no_such_function'"),
    ("broken", r"shape=\(4,\).*ZeroDivisionError.*never divide"),
    ("mean", r"batch axis of size 2, found shape \(4,\)"),
  ],
)
def test_a_transform_that_cannot_be_used_is_named(function, message):
  transform = f"{__name__}:{function}"
  config = envs.Config("CartPole-v1", observation_transform=transform)
  for refuse in (envs.spec, lambda config: start(config, 2)):
    with pytest.raises(types.ConfigError, match=message) as caught:
      refuse(config)
    assert transform in str(caught.value)


# Errors


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (envs.Config("Cartpol-v1"), "CartPole-v1"),
    (envs.Config("PongNoFrameskip-v4"), "Pong-v5"),
    (envs.Config("zzz"), "list_all_envs"),
    (envs.Config("Pong-v5", {"frame_skp": 2}), "mean frame_skip.*reward_clip"),
    (envs.Config("Pong-v5", {"frame_skip": "two"}), "a whole number"),
    (envs.Config("Pong-v5", {"frame_skip": 4.0}), "found 4.0; write 4"),
    (
      envs.Config("Pong-v5", {"zero_discount_on_life_loss": True}),
      "episodic_life",
    ),
    (envs.Config("Pong-v5", {"seed": 1}), "argument seed"),
    *(
      (envs.Config(name, {option: value}), f"{option} from .*, found {value}")
      for name, option, value in (
        ("CartPole-v1", "max_episode_steps", 0),
        ("CartPole-v1", "max_episode_steps", 2**31),
        ("Catch-v0", "height", -1),
      )
    ),
    (envs.Config("Pong-v5", {}, ("live",)), "mean lives"),
    (envs.Config("Pong-v5", {}, ("lives", "lives")), "already"),
    # Unsupported actions.
    (envs.Config("Go9x9-v1"), "2 players(?s:.*)Supported"),
    (envs.Config("D1Basic-v1"), r"\(3,\) and .*use_combined_action"),
  ],
)
def test_wrong_configs_are_refused(config, message):
  with pytest.raises(types.ConfigError, match=message):
    envs.spec(config)


def test_the_error_for_a_missing_library_repeats_envpools_advice(monkeypatch):
  def fail(*args, **kwargs):
    raise ImportError("`apt install qtbase5-dev`")

  monkeypatch.setattr(families.envpool(), "make_spec", fail)
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
def test_numbers_out_of_range_are_refused(numbers, message):
  with pytest.raises(types.ConfigError, match=message):
    envs.make(envs.Config("CartPole-v1"), **numbers)


def test_rows_stay_unchanged_and_close_may_be_repeated():
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


def test_envpool_environments_need_no_jax_and_do_not_warn():
  script = """
import sys
sys.modules["jax"] = None
import warnings
warnings.simplefilter("error")
from seedx import envs
environment = envs.make(envs.Config("CartPole-v1"), 2)
environment.reset()
assert len(environment.recv().index) == 2
loaded = {name.split(".")[0] for name in sys.modules if sys.modules[name]}
assert not loaded & {"jax", "jaxlib", "flax", "grpc"}, loaded
"""
  subprocess.run([sys.executable, "-c", script], check=True)
