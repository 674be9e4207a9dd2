"""Tests of users' own environments, which run in separate processes."""

import contextlib
import dataclasses
import io
import os
import pathlib
import pickle
import re
import subprocess
import sys
from multiprocessing import connection
from unittest import mock

import dm_env
import numpy as np
import pytest
import tree
from gymnasium import spaces

from seedx import app, envs, signals, types
from seedx.agents import a2c
from seedx.envs import env_specs, envpool_adapter, process_adapter, rendering
from seedx.envs.processes import child, messages, restarting
from seedx.learning import learner
from seedx.pipelines import sync
from tests import running
from tests.envs import worker_processes

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
ROOT = pathlib.Path(__file__).parents[2]
fork_server, workers = worker_processes.fork_server, worker_processes.workers
start, run = worker_processes.start, worker_processes.run
config_of = worker_processes.config_of


@pytest.fixture
def interpreters(workers, monkeypatch):
  """Starts a test's workers as new interpreters, as users' programs do."""
  monkeypatch.setattr(child, "subprocess", subprocess)


def assert_rows(rows, env, expected):
  """Checks that the rows of one environment equal a reference exactly."""
  leaves = (*rows.timestep, rows.episode_return)
  for leaf, values in zip(leaves, zip(*expected, strict=True), strict=True):
    np.testing.assert_array_equal(leaf[:, env], np.array(values, leaf.dtype))


# Rows


def counting_rows(seed, actions, discounts=(0.0, 1.0, 1.0)):
  """Returns `Counting`'s rows; `discounts`: at termination, truncation, MID."""
  rows, episode, step, total, over = [], -1, 0, 0.0, True
  for action in [None, *actions]:
    if over:
      episode, step, total, over = episode + 1, 0, 0.0, False
      rows.append((FIRST, 0, 1, (seed, episode, 0, 0), np.nan))
      continue
    step, action = step + 1, int(action) - 1
    total, over = total + step + action, step == 2 + episode % 3
    discount = discounts[episode % 2 if over else 2]
    step_type, episode_return = (LAST, total) if over else (MID, np.nan)
    observation = seed, episode, step, action
    reward = step + action
    rows.append((step_type, reward, discount, observation, episode_return))
  return rows


@pytest.mark.parametrize(
  ("factory", "discounts", "num_threads"),
  [("Counting", (0, 1, 1), 1), ("counting_dm", (0, 0.75, 0.5), 2)],
)
def test_rows_of_both_interfaces_equal_a_reference(
  start, factory, discounts, num_threads
):
  environment = start(factory, 5, seed=30, num_threads=num_threads)
  assert isinstance(environment, process_adapter.ProcessEnvironment)
  assert environment.spec.action.num_values == 3
  assert environment.spec.observation.dtype == np.float32
  actions = np.random.default_rng(1).integers(3, size=(60, 5))
  rows = run(environment, actions)
  np.testing.assert_array_equal(rows.index, [range(5)] * 61)
  dtypes = [leaf.dtype for leaf in tree.flatten(rows)]
  assert dtypes == [np.int32, np.uint8, *[np.float32] * 4]
  for env in range(5):
    expected = counting_rows(30 + env, actions[:, env], discounts)
    assert_rows(rows, env, expected)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_asynchronous_rows_equal_synchronous_ones(start, num_threads):
  environment = start(
    "Counting", 7, batch_size=3, seed=4, num_threads=num_threads
  )
  assert environment.batch_size == 3
  actions = np.random.default_rng(2).integers(3, size=(40, 7))
  received = [[] for _ in range(7)]
  while min(map(len, received)) < 41:
    index, timestep, episode_return, _ = environment.recv()
    assert index.shape == (3,) and len(set(index.tolist())) == 3
    action = []
    for k, env in enumerate(index):
      row = tree.map_structure(lambda leaf, k=k: leaf[k], tuple(timestep))
      received[env].append((*row, episode_return[k]))
      action.append(actions[(len(received[env]) - 1) % 40, env])
    # The first call sends one action, the second call two.
    environment.send(index[:1], np.array(action[:1]))
    environment.send(index[1:], np.array(action[1:]))
  for env in range(7):
    leaves = tree.map_structure(
      np.array, list(zip(*received[env], strict=True))
    )
    expected = counting_rows(4 + env, actions[:, env])
    for leaf, values in zip(leaves, zip(*expected, strict=True), strict=True):
      np.testing.assert_array_equal(leaf[:41], np.array(values))


def test_ready_rows_do_not_wait_for_slow_environments(start, monkeypatch):
  monkeypatch.setattr(child, "_CLOSE_SECONDS", 0.3)
  hangs = {"how": "hang", "where": 3}
  environment = start("Failing", 4, hangs, batch_size=2, num_threads=2)
  index = np.concatenate([environment.recv().index for _ in range(2)])
  assert sorted(index.tolist()) == [0, 1, 2, 3]
  environment.send(index, np.zeros(4, np.int32))
  assert environment.recv().index.tolist() == [0, 1]
  environment.close()


def test_later_resets_keep_the_seed(start):
  environment = start("Counting", 2)
  run(environment, np.zeros((2, 2), int))
  environment.reset()
  rows = run(environment, np.ones((3, 2), int))
  np.testing.assert_array_equal(rows.timestep.step_type[0], FIRST)
  assert rows.timestep.observation[0].tolist() == [[0, 1, 0, 0], [1, 1, 0, 0]]
  assert rows.episode_return[3].tolist() == [6, 6]


def test_rows_from_before_a_reset_are_dropped(start):
  environment = start("Counting", 4, batch_size=2, num_threads=2)
  environment.reset()
  index = environment.recv().index
  environment.send(index, np.zeros(2, int))
  environment.reset()
  rows = [environment.recv() for _ in range(2)]
  index = np.concatenate([row.index for row in rows])
  assert sorted(index.tolist()) == [0, 1, 2, 3]
  for row in rows:
    assert row.timestep.step_type.tolist() == [FIRST] * 2
    assert row.timestep.observation[:, 1].tolist() == [2, 2]


