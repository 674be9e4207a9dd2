"""One contract for every agent, whatever it observes and does."""

import dataclasses
import functools
import pickle
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from seedx import types
from seedx.agents import (
  a2c,
  acting_step,
  base,
  dqn,
  policy_gradient,
  ppo,
  r2d2,
  rainbow,
  value_based,
  vtrace,
)
from tests import conftest, programs

compiled_quickly = programs.compiled_quickly

LENGTH, BATCH, ROWS = 5, 3, 32
DISCRETE = specs.DiscreteArray(5)
IMAGE = specs.BoundedArray((1, 36, 36), np.uint8, 0, 255)
VECTOR = specs.Array((4,), np.float32)


@dataclasses.dataclass(frozen=True)
class Kind:
  """What an environment is like, and how the agent is configured for it."""

  observation: types.Tree
  action: specs.BoundedArray = dataclasses.field(
    default_factory=lambda: DISCRETE
  )
  config: dict[str, Any] = dataclasses.field(default_factory=dict)
  action_mask: str | None = None

  @property
  def spec(self):
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
  # Its actions have another type than the policy's samples.
  "integer": Kind(specs.DiscreteArray(16), specs.DiscreteArray(5, np.uint8)),
  "continuous": Kind(
    VECTOR, specs.BoundedArray((2,), np.float32, -1.0, [1.0, 3.0])
  ),
  "masked": Kind(
    {"observation": VECTOR, "legal": specs.Array((5,), bool)},
    action_mask="legal",
  ),
  "several_choices": Kind(
    VECTOR, specs.BoundedArray((3,), np.int32, 0, [4, 1, 2])
  ),
  "recurrent": Kind(
    {"a": VECTOR, "b": IMAGE}, config={"recurrent": True, "lstm_size": 8}
  ),
  "recurrent_bfloat16": Kind(
    VECTOR,
    specs.BoundedArray((2,), np.float32, -1.0, [1.0, 3.0]),
    config={"recurrent": True, "lstm_size": 8, "compute_dtype": "bfloat16"},
  ),
  "normalized": Kind(
    {"joints": VECTOR, "choice": specs.DiscreteArray(3)},
    config={"normalize_observations": True},
  ),
  "resnet": Kind(IMAGE, config={"image_torso": "impala"}),
  "dict_bfloat16": Kind(
    {"camera": IMAGE, "joints": VECTOR},
    config={"stack_frames": 2, "compute_dtype": "bfloat16"},
  ),
}


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """An agent's configs, and what it learns from.

  Attributes:
    config: of the fields that every agent has.
    batch: `(agent, spec, seed) -> batch` of numbers of the right types.
    kinds: what it can observe and do.
    horizon: of its run.
  """

  config: Callable[..., Any]
  batch: Callable[..., types.Tree]
  kinds: tuple[str, ...] = tuple(KINDS)
  horizon: base.Horizon | None = None


def unrolls(agent, spec, seed, length=LENGTH):
  ends = np.linspace(0.0, 0.5, BATCH)
  return conftest.random_unroll(agent, spec, length, ends, seed)


def samples(agent, spec, seed):
  unroll = unrolls(agent, spec, seed, agent.needs.window)
  weights = np.linspace(0.5, 1.5, BATCH, dtype=np.float32)
  return types.Sample(unroll, weights)


DISCRETE_ONLY = tuple(
  name
  for name, kind in KINDS.items()
  if isinstance(kind.action, specs.DiscreteArray)
  and "recurrent" not in kind.config
)

ALGORITHMS = {
  # All but its loss is V-trace's too.
  "a2c": Algorithm(a2c.Config, unrolls, ("vector", "masked", "recurrent")),
  "vtrace": Algorithm(vtrace.Config, unrolls),
  "ppo": Algorithm(functools.partial(ppo.Config, minibatches=3), unrolls),
  "dqn": Algorithm(
    functools.partial(
      dqn.Config,
      n_step=3,
      dueling=True,
      learning_rate_end=1.0,
      epsilon_steps=800,
    ),
    samples,
    DISCRETE_ONLY,
    # Its epsilon falls over 100 updates.
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
      epsilon_end=0.6,
    ),
    samples,
    ("vector", "image", "masked"),
  ),
  "rainbow": Algorithm(
    functools.partial(
      rainbow.Config, num_atoms=7, noise_scale=3.0, learning_rate_end=1.0
    ),
    samples,
    ("vector", "image", "masked"),
  ),
}


