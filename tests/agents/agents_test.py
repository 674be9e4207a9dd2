"""The contract of all agents, in all kinds of environments."""

import dataclasses
import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from seedx import envs, sharding, types
from seedx.agents import (
  a2c,
  acting_step,
  alphazero,
  base,
  cloning,
  critics,
  ddpg,
  dqn,
  iql,
  policy_model,
  ppo,
  pqn,
  qt_opt,
  r2d2,
  rainbow,
  sac,
  value_based,
  vtrace,
)
from tests import conftest, running
from tests.agents import cases

LENGTH, BATCH, ROWS = 5, 3, 32
KEY = jax.random.key(0)
DISCRETE = specs.DiscreteArray(5)
IMAGE = specs.BoundedArray((1, 36, 36), np.uint8, 0, 255)
VECTOR = specs.Array((4,), np.float32)


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of environment, and the settings of an agent for it.

  Attributes:
    game: name of a game's environment, whose spec replaces the others.
  """

  observation: types.Tree = None
  action: specs.BoundedArray = dataclasses.field(
    default_factory=lambda: DISCRETE
  )
  config: dict[str, Any] = dataclasses.field(default_factory=dict)
  action_mask: str | None = None
  game: str | None = None

  @property
  def spec(self):
    if self.game is not None:
      return envs.spec(envs.Config(self.game))
    return types.EnvironmentSpec(
      self.observation, self.action, action_mask=self.action_mask
    )


KINDS = {
  "vector": Kind(VECTOR),
  "image": Kind(IMAGE, config={"stack_frames": 4}),
  "dict": Kind(
    {
      "joints": (VECTOR, specs.DiscreteArray(3)),
      "memory": specs.Array((2, 3), np.uint8),
    }
  ),
  # The spec's actions are uint8, but a policy samples int32.
  "integer": Kind(specs.DiscreteArray(16), specs.DiscreteArray(5, np.uint8)),
  "continuous": Kind(
    VECTOR, specs.BoundedArray((2,), np.float32, -1.0, [1.0, 3.0])
  ),
  "several_choices": Kind(
    VECTOR, specs.BoundedArray((3,), np.int32, 0, [4, 1, 2])
  ),
  "hybrid": Kind(
    VECTOR,
    types.HybridArray(2, [0, 0, -1, -np.inf], [3, 1, 1, np.inf]),
    config={"recurrent": True, "lstm_size": 8},
  ),
  "recurrent_bfloat16": Kind(
    VECTOR,
    specs.BoundedArray((2,), np.float32, -1.0, [1.0, 3.0]),
    config={"recurrent": True, "lstm_size": 8, "compute_dtype": "bfloat16"},
  ),
  "continuous_normalized": Kind(
    {"joints": VECTOR, "choice": specs.DiscreteArray(3)},
    specs.BoundedArray((2,), np.float32, -1.0, [1.0, 3.0]),
    config={"normalize_observations": True},
  ),
  "unbounded": Kind(VECTOR, specs.BoundedArray((2,), np.float32, -1.0, np.inf)),
  "continuous_masked": Kind(
    {"observation": VECTOR, "legal": specs.Array((2,), bool)},
    specs.BoundedArray((2,), np.float32, -1.0, 1.0),
    action_mask="legal",
  ),
  "apart_recurrent": Kind(
    {"a": VECTOR, "b": IMAGE},
    config={"recurrent": True, "lstm_size": 8, "towers": "apart"},
  ),
  "normalized_masked": Kind(
    {
      "joints": VECTOR,
      "choice": specs.DiscreteArray(3),
      "legal": specs.Array((5,), bool),
    },
    config={"normalize_observations": True},
    action_mask="legal",
  ),
  "recurrent_masked": Kind(
    {"joints": VECTOR, "legal": specs.Array((5,), bool)},
    config={
      "normalize_observations": True,
      "recurrent": True,
      "lstm_size": 8,
    },
    action_mask="legal",
  ),
  "game": Kind(game="seedx:TicTacToe"),
  "large_game": Kind(
    game="seedx:ConnectFour",
    config={"residual_blocks": 1, "residual_channels": 8},
  ),
}


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """Functions that make an agent's config and its batches.

  Attributes:
    config: function of settings that returns the agent's config.
    batch: function `(agent, spec, seed)` that returns a random batch.
    horizon: length of the run in env steps and updates.
  """

  config: Callable[..., Any]
  batch: Callable[..., types.Tree]
  horizon: base.Horizon | None = None


def unrolls(agent, spec, seed, length=LENGTH):
  ends = np.linspace(0.0, 0.5, BATCH)
  return conftest.random_unroll(agent, spec, length, ends, seed)


def samples(agent, spec, seed):
  unroll = unrolls(agent, spec, seed, agent.needs.window)
  weights = np.linspace(0.5, 1.5, BATCH, dtype=np.float32)
  return types.Sample(unroll, weights)


def searched(agent, spec, seed):
  """Returns samples whose extras are policies over the legal moves."""
  sample = samples(agent, spec, seed)
  legal = sample.unroll.inputs.timestep.observation[spec.action_mask]
  rng = np.random.default_rng(seed)
  shares = legal * rng.uniform(0.5, 1.5, legal.shape).astype(np.float32)
  policy = shares / shares.sum(axis=-1, keepdims=True)
  unroll = sample.unroll._replace(extras=alphazero.Extras(policy))
  return sample._replace(unroll=unroll)


# With a small epsilon, Adam's first step shows only the gradient's sign.
SMOOTH = {"adam_epsilon": 1e-2}
ALGORITHMS = {
  "a2c": Algorithm(a2c.Config, unrolls),
  "vtrace": Algorithm(vtrace.Config, unrolls),
  "ppo": Algorithm(
    functools.partial(ppo.Config, epochs=4, minibatches=3), unrolls
  ),
  "pqn": Algorithm(
    functools.partial(
      pqn.Config,
      epochs=4,
      minibatches=3,
      learning_rate_end=1.0,
      epsilon_steps=800,
    ),
    unrolls,
    base.Horizon(env_steps=1600, updates=200),
  ),
  "dqn": Algorithm(
    functools.partial(
      dqn.Config,
      n_step=3,
      dueling=True,
      learning_rate_end=1.0,
      epsilon_steps=800,
    ),
    samples,
    # Epsilon falls over 100 updates.
    base.Horizon(env_steps=1600, updates=200),
  ),
  "r2d2": Algorithm(
    functools.partial(
      r2d2.Config,
      n_step=2,
      burn_in=2,
      sequence_length=4,
      lstm_size=8,
      learning_rate_end=1.0,
      epsilon_ladder=False,
      epsilon_end=0.6,
    ),
    samples,
  ),
  "rainbow": Algorithm(
    functools.partial(
      rainbow.Config, num_atoms=7, noise_scale=3.0, learning_rate_end=1.0
    ),
    samples,
  ),
  "ddpg": Algorithm(ddpg.Config, samples),
  "td3": Algorithm(
    functools.partial(
      dataclasses.replace, ddpg.td3(), noise_correlation=0.9, **SMOOTH
    ),
    samples,
  ),
  "d4pg": Algorithm(
    functools.partial(
      ddpg.Config, num_atoms=7, n_step=3, action_gradient_clip=1.0, **SMOOTH
    ),
    samples,
  ),
  "sac": Algorithm(functools.partial(sac.Config, **SMOOTH), samples),
  "iql": Algorithm(functools.partial(iql.Config, **SMOOTH), samples),
  "qt_opt": Algorithm(
    functools.partial(
      qt_opt.Config, value_min=-50.0, value_max=50.0, cem_samples=16, **SMOOTH
    ),
    samples,
  ),
  "cloning": Algorithm(functools.partial(cloning.Config, **SMOOTH), samples),
  "alphazero": Algorithm(
    functools.partial(
      alphazero.Config, num_simulations=4, n_step=9, learning_rate_end=1.0
    ),
    searched,
  ),
}


class Case:
  """An agent and its jitted functions, which several tests share."""

  def __init__(self, name, kind="vector", horizon=None, **fields):
    self.algorithm, self.kind = ALGORITHMS[name], KINDS[kind]
    self.spec = self.kind.spec
    if name != "alphazero":  # Its rewards are the results of games.
      fields = {"reward_scale": 1.0, **fields}
    fields = {"hidden_sizes": (8,), **fields}
    self.config = self.algorithm.config(**self.kind.config | fields)
    horizon = horizon or self.algorithm.horizon
    self.agent = self.config.make(self.spec, None, horizon)
    self.whole = self.agent.needs.whole_batches
    self.init = jax.jit(self.agent.init)
    self.acting = jax.jit(self.agent.acting)
    self.step = jax.jit(self.agent.step)
    self.greedy = jax.jit(self.agent.greedy)
    self.gradients = jax.jit(self.agent.gradients)
    self.apply = jax.jit(self.agent.apply)
    self.update = jax.jit(self.agent.update)

  @functools.cached_property
  def state(self):
    return self.init(KEY)

  @functools.cached_property
  def moved_state(self):
    """A state whose policy is not uniform, so that entropy has a gradient."""
    rng = np.random.default_rng(0)
    params, target_params = (
      jax.tree.map(
        lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32),
        jax.device_get(x),
      )
      for x in (self.state.params, self.state.target_params)
    )
    moved = jax.device_put({"params": params, "target_params": target_params})
    return dataclasses.replace(self.state, **moved)

  def learn(self, state):
    """Updates by `gradients` and `apply` if possible, else by `update`."""
    if self.whole:
      return self.update(state, KEY, self.batch)
    gradients, output = self.gradients(state, KEY, self.batch)
    return self.apply(state, gradients), output

  @functools.cached_property
  def batch(self):
    return self.algorithm.batch(self.agent, self.spec, 1)

  def act(self, seed, core_state=None, state=None):
    rng = np.random.default_rng(0)
    inputs = acting_step.zero_inputs(self.spec, ROWS)
    observation = conftest.random_observation(rng, self.spec, (ROWS,))
    if self.spec.action_mask is not None and self.spec.game is None:
      observation[self.spec.action_mask][:, 3] = True
    inputs = inputs._replace(
      timestep=inputs.timestep._replace(observation=observation)
    )
    if core_state is None:
      core_state = self.agent.initial_core_state(ROWS)
    self.acted_on, self.inputs = observation, inputs
    acting = self.acting(state or self.state)
    key = jax.random.key(seed)
    output, core_state = self.step(acting, key, inputs, core_state)
    return jax.device_get(output), core_state


case_of = functools.cache(Case)


# Most agents, and most kinds of observations and actions.
FAST = [
  ("vtrace", "recurrent_bfloat16"),
  ("ppo", "normalized_masked"),
  ("pqn", "recurrent_masked"),
  ("dqn", "dict"),
  ("r2d2", "vector"),
  ("sac", "continuous"),
  ("alphazero", "game"),
]
# Other agents, and other pairs for which an agent has separate code.
SLOW = [
  ("vtrace", "integer"),
  ("vtrace", "several_choices"),
  ("ppo", "hybrid"),
  ("vtrace", "apart_recurrent"),
  ("pqn", "image"),
  ("dqn", "integer"),
  ("r2d2", "image"),
  ("rainbow", "image"),
  ("rainbow", "normalized_masked"),
  ("td3", "continuous"),
  ("d4pg", "continuous"),
  ("sac", "continuous_normalized"),
  ("sac", "integer"),
  ("iql", "image"),
  ("iql", "continuous"),
  ("qt_opt", "continuous"),
  ("qt_opt", "continuous_normalized"),
  ("cloning", "normalized_masked"),
  ("cloning", "several_choices"),
  ("a2c", "vector"),
  ("alphazero", "large_game"),
]


@pytest.fixture(
  scope="module",
  params=conftest.slow_but(
    [(case,) for case in FAST], [(case,) for case in FAST + SLOW]
  ),
  ids="-".join,
)
def case(request):
  make = case_of if request.param in FAST else Case
  return make(*request.param)


def signature(nest):
  """Returns the shapes and types for which JAX compiles a program."""
  return jax.tree.map(
    lambda x: (x.shape, jnp.result_type(x), jnp.asarray(x).weak_type), nest
  )


def assert_equal(actual, expected):
  chex.assert_trees_all_equal(actual, expected)


def difference(a, b):
  """Returns the largest absolute difference between two nests of floats."""
  gaps = jax.tree.map(
    lambda x, y: np.abs(np.asarray(x, float) - np.asarray(y, float)).max(), a, b
  )
  return max(jax.tree.leaves(gaps))


# The contract


def test_initial_parameters_depend_only_on_the_key(case):
  params = jax.tree.leaves(case.state.params)
  assert {x.dtype for x in params} == {np.dtype("float32")}
  assert all(np.isfinite(x).all() for x in params)
  assert (case.state.updates.shape, case.state.updates.dtype) == ((), np.int32)
  assert case.state.updates == 0
  assert_equal(case.init(jax.random.key(0)).params, case.state.params)
  other = case.init(jax.random.key(1)).params
  assert difference(other, case.state.params) > 0.01


def test_a_step_returns_legal_actions_of_the_spec(case):
  output, core_state = case.act(seed=0)
  spec = case.spec.action
  assert output.action.shape == (ROWS, *spec.shape)
  assert output.action.dtype == spec.dtype
  if isinstance(spec, specs.DiscreteArray):
    assert output.action.min() >= 0
    assert output.action.max() < spec.num_values
  if isinstance(case.config, critics.Config):
    assert (spec.minimum <= output.action).all()
    assert (output.action <= spec.maximum).all()
  if isinstance(spec, types.HybridArray):
    choices = output.action[:, : spec.num_choices]
    assert (
      choices == np.clip(np.round(choices), 0, spec.choices.maximum)
    ).all()
  if case.spec.action_mask is not None:
    legal = case.acted_on[case.spec.action_mask]
    assert legal[np.arange(ROWS), output.action].all()
    assert not legal.all()
  for leaf in jax.tree.leaves(output.extras):
    assert leaf.shape[0] == ROWS
    assert np.isfinite(leaf).all()
  initial = case.agent.initial_core_state(ROWS)
  assert signature(core_state) == signature(initial)


def test_the_same_key_repeats_actions_and_another_does_not(case):
  actions = [case.act(seed)[0].action for seed in (0, 0, 1)]
  np.testing.assert_array_equal(actions[0], actions[1])
  assert np.mean(actions[0] != actions[2]) > 0.25


def test_rows_of_a_batch_act_differently(case):
  # All rows have the same inputs, so only the key makes actions differ.
  inputs = acting_step.zero_inputs(case.spec, ROWS)
  if case.spec.action_mask is not None:
    inputs.timestep.observation[case.spec.action_mask][:, 1:3] = True
  output, _ = case.step(
    case.acting(case.state),
    KEY,
    inputs,
    case.agent.initial_core_state(ROWS),
  )
  assert len(np.unique(output.action, axis=0)) > 1


def test_greedy_takes_the_best_action_for_any_key_and_exploration(case):
  if any(map(types.is_image, jax.tree.leaves(case.kind.observation))):
    pytest.skip("a network for images takes long to compile")
  drawn = [case.act(seed) for seed in range(4)]
  acting = case.acting(case.state)
  initial = case.agent.initial_core_state(ROWS)
  best, core_state = case.greedy(acting, KEY, case.inputs, initial)
  best = jax.device_get(best)
  exploring = case.inputs._replace(exploration=np.ones(ROWS, np.float32))
  again = case.greedy(acting, jax.random.key(1), exploring, initial)
  assert_equal(again, (best, core_state))
  noisy = isinstance(core_state, value_based.NoisyCoreState)
  for output, drawn_core_state in drawn:
    if noisy:  # The core state also has the seed of the noise.
      assert len(np.unique(drawn_core_state.seed)) == ROWS
      drawn_core_state, core_state = drawn_core_state.network, ()
    assert signature(output) == signature(best)
    assert np.any(output.action != best.action)
    if isinstance(core_state, critics.CoreState):
      core_state, drawn_core_state = core_state.network, ()
    if jax.tree.leaves(core_state):
      assert difference(core_state, drawn_core_state) < 1e-5
    if isinstance(best.extras, policy_model.Extras):
      # No drawn action is more likely than the greedy one.
      gap = best.extras.log_prob - output.extras.log_prob
      assert gap.min() >= -1e-5 and gap.max() > 1e-5
  if isinstance(acting, value_based.Acting | pqn.Acting) and not noisy:
    without_exploration = acting._replace(epsilon=jnp.float32(0.0))
    expected, _ = case.step(
      without_exploration, jax.random.key(2), case.inputs, initial
    )
    assert_equal(best, expected)


def test_gradients_have_the_parameters_shapes_and_are_finite(case):
  # TD3's actor learns in every second update.
  state = dataclasses.replace(case.state, updates=jnp.int32(1))
  gradients, output = case.gradients(state, KEY, case.batch)
  assert signature(gradients.params) == signature(case.state.params)
  for moment in gradients.moments:
    assert signature(moment) == signature(case.state.statistics.mean)
  leaves = map(np.asarray, jax.tree.leaves(gradients.params))
  largest = [np.abs(x).max() for x in leaves]
  assert np.isfinite(largest).all()
  # Behavioural cloning learns no value.
  unused = 2 * isinstance(case.config, cloning.Config)
  assert sum(x == 0 for x in largest) == unused
  assert output.weight.shape == ()
  assert output.weight > 0
  assert output.metrics
  for value in output.metrics.values():
    assert value.shape == ()
    assert np.isfinite(value)
  if output.priorities is not None:
    assert output.priorities.shape == (BATCH,)


@pytest.mark.parametrize("names", [("vtrace", "vector"), ("dqn", "dict")])
def test_update_applies_the_gradients(names):
  case = case_of(*names)
  expected, expected_output = case.learn(case.state)
  actual, output = case.update(case.state, KEY, case.batch)
  for a, b in ((actual, expected), (output, expected_output)):
    # Programs round differently; Adam amplifies this up to its learning rate.
    chex.assert_trees_all_close(a, b, rtol=2e-3, atol=1e-5)
  assert difference(actual.params, case.state.params) > 1e-4


def test_learning_keeps_shapes_counts_updates_and_compiles_once(case):
  state, _ = case.learn(case.state)
  _, core_state = case.act(seed=0)
  with running.compiled() as names:
    again, output = case.learn(state)
    case.act(seed=1, core_state=core_state, state=state)
  assert not names
  assert signature(again) == signature(state) == signature(case.state)
  assert [int(s.updates) for s in (case.state, state, again)] == [0, 1, 2]
  assert all(np.isfinite(x) for x in output.metrics.values())


def test_a_restored_state_learns_like_the_saved_one(case, tmp_path):
  state, _ = case.learn(case.state)
  leaves = [np.asarray(x) for x in jax.tree.leaves(state)]
  np.savez(tmp_path / "state.npz", *leaves)
  # Another process has only the agent, which determines the state's structure.
  shapes = jax.eval_shape(case.init, KEY)
  with np.load(tmp_path / "state.npz") as file:
    restored = jax.tree.unflatten(
      jax.tree.structure(shapes),
      [jax.device_put(file[name]) for name in file.files],
    )
  assert signature(restored) == signature(state)
  assert_equal(case.learn(restored), case.learn(state))


def test_value_and_policy_learn_from_the_lagged_critics_only():
  case = case_of("iql", "continuous")
  state = case.moved_state

  def gradients(state):
    result, _ = case.gradients(state, KEY, case.batch)
    return jax.device_get(result.params)

  def differ(nest, other):
    pairs = zip(jax.tree.leaves(nest), jax.tree.leaves(other), strict=True)
    return any(np.any(x != y) for x, y in pairs)

  expected = gradients(state)
  critic = jax.tree.map(lambda x: x + 0.1, state.params[iql._CRITIC])
  learned = dataclasses.replace(
    state, params=state.params | {iql._CRITIC: critic}
  )
  changed = gradients(learned)
  assert differ(changed[iql._CRITIC], expected[iql._CRITIC])
  assert not differ(changed[iql._POLICY], expected[iql._POLICY])
  lagged = dataclasses.replace(state, target_params={iql._CRITIC: critic})
  changed = gradients(lagged)
  assert not differ(changed[iql._CRITIC], expected[iql._CRITIC])
  assert differ(changed[iql._POLICY], expected[iql._POLICY])


# A value other than the default for each setting that may change at run time.
CHANGED = {
  "learning_rate": 5e-3,
  "discount": 0.5,
  "td_lambda": 0.3,
  "value_cost": 2.0,
  "entropy_cost": 1.0,
  "clip_rho_threshold": 0.2,
  "clip_pg_rho_threshold": 0.3,
  "clip_epsilon": 1e-3,
  "epsilon_end": 0.7,
  "critic_learning_rate": 5e-3,
  "temperature_learning_rate": 5e-3,
  "noise_scale": 0.5,
  "expectile": 0.9,
  "inverse_temperature": 0.5,
}


# One case per algorithm.
_ONE_EACH = {case[0]: (case,) for case in SLOW + FAST}
_ONE_EACH["vtrace"] = (("vtrace", "vector"),)
every_algorithm = pytest.mark.parametrize(
  ("names",),
  conftest.slow_but(
    [_ONE_EACH[case[0]] for case in FAST], list(_ONE_EACH.values())
  ),
  ids="-".join,
)


@every_algorithm
def test_programs_read_hyperparameters_from_the_state_only(names):
  """A config with other values leads to the same programs."""
  case = case_of(*names)
  changed = {name: CHANGED[name] for name in case.state.hyperparameters}
  other = Case(*names, **changed)
  state = jax.jit(lambda key: other.agent.init(key).hyperparameters)(KEY)
  assert {x.dtype for x in state.values()} == {np.dtype("float32")}
  assert state == {name: np.float32(x) for name, x in changed.items()}
  case.act(seed=0)
  acting, start = case.acting(case.state), case.agent.initial_core_state(ROWS)
  learning = case.state, KEY, case.batch
  arguments = {
    "acting": (case.state,),
    "step": (acting, KEY, case.inputs, start),
  }
  if case.whole:
    arguments["update"] = learning
  else:
    arguments["gradients"] = learning
    arguments["apply"] = case.state, case.gradients(*learning)[0]
  for name, given in arguments.items():
    one, two = (
      str(getattr(x, name).trace(*given).jaxpr) for x in (case, other)
    )
    addresses = r"0x[0-9a-f]+"
    assert re.sub(addresses, "", one) == re.sub(addresses, "", two), name


@every_algorithm
def test_a_hyperparameter_changes_only_the_functions_that_use_it(names):
  case = case_of(*names)
  # DQN's epsilon has fallen halfway, and TD3's actor learns in this update.
  state = dataclasses.replace(case.moved_state, updates=jnp.int32(51))
  case.act(seed=0)

  def acts(state):
    acting = case.acting(state)
    if not isinstance(acting, critics.Acting):
      return acting
    # Actors with critics receive all hyper-parameters, but use only some.
    start = case.agent.initial_core_state(ROWS)
    return (
      case.step(acting, KEY, case.inputs, start),
      case.agent.priorities(acting, case.batch.unroll),
    )

  def run(state):
    results = {
      "acting": acts(state),
      "learning": case.learn(state)[0].params,
    }
    if not case.whole:
      gradients, _ = case.gradients(state, KEY, case.batch)
      results["gradients"] = gradients.params
    return results

  unchanged = run(state)
  for name in state.hyperparameters:
    changed = run(cases.with_hyperparameters(state, **{name: CHANGED[name]}))
    affected = {"learning", "gradients"}
    if name.endswith("learning_rate"):
      affected = {"learning"}
    if name == "noise_scale":
      affected = {"acting"}
    if name == "epsilon_end":
      ladder = getattr(case.config, "epsilon_ladder", False)
      affected = set() if ladder else {"acting"}
    if name == "discount" and case.agent.priorities:
      # Actors compute priorities with the discount.
      affected = {"acting", *affected}
    if name == "discount" and isinstance(case.config, cloning.Config):
      affected = set()
    for function, result in changed.items():
      gap = difference(result, unchanged[function])
      assert gap > 1e-6 if function in affected else gap == 0, (name, function)


# The actor-critics


def gradients_of(case, unroll, **hyperparameters):
  state = cases.with_hyperparameters(
    vtrace_case().moved_state, **hyperparameters
  )
  gradients, output = case.gradients(state, KEY, unroll)
  return jax.device_get((gradients.params, output))


def vtrace_case():
  return case_of("vtrace", "vector")


def with_reward(unroll, reward):
  timestep = unroll.inputs.timestep._replace(reward=np.float32(reward))
  return unroll._replace(inputs=unroll.inputs._replace(timestep=timestep))


def test_rewards_are_scaled_then_clipped_in_the_loss():
  case, unroll = vtrace_case(), vtrace_case().batch
  reward = 10 * unroll.inputs.timestep.reward
  scaled_and_clipped = np.clip(0.1 * reward, -0.5, 0.5)
  assert 0 < np.mean(np.abs(scaled_and_clipped) == 0.5) < 1
  other = Case("vtrace", reward_scale=0.1, reward_clip=0.5)
  actual, _ = gradients_of(other, with_reward(unroll, reward))
  expected, _ = gradients_of(case, with_reward(unroll, scaled_and_clipped))
  assert difference(actual, expected) < 1e-6
  raw, _ = gradients_of(case, with_reward(unroll, reward))
  assert difference(actual, raw) > 1e-3


def test_acting_and_learning_compute_the_same_log_prob():
  # The same parameters act and learn, so rho is 1 and no threshold clips it.
  case, unroll = vtrace_case(), vtrace_case().batch
  acting, outputs = case.acting(case.moved_state), []
  for t in range(LENGTH):
    inputs = jax.tree.map(lambda x, t=t: x[t], unroll.inputs)
    output, _ = case.step(acting, jax.random.key(t), inputs, unroll.core_state)
    outputs.append(output)
  acted = jax.tree.map(lambda *x: np.stack(x), *outputs)
  unroll = unroll._replace(action=acted.action, extras=acted.extras)
  unclipped = dict.fromkeys(
    ("clip_rho_threshold", "clip_pg_rho_threshold"), 1e6
  )
  expected, _ = gradients_of(case, unroll, **unclipped)
  clipped, _ = gradients_of(case, unroll)
  assert difference(expected, clipped) < 1e-5


@pytest.mark.parametrize(
  ("updates", "end", "expected"),
  [
    (4, 0.2, [0.1, 0.08, 0.06, 0.04, 0.02, 0.02, 0.02]),
    # More updates than a JAX integer can count.
    (2**62, 0.2, [0.1, 0.1, 0.1]),
    (None, 0.2, [0.1, 0.1, 0.1]),
  ],
)
def test_learning_rate_falls_linearly_and_then_stays(updates, end, expected):
  horizon = updates and base.Horizon(env_steps=100, updates=updates)
  case = Case("vtrace", horizon=horizon, learning_rate_end=end)
  state = cases.with_hyperparameters(vtrace_case().state, learning_rate=0.1)
  # With a constant gradient, Adam's step is as large as the rate.
  gradients = base.Gradients(ones(state.params))
  rates = []
  for _ in expected:
    old_params, state = state.params, case.apply(state, gradients)
    rates.append(difference(state.params, old_params))
  np.testing.assert_allclose(rates, expected, rtol=1e-2)


def ones(params, value=1.0):
  return jax.tree.map(lambda x: np.full(x.shape, value, np.float32), params)


def test_gradients_are_clipped_by_their_global_norm():
  case = Case("vtrace", max_gradient_norm=1.0, adam_epsilon=1.0)
  start = vtrace_case().state
  one, ten, small = (
    case.apply(start, base.Gradients(ones(start.params, value))).params
    for value in (1.0, 10.0, 1e-3)
  )
  assert difference(one, start.params) > 1e-5
  assert difference(one, ten) < 1e-8
  assert difference(one, small) > 1e-5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_a_search_plays_both_sides_of_a_game(name):
  config = ALGORITHMS[name].config()
  if name == "alphazero":
    reason = "expected a game whose rules are JAX functions.*TicTacToe"
    for kind in ("vector", "normalized_masked", "continuous"):
      with pytest.raises(types.ConfigError, match=reason):
        config.make(KINDS[kind].spec)
  else:
    reason = "expected an environment of one player.*opponent=random"
    if isinstance(config, critics.Config):
      reason += "|expected continuous actions"
    with pytest.raises(types.ConfigError, match=reason):
      config.make(KINDS["game"].spec)


@pytest.mark.slow
def test_cores_share_the_gradients_of_a_search():
  """Windows of unequal weights are on three cores, or on one."""
  case = Case("alphazero", "game", symmetries=False)
  config, batch = case.config, case.batch
  gradients = sharding.per_core(
    config.make(case.spec, sharding.CORES).gradients,
    sharding.mesh(jax.devices()[:BATCH]),
    (sharding.REPLICATED, sharding.REPLICATED, sharding.SAMPLE),
    sharding.REPLICATED,
  )
  actual, output = gradients(case.state, KEY, batch)
  expected, of_one = case.gradients(case.state, KEY, batch)
  chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-6)
  chex.assert_trees_all_close(
    output.metrics, of_one.metrics, rtol=1e-4, atol=1e-6
  )


@pytest.mark.parametrize(
  ("name", "kind", "reason"),
  [
    *(
      (name, kind, "expected continuous actions for a critic, found")
      for name, kind in (
        ("ddpg", "vector"),
        ("td3", "several_choices"),
        ("sac", "hybrid"),
      )
    ),
    ("sac", "unbounded", "expected actions with bounds for a critic, found"),
    ("ddpg", "continuous_masked", "environment without an action mask"),
  ],
)
def test_actions_that_a_critic_cannot_take_are_refused(name, kind, reason):
  with pytest.raises(types.ConfigError, match=reason) as error:
    ALGORITHMS[name].config().make(KINDS[kind].spec)
  assert "\n" not in str(error.value)


def test_an_optimizer_instead_of_a_function_that_makes_one_is_refused():
  with pytest.raises(types.ConfigError, match="expected a transformation that"):
    dqn.Config(transformation=optax.lion(1e-4))


def test_without_priorities_a_step_has_no_extras():
  case = case_of("dqn", "dict")
  expected, expected_core_state = case.act(seed=0)
  plain = base.without_priorities(case.agent)
  assert plain.priorities is None
  actual, core_state = jax.jit(plain.step)(
    case.acting(case.state),
    KEY,
    case.inputs,
    case.agent.initial_core_state(ROWS),
  )
  assert actual.extras == () and jax.tree.leaves(expected.extras)
  assert_equal(
    (actual.action, core_state), (expected.action, expected_core_state)
  )
  # An agent without priorities computes nothing, whatever the arguments are.
  assert base.priorities(plain)(object(), object()) == ()
  # A policy's extras are needed for learning.
  policy = vtrace_case().agent
  assert base.without_priorities(policy).step is policy.step


@pytest.mark.parametrize("names", [("vtrace", "vector"), ("dqn", "dict")])
def test_any_optax_optimizer_can_replace_the_default(names):
  """A pickled optimizer replaces the learning rate and the clipping, too."""
  case = case_of(*names)
  other = Case(
    *names,
    learning_rate=1.0,
    max_gradient_norm=1e-9,
    transformation=pickle.loads(
      pickle.dumps(functools.partial(optax.sgd, 0.25))
    ),
  )
  started = other.agent.start(case.state.params, 7)
  state = dataclasses.replace(started, statistics=case.state.statistics)
  _, learned = jax.eval_shape(other.agent.update, state, KEY, case.batch)
  assert "learning_rate" not in learned.metrics
  assert "gradient_norm" in learned.metrics
  gradients, _ = case.gradients(case.state, KEY, case.batch)
  gradients = gradients._replace(params=ones(state.params))
  for _ in range(2):
    old_params, state = state.params, other.apply(state, gradients)
    moved = jax.tree.map(
      lambda x, y: np.asarray(x) - np.asarray(y), old_params, state.params
    )
    for leaf in jax.tree.leaves(moved):
      np.testing.assert_allclose(leaf, 0.25, rtol=1e-5)


@pytest.mark.parametrize(
  "fields",
  [
    *({"discount": x} for x in (-0.1, 1.1, float("nan"))),
    {"learning_rate": float("inf")},
    {"stack_frames": 65},
    {"towers": "tied"},
    {"hidden_sizes": (64, 0)},
    {"reward_scale": float("nan")},
    {"clip_rho_threshold": -1.0},
  ],
  ids=str,
)
def test_a_setting_out_of_range_is_refused_with_its_name(fields):
  ((name, value),) = fields.items()
  wrong = re.escape(str(value[-1] if isinstance(value, tuple) else value))
  with pytest.raises(types.ConfigError, match=f"expected {name} .*{wrong}"):
    vtrace.Config(**fields)


def test_a_setting_at_the_end_of_its_range_is_accepted():
  for fields in ({"discount": 0.0}, {"discount": 1.0, "stack_frames": 64}):
    vtrace.Config(**fields)


@pytest.mark.parametrize(
  ("fields", "reason"),
  [
    ({"stack_frames": 2}, "expected stack_frames 1 for .* without images"),
    ({"normalize_observations": True}, "observations without floats"),
  ],
)
def test_an_option_without_effect_is_refused(fields, reason):
  spec = types.EnvironmentSpec(specs.DiscreteArray(4), DISCRETE)
  for algorithm in (vtrace, dqn):
    with pytest.raises(types.ConfigError, match=reason):
      algorithm.Config(**fields).make(spec)


def test_an_agent_has_an_lstm_only_if_recurrent():
  for recurrent, size in ((False, 5), (True, 5), (True, 7)):
    agent = Case("vtrace", recurrent=recurrent, lstm_size=size).agent
    core_state = jax.eval_shape(lambda a=agent: a.initial_core_state(3))
    shapes = [x.shape for x in jax.tree.leaves(core_state)]
    assert shapes == [(3, size)] * 2 * recurrent


@pytest.mark.parametrize("recurrent", [False, True])
def test_towers_apart_double_the_torso_and_the_memory(recurrent):
  def parts(towers):
    agent = Case("a2c", towers=towers, recurrent=recurrent, lstm_size=6).agent
    params = jax.eval_shape(agent.init, KEY).params["params"]
    return jax.tree.map(lambda x: x.shape, params)

  shared, apart = parts("shared"), parts("apart")
  names = ["LSTM", "Torso"] if recurrent else ["Torso"]
  assert sorted(shared) == [*(f"{x}_0" for x in names), "head"]
  assert sorted(apart) == sorted([*shared, *(f"{x}_1" for x in names)])
  for name in names:
    assert apart[f"{name}_0"] == apart[f"{name}_1"] == shared[f"{name}_0"]
  assert apart["head"] == shared["head"]


def test_an_agent_that_needs_whole_batches_cannot_share_gradients():
  base.check_gradients_can_be_shared(vtrace_case().agent)
  with pytest.raises(types.ConfigError, match="applies the gradients"):
    base.check_gradients_can_be_shared(Case("ppo").agent)


@pytest.mark.parametrize(
  ("env_steps", "steps_per_update", "updates"),
  [(1000, 32.0, 31), (10, 1000, 1), (1000, 2.5, 400)],
)
def test_a_horizon_converts_env_steps_to_updates(
  env_steps, steps_per_update, updates
):
  horizon = base.Horizon.of(env_steps, steps_per_update)
  assert horizon == base.Horizon(env_steps, updates)


@pytest.mark.parametrize(
  ("window", "length"), [(None, 21), (1, 20), (2, 21), (6, 25)]
)
def test_an_unroll_has_unroll_length_new_steps(window, length):
  assert base.Needs(window).time_steps(20) == length