def test_the_caller_owns_the_rows(start):
  for batch_size in (None, 2):
    environment = start("Counting", 4, batch_size=batch_size)
    kept = environment.recv()
    copies = tree.map_structure(np.copy, kept)
    for _ in range(4):
      environment.send(kept.index, np.zeros(len(kept.index), int))
      row = environment.recv()
      environment.send(row.index, np.zeros(len(row.index), int))
      for leaf in tree.flatten(environment.recv()):
        leaf[...] = 1
      environment.reset()
      environment.recv()
    tree.map_structure(np.testing.assert_array_equal, kept, copies)


# Spaces, info, masks and transforms


def test_each_space_of_observations_becomes_a_spec():
  spec = envs.spec(config_of("Masked", info_keys=("age",)))
  specs = spec.observation
  inner = specs["inner"]
  assert inner["level"].num_values == 5 and inner["level"].dtype == np.int32
  image = dm_env.specs.BoundedArray((2, 3), np.uint8, 0, 255, "image")
  assert inner["image"] == image
  assert specs["choices"] == dm_env.specs.BoundedArray(
    (2,), np.int32, 0, [1, 3], "choices"
  )
  assert specs["bits"] == dm_env.specs.BoundedArray((3,), np.int8, 0, 1, "bits")
  assert specs["long"].dtype == np.int32
  assert specs["long"].minimum.tolist() == [-(2**31)] * 2
  assert type(specs["number"]) is type(specs["age"]) is dm_env.specs.Array
  assert specs["number"].dtype == np.float32
  assert specs["age"].shape == () and specs["age"].dtype == np.int32
  assert spec.action_mask is None
  assert spec.frames_per_step == 1


@pytest.mark.parametrize(
  ("shape", "expected"),
  [
    ((5, 5, 16), (16, 5, 5)),
    ((3, 210, 160), (3, 210, 160)),
    ((3, 3, 3), (3, 3, 3)),
  ],
)
def test_the_shape_of_an_image_shows_where_its_channels_are(shape, expected):
  spec = envs.spec(config_of("picture", {"shape": shape}))
  assert spec.observation.shape == expected


@pytest.mark.parametrize(
  ("how", "expected"),
  [
    ("none", ""),
    ("both", "Observation Reward"),
    ("of a vector", "Observation"),
    ("in a vector", "Reward"),
  ],
)
def test_a_spec_names_the_wrappers_that_normalize(how, expected):
  spec = envs.spec(config_of("normalized", {"how": how}))
  assert spec.normalizers == tuple(f"Normalize{x}" for x in expected.split())


def test_images_have_their_channels_first(start):
  picture = np.arange(4 * 6 * 3).reshape(4, 6, 3)
  options = {"shape": (4, 6, 3)}
  for name in ("", "turned"):  # A transform may move the channels itself.
    transform = f"{__name__}:{name}" if name else ""
    fields = {"observation_transform": transform}
    environment = start("picture", 2, options, fields=fields)
    assert environment.spec.observation.shape == (3, 4, 6)
    for image in environment.recv().timestep.observation:
      np.testing.assert_array_equal(image, np.moveaxis(picture, -1, 0))


@pytest.mark.parametrize("shape", [(2, 8, 9, 3), (2, 3, 8, 9)])
def test_a_stack_of_images_becomes_one_image(start, shape):
  expected = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
  if shape[-1] == 3:
    expected = np.moveaxis(expected, -1, 1)
  environment = start("picture", 2, {"shape": shape})
  for image in environment.recv().timestep.observation:
    np.testing.assert_array_equal(image, expected.reshape(6, 8, 9))


@pytest.mark.parametrize(
  ("shape", "dtype", "bounds", "seen"),
  [
    ((8, 9, 3), "float32", (0, 1), (3, 8, 9)),
    ((3, 8, 9), "float64", (0, 255), (3, 8, 9)),
    ((8, 9, 1), "float16", (-1, 1), (1, 8, 9)),
    ((8, 9, 1), "uint16", (0, 2**16 - 1), (1, 8, 9)),
    ((8, 9, 3), "int64", (0, 255), (3, 8, 9)),
    ((8, 9, 4), "bool", (0, 1), (4, 8, 9)),
    ((4, 8, 9, 3), "float32", (0, 1), (12, 8, 9)),
    # Too small, without an axis of channels, or without bounds of pixels.
    ((8, 6, 3), "float32", (0, 1), None),
    ((64, 64), "float32", (0, 1), None),
    ((8, 9, 3), "float32", (0, np.inf), None),
    ((8, 9, 3), "int32", (-(2**31), 2**31 - 1), None),
    ((4, 8, 9, 5), "float32", (0, 1), None),
  ],
)
def test_pixels_may_have_other_dtypes_than_bytes(shape, dtype, bounds, seen):
  space = spaces.Box(*bounds, shape, np.dtype(dtype))
  leaf = env_specs.leaf_spec("", shape, space.dtype, space.low, space.high)
  action = dm_env.specs.DiscreteArray(2)
  spec = env_specs.environment_spec(
    envs.Config(), leaf, action, action
  ).observation
  assert isinstance(spec, types.ImageArray) == (seen is not None)
  assert spec.shape == (seen or shape)
  assert spec.dtype == env_specs.narrowed(space.dtype)
  if seen:
    assert (spec.minimum, spec.maximum) == bounds
    assert pickle.loads(pickle.dumps(spec)) == spec


def turned(observation):
  return np.moveaxis(observation, -1, 1)