class Case:
  """An agent with its functions jitted, shared by the tests of one kind."""

  def __init__(self, algorithm, kind):
    self.algorithm, self.kind = ALGORITHMS[algorithm], KINDS[kind]
    self.spec = self.kind.spec
    self.config = self.algorithm.config(
      hidden_sizes=(16,), reward_scale=1.0, **self.kind.config
    )
    self.agent = self.config.make(self.spec, None, self.algorithm.horizon)
    self.init = jax.jit(self.agent.init)
    self.step = jax.jit(self.agent.step)
    self.greedy = jax.jit(self.agent.greedy)
    self.gradients = jax.jit(self.agent.gradients)
    self.apply = jax.jit(self.agent.apply)
    self.update = jax.jit(self.agent.update)

  @functools.cached_property
  def state(self):
    return self.init(jax.random.key(0))

  @functools.cached_property
  def batch(self):
    return self.algorithm.batch(self.agent, self.spec, 1)

  def act(self, seed, core_state=None, state=None):
    rng = np.random.default_rng(0)
    inputs = acting_step.zero_inputs(self.spec, ROWS)
    observation = jax.tree.map(
      lambda x: conftest.random_values(rng, x, (ROWS,)),
      self.spec.observation,
    )
    if self.spec.action_mask is not None:
      observation[self.spec.action_mask][:, 3] = True
    inputs = inputs._replace(
      timestep=inputs.timestep._replace(observation=observation)
    )
    if core_state is None:
      core_state = self.agent.initial_core_state(ROWS)
    acting = self.agent.acting(state or self.state)
    self.acted_on, self.inputs = observation, inputs
    return self.step(acting, jax.random.key(seed), inputs, core_state)


# Each has some of what is particular.
FAST = [
  ("a2c", "vector"),
  ("vtrace", "masked"),
  ("vtrace", "recurrent_bfloat16"),
  ("ppo", "normalized"),
  ("dqn", "dict"),
  ("r2d2", "vector"),
  ("rainbow", "masked"),
]


@pytest.fixture(
  scope="module",
  params=conftest.slow_but(
    [(case,) for case in FAST],
    [
      ((name, kind),)
      for name, algorithm in ALGORITHMS.items()
      for kind in algorithm.kinds
    ],
  ),
  ids="-".join,
)
def case(request):
  return Case(*request.param)


def signature(nest):
  """Shapes and types: what a program is compiled for."""
  return jax.tree.map(
    lambda x: (x.shape, jnp.result_type(x), jnp.asarray(x).weak_type), nest
  )


