"""QT-Opt and the cross-entropy method."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import types
from seedx.agents import cem, qt_opt
from tests import conftest

SPEC = types.EnvironmentSpec(
  specs.Array((3,), np.float32),
  specs.BoundedArray((1,), np.float32, -2.0, [2.0]),
)
CONFIG = qt_opt.Config(
  hidden_sizes=(8,), value_min=-40.0, value_max=10.0, target_lag=4
)
AGENT = CONFIG.make(SPEC)
KEY = jax.random.key(3)


def batch(agent=AGENT, seed=0):
  ends = np.linspace(0.0, 0.5, 6)
  unroll = conftest.random_unroll(agent, SPEC, agent.needs.window, ends, seed)
  weights = np.linspace(0.5, 1.5, 6, dtype=np.float32)
  return types.Sample(unroll._replace(extras=()), weights)


@functools.cache
def programs():
  return jax.jit(AGENT.init)(KEY), jax.jit(AGENT.update), jax.jit(AGENT.label)


@pytest.mark.parametrize(
  ("size", "options"),
  [
    (1, {"iterations": 2}),  # As in the paper.
    (2, {"iterations": 4, "samples": 128, "elites": 12}),
  ],
)
def test_the_maximum_of_a_concave_quadratic_is_found(size, options):
  def distance(key):
    peak_key, turn_key, scale_key, key = jax.random.split(key, 4)
    peak = jax.random.uniform(peak_key, (size,), minval=-1.0)
    turn, _ = jnp.linalg.qr(jax.random.normal(turn_key, (size, size)))
    scale = jax.random.uniform(scale_key, (size,), minval=0.5, maxval=2.0)

    def value(action):
      return -jnp.sum(scale * jnp.square((action - peak) @ turn), axis=-1)

    return jnp.max(jnp.abs(cem.maximize(value, key, (size,), **options) - peak))

  keys = jax.random.split(KEY, 500)
  assert jax.jit(jax.vmap(distance))(keys).max() < 0.1


def test_the_maximum_is_that_of_a_grid_in_each_row():
  """Two peaks, the higher one on either side."""
  heights = jnp.linspace(-0.5, 0.5, 8)

  def value(action):
    x, h = action[..., 0], heights
    peaks = [(1 - h) * jnp.exp(-8 * (x - 0.6) ** 2)]
    peaks += [(1 + h) * jnp.exp(-8 * (x + 0.6) ** 2)]
    return jnp.maximum(*peaks)

  grid = jnp.linspace(-1, 1, 2001)[:, None, None] * jnp.ones((8, 1))
  expected = jnp.take_along_axis(
    grid, jnp.argmax(value(grid), axis=0)[None, :, None], axis=0
  )[0]
  actual = cem.maximize(value, KEY, (8, 1), iterations=3)
  np.testing.assert_allclose(actual, expected, atol=0.05)


def test_a_label_is_the_smaller_lagged_value_of_the_best_action():
  state, *_ = programs()
  config = dataclasses.replace(CONFIG, cem_samples=4_000, cem_elites=100)
  agent = config.make(SPEC)
  other = jax.jit(AGENT.init)(jax.random.key(9)).params
  lagged = state.target_params._replace(second=other)
  state = dataclasses.replace(state, target_params=lagged)
  sample = batch()
  actual = jax.jit(agent.label)(agent.targets(state), KEY, sample)
  grid = jnp.tile(jnp.linspace(-1, 1, 2001)[:, None], (6, 1))[None]
  q_function = qt_opt._QFunction.make(SPEC, CONFIG, None)
  inputs = jax.tree.map(
    lambda x: jnp.repeat(x[1:], 2001, axis=1), sample.unroll.inputs
  )
  logits = jax.jit(q_function.logits)
  first, second = (
    np.asarray(q_function.value(logits(x, inputs, grid))).reshape(6, 2001)
    for x in agent.targets(state).values[:2]
  )
  best = np.argmax(first, axis=1)[:, None]
  value = np.take_along_axis(np.minimum(first, second), best, axis=1)[:, 0]
  timestep = jax.tree.map(lambda x: x[1], sample.unroll.inputs.timestep)
  expected = timestep.reward + 0.99 * timestep.discount * value
  learned = timestep.step_type != 0  # A reset is not learned from.
  assert 3 < learned.sum() < 6 or learned.all()
  np.testing.assert_allclose(actual[0, learned], expected[learned], rtol=1e-3)
  assert not np.any(actual[1])


def test_stored_targets_are_learned_from_like_own_ones():
  state, update, label = programs()
  sample = batch()
  own, output = update(state, KEY, sample)
  labels = label(AGENT.targets(state), KEY, sample)
  stored = sample._replace(unroll=sample.unroll._replace(extras=labels))
  chex.assert_trees_all_close(update(state, KEY, stored)[0], own, atol=1e-6)
  # Targets beyond the bounds are cut, and do change the result.
  above = stored._replace(
    unroll=stored.unroll._replace(extras=labels * 0 + 1e6)
  )
  high = update(state, KEY, above)[0]
  at_bound = stored._replace(
    unroll=stored.unroll._replace(extras=labels * 0 + 10.0)
  )
  chex.assert_trees_all_equal(
    high.params, update(state, KEY, at_bound)[0].params
  )
  assert output.metrics["q_mean"] > -40


def test_the_second_network_is_one_to_two_lags_old():
  state, update, _ = programs()
  firsts = [state.target_params.first]
  for number in range(1, 14):
    state, _ = update(state, KEY, batch(seed=number))
    firsts.append(state.target_params.first)
    targets = AGENT.targets(state)
    version = int(targets.version)
    assert version == max(0, number // 4 - 1) * 4
    if number >= 8:
      assert 4 <= number - version < 8
    chex.assert_trees_all_equal(targets.values[1].params, firsts[version])
    chex.assert_trees_all_equal(targets.values[0].params, firsts[number])
  # The first one follows the learned parameters slowly.
  old, new = (jax.tree.leaves(x)[0] for x in (firsts[-2], firsts[-1]))
  learned = jax.tree.leaves(state.params)[0]
  np.testing.assert_allclose(new, old + 0.01 * (learned - old), rtol=1e-4)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"value_min": 1.0}, "value_min below value_max"),
    ({"stack_frames": 2}, "stack_frames 1"),
    ({"cem_elites": 65}, "cem_elites"),
  ],
)
def test_wrong_settings_are_refused(fields, message):
  with pytest.raises(types.ConfigError, match=message):
    qt_opt.Config(**fields)