@pytest.mark.parametrize("info_keys", [(), ("age", "legal")])
def test_masks_and_other_info_entries_join_nested_observations(
  start, info_keys
):
  fields = {"info_keys": info_keys, "action_mask": "legal"}
  environment = start("Masked", 2, fields=fields)
  assert environment.spec == envs.spec(config_of("Masked", **fields))
  assert environment.spec.action_mask == "legal"
  # Any action is accepted after LAST.
  steps = np.array([0, 1, 2, 3, 4, 5, 0, 1])
  actions = np.repeat((steps[:, None] + 1) % 3, 2, axis=1)
  rows = run(environment, actions)
  t = np.array([*steps, 2])
  observation = rows.timestep.observation
  legal = np.arange(3) != (t % 3)[:, None]
  legal[5] = True  # The environment's mask had no legal action.
  for env in range(2):
    np.testing.assert_array_equal(observation["legal"][:, env], legal)
  np.testing.assert_array_equal(observation["inner"]["level"][:, 1], t % 5)
  np.testing.assert_array_equal(
    observation["inner"]["image"][:, 1, 1, 2], 40 * t
  )
  choices, long = np.stack([t % 2, t % 4], axis=1), np.stack([t, -t], axis=1)
  np.testing.assert_array_equal(observation["choices"][:, 0], choices)
  np.testing.assert_array_equal(observation["long"][:, 0], long)
  np.testing.assert_allclose(observation["number"][:, 0], t / 10, rtol=1e-6)
  assert ("age" in observation) == ("age" in info_keys)
  if "age" in info_keys:
    np.testing.assert_array_equal(observation["age"][:, 1], t)
  tree.map_structure(
    lambda spec, leaf: np.testing.assert_equal(
      (leaf.shape, leaf.dtype), ((9, 2, *spec.shape), spec.dtype)
    ),
    environment.spec.observation,
    observation,
  )


def test_the_default_mask_may_be_in_info(start):
  environment = start("InfoMasked", 1)
  assert environment.spec.action_mask == "action_mask"
  rows = run(environment, np.ones((2, 1), int))
  mask = rows.timestep.observation["action_mask"]
  assert mask[:, 0].tolist() == [[0, 1, 0]] * 3
  # An entry of that name that does not fit the actions is no mask.
  assert start("InfoMasked", 1, {"size": 4}).spec.action_mask is None
  environment = start("InfoMasked", 1, {"at_each_step": False})
  environment.recv()
  environment.send(np.array([0]), np.array([1]))
  with pytest.raises(RuntimeError, match=r"have .action_mask. at each.*prob"):
    environment.recv()


def test_a_mask_of_two_choices_is_separate_or_joint(start):
  environment = start("masked_choices", 1, {"values": [3, 4], "shape": [2, 4]})
  assert environment.spec.action.shape == (2,)
  mask = environment.recv().timestep.observation["action_mask"]
  assert mask.shape == (1, 2, 4)
  # A joint mask makes each combination one action; only the last is legal.
  for shape in ([3, 4], [12]):
    environment = start("masked_choices", 2, {"values": [3, 4], "shape": shape})
    assert environment.spec.action.num_values == 12
    rows = environment.recv()
    mask = rows.timestep.observation["action_mask"]
    assert np.argwhere(mask).tolist() == [[0, 11], [1, 11]]
    environment.send(rows.index, np.array([11, 7]))
    # These are the choices (2, 3) and (1, 3), whose sum is the reward.
    assert environment.recv().timestep.reward.tolist() == [5, 4]
    environment.send(rows.index, np.array([0, 0]))


def test_a_mask_of_a_nest_is_for_its_choices(start):
  environment = start("masked_hybrid", 1, {"shape": [2, 4]})
  assert environment.spec.action_mask == "action_mask"
  assert environment.spec.action.num_choices == 2
  # Without numbers, a mask may be for all combinations.
  environment = start("masked_tuple", 1)
  assert environment.spec.action.num_values == 12
  environment.send(environment.recv().index, np.array([7]))
  # These are the choices 1 and 3.
  assert environment.recv().timestep.reward.tolist() == [4]


def test_observations_may_be_nests_of_dicts_and_tuples(start):
  environment = start("Nested", 2, num_threads=2)
  spec = environment.spec.observation
  assert spec["pair"][1]["level"].num_values == 5
  assert isinstance(spec["rooms"], types.MultiDiscreteArray)
  assert spec["rooms"].num_values.tolist() == [[3, 2]]
  observation = run(environment, [[0, 0], [0, 0]]).timestep.observation
  vector, inner, choice = observation["pair"]
  for t in range(3):
    np.testing.assert_array_equal(vector[t], [[t, t]] * 2)
    # Choices count from 0.
    assert inner["level"][t].tolist() == choice[t].tolist() == [t, t]
    assert observation["rooms"][t].tolist() == [[[t, t % 2]]] * 2
  observation = run(start("DmNested", 1), [[1]]).timestep.observation
  vector, step = observation["values"]
  assert (vector[1, 0, 2], step[1, 0]) == (1, 1)


UNUSABLE = [
  (envs.Config("no_such_module:make"), "No module named 'no_such_module'"),
  (config_of("raises_on_two_lines"), r"Error: one two \(own_envs.py, line"),
  (config_of("exits"), "raises SystemExit: enough"),
  (config_of("returns_nothing"), "gymnasium.Env or a dm_env.*found .*NoneType"),
  (config_of("NoSpaces"), "observation_space raises AttributeError"),
  (config_of("Counting", {"lgo": 1}), "option 'lgo'. Did you mean log?"),
  (config_of("Counting", {"seed": 1}), "option 'seed' is not supported"),
  (config_of("unseeded_dm"), "a parameter named seed.*speed"),
  (config_of("RaisesInReset"), "reset raises LookupError: no start with 0"),
  (config_of("OldReset"), r"return \(observation, info\), found ndarray"),
  (config_of("dies_at_once"), "environments [01] to [01] of .* with status 9"),
  # Spaces, and observations that do not fit.
  (config_of("vector"), "one environment, found a vector"),
  (config_of("no_action"), "Supported are.*ActionWrapper"),
  (config_of("sequence_action"), r"the action a Sequence\(.*ActionWrapper"),
  (config_of("text_observation"), r"observation text is Text.*leave other"),
  (config_of("text_in_tuple"), r"observation 0 is Text.*leave other"),
  (config_of("sequence_in_dict"), r"observation a is Sequence.*leave other"),
  (config_of("nothing_observed"), r"observation is Dict\(\).*leave other"),
  (config_of("TooShort"), "expected 2 in the observation, found"),
  (config_of("no_observation"), "at least one number, found one of"),
  (config_of("wrong_shape"), r"to have shape \(3,\).*found shape \(2,\)"),
  (config_of("wrong_dtype"), r"observation count to have .* int32,.*float64"),
  (config_of("wrong_key"), r"expected 'count' in the observation, .*'counts'"),
  # Masks, and entries of info.
  (
    config_of("masked_choices", {"values": [2, 3], "shape": [2, 3]}),
    r"either: .* flat, \[6\]",
  ),
  (config_of("masked_hybrid", {"shape": []}), r"mask \[choices, values\]"),
  (config_of("counting_dm", info_keys=("age",)), "no info_keys.*age"),
  (config_of("Masked", info_keys=("agee",)), "'agee'. Did you mean age?"),
  (config_of("Masked", info_keys=("words",)), "words is dtype <U4"),
]