def assert_equal(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


def difference(a, b):
  """The largest absolute difference of two nests of floats."""
  gaps = jax.tree.map(lambda x, y: float(jnp.max(jnp.abs(x - y))), a, b)
  return max(jax.tree.leaves(gaps))


# The contract


def test_parameters_are_float32_and_nothing_has_been_learned(case):
  params = jax.tree.leaves(case.state.params)
  assert {x.dtype for x in params} == {jnp.dtype("float32")}
  assert all(np.isfinite(x).all() for x in params)
  assert (case.state.updates.shape, case.state.updates.dtype) == ((), jnp.int32)
  assert case.state.updates == 0


def test_keys_decide_the_initial_parameters(case):
  assert_equal(case.init(jax.random.key(0)).params, case.state.params)
  other = case.init(jax.random.key(1)).params
  assert difference(other, case.state.params) > 0.01


def test_step_shapes_and_the_actions_allowed(case):
  output, core_state = case.act(seed=0)
  spec = case.spec.action
  assert output.action.shape == (ROWS, *spec.shape)
  assert output.action.dtype == spec.dtype
  if isinstance(spec, specs.DiscreteArray):
    assert output.action.min() >= 0
    assert output.action.max() < spec.num_values
  if case.spec.action_mask is not None:
    legal = case.acted_on[case.spec.action_mask]
    assert legal[np.arange(ROWS), output.action].all()
    assert not legal.all()
  for leaf in jax.tree.leaves(output.extras):
    assert leaf.shape[0] == ROWS
    assert np.isfinite(leaf).all()
  initial = case.agent.initial_core_state(ROWS)
  assert signature(core_state) == signature(initial)


def test_one_key_repeats_its_actions_and_two_differ(case):
  actions = [case.act(seed)[0].action for seed in (0, 0, 1)]
  np.testing.assert_array_equal(actions[0], actions[1])
  assert np.mean(np.asarray(actions[0]) != np.asarray(actions[2])) > 0.25


def test_rows_of_a_batch_act_differently(case):
  # The same row many times: what differs comes from the key alone.
  inputs = acting_step.zero_inputs(case.spec, ROWS)
  if case.spec.action_mask is not None:
    inputs.timestep.observation[case.spec.action_mask][:, 1:3] = True
  output, _ = case.step(
    case.agent.acting(case.state),
    jax.random.key(0),
    inputs,
    case.agent.initial_core_state(ROWS),
  )
  assert len(np.unique(output.action, axis=0)) > 1


def test_greedy_is_the_best_action_whatever_the_key_and_exploration(case):
  if any(len(x.shape) == 3 for x in jax.tree.leaves(case.kind.observation)):
    pytest.skip("a network for images takes long to compile")
  drawn = [case.act(seed) for seed in range(4)]
  acting = case.agent.acting(case.state)
  initial = case.agent.initial_core_state(ROWS)
  best, core_state = case.greedy(
    acting, jax.random.key(0), case.inputs, initial
  )
  exploring = case.inputs._replace(exploration=np.ones(ROWS, np.float32))
  again = case.greedy(acting, jax.random.key(1), exploring, initial)
  assert_equal(again, (best, core_state))
  noisy = isinstance(core_state, value_based.NoisyCoreState)
  for output, drawn_core_state in drawn:
    if noisy:  # There is a seed, too, of the noise that greedy steps lack.
      assert len(np.unique(drawn_core_state.seed)) == ROWS
      drawn_core_state, core_state = drawn_core_state.network, ()
    assert signature(output) == signature(best)
    assert np.any(output.action != best.action)
    assert (
      difference(core_state, drawn_core_state) < 1e-5
      if (jax.tree.leaves(core_state))
      else True
    )
    if isinstance(best.extras, policy_gradient.Extras):
      # None of those that are drawn is likelier.
      gap = best.extras.log_prob - output.extras.log_prob
      assert gap.min() >= -1e-5 and gap.max() > 1e-5
  if isinstance(acting, value_based.Acting) and not noisy:
    without = acting._replace(epsilon=jnp.zeros_like(acting.epsilon))
    expected, _ = case.step(without, jax.random.key(2), case.inputs, initial)
    assert_equal(best, expected)


def test_gradients_are_of_the_parameters_and_finite(case):
  gradients, output = case.gradients(case.state, jax.random.key(0), case.batch)
  assert signature(gradients.params) == signature(case.state.params)
  for moment in gradients.moments:
    assert signature(moment) == signature(case.state.statistics.mean)
  largest = [float(np.abs(x).max()) for x in jax.tree.leaves(gradients.params)]
  assert np.isfinite(largest).all()
  assert all(x > 0 for x in largest)
  assert output.weight.shape == ()
  assert output.weight > 0
  assert output.metrics
  for value in output.metrics.values():
    assert value.shape == ()
    assert np.isfinite(value)
  if output.priorities is not None:
    assert output.priorities.shape == (BATCH,)


def test_update_is_its_gradients_applied(case):
  if case.agent.needs.whole_batches:
    pytest.skip("it takes several steps, and has a test of its own")
  key = jax.random.key(0)
  gradients, expected_output = case.gradients(case.state, key, case.batch)
  expected = case.apply(case.state, gradients)
  actual, output = case.update(case.state, key, case.batch)
  for a, b in ((actual, expected), (output, expected_output)):
    # Two programs may round differently; Adam makes up to its rate of that.
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=1e-5), a, b
    )
  assert difference(actual.params, case.state.params) > 1e-4


