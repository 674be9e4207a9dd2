"""Division of rewards by the standard deviation of discounted returns."""

import dataclasses
import functools

import dm_env
import jax
import numpy as np
import pytest

from seedx import sharding
from seedx.agents import a2c, acting_step, ppo, rewards
from tests import conftest
from tests.agents import cases
from tests.pipelines import cells

SPEC = cases.VECTOR
AGENTS = {"a2c": a2c, "ppo": ppo}
KEY, GAMMA, BATCH = jax.random.key(0), 0.9, 6


@functools.cache
def made(name="a2c", **fields):
  """Returns a config, which normalizes rewards by default, and its agent."""
  common = {"hidden_sizes": (8,), "discount": GAMMA, "reward_scale": 1.0}
  fields = {**common, "normalize_rewards": True, **fields}
  config = AGENTS[name].Config(**fields)
  return config, config.make(SPEC)


@functools.cache
def jitted(method, name="a2c", **fields):
  return jax.jit(getattr(made(name, **fields)[1], method))


@functools.cache
def state_of(name="a2c", **fields):
  config, agent = made(name, **fields)
  return cases.random_state(agent, config)


def unroll_of(agent, length=9, seed=0, scale=1.0):
  unroll = conftest.random_unroll(
    agent, SPEC, length, np.linspace(0, 0.5, BATCH), seed
  )
  timestep = unroll.inputs.timestep
  timestep = timestep._replace(reward=np.float32(scale) * timestep.reward)
  return unroll._replace(inputs=unroll.inputs._replace(timestep=timestep))


def returns_of(timestep, before):
  """Computes R, the discounted return, after each step, in a loop."""
  returns, total = [], np.array(before, np.float64)
  for step_type, reward in zip(*timestep[:2], strict=True):
    total = np.where(step_type == 0, 0.0, GAMMA * total) + reward
    returns.append(total)
  return np.stack(returns)


def test_acting_carries_the_return_from_unroll_to_unroll():
  _, agent = made()
  timestep = unroll_of(agent, length=20).inputs.timestep
  assert np.sum(timestep.step_type[1:] == dm_env.StepType.FIRST) > 3
  expected = returns_of(timestep, np.zeros(BATCH))
  acting_state = acting_step.initial_state(agent, SPEC, BATCH)
  take = jax.jit(functools.partial(acting_step.take, agent))
  acting = agent.acting(state_of())
  for time in range(20):
    now = jax.tree.map(lambda x, time=time: x[time], timestep)
    taken = take(acting, KEY, now, acting_state, np.zeros(BATCH, np.float32))
    acting_state = taken.acting_state
    np.testing.assert_allclose(
      acting_state.core_state.discounted, expected[time], rtol=1e-5, atol=1e-6
    )
  whole = rewards.discounted(timestep, np.zeros(BATCH, np.float32), GAMMA)
  np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_statistics_of_returns_exclude_resets(name):
  _, agent = made(name)
  state, means, squares = state_of(name), [], []
  state = dataclasses.replace(
    state, statistics=jax.tree.map(np.zeros_like, state.statistics)
  )
  for seed in range(3):
    unroll = unroll_of(agent, seed=seed)
    before = np.full(BATCH, 5.0 * seed, np.float32)
    core_state = unroll.core_state._replace(discounted=before)
    unroll = unroll._replace(core_state=core_state)
    state, _ = jitted("update", name)(state, KEY, unroll)
    timestep = unroll.inputs.timestep
    kept = returns_of(timestep, before)[1:][timestep.step_type[1:] != 0]
    means.append(kept.mean())
    squares.append(np.square(kept).mean())
    assert state.statistics.mean[0] == pytest.approx(np.mean(means), rel=1e-4)
    variance = np.mean(squares) - np.mean(means) ** 2
    assert state.statistics.variance[0] == pytest.approx(variance, rel=1e-3)


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_the_unit_of_rewards_does_not_matter(name):
  """The value loss depends on the unit if rewards are not normalized."""
  for fields, same in (({}, True), ({"normalize_rewards": False}, False)):
    _, agent = made(name, **fields)
    small, large = (
      jitted("gradients", name, **fields)(
        state_of(name, **fields), KEY, unroll_of(agent, scale=scale)
      )[1].metrics
      for scale in (1.0, 1000.0)
    )
    assert (abs(large["loss_value"] / small["loss_value"] - 1) < 1e-3) == same