@pytest.mark.parametrize(("config", "message"), UNUSABLE)
def test_unusable_environments_are_refused_in_one_line(config, message):
  uses = [envs.spec]
  if config.env.endswith((":make", "wrong_dtype", "dies_at_once")):
    uses.append(lambda config: envs.make(config, 2, num_threads=2))
  for use in uses:
    with pytest.raises(types.ConfigError, match=message) as caught:
      use(config)
    assert "\n" not in str(caught.value)
    assert config.env in str(caught.value)


def test_options_must_be_picklable():
  with pytest.raises(types.ConfigError, match="can be pickled"):
    envs.spec(config_of("Counting", {"log": lambda: 0}))


def test_an_environment_without_a_legal_action_is_named(start):
  none = {"none_legal_at": 2}
  environment = start("Masked", 2, none, fields={"action_mask": "legal"})
  run(environment, [[1, 1]])
  environment.send(np.array([0, 1], np.int32), np.array([2, 2]))
  message = (
    "environment 0 of .*Masked, with the seed 0, .*mask 'legal'.* end the"
  )
  with pytest.raises(ValueError, match=message):
    environment.recv()


def test_a_transform_gets_batches(start):
  config = config_of("Masked", observation_transform=f"{__name__}:first_image")
  assert envs.spec(config).observation.shape == (2,)
  fields = {"observation_transform": f"{__name__}:doubled"}
  rows = start("counting_dm", 2, {"shift": 3}, fields=fields).recv()
  assert rows.timestep.observation.tolist() == [[6, 0, 0, 0], [8, 0, 0, 0]]
  assert rows.timestep.observation.dtype == np.float32


def doubled(observation):
  return 2 * observation.astype(np.float64)


def first_image(observation):
  return observation["inner"]["image"][:, :, 0]


def test_float_actions_are_clipped_to_the_bounds_of_the_environment(start):
  environment = start("Continuous", 2)
  action = environment.spec.action
  assert action.dtype == np.float32 and action.shape == (2,)
  np.testing.assert_allclose(action.minimum, [-1, 0])
  np.testing.assert_allclose(action.maximum, [0.1, 2], rtol=1e-6)
  # In 32 bits, 0.1 is larger than in 64 bits, and therefore out of bounds.
  rows = run(environment, np.float32([[[9, -9], [-0.5, 1.5]], [[0.1, 3]] * 2]))
  np.testing.assert_array_equal(
    rows.timestep.observation[1:],
    np.float32([[[0.1, 0], [-0.5, 1.5]], [[0.1, 2]] * 2]),
  )


def test_dm_env_may_have_dict_observations_and_vector_actions(start):
  environment = start("DmOfDicts", 2, num_threads=2)
  spec = environment.spec
  assert spec.action == dm_env.specs.BoundedArray(
    (2,), np.int32, 0, [1, 2], "action"
  )
  assert spec.observation["kind"].num_values == 7
  rows = run(environment, [[[0, 2], [1, 1]]])
  assert rows.timestep.observation["kind"].tolist() == [[3, 3], [2, 1]]
  assert rows.timestep.reward.tolist() == [[0, 0], [0, 1]]
  values = rows.timestep.observation["values"]
  assert values[0].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("name", ["Hybrid", "DmHybrid"])
def test_an_environment_takes_nests_of_choices_and_numbers(start, name):
  environment = start(name, 2, num_threads=2)
  spec = environment.spec
  # Three choices, and then three numbers.
  assert spec.action == types.HybridArray(
    3, [0, 0, 0, -np.inf, -1, -1], [3, 2, 1, np.inf, 1, 2]
  )
  actions = np.float32([[3, 2, 0, 99, 0.5, 9], [0, 1, 1, -99, -0.5, -9]])
  rows = run(environment, actions[None])
  # The environment has checked the dtypes; the third choice begins at 5.
  np.testing.assert_array_equal(
    rows.timestep.observation["taken"][1],
    [[3, 2, 5, 99, 0.5, 2], [0, 1, 6, -99, -0.5, -1]],
  )
  for wrong in ([4, 0, 0, 0, 0, 0], [0, -1, 0, 0, 0, 0]):
    with pytest.raises(ValueError, match=r"from 0 to \[3 2 1\]"):
      environment.send(np.arange(1), np.float32([wrong]))


# Factories


def test_a_seed_and_options_reach_the_factory(start):
  rows = start("takes_a_seed", 2, {"size": 2}, seed=3).recv()
  # The factory has set the episode number to 200 + seed; the reset adds 1.
  assert rows.timestep.observation.tolist() == [[3, 204, 0, 0], [4, 205, 0, 0]]


def test_processes_seed_the_generators_that_environments_share(start):
  def draw(seed):
    environment = start("Drawing", 4, seed=seed, num_threads=2)
    rows = run(environment, np.ones((3, 4), int))
    environment.close()
    return rows.timestep.observation[..., :2]

  numbers = draw(3)
  np.testing.assert_array_equal(draw(3), numbers)
  assert len(np.unique(numbers)) == numbers.size
  assert not np.isin(numbers, draw(50)).any()