def test_update_keeps_the_form_counts_and_compiles_once(case):
  key = jax.random.key(0)
  state, _ = case.update(case.state, key, case.batch)
  again, output = case.update(state, key, case.batch)
  assert signature(again) == signature(state) == signature(case.state)
  assert [int(s.updates) for s in (case.state, state, again)] == [0, 1, 2]
  assert all(np.isfinite(x) for x in output.metrics.values())
  assert case.update._cache_size() == 1
  case.gradients(case.state, key, case.batch)
  gradients, _ = case.gradients(again, key, case.batch)
  case.apply(case.state, gradients)
  case.apply(again, gradients)
  assert case.gradients._cache_size() == 1
  assert case.apply._cache_size() == 1


def test_step_compiles_once_for_a_batch_size(case):
  _, core_state = case.act(seed=0)
  state, _ = case.update(case.state, jax.random.key(0), case.batch)
  case.act(seed=1, core_state=core_state, state=state)
  assert case.step._cache_size() == 1


def test_the_learning_rate_changes_without_compiling(case):
  key = jax.random.key(0)
  with_rate = [
    dataclasses.replace(
      case.state,
      hyperparameters=case.state.hyperparameters
      | {"learning_rate": jnp.float32(rate)},
    )
    for rate in (0.0, 1e-3, 2e-3)
  ]
  params = [case.update(s, key, case.batch)[0].params for s in with_rate]
  assert_equal(params[0], case.state.params)
  small, large = (difference(p, params[0]) for p in params[1:])
  # The second of several steps depends on the first.
  rel = 0.5 if case.agent.needs.whole_batches else 1e-3
  assert large == pytest.approx(2 * small, rel=rel)
  assert case.update._cache_size() == 1


def test_acting_is_an_output_of_init_too(case):
  acting = jax.eval_shape(
    lambda key: case.agent.acting(case.agent.init(key)), jax.random.key(0)
  )
  actual = case.agent.acting(case.state)
  assert jax.tree.structure(acting) == jax.tree.structure(actual)


def test_a_state_that_was_saved_goes_on_as_if_it_had_not_been(case, tmp_path):
  key = jax.random.key(0)
  state, _ = case.update(case.state, key, case.batch)
  leaves = [np.asarray(x) for x in jax.tree.leaves(state)]
  np.savez(tmp_path / "state.npz", *leaves)
  # All that another process has is the agent, and so the state's structure.
  shapes = jax.eval_shape(case.agent.init, key)
  with np.load(tmp_path / "state.npz") as file:
    restored = jax.tree.unflatten(
      jax.tree.structure(shapes), [file[name] for name in file.files]
    )
  assert signature(restored) == signature(state)
  expected, output = case.update(state, key, case.batch)
  actual, actual_output = case.update(restored, key, case.batch)
  assert_equal((actual, actual_output), (expected, output))


SPEC = KINDS["vector"].spec
# What may change at run time, and a value that is not the default.
CHANGED = {
  "learning_rate": 5e-3,
  "discount": 0.5,
  "td_lambda": 0.3,
  "value_cost": 2.0,
  "entropy_cost": 1.0,
}
CHANGED_OF = {
  "a2c": CHANGED,
  "vtrace": CHANGED | {"clip_rho_threshold": 0.2, "clip_pg_rho_threshold": 0.2},
  "ppo": CHANGED | {"clip_epsilon": 1e-3},
  "dqn": {"learning_rate": 5e-3, "discount": 0.5, "epsilon_end": 0.6},
}


class Functions:
  """All that an agent does, jitted; of no other test, to count programs."""

  def __init__(self, algorithm, **fields):
    self._algorithm = ALGORITHMS[algorithm]
    # Small gradients are to be small steps, and none is to be cut.
    config = self._algorithm.config(
      hidden_sizes=(8,), max_gradient_norm=1e9, adam_epsilon=1.0, **fields
    )
    self.agent = config.make(SPEC, None, self._algorithm.horizon)
    self.batch = self._algorithm.batch(self.agent, SPEC, 1)
    names = "acting", "step", "gradients", "update", "priorities"
    functions = {name: getattr(self.agent, name) for name in names}
    self._jitted = {
      name: jax.jit(lambda *x, function=function: function(*x))
      for name, function in functions.items()
      if function is not None
    }

  @functools.cached_property
  def state(self):
    """Whose policy is far from uniform, so that its entropy matters."""
    state = jax.jit(self.agent.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    params, target_params = (
      jax.tree.map(
        lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), x
      )
      for x in (state.params, state.target_params)
    )
    # In the middle of epsilon's fall.
    return dataclasses.replace(
      state,
      params=params,
      target_params=target_params,
      updates=jnp.int32(50),
    )

  def __call__(self, state):
    """What it says of a state, by the name of the function."""
    key, run = jax.random.key(0), self._jitted
    inputs = acting_step.zero_inputs(SPEC, 1000)
    acting = run["acting"](state)
    core_state = self.agent.initial_core_state(1000)
    said = {
      "acting": acting,
      "step": run["step"](acting, key, inputs, core_state)[0].action,
      "gradients": run["gradients"](state, key, self.batch)[0].params,
      "update": run["update"](state, key, self.batch)[0].params,
    }
    if "priorities" in run:
      said["priorities"] = run["priorities"](acting, self.batch.unroll)
    return said

  def compiled(self):
    return {f._cache_size() for f in self._jitted.values()}


