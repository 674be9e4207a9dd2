"""Whole networks: unrolls and single steps, and the effect of each input."""

import functools

import chex
import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import networks, types
from tests.networks import helpers

FIRST, MID = int(dm_env.StepType.FIRST), int(dm_env.StepType.MID)
OBSERVATIONS = {
  "vector": specs.Array((5,), np.float32),
  "matrix_of_integers": specs.Array((2, 3), np.int16),
  "discrete": specs.DiscreteArray(7),
  "image": specs.Array((2, 36, 37), np.uint8),
  "dict": {
    "camera": specs.Array((1, 36, 36), np.uint8),
    "goal": specs.DiscreteArray(4),
    "joints": specs.Array((3, 2), np.float64),
    "legal": specs.Array((4,), np.bool_),
    "map": (specs.Array((2, 40, 36), np.uint8), specs.Array((), np.float32)),
  },
}
ACTIONS = {
  "discrete": specs.DiscreteArray(5),
  "several": specs.BoundedArray((2,), np.int32, 0, [3, 1]),
  "continuous": specs.BoundedArray((2,), np.float32, -1.0, 1.0),
  "hybrid": types.HybridArray(2, [0, 0, -1], [3, 1, 1]),
}
HEADS = {
  "policy": networks.PolicyValueHead(4),
  "q": networks.QHead(4),
  "dueling": networks.QHead(4, dueling=True, size=8, dtype=jnp.bfloat16),
}
LENGTH, BATCH = 6, 3


def random_inputs(observation, action, seed=0):
  rng = np.random.default_rng(seed)
  rows = (LENGTH, BATCH)
  resets = rng.random(rows) < [0.0, 0.3, 0.6]

  def values(spec):
    shape = (*rows, *spec.shape)
    if spec.dtype == np.bool_:
      return rng.random(shape) < 0.5
    if np.issubdtype(spec.dtype, np.integer):
      maximum = getattr(spec, "maximum", 255)
      return rng.integers(0, maximum + 1, shape).astype(spec.dtype)
    return rng.normal(size=shape).astype(np.float32)

  timestep = dm_env.TimeStep(
    step_type=np.where(resets, FIRST, MID).astype(np.uint8),
    reward=rng.normal(size=rows).astype(np.float32),
    discount=np.ones(rows, np.float32),
    observation=jax.tree.map(values, observation),
  )
  return types.Inputs(
    timestep, values(action), rng.random(rows).astype(np.float32)
  )


@functools.cache
def make(
  observation="vector",
  action="discrete",
  head="policy",
  image_torso="nature",
  lstm_size=0,
  stack_frames=1,
  dtype=jnp.float32,
  towers=1,
):
  """Returns a network's jitted `apply`, parameters, inputs and core state."""
  inputs = random_inputs(OBSERVATIONS[observation], ACTIONS[action])
  leaves = tuple(jax.tree.leaves(OBSERVATIONS[observation]))

  def tower(index):
    torso = networks.Torso(
      leaves, (16,), image_torso, dtype, name=f"Torso_{index}"
    )
    lstm = networks.LSTM(lstm_size, dtype, name=f"LSTM_{index}")
    return networks.Tower(torso, lstm if lstm_size else None)

  network = networks.Network(
    observation=leaves,
    action=ACTIONS[action],
    head=HEADS[head],
    towers=tuple(map(tower, range(towers))),
    stack_frames=stack_frames,
    dtype=dtype,
  )
  core_state = jax.device_get(network.initial_core_state(BATCH))
  params = helpers.random_params(network, inputs, core_state)
  return jax.jit(network.apply), params, inputs, core_state


def with_step_type(inputs, step_type):
  return inputs._replace(timestep=inputs.timestep._replace(step_type=step_type))


def nudged(inputs, t, *, reward=None, action=None):
  """Returns the inputs with another reward or previous action at `t`."""
  timestep, actions = inputs.timestep, inputs.action_tm1.copy()
  rewards = timestep.reward.copy()
  if reward is not None:
    rewards[t] = reward
  if action is not None:
    actions[t] = action
  return inputs._replace(
    timestep=timestep._replace(reward=rewards), action_tm1=actions
  )


def changed(before, after):
  """Returns where any output differs, `[T, B]`."""
  parts = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
  return np.any(
    [
      (np.asarray(x) != np.asarray(y)).reshape(LENGTH, BATCH, -1).any(-1)
      for x, y in parts
    ],
    axis=0,
  )