def test_the_wait_for_first_observations_is_reported(start, monkeypatch, capfd):
  monkeypatch.setattr(child, "_REPORT_SECONDS", 0.0)
  start("Counting", 4, num_threads=2)
  numbers = re.findall(
    r"Counting: waiting for the first observation, (\d) of 4 environments, 2 at"
    " a time, for",
    capfd.readouterr().err,
  )
  assert numbers and sorted(numbers) == numbers


def test_each_environment_is_counted_when_it_is_ready():
  config, received = config_of("Counting"), []
  with child.new_memory() as memory:
    worker = child.Child(messages.Job(config, 0, 3, 3, 0, False), memory)
    receive = worker.receive
    worker.receive = lambda: received.append(receive()) or received[-1]
    child.signatures([worker])
    child.end([worker])
  kinds = [kind for kind, _ in received]
  assert kinds == [messages.READY] * 3 + [messages.SIGNATURE]


def test_a_module_of_the_current_directory_comes_first(
  tmp_path, monkeypatch, interpreters
):
  name = "own_environment_of_this_test"
  for folder, actions in (("elsewhere", 2), ("here", 5)):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / f"{name}.py").write_text(
      "from gymnasium import spaces\nfrom tests import own_envs\n"
      f"make = lambda: own_envs.Acting(spaces.Discrete({actions}))\n"
    )
  monkeypatch.syspath_prepend(str(ROOT))
  monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
  for folder, actions in (("here", 5), ("elsewhere", 2)):
    monkeypatch.chdir(tmp_path / folder)
    spec = envs.spec(envs.Config(f"{name}:make"))
    assert spec.action.num_values == actions


def test_a_process_killed_while_it_starts_is_started_once_more(tmp_path):
  config = config_of("killed", {"marks": str(tmp_path), "times": 2})
  environment = envs.make(config, 2, num_threads=2)
  environment.reset()
  assert len(environment.recv().index) == 2
  environment.close()
  for mark in tmp_path.iterdir():
    mark.unlink()
  config = config_of("killed", {"marks": str(tmp_path), "times": 100})
  # A ConfigError would blame the user.
  with pytest.raises(RuntimeError, match="has died with SIGKILL"):
    envs.make(config, 1)
  assert len(list(tmp_path.iterdir())) == 2


def test_integers_that_do_not_fit_are_refused(start):
  message = "fit into int32, from -2147483648 to .* found 1099511627783"
  with pytest.raises(types.ConfigError, match=f"observation long to {message}"):
    envs.spec(config_of("Long", {"first": 2**40 + 7}))
  environment = start("Long", 2, {"first": 2**31 - 1, "then": 2**40 + 7})
  long = environment.recv().timestep.observation["long"]
  assert long.tolist() == [[2**31 - 1, -1]] * 2
  environment.send(np.arange(2, dtype=np.int32), np.zeros(2, int))
  with pytest.raises(RuntimeError, match=message):
    environment.recv()


def test_integers_of_a_transform_that_do_not_fit_are_refused(start):
  transformed = {"observation_transform": f"{__name__}:shifted"}
  environment = start("Long", 1, {"first": 2**9}, fields=transformed)
  with pytest.raises(ValueError, match=r"transformed .* found 2199023255552"):
    environment.recv()


def shifted(observation):
  return observation["long"].astype(np.int64) * [2**32, 1]


def test_environments_that_differ_are_refused():
  for num_threads in (1, 2):
    with pytest.raises(types.ConfigError, match=r"like the first.*values=3"):
      envs.make(config_of("differs"), 2, num_threads=num_threads)
  # Environment 0 with seed 1 differs from the environment that `spec` made.
  assert envs.spec(config_of("differs")).action.num_values == 2
  with pytest.raises(types.ConfigError, match="as they were before"):
    envs.make(config_of("differs"), 1, seed=1)


def test_numbers_out_of_range_are_refused():
  with pytest.raises(types.ConfigError, match="expected seed"):
    envs.make(config_of("Counting"), 4, seed=2**31 - 3)


def test_send_refuses_wrong_actions(start):
  environment = start("Counting", 4, num_threads=2)
  with pytest.raises(ValueError, match="wait for an action"):
    environment.send(np.arange(4), np.zeros(4, int))
  index = environment.recv().index
  with pytest.raises(ValueError, match=r"shape \(4,\), found \(3,\)"):
    environment.send(index, np.zeros(3, int))
  with pytest.raises(ValueError, match="from 0 to 2, found 0 to 3"):
    environment.send(index, np.array([0, 1, 2, 3]))
  environment.send(index, np.ones(4, int))
  with pytest.raises(ValueError, match="wait for an action"):
    environment.send(index[:1], np.zeros(1, int))
  assert environment.recv().timestep.reward.tolist() == [1] * 4


# Failures of running environments