@functools.cache
def functions_of(algorithm):
  return Functions(algorithm)


def test_every_hyperparameter_of_a_state_is_tested_below():
  for algorithm, changed in CHANGED_OF.items():
    agent = functions_of(algorithm).agent
    state = jax.eval_shape(agent.init, jax.random.key(0))
    assert set(state.hyperparameters) == set(changed)


@pytest.mark.parametrize(
  ("algorithm", "name"),
  conftest.slow_but(
    [("a2c", "td_lambda")],
    [(kind, name) for kind, names in CHANGED_OF.items() for name in names],
  ),
)
def test_a_hyperparameter_of_the_state_is_as_good_as_of_the_config(
  algorithm, name
):
  """Changed at run time, it does what it had done from the start."""
  value = CHANGED_OF[algorithm][name]
  functions = functions_of(algorithm)
  before = functions.state
  changed = dataclasses.replace(
    before, hyperparameters=before.hyperparameters | {name: jnp.float32(value)}
  )
  plain, actual = functions(before), functions(changed)
  assert functions.compiled() == {1}
  other = Functions(algorithm, **{name: value})
  assert other.state.hyperparameters == changed.hyperparameters
  expected = other(other.state)
  affected = {
    "learning_rate": {"update"},
    "epsilon_end": {"acting", "step"},
    # Actors compute priorities with it.
    "discount": {"gradients", "update"}
    | ({"acting", "priorities"} if algorithm == "dqn" else set()),
  }.get(name, {"gradients", "update"})
  for function, said in actual.items():
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
      said,
      expected[function],
    )
    gap = max(
      float(np.max(np.abs(np.float64(a) - np.float64(b))))
      for a, b in zip(
        jax.tree.leaves(said), jax.tree.leaves(plain[function]), strict=True
      )
    )
    assert (gap > 1e-5) == (function in affected), (function, gap)


# The actor-critics


@functools.cache
def agent_of(horizon=None, **fields):
  fields = {"hidden_sizes": (8,), "reward_scale": 1.0, **fields}
  return vtrace.Config(**fields).make(SPEC, None, horizon)


@functools.cache
def initial_state(**fields):
  """A state whose policy is far from uniform, so that its entropy matters."""
  state = jax.jit(agent_of(**fields).init)(jax.random.key(0))
  rng = np.random.default_rng(0)
  return dataclasses.replace(
    state,
    params=jax.tree.map(
      lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32),
      state.params,
    ),
  )


def gradients_of(agent, unroll, state=None):
  gradients, output = jax.jit(agent.gradients)(
    state or initial_state(), jax.random.key(0), unroll
  )
  return gradients.params, output


def with_reward(unroll, reward):
  timestep = unroll.inputs.timestep._replace(reward=np.float32(reward))
  return unroll._replace(inputs=unroll.inputs._replace(timestep=timestep))


@pytest.mark.parametrize(
  ("fields", "as_seen"),
  [
    ({"reward_scale": 0.5}, lambda r: 0.5 * r),
    ({"reward_clip": 1.0}, lambda r: np.clip(r, -1, 1)),
    (
      {"reward_scale": 0.1, "reward_clip": 0.5},
      lambda r: np.clip(0.1 * r, -0.5, 0.5),
    ),
  ],
)
def test_rewards_are_scaled_then_clipped_in_the_loss(fields, as_seen):
  unroll = unrolls(agent_of(), SPEC, 0)
  reward = 6 * unroll.inputs.timestep.reward
  assert np.abs(reward).max() > 5
  actual, _ = gradients_of(agent_of(**fields), with_reward(unroll, reward))
  expected, _ = gradients_of(agent_of(), with_reward(unroll, as_seen(reward)))
  assert difference(actual, expected) < 1e-6
  raw, _ = gradients_of(agent_of(), with_reward(unroll, reward))
  assert difference(actual, raw) > 1e-3