@pytest.mark.parametrize(
  "case",
  [
    {"observation": "matrix_of_integers"},
    {"observation": "discrete", "lstm_size": 8},
    {"observation": "image"},
    {"action": "continuous", "lstm_size": 8, "dtype": jnp.bfloat16},
    {"action": "several", "lstm_size": 8, "towers": 2},
    *(
      pytest.param(case, marks=pytest.mark.slow)
      for case in (
        {"observation": "dict", "lstm_size": 8},
        {"observation": "dict", "head": "dueling", "dtype": jnp.bfloat16},
      )
    ),
  ],
  ids=lambda case: "-".join(
    getattr(x, "__name__", str(x)) for x in case.values()
  ),
)
def test_unroll_equals_single_steps(case):
  apply, params, inputs, core_state = make(stack_frames=3, **case)

  @jax.jit
  def evaluate(params, inputs, core_state):
    def step(core_state, inputs):
      inputs = jax.tree.map(lambda x: x[None], inputs)
      output, core_state = apply(params, inputs, core_state)
      return core_state, jax.tree.map(lambda x: x[0], output)

    whole = apply(params, inputs, core_state)
    return whole, jax.lax.scan(step, core_state, inputs)

  (whole, last_state), (core_state, steps) = jax.device_get(
    evaluate(params, inputs, core_state)
  )
  leaves = jax.tree.leaves(whole)
  assert [x.shape for x in leaves] == (
    [(LENGTH, BATCH, 4), (LENGTH, BATCH)]
    if case.get("head", "policy") == "policy"
    else [(LENGTH, BATCH, 4)]
  )
  assert {x.dtype for x in [*leaves, *jax.tree.leaves(params)]} == {
    np.dtype("float32")
  }
  # The outputs differ between steps and between rows.
  assert np.std(leaves[0], axis=0).max(-1).min() > 1e-3
  assert np.std(leaves[0], axis=1).max(-1).min() > 1e-3

  tolerance = 2e-2 if "dtype" in case else 1e-5
  for actual, expected in zip(jax.tree.leaves(steps), leaves, strict=True):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
  chex.assert_trees_all_equal(core_state.frames, last_state.frames)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, tolerance, tolerance),
    core_state.memory,
    last_state.memory,
  )


def test_initial_core_states_are_zeros_for_frames_and_lstm():
  apply, params, inputs, core_state = make("dict", stack_frames=3, lstm_size=8)
  camera, chart = core_state.frames
  assert (camera.shape, camera.dtype) == ((BATCH, 2, 36, 36), np.uint8)
  assert (chart.shape, chart.dtype) == ((BATCH, 4, 40, 36), np.uint8)
  assert [[x.shape for x in memory] for memory in core_state.memory] == [
    [(BATCH, 8)] * 2
  ]
  assert not any(x.any() for x in jax.tree.leaves(core_state))
  _, after = jax.eval_shape(apply, params, inputs, core_state)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
    lambda x: (x.shape, x.dtype), core_state
  )


@pytest.mark.parametrize(
  ("action", "old", "new", "lstm_size"),
  [
    ("discrete", 0, 4, 8),
    ("several", [0, 1], [1, 0], 8),
    ("continuous", [0.5, -0.5], [0.5, 0.5], 8),
    ("hybrid", [0, 1, 0.5], [1, 0, 0.5], 8),
    ("hybrid", [0, 1, 0.5], [0, 1, -0.5], 8),
    (None, -0.5, 0.5, 8),  # The reward.
    ("discrete", 0, 4, 0),
  ],
)
def test_previous_action_and_reward_affect_only_networks_with_an_lstm(
  action, old, new, lstm_size
):
  apply, params, inputs, core_state = make(
    action=action or "discrete", lstm_size=lstm_size
  )
  step_type = np.full((LENGTH, BATCH), MID, np.uint8)
  step_type[0, 1] = FIRST
  step_type[4] = FIRST
  name = "action" if action else "reward"
  before = nudged(with_step_type(inputs, step_type), 2, **{name: old})
  after = nudged(before, 2, **{name: new})
  actual = changed(
    apply(params, before, core_state)[0], apply(params, after, core_state)[0]
  )
  # With a memory, outputs change until the next episode.
  expected = np.zeros((LENGTH, BATCH), bool)
  expected[2:4] = lstm_size > 0
  np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
  ("action", "other"),
  [("discrete", 3), ("several", [3, 1]), ("continuous", [0.7, -0.9])],
)
def test_the_action_before_an_episode_is_ignored(action, other):
  apply, params, inputs, core_state = make(action=action, lstm_size=8)
  step_type = np.full((LENGTH, BATCH), MID, np.uint8)
  step_type[0] = step_type[3, 1] = FIRST
  inputs = with_step_type(inputs, step_type)
  inputs = inputs._replace(action_tm1=np.zeros_like(inputs.action_tm1))
  before, _ = apply(params, inputs, core_state)
  for t in (0, 3):
    after, _ = apply(params, nudged(inputs, t, action=other), core_state)
    # At step 3, environments 0 and 2 are in the middle of an episode.
    expected = np.zeros((LENGTH, BATCH), bool)
    expected[t:, [0, 2]] = t == 3
    np.testing.assert_array_equal(changed(before, after), expected)


def test_rewards_in_the_inputs_are_clipped_to_1():
  apply, params, inputs, core_state = make(lstm_size=8)

  def output(reward):
    rewards = np.full((LENGTH, BATCH), reward, np.float32)
    timestep = inputs.timestep._replace(reward=rewards)
    return apply(params, inputs._replace(timestep=timestep), core_state)[0]

  assert not changed(output(1.0), output(70.0)).any()
  assert not changed(output(-1.0), output(-2.0)).any()
  assert changed(output(0.9), output(1.0)).all()
  assert changed(output(-1.0), output(1.0)).all()