@pytest.mark.parametrize(
  ("how", "message"),
  [
    ("raise", "environment 2 of .* the seed 2, .*LookupError: lost the way"),
    ("shape", r"environment 2 of .*shape \(4,\).*found shape \(5,\)"),
    ("nan", "environment 2 of .* the seed 2, .* found nan in its observation"),
    ("too large", "environment 2 of .* found inf in its observation"),
    ("nan reward", "environment 2 of .* found nan in its reward"),
    ("text", "environment 2 of .* a number as reward, found '3' of type str"),
    ("complex", r"environment 2 of .* a number as reward, found \(1\+2j\)"),
    ("rewards", "environment 2 of .* a number as reward, found array"),
    ("old gym", "environment 2 of .* found tuple of 4, as in old Gym: done is"),
    ("nothing", "environment 2 of .* a tuple of 5 .*, found NoneType"),
    ("no observation", "environment 2 of .* an object of type NoneType"),
    ("float done", "environment 2 of .* True or False as termin.*found 1.0"),
    ("die", "environments 2 to 3 of .*, with the seeds .*status 7"),
    ("killed", "environments 2 to 3 of .*SIGKILL"),
  ],
)
def test_every_recv_after_a_failure_raises_it(
  start, how, message, tmp_path, monkeypatch
):
  monkeypatch.setattr(child, "CHECK_SECONDS", 0.1)
  log = tmp_path / "log"
  options = {"how": how, "log": str(log)}
  environment = start("Failing", 4, options, num_threads=2)
  index = environment.recv().index
  environment.send(index, np.ones(4, int))
  for _ in range(2):
    with pytest.raises(RuntimeError, match=f"(?s){message}") as caught:
      environment.recv()
  environment.close()
  log.unlink()  # Ends the child that kept the killed process's files open.
  if how == "raise":
    assert "in _fail" in str(caught.value)  # The environment's own traceback.
  elif "reward, found" in message or how in ("old gym", "nothing"):
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("how", "num_threads"), [("raise", 1), ("exit", 2), ("die", 2), ("text", 1)]
)
def test_a_process_that_fails_starts_again_with_new_seeds(
  start, how, num_threads, monkeypatch, capfd
):
  monkeypatch.setattr(child, "CHECK_SECONDS", 0.1)
  limit = restarting.Restarts(1, lambda count: 50)
  options = {"num_threads": num_threads, "restarts": limit}
  environment = start("Failing", 4, {"how": how}, **options)
  environment.send(environment.recv().index, np.ones(4, int))
  rows = environment.recv()
  failed = np.arange(4) >= (2 if num_threads == 2 else 0)
  expected = np.where(failed, FIRST, MID)
  np.testing.assert_array_equal(rows.timestep.step_type, expected)
  seeds = rows.timestep.observation[:, 0]
  assert seeds[failed].tolist() == list(range(50, 50 + failed.sum()))
  assert seeds[~failed].tolist() == list(range((~failed).sum()))
  environment.send(rows.index, np.ones(4, int))
  assert (environment.recv().timestep.step_type != FIRST).all()
  assert limit.measure() == {"env_restarts": 1}
  printed = capfd.readouterr().err
  assert "starts again with new seeds (restart 1)" in printed
  assert ("in _fail" in printed) == (how in ("raise", "exit"))


def test_a_restarted_process_returns_rows_only_where_actions_were_sent(start):
  limit = restarting.Restarts(1, lambda count: 50)
  environment = start(
    "Failing", 3, {"how": "raise"}, batch_size=1, restarts=limit
  )
  rows = [environment.recv() for _ in range(3)]
  assert sorted(int(x.index[0]) for x in rows) == [0, 1, 2]
  environment.send(np.array([2]), np.ones(1, int))
  row = environment.recv()
  assert row.index.tolist() == [2] and limit.count == 1
  assert row.timestep.step_type.tolist() == [FIRST]
  environment.send(np.array([0]), np.ones(1, int))
  assert environment.recv().timestep.step_type.tolist() == [FIRST]


def test_too_many_consecutive_restarts_raise_the_failure(start, capfd):
  limit = restarting.Restarts(2, lambda count: 2)  # Seed 2 fails again.
  options = {"num_threads": 2, "restarts": limit}
  environment = start("Failing", 4, {"how": "raise"}, **options)
  for _ in range(3):
    environment.send(environment.recv().index, np.ones(4, int))
  with pytest.raises(RuntimeError, match="lost the way"):
    environment.recv()
  assert limit.count == 2
  first, second = capfd.readouterr().err.split("(restart 1)\n")
  assert "Traceback" in first and first.count("LookupError: lost the way") == 1
  assert second.count("\n") == 1
  assert "failed: LookupError: lost the way" in second


def test_only_ended_episodes_reset_the_count_of_failures(start):
  """Many steps without a failure do not reset the count."""
  limit = restarting.Restarts(2, lambda count: 0)
  environment = start("FailsLate", 2, restarts=limit)
  with pytest.raises(RuntimeError, match="no end"):
    for _ in range(3 * 101 + 1):
      environment.send(environment.recv().index, np.ones(2, int))
    environment.recv()
  assert limit.count == 2


def test_a_failed_restart_is_repeated(start, monkeypatch, capfd):
  limit = restarting.Restarts(3, lambda count: 50)
  environment = start(
    "Failing", 2, {"how": "raise", "where": 1}, restarts=limit
  )
  rows, tries = environment.recv(), []
  signature = child.Child.signature

  def killed_once(self, *message):
    tries.append(self)
    if len(tries) == 1:
      raise child.KilledError("it was killed")
    return signature(self, *message)

  monkeypatch.setattr(child.Child, "signature", killed_once)
  environment.send(rows.index, np.ones(2, int))
  assert (environment.recv().timestep.step_type == FIRST).all()
  assert limit.count == len(tries) == 2
  assert "it was killed; its process starts again" in capfd.readouterr().err


def test_a_restart_stores_its_seeds_for_messages(start):
  # The new seeds are 2, 3 and 4.
  limit = restarting.Restarts(1, lambda count: 2)
  environment = start(
    "Failing", 3, {"how": "raise", "where": 2}, restarts=limit
  )
  environment.send(environment.recv().index, np.ones(3, int))
  environment.recv()
  seeds = environment._finish.restart_seeds
  assert [seeds[k] + k for k in range(3)] == [2, 3, 4]


@pytest.mark.slow
def test_a_run_survives_a_failed_environment(tmp_path):
  config = sync.Config(
    env=config_of("Failing", {"how": "raise"}),
    agent=a2c.Config(hidden_sizes=(8,)),
    num_envs=4,
    total_steps=400,
    learner=learner.Config(unroll_length=5),
  )
  run = app.train(config, run_dir=tmp_path / "run", quiet=True)
  assert run.metrics["env_steps"] >= 400 and run.metrics["env_restarts"] == 1
  never = dataclasses.replace(config, env_restarts=0)
  with pytest.raises(RuntimeError, match="lost the way"):
    app.train(never, run_dir=tmp_path / "other", quiet=True)