def test_loss_is_a_mean_over_the_steps_that_are_experience():
  unroll = unrolls(agent_of(), SPEC, 0)
  _, output = gradients_of(agent_of(), unroll)
  first = unroll.inputs.timestep.step_type[1:] == dm_env.StepType.FIRST
  assert first.sum() > 0
  assert output.weight == np.sum(~first)
  # Twice the same streams: the same mean, twice the weight.
  twice = jax.tree.map(lambda x: np.concatenate([x, x], axis=1), unroll)
  _, other = gradients_of(agent_of(), twice)
  assert other.weight == 2 * output.weight
  for name, value in output.metrics.items():
    assert other.metrics[name] == pytest.approx(float(value), rel=1e-4)


def with_hyperparameters(**values):
  values = {name: jnp.float32(value) for name, value in values.items()}
  return dataclasses.replace(
    initial_state(), hyperparameters=initial_state().hyperparameters | values
  )


def test_config_decides_the_initial_hyperparameters():
  expected = {
    "learning_rate": 0.25,
    "discount": 0.75,
    "td_lambda": 0.5,
    "value_cost": 2.0,
    "entropy_cost": 0.125,
    "clip_rho_threshold": 3.0,
    "clip_pg_rho_threshold": 4.0,
  }
  state = jax.jit(agent_of(**expected).init)(jax.random.key(0))
  assert state.hyperparameters == expected
  assert all(x.dtype == jnp.float32 for x in state.hyperparameters.values())


def test_costs_weigh_the_parts_of_the_loss():
  unroll = unrolls(agent_of(), SPEC, 0)

  def gradients(value_cost, entropy_cost):
    state = with_hyperparameters(
      value_cost=value_cost, entropy_cost=entropy_cost
    )
    return gradients_of(agent_of(), unroll, state)[0]

  policy = gradients(0.0, 0.0)
  parts = [gradients(1.0, 0.0), gradients(0.0, 1.0)]
  assert all(difference(part, policy) > 1e-3 for part in parts)
  expected = jax.tree.map(
    lambda p, v, e: p + 0.5 * (v - p) + 0.25 * (e - p), policy, *parts
  )
  assert difference(gradients(0.5, 0.25), expected) < 1e-5


def test_entropy_cost_acts_at_run_time_without_compiling():
  agent = agent_of()
  # A function of its own, whose compilations no other test shares.
  gradients = jax.jit(lambda *arguments: agent.gradients(*arguments))
  unroll = unrolls(agent, SPEC, 0)
  none, one, two = (
    gradients(
      with_hyperparameters(entropy_cost=cost), jax.random.key(0), unroll
    )[0]
    for cost in (0.0, 1.0, 2.0)
  )
  none, one, two = none.params, one.params, two.params
  assert difference(one, none) > 1e-3
  assert difference(two, none) == pytest.approx(
    2 * difference(one, none), rel=1e-3
  )
  assert gradients._cache_size() == 1


def test_log_prob_of_acting_is_that_of_learning():
  # Acted by the parameters that learn, rho is 1: thresholds cut nothing.
  agent = agent_of()
  uncut = with_hyperparameters(
    clip_rho_threshold=1e6, clip_pg_rho_threshold=1e6
  )
  step = jax.jit(agent.step)
  unroll = unrolls(agent, SPEC, 0)
  core_state = agent.initial_core_state(BATCH)
  outputs = []
  for t in range(LENGTH):
    inputs = jax.tree.map(lambda x, t=t: x[t], unroll.inputs)
    output, core_state = step(
      agent.acting(initial_state()), jax.random.key(t), inputs, core_state
    )
    outputs.append(output)
  acted = jax.tree.map(lambda *x: np.stack(x), *outputs)
  unroll = unroll._replace(action=acted.action, extras=acted.extras)
  expected, _ = gradients_of(agent, unroll, uncut)
  clipped, _ = gradients_of(agent, unroll)
  assert difference(expected, clipped) < 1e-5