@pytest.mark.parametrize(
  ("action", "size"),
  [("discrete", 5), ("several", 8), ("continuous", 2), ("hybrid", 8 + 1)],
)
def test_lstm_inputs_are_features_one_hot_actions_and_the_reward(action, size):
  _, params, *_ = make(action=action, lstm_size=8)
  (cell,) = params["params"]["LSTM_0"].values()
  (cell,) = cell.values()
  assert cell["ii"]["kernel"].shape == (16 + size + 1, 8)


def test_a_core_state_affects_only_its_own_episode():
  apply, params, inputs, zeros = make("image", stack_frames=3, lstm_size=8)
  step_type = np.full((LENGTH, BATCH), MID, np.uint8)
  step_type[0, 0] = step_type[2, 1] = FIRST
  inputs = with_step_type(inputs, step_type)
  before, _ = apply(params, inputs, zeros)
  for name in ("memory", "frames"):
    part = jax.tree.map(lambda x: x + x.dtype.type(1), getattr(zeros, name))
    after, _ = apply(params, inputs, zeros._replace(**{name: part}))
    is_changed = changed(before, after)
    assert not is_changed[:, 0].any()
    assert is_changed[:2, 1:].all()
    assert not is_changed[2:, 1].any()


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_a_tower_affects_either_the_policy_or_the_value(lstm_size):
  apply, params, inputs, core_state = make(lstm_size=lstm_size, towers=2)
  before, _ = apply(params, inputs, core_state)
  for index, name in enumerate(("policy", "value")):
    changed_towers = []
    for part in ("Torso", "LSTM")[: 1 + (lstm_size > 0)]:
      module = f"{part}_{index}"
      other = jax.tree.map(lambda x: x + 0.1, params["params"][module])
      changed_towers.append(
        ({"params": params["params"] | {module: other}}, core_state)
      )
    if lstm_size:
      memory = [*core_state.memory]
      memory[index] = jax.tree.map(lambda x: x + 0.5, memory[index])
      changed_towers.append((params, core_state._replace(memory=tuple(memory))))
    for other_params, other_state in changed_towers:
      after, _ = apply(other_params, inputs, other_state)
      for field in after._fields:
        differs = np.any(getattr(after, field) != getattr(before, field))
        assert differs == (field == name)


class Critic(nn.Module):
  """Q-values of continuous actions."""

  @nn.compact
  def __call__(self, features, action):
    joined = jnp.concatenate([features, action], axis=-1)
    return nn.Dense(1)(nn.relu(nn.Dense(8)(joined)))[..., 0]


@pytest.mark.parametrize("at", [None, np.array([[0, 2, 1], [5, 3, 4]])])
def test_an_action_affects_the_head_only_at_its_own_step(at):
  observation, action = OBSERVATIONS["vector"], ACTIONS["continuous"]
  inputs = random_inputs(observation, action)
  network = networks.Network(
    observation=(observation,),
    action=action,
    head=Critic(),
    towers=(networks.Tower(networks.Torso((observation,), (16,))),),
  )
  state = network.initial_core_state(BATCH)
  taken = inputs.action_tm1
  params = helpers.random_params(network, inputs, state, None, taken)
  apply = jax.jit(network.apply)
  if at is not None:
    taken = taken[: len(at)]
  before, _ = apply(params, inputs, state, at, taken)
  other = taken.copy()
  other[1] += 1.0
  after, _ = apply(params, inputs, state, at, other)
  changed = np.zeros(taken.shape[:2], bool)
  changed[1] = True
  np.testing.assert_array_equal(after != before, changed)


class Wrong(nn.Module):
  """A core with features of a wrong shape, or a state of a wrong dtype."""

  features: int = 0
  state: str = "float32"

  def initial_state(self, batch_size):
    return jnp.zeros((batch_size, 3))

  def __call__(self, features, step_type, state):
    return features[self.features :], state.astype(self.state)


@pytest.mark.parametrize(
  ("core", "message"),
  [
    (Wrong(features=1), r"expected features \[6, 3, 'G'\] of the core Wrong"),
    (Wrong(state="int32"), r"float32\[3, 3\], found int32\[3, 3\]"),
  ],
)
def test_a_core_that_returns_wrong_arrays_is_refused(core, message):
  observation = OBSERVATIONS["vector"]
  network = networks.Network(
    observation=(observation,),
    action=ACTIONS["discrete"],
    head=HEADS["q"],
    towers=(networks.Tower(networks.Torso((observation,), (16,)), core),),
  )
  inputs = random_inputs(observation, ACTIONS["discrete"])
  state = network.initial_core_state(BATCH)
  with pytest.raises(types.ConfigError, match=message):
    helpers.random_params(network, inputs, state)