@pytest.mark.parametrize(("how", "reward"), [("array", 2.5), ("bool", 1.0)])
def test_a_reward_may_be_any_number(start, how, reward):
  environment = start("Failing", 3, {"how": how})
  environment.send(environment.recv().index, np.ones(3, int))
  assert environment.recv().timestep.reward[2] == reward


def test_the_error_for_an_infinity_from_a_transform_names_the_transform(start):
  transformed = {"observation_transform": f"{__name__}:divided"}
  environment = start(
    "Failing", 3, {"how": "zero", "where": 12}, fields=transformed, seed=10
  )
  environment.send(environment.recv().index, np.ones(3, int))
  message = "environment 2 .*seed 12, .* inf in its transf.*:divided has made"
  for _ in range(2):
    with pytest.raises(RuntimeError, match=message):
      environment.recv()
  # A transform may also remove NaN and infinities.
  transformed = {"observation_transform": f"{__name__}:without_nan"}
  environment = start("Failing", 3, {"how": "nan"}, fields=transformed)
  environment.send(environment.recv().index, np.ones(3, int))
  assert environment.recv().timestep.observation[2].tolist() == [0, 0, 7, 0]


def divided(observation):
  with np.errstate(divide="ignore"):
    return 1 / observation[:, :1]


def without_nan(observation):
  return np.nan_to_num(observation, posinf=7)


@pytest.mark.parametrize("discount", [np.nan, 1.5])
def test_an_invalid_discount_is_a_failure(start, discount):
  environment = start("discounting", 1, {"discount": discount})
  environment.send(environment.recv().index, np.ones(1, int))
  with pytest.raises(RuntimeError, match=f"from 0 to 1, found {discount}"):
    environment.recv()


@contextlib.contextmanager
def processes_that_send(*written, whole):
  """Makes new processes send bytes, close their pipe, and stay alive.

  Args:
    written: the bytes; each element but the last is a message.
    whole: whether the last element is a message, not raw bytes.
  """
  *whole_messages, last = written

  def start(command, *, pass_fds, **_):
    file = os.dup(pass_fds[1])
    with connection.Connection(file, readable=False) as replies:
      for message in written if whole else whole_messages:
        replies.send_bytes(message)
      if not whole:
        os.write(file, last)
    return mock.Mock(poll=lambda: None, returncode=None)

  with mock.patch.object(child.subprocess, "Popen", start):
    yield


@pytest.mark.parametrize(
  ("written", "whole"),
  [
    (b"R" + np.array([2, 2], np.int32).tobytes(), True),
    (b"R" + np.array([3], np.int32).tobytes(), True),
    (b"D" + pickle.dumps((1, 2, 3, 4, 5)), True),
    (b"?", True),
    (b"\x7f\xff\xff\xffR", False),
    (b"", False),
  ],
)
def test_garbage_from_a_process_is_an_error_that_names_its_environments(
  written, whole
):
  config = config_of("Counting")
  spec = dm_env.specs.Array((4,), np.float32)
  action = dm_env.specs.BoundedArray((), np.int64, -1, 1)
  signature = pickle.dumps(messages.Signature(spec, action))
  names = "environments 0 to 2 of"
  with processes_that_send(
    messages.SIGNATURE + signature, written, whole=whole
  ):
    environment = envs.make(config, 3, batch_size=1, seed=5)
    with pytest.raises(RuntimeError, match=names):
      for _ in range(2):
        environment.recv()
    environment.close()
  refused = pytest.raises(types.ConfigError, match=names)
  with processes_that_send(written, whole=whole), refused:
    envs.make(config, 3)


def test_a_failing_reset_is_a_failure(start):
  environment = start("Failing", 3, {"how": "reset"})
  with pytest.raises(RuntimeError, match=r"(?s)environment 2 .*no way back"):
    run(environment, np.ones((10, 3), int))


def test_an_episode_that_restarts_by_itself_is_a_failure(start):
  with pytest.raises(RuntimeError, match=r"(?s)environment 0 .*found FIRST"):
    run(start("RestartsAlone", 1), [[0]])


def test_closing_closes_environments_and_may_be_repeated(tmp_path, start):
  logs = [tmp_path / "a", tmp_path / "b"]
  environment = start("Counting", 2, {"log": str(logs[0])}, num_threads=2)
  environment.recv()
  environment.close()
  environment.close()
  assert logs[0].read_text() == "closed"
  with pytest.raises(RuntimeError, match="are closed"):
    environment.recv()
  # Deleting the object closes its environments, too.
  config = config_of("Counting", {"log": str(logs[1])})
  envs.make(config, 1).reset()
  assert logs[1].read_text() == "closed"


def alive(pid):
  try:
    status = pathlib.Path(f"/proc/{pid}/stat").read_text()
  except FileNotFoundError:
    return False
  return status.rpartition(")")[2].split()[0] != "Z"


PARENT = """
import sys
import numpy as np
sys.modules["jax"] = None
print("imported once")
from seedx import envs
options = {"how": "hang", "log": sys.argv[1]}
config = envs.Config("tests.own_envs:Failing", options)
environment = envs.make(config, 4, num_threads=2)
environment.reset()
index = environment.recv().index
environment.send(index, np.zeros(4, int))
names = envs.make(envs.Config("tests.own_envs:Names"), 1)
names.reset()
print("pids", *names.recv().timestep.observation[0], flush=True)
sys.stdin.readline()
names.reset()
print("still", *names.recv().timestep.observation[0], flush=True)
sys.stdin.readline()
"""