@pytest.mark.parametrize(
  ("updates", "end", "expected"),
  [
    (4, 0.2, [0.1, 0.08, 0.06, 0.04, 0.02, 0.02, 0.02]),
    (4, 1.0, [0.1, 0.1, 0.1, 0.1, 0.1, 0.1]),
    # More than JAX's integers count to.
    (2**62, 0.2, [0.1, 0.1, 0.1]),
    (None, 0.2, [0.1, 0.1, 0.1]),
  ],
)
def test_learning_rate_falls_linearly_and_then_stays(updates, end, expected):
  horizon = updates and base.Horizon(env_steps=100, updates=updates)
  agent = agent_of(horizon, learning_rate_end=end)
  state, rates = with_hyperparameters(learning_rate=0.1), []
  # Adam's step is as large as the rate while the gradient stays the same.
  gradients = base.Gradients(jax.tree.map(jnp.ones_like, state.params))
  apply = jax.jit(agent.apply)
  for _ in expected:
    before, state = state, apply(state, gradients)
    rates.append(difference(state.params, before.params))
  np.testing.assert_allclose(rates, expected, rtol=1e-2)


def test_gradients_are_clipped_by_their_global_norm():
  agent = agent_of(max_gradient_norm=1.0, adam_epsilon=1.0)
  gradients = base.Gradients(
    jax.tree.map(jnp.ones_like, initial_state().params)
  )
  apply = jax.jit(agent.apply)
  one = apply(initial_state(), gradients)
  ten = apply(initial_state(), jax.tree.map(lambda x: 10 * x, gradients))
  assert difference(one.params, initial_state().params) > 1e-5
  assert difference(one.params, ten.params) < 1e-8
  small = apply(initial_state(), jax.tree.map(lambda x: 1e-3 * x, gradients))
  assert difference(one.params, small.params) > 1e-5


def test_an_optimizer_that_is_none_is_refused():
  with pytest.raises(types.ConfigError, match="expected a transformation that"):
    dqn.Config(transformation=optax.lion(1e-4))


@pytest.mark.parametrize("name", ["dqn", "rainbow"])
def test_without_priorities_a_step_has_no_extras(name):
  algorithm = ALGORITHMS[name]
  agent = algorithm.config(hidden_sizes=(8,)).make(SPEC)
  acting = agent.acting(agent.init(jax.random.key(0)))
  inputs = acting_step.zero_inputs(SPEC, 4)
  start = agent.initial_core_state(4)
  plain = base.without_priorities(agent)
  assert plain.priorities is None
  one, after = agent.step(acting, jax.random.key(1), inputs, start)
  two, same = plain.step(acting, jax.random.key(1), inputs, start)
  assert two.extras == () and jax.tree.leaves(one.extras)
  assert_equal((two.action, same), (one.action, after))
  # Those of a policy are for learning.
  policy = a2c.Config(hidden_sizes=(8,)).make(SPEC)
  assert base.without_priorities(policy).step is policy.step


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_optax_optimizer_takes_the_place_of_ours(name):
  """Rate and clipping included; another process can make it, too."""
  algorithm = ALGORITHMS[name]
  config = algorithm.config(
    hidden_sizes=(8,),
    learning_rate=1.0,
    max_gradient_norm=1e-9,
    transformation=functools.partial(optax.sgd, 0.25),
  )
  config = pickle.loads(pickle.dumps(config))
  agent = config.make(SPEC, None, base.Horizon(env_steps=100, updates=1))
  state = jax.jit(agent.init)(jax.random.key(0))
  gradients = base.Gradients(jax.tree.map(jnp.ones_like, state.params))
  for _ in range(2):
    before, state = state, jax.jit(agent.apply)(state, gradients)
    moved = jax.tree.map(lambda x, y: x - y, before.params, state.params)
    for leaf in jax.tree.leaves(moved):
      np.testing.assert_allclose(leaf, 0.25, rtol=1e-5)
  key, batch = jax.random.key(0), algorithm.batch(agent, SPEC, 1)
  _, output = jax.jit(agent.update)(state, key, batch)
  assert "learning_rate" not in output.metrics
  assert output.metrics["gradient_norm"] > 0
  started = agent.start(state.params, 7)
  assert jax.tree.structure(started.optimizer_state) == jax.tree.structure(
    state.optimizer_state
  )