def test_the_deviation_is_over_this_and_all_previous_batches():
  """The first reward after many zeros is not divided by a small number."""
  _, agent = made(value_cost=1.0)
  state, unroll = state_of(value_cost=1.0), unroll_of(agent)
  unrewarded = unroll_of(agent, scale=0.0)
  update = jitted("update", value_cost=1.0)
  for _ in range(3):
    state, output = update(state, KEY, unrewarded)
    assert np.isfinite(output.metrics["loss_value"])
  returns = returns_of(unroll.inputs.timestep, np.zeros(BATCH))[1:]
  kept = returns[unroll.inputs.timestep.step_type[1:] != 0]
  total = np.concatenate([kept, np.zeros(3 * len(kept))])
  deviation = rewards.deviation(
    state.statistics,
    rewards.measure(
      state.statistics,
      (),
      unroll.inputs.timestep,
      np.zeros(BATCH, np.float32),
      GAMMA,
      None,
    ),
  )
  assert deviation == pytest.approx(total.std(), rel=1e-3)


@pytest.mark.slow
def test_observations_are_normalized_together_with_rewards():
  """Normalizing rewards does not change the statistics of observations."""
  observed = {"normalize_observations": True}
  both = made("ppo", **observed)[1]
  alone = made("ppo", **observed, normalize_rewards=False)[1]
  state = both.init(KEY)
  assert len(jax.tree.leaves(state.statistics)) == 6
  actual = jax.jit(both.update)(state, KEY, unroll_of(both))[0].statistics
  other = jax.jit(alone.update)(alone.init(KEY), KEY, unroll_of(alone))[0]
  expected = other.statistics
  np.testing.assert_array_equal(actual.mean[0], expected.mean[0])
  np.testing.assert_array_equal(actual.variance[0], expected.variance[0])
  assert actual.mean[1].shape == () and actual.variance[1] > 0


@pytest.mark.parametrize(
  ("pipeline", "name"),
  [
    *(
      pytest.param(pipeline, name, marks=pytest.mark.slow)
      for pipeline, name in (
        ("anakin", "ppo"),
        ("impala", "vtrace"),
      )
    ),
    pytest.param("a3c", "a2c", marks=pytest.mark.long),
  ],
)
def test_pipelines_carry_returns_across_unrolls(pipeline, name, tmp_path):
  """If rewards are 1, R rises to 10 in about 20 steps, or 4 unrolls."""
  running = cells.make(
    pipeline, name, tmp_path, normalize_rewards=True, discount=GAMMA
  )
  acting, process = [], running.process
  last = cells.run_all(
    running, lambda: acting.append(process.policy(process.saved()))
  )
  assert last["learner_steps"] >= 3
  statistics = acting[0].statistics
  # If R started again in each unroll, it would be at most 4.1, and 2.6 on
  # average.
  assert 4.1 < statistics.mean[0] < 10
  assert 0 < statistics.variance[0] < 10


@pytest.mark.slow
def test_4_cores_divide_by_the_same_deviation():
  fields = {"epochs": 1, "minibatches": 1}
  fields["adam_epsilon"] = 1.0  # So small gradients make small steps.
  config, agent = made("ppo", **fields)
  state, unroll = state_of("ppo", **fields), unroll_of(agent)
  four = jax.tree.map(lambda x: x[:, :4], unroll._replace(core_state=()))
  discounted = np.float32([0.0, 3.0, -4.0, 9.0])
  core_state = unroll.core_state._replace(discounted=discounted)
  four = four._replace(core_state=core_state)
  update = sharding.per_core(
    config.make(SPEC, sharding.CORES).update,
    sharding.mesh(jax.devices()[:4]),
    (sharding.REPLICATED, sharding.REPLICATED, sharding.UNROLL),
    sharding.REPLICATED,
  )
  actual, output = update(state, KEY, four)
  expected, one_output = jitted("update", "ppo", **fields)(state, KEY, four)
  for on_cores, on_one in (
    (actual.statistics, expected.statistics),
    (output.metrics["loss_value"], one_output.metrics["loss_value"]),
    (actual.params, expected.params),
  ):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
      on_cores,
      on_one,
    )