def test_workers_end_when_their_parent_is_killed(tmp_path, interpreters):
  """One worker waits for a message, one is in a step; both ignore signals."""
  log, program = tmp_path / "pid", tmp_path / "program.py"
  program.write_text(PARENT)
  with subprocess.Popen(
    [sys.executable, program, log],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
  ) as parent:
    # "imported" is printed once: workers do not import the parent's program.
    lines = [parent.stdout.readline().split() for _ in range(3)]
    assert [line[0] for line in lines] == ["imported", "printed", "pids"]
    waiting, parent_pid = map(int, lines[2][1:])
    assert parent_pid == parent.pid
    running.wait_until(lambda: log.exists() and log.read_text())
    stuck = int(log.read_text())
    for pid in (waiting, stuck):
      for number in signals.ENDING:
        os.kill(pid, number)
    print(file=parent.stdin, flush=True)
    lines = [parent.stdout.readline().split() for _ in range(2)]
    assert lines[1] == ["still", str(waiting), str(parent.pid)]
    assert alive(stuck)
    parent.kill()
    running.wait_until(lambda: not alive(waiting) and not alive(stuck))


@pytest.mark.slow
def test_workers_can_import_jax_where_their_parent_cannot(interpreters):
  script = """
import sys
sys.modules["jax"] = None
from seedx import envs
config = envs.Config("tests.own_envs:needs_jax")
environment = envs.make(config, 1)
environment.reset()
assert len(environment.recv().index) == 1
loaded = {name.split(".")[0] for name in sys.modules if sys.modules[name]}
assert not loaded & {"jax", "jaxlib", "envpool", "gymnasium", "grpc"}, loaded
"""
  # Workers use the CPU, whatever platform the parent uses.
  subprocess.run(
    [sys.executable, "-c", script],
    check=True,
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cuda"},
  )


# Frames


def test_frames_show_the_current_state_of_environment_0(start):
  environment = start("Drawn", 2, num_threads=2, render=True)
  for step in range(3):
    environment.recv()
    frame = environment.render()
    assert frame.shape == (4, 6, 3) and frame.dtype == np.uint8
    assert (frame == 10 * step).all()
    environment.send(np.arange(2), np.zeros(2, int))
  # `render` keeps rows that arrive before its frame.
  environment.render()
  assert environment.recv().timestep.step_type.tolist() == [FIRST, FIRST]
  with pytest.raises(types.ConfigError, match="render=True"):
    start("Drawn", 1).render()


def test_envpool_renders_if_render_is_true():
  config = envs.Config("CartPole-v1")
  environment = envs.make(config, 2, render=True)
  assert isinstance(environment, envpool_adapter.EnvPoolEnvironment)
  environment.reset()
  environment.recv()
  frame = environment.render()
  assert frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8
  assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 2
  plain = envs.make(config, 2)
  plain.reset()
  plain.recv()
  with pytest.raises(types.ConfigError, match="CartPole-v1 cannot be rendered"):
    plain.render()
  rendering.check_render(config)


@pytest.fixture
def rendered_here(monkeypatch):
  """Makes `check_render` render in this process."""

  def run(command, *, input, **_):
    stderr = io.StringIO()
    stdin = mock.Mock(buffer=io.BytesIO(input))
    with (
      mock.patch.object(sys, "stdin", stdin),
      contextlib.redirect_stderr(stderr),
    ):
      status = rendering.main()
    printed = stderr.getvalue().encode()
    return subprocess.CompletedProcess(command, status, b"", printed)

  monkeypatch.setattr(rendering.subprocess, "run", run)


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (envs.Config("Catch-v0"), "Catch-v0 cannot be rendered: .*not implemented"),
    (
      config_of("drawn_without_mode"),
      "drawn_without_mode.*argument render_mode",
    ),
    (config_of("Drawn", {"frame": "raises"}), "OSError: no display"),
    (config_of("Counting"), r"Counting cannot be rendered: .* no render$"),
    (config_of("counting_dm"), "counting_dm cannot be rendered: .* neither"),
  ],
)
def test_check_render_reports_the_reason_in_one_line(
  config, message, rendered_here
):
  with pytest.raises(types.ConfigError, match=message) as caught:
    rendering.check_render(config)
  assert "\n" not in str(caught.value)


def test_check_render_refuses_environments_of_jax_functions():
  for name in ("seedx:CartPole-v1", "jax:seedx.envs.functional:CartPole"):
    with pytest.raises(types.ConfigError) as caught:
      rendering.check_render(envs.Config(name))
    assert str(caught.value) == f"{name} cannot be rendered: it has no picture"


def test_check_render_uses_the_render_method_of_physics(rendered_here):
  rendering.check_render(config_of("dm_with_physics"))


def test_check_render_outlives_an_environment_that_dies(interpreters):
  config = config_of("Drawn", {"frame": "dies"})
  with pytest.raises(types.ConfigError, match=r"Drawn.*no OpenGL here"):
    rendering.check_render(config)


def test_options_may_have_any_name():
  options = {"name": 1, "what": 2, "function": 3}
  spec = envs.spec(config_of("takes_any_name", options))
  assert spec.observation.shape == (4,)


@pytest.mark.slow
def test_a_second_spec_starts_no_process(workers, monkeypatch):
  started, popen = [], child.subprocess.Popen

  def spy(*args, **kwargs):
    started.append(args)
    return popen(*args, **kwargs)

  config = config_of("counting_dm", {"shift": np.int64(11)})
  monkeypatch.setattr(child.subprocess, "Popen", spy, raising=False)
  assert envs.spec(config) == envs.spec(config)
  doubling = config_of(
    "counting_dm",
    {"shift": np.int64(11)},
    observation_transform=f"{__name__}:doubled",
  )
  assert envs.spec(doubling).action == envs.spec(config).action
  assert len(started) == 1
  envs.spec(config_of("counting_dm", {"shift": 12}))
  assert len(started) == 2


def test_a_worker_survives_signals_that_arrive_while_it_starts(
  interpreters, monkeypatch
):
  popen = child.subprocess.Popen

  def signalled(*args, **kwargs):
    process = popen(*args, **kwargs)
    for number in signals.ENDING:
      os.kill(process.pid, number)
    return process

  monkeypatch.setattr(child.subprocess, "Popen", signalled, raising=False)
  config = config_of("counting_dm", {"shift": np.int64(13)})
  assert envs.spec(config)