@pytest.mark.parametrize(
  "fields",
  [
    *({"discount": x} for x in (-0.1, 1.1, float("nan"))),
    *({"learning_rate": x} for x in (-1e-3, float("inf"), float("nan"))),
    *({"learning_rate_end": x} for x in (-0.1, 1.1, float("nan"))),
    {"max_gradient_norm": 0.0},
    {"value_cost": -1.0},
    {"entropy_cost": -1.0},
    {"reward_clip": -1.0},
    *({"stack_frames": x} for x in (0, 65)),
    *({"compute_dtype": x} for x in ("float16", "float64", "")),
  ],
  ids=str,
)
@pytest.mark.parametrize("config", [policy_gradient.Config, ppo.Config])
def test_config_out_of_range_is_refused_with_its_name(config, fields):
  ((name, value),) = fields.items()
  with pytest.raises(types.ConfigError, match=f"expected {name} .*{value}"):
    config(**fields)


@pytest.mark.parametrize(
  "fields",
  [{"discount": 0.0}, {"discount": 1.0}, {"stack_frames": 64}],
  ids=str,
)
def test_config_at_the_end_of_its_range_is_taken(fields):
  vtrace.Config(**fields)


@pytest.mark.parametrize(
  "fields",
  [
    *({"td_lambda": x} for x in (-0.1, 1.1)),
    *({"lstm_size": x} for x in (0, 2**16 + 1)),
    {"clip_rho_threshold": -1.0},
    {"clip_pg_rho_threshold": float("nan")},
    {"reward_scale": float("nan")},
    {"hidden_sizes": (64, 0)},
  ],
  ids=str,
)
def test_config_of_vtrace_out_of_range_is_refused_with_its_name(fields):
  with pytest.raises(types.ConfigError, match=f"expected {next(iter(fields))}"):
    vtrace.Config(**fields)


def test_action_spec_without_a_policy_is_refused():
  spec = types.EnvironmentSpec(VECTOR, specs.BoundedArray((), float, -1, 1))
  with pytest.raises(types.ConfigError, match="finite bounds"):
    vtrace.Config().make(spec)


@pytest.mark.parametrize(
  ("fields", "reason"),
  [
    ({"stack_frames": 2}, "expected stack_frames 1 for .* without images"),
    ({"normalize_observations": True}, "observations without floats"),
  ],
)
@pytest.mark.parametrize("algorithm", [vtrace, dqn])
def test_what_would_do_nothing_is_refused(algorithm, fields, reason):
  spec = types.EnvironmentSpec(specs.DiscreteArray(4), DISCRETE)
  with pytest.raises(types.ConfigError, match=reason):
    algorithm.Config(**fields).make(spec)


def test_an_lstm_is_there_where_it_is_asked_for():
  sizes = {
    (recurrent, size): sorted(
      {
        leaf.shape
        for leaf in jax.tree.leaves(
          agent_of(recurrent=recurrent, lstm_size=size).initial_core_state(3)
        )
      }
    )
    for recurrent in (False, True)
    for size in (5, 7)
  }
  assert sizes == {
    (False, 5): [],
    (False, 7): [],
    (True, 5): [(3, 5)],
    (True, 7): [(3, 7)],
  }


def test_what_has_no_gradients_to_share_is_refused():
  base.check_gradients_can_be_shared(vtrace.Config().make(SPEC))
  with pytest.raises(types.ConfigError, match="applies the gradients"):
    base.check_gradients_can_be_shared(ppo.Config().make(SPEC))


@pytest.mark.parametrize(
  ("env_steps", "steps_per_update", "updates"),
  [(1000, 100, 10), (1000, 32.0, 31), (10, 1000, 1), (1000, 2.5, 400)],
)
def test_a_horizon_counts_updates(env_steps, steps_per_update, updates):
  horizon = base.Horizon.of(env_steps, steps_per_update)
  assert horizon == base.Horizon(env_steps, updates)


@pytest.mark.parametrize(
  ("window", "length"), [(None, 21), (1, 20), (2, 21), (6, 25)]
)
def test_unroll_length_brings_that_many_new_steps(window, length):
  assert base.Needs(window).unroll_length(20) == length
