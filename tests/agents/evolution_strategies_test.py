"""ES and ARS: noise, weights of pairs, and updates."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import envs, sharding, types
from seedx.agents import acting_step, base, evolution, normalizer
from seedx.learning import learner
from seedx.pipelines import sync
from seedx.runtime import process

SPEC = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)
CONFIG = evolution.Config(hidden_sizes=(8,), normalize_observations=True)
AGENT = CONFIG.make(SPEC)
STATE = jax.jit(AGENT.init)(jax.random.key(0))
KEY = jax.random.key(0)
UPDATE = jax.jit(AGENT.update)
GRADIENTS = jax.jit(AGENT.gradients)
PAIRS = 8


def fitness(returns, first=0):
  """Returns a batch of pairs with observations of mean 2 and variance 1."""
  offset = (np.full(4, 12, np.float32),)
  square = (np.full(4, 30, np.float32),)
  return evolution.Fitness(
    np.int32(0),
    np.arange(first, first + len(returns), dtype=np.int32),
    np.float32(returns),
    np.full((len(returns), 2), 5, np.int32),
    normalizer.Totals(np.float32(6), offset, square),
  )


def random_returns(seed=0, pairs=PAIRS):
  return np.random.default_rng(seed).normal(size=(pairs, 2))


def ranks_of(values):
  """Returns average ranks from 0, by counting."""
  values = np.asarray(values)
  return np.array(
    [np.sum(values < x) + (np.sum(values == x) - 1) / 2 for x in values]
  )


def test_the_estimate_of_a_quadratics_gradient_is_unbiased():
  sigma, draws = 0.3, 10_000
  curvature = jnp.diag(jnp.float32([1.0, 3.0, 0.2]))
  centre = jnp.float32([0.5, -1.0, 2.0])

  def value(x):
    return -0.5 * x @ curvature @ x + x.sum()

  @jax.jit
  def estimates(pair):
    state = base.AgentState(centre, (), {"sigma": sigma}, 0)
    values = jax.vmap(value)(evolution.members(state, pair).params)
    plus, minus = values[::2], values[1::2]
    weight = (plus - minus) / (2 * sigma)
    noise = jax.vmap(functools.partial(evolution.noise, centre))(pair)
    summed = evolution.weighted_noise(centre, pair, weight)
    return weight[:, None] * noise, summed

  each, summed = estimates(jnp.arange(draws))
  expected = jax.grad(value)(centre)
  error = np.std(each, axis=0) / np.sqrt(draws)
  z = (np.mean(each, axis=0) - expected) / error
  assert np.all(np.abs(z) < 3.5) and np.all(error < 0.1)
  np.testing.assert_allclose(summed / draws, np.mean(each, axis=0), rtol=1e-3)


def test_ranks_of_ties_are_averages_and_equal_returns_have_no_weight():
  returns = np.float32([[3, 1], [1, 1], [7, -2], [9, 9]])
  valid = np.array([True, True, True, False])
  ranks = evolution.centred_ranks(returns * valid[:, None], valid)
  expected = ranks_of(returns[:3].ravel()) / 5 - 0.5
  np.testing.assert_allclose(ranks[:3].ravel(), expected, atol=1e-6)
  weights = CONFIG.weights(returns, valid)
  expected = expected.reshape(3, 2)
  np.testing.assert_allclose(
    weights[:3], (expected[:, 0] - expected[:, 1]) / 3, atol=1e-6
  )
  assert weights[3] == 0
  equal = CONFIG.weights(np.ones((4, 2), np.float32), np.ones(4, bool))
  assert not np.any(equal)


def test_ars_weighs_the_best_pairs_by_their_deviation():
  config = evolution.ARSConfig(top_pairs=2)
  # Two pairs tie at the second place; the last one is left out.
  returns = np.float32([[5, 1], [3, 9], [4, 5], [0, 2], [0, 0]])
  valid = np.array([True] * 4 + [False])
  kept = returns[:3]
  expected = (kept[:, 0] - kept[:, 1]) / (3 * np.std(kept))
  weights = config.weights(returns, valid)
  np.testing.assert_allclose(weights[:3], expected, rtol=1e-5)
  assert not np.any(weights[3:])


def test_ars_begins_with_actions_of_0_and_a_torso_that_is_not():
  agent = evolution.ARSConfig(hidden_sizes=(4,)).make(SPEC)
  layers = jax.jit(agent.init)(KEY).params["params"]
  head = jax.tree.leaves(layers.pop("head"))
  assert not any(np.any(x) for x in head)
  assert any(np.any(x) for x in jax.tree.leaves(layers))


def test_ars_with_equal_returns_makes_no_update():
  agent = evolution.ARSConfig(sigma=0.1).make(SPEC)
  state = jax.jit(agent.init)(KEY)
  assert not any(np.any(x) for x in jax.tree.leaves(state.params))
  batch = fitness(np.full((4, 2), 7.0))._replace(totals=())
  update = jax.jit(agent.update)
  after, _ = update(state, KEY, batch)
  chex.assert_trees_all_equal(after.params, state.params)
  assert after.updates == 1
  # Otherwise it is a step of the learning rate times the weighted noise.
  returns = np.float32([[1, 2], [3, 3], [0, 4], [2, 1]])
  after, _ = update(state, KEY, batch._replace(returns=returns))
  weight = (returns[:, 0] - returns[:, 1]) / (4 * np.std(returns))
  expected = jax.tree.map(
    lambda x: 0.02 * x,
    evolution.weighted_noise(state.params, batch.pair, jnp.float32(weight)),
  )
  chex.assert_trees_all_close(after.params, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_pairs_with_returns_that_are_not_finite_are_left_out_and_counted(wrong):
  returns = random_returns()
  batch = fitness(returns)
  returns[3, 1] = wrong
  after, output = UPDATE(
    STATE, KEY, batch._replace(returns=jnp.float32(returns))
  )
  kept = [k for k in range(PAIRS) if k != 3]
  ranks = ranks_of(returns[kept].ravel()).reshape(-1, 2) / 13 - 0.5
  weight = np.zeros(PAIRS, np.float32)
  weight[kept] = (ranks[:, 0] - ranks[:, 1]) / 7
  step = evolution.weighted_noise(STATE.params, batch.pair, weight)
  expected = jax.tree.map(lambda x, y: 0.005 * x - y, STATE.params, step)
  grads, _ = GRADIENTS(STATE, KEY, batch._replace(returns=jnp.float32(returns)))
  chex.assert_trees_all_close(grads.params, expected, atol=1e-6)
  assert output.metrics["pairs_left_out"] == 1
  assert output.metrics["fitness"] == pytest.approx(returns[kept].mean(), 1e-4)
  assert np.all(np.isfinite(jax.tree.leaves(after.params)[0]))


def test_without_a_finite_return_parameters_stay():
  batch = fitness(np.full((PAIRS, 2), np.nan))
  after, output = UPDATE(STATE, KEY, batch)
  chex.assert_trees_all_equal(after.params, STATE.params)
  assert output.metrics["pairs_left_out"] == PAIRS and after.updates == 1


def test_statistics_are_those_of_the_observations():
  after, _ = UPDATE(STATE, KEY, fitness(random_returns()))
  (mean,), (variance,) = after.statistics.mean, after.statistics.variance
  np.testing.assert_allclose(mean, np.full(4, 2.0), rtol=1e-5)
  np.testing.assert_allclose(variance, np.full(4, 1.0), rtol=1e-4)


def test_an_update_does_not_hold_the_noise_of_all_pairs():
  wide = dataclasses.replace(CONFIG, hidden_sizes=(512,))
  agent = wide.make(SPEC)
  state = jax.eval_shape(agent.init, KEY)
  program = jax.jit(agent.update).lower(
    state, KEY, fitness(random_returns(pairs=256))
  )
  size = sum(4 * x.size for x in jax.tree.leaves(state.params))
  assert program.compile().memory_analysis().temp_size_in_bytes < 20 * size


@pytest.mark.parametrize("kind", ["es", "ars"])
def test_cores_make_the_update_of_one(kind):
  config = CONFIG if kind == "es" else evolution.ARSConfig(top_pairs=4)
  batch = fitness(random_returns())
  if kind == "ars":
    batch = batch._replace(totals=())
  agent = config.make(SPEC)
  state = jax.jit(agent.init)(KEY)
  expected, _ = jax.jit(agent.update)(state, KEY, batch)
  update = sharding.per_core(
    config.make(SPEC, sharding.CORES).update,
    sharding.mesh(jax.devices()[:2]),
    (sharding.REPLICATED, sharding.REPLICATED, agent.needs.specs),
    sharding.REPLICATED,
  )
  actual, _ = update(state, KEY, batch)
  chex.assert_trees_all_close(actual.params, expected.params, atol=2e-5)
  chex.assert_trees_all_close(actual.statistics, expected.statistics, rtol=1e-5)


def test_members_act_with_their_own_parameters():
  members = evolution.members(STATE, np.int32([5, 9]))
  rng = np.random.default_rng(0)
  inputs = acting_step.zero_inputs(SPEC, 4)
  observation = np.float32(rng.normal(size=(4, 4)))
  timestep = inputs.timestep._replace(
    observation=observation, step_type=np.ones(4, np.uint8)
  )
  counts = np.array([True, False, True, False])
  inputs = inputs._replace(timestep=timestep)
  core_state = AGENT.initial_core_state(4)
  act = jax.jit(acting_step.per_row(AGENT).step)
  played, _ = act(members, KEY, inputs, core_state)
  step = jax.jit(AGENT.step)
  for k in range(4):
    one = jax.tree.map(lambda x, k=k: x[k], members)
    alone, _ = step(one, KEY, inputs, core_state)
    assert played.action[k] == alone.action[k]
  totals = evolution.count_observations(
    SPEC,
    STATE.statistics,
    evolution.no_totals(STATE.statistics),
    observation,
    counts,
  )
  assert totals.count == 2
  np.testing.assert_allclose(
    totals.offset[0], observation[[0, 2]].sum(axis=0), rtol=1e-5
  )
  plus, minus = (
    jax.tree.map(lambda x, k=k: x[k], members.params) for k in (0, 1)
  )
  middle = jax.tree.map(lambda x, y: (x + y) / 2, plus, minus)
  chex.assert_trees_all_close(middle, STATE.params, atol=1e-6)


def test_pipelines_of_unrolls_refuse_the_agent():
  config = sync.Config(
    env=envs.Config("CartPole-v1"), agent=CONFIG, learner=learner.Config()
  )
  reason = "expected an agent that learns from unrolls.*pipeline evolution"
  with pytest.raises(types.ConfigError, match=reason):
    config.learn(process.Context())


def test_continuous_actions_are_means():
  action = specs.BoundedArray((2,), np.float32, -1.0, [1.0, 3.0])
  spec = types.EnvironmentSpec(specs.Array((4,), np.float32), action)
  agent = evolution.ARSConfig().make(spec)
  state = jax.jit(agent.init)(KEY)
  (kernel,) = (x for x in jax.tree.leaves(state.params) if x.ndim == 2)
  assert kernel.shape == (4, 2)
  inputs = acting_step.zero_inputs(spec, 3)
  core_state = agent.initial_core_state(3)
  output, _ = agent.step(agent.acting(state), KEY, inputs, core_state)
  np.testing.assert_allclose(output.action, [[0.0, 1.0]] * 3)
