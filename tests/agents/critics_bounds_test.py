"""The bounds of actions, which critics see as numbers between -1 and 1."""

import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import types
from seedx.agents import action_vectors


def box_of(action):
  observation = specs.Array((3,), np.float32)
  return action_vectors.Box.of(types.EnvironmentSpec(observation, action))


def test_bounds_become_numbers_between_minus_one_and_one():
  low, high = np.float32([-2.0, 1.0, 0.5]), np.float32([4.0, 1.0, 0.75])
  spec = specs.BoundedArray((3,), np.float32, low, high)
  box = box_of(spec)
  ends = jnp.float32([[-1, -1, -1], [1, 1, 1]])
  np.testing.assert_array_equal(box.scaled(ends), [low, high])
  # A critic sees 0 in a dimension that has only one value, never a NaN.
  np.testing.assert_array_equal(
    box.normalized(np.stack([low, high])), [[-1, 0, -1], [1, 0, 1]]
  )


def test_a_range_that_float32_cannot_hold_is_refused():
  for low, high in ((-np.inf, 1.0), (-3e38, np.inf)):
    spec = specs.BoundedArray((1,), np.float32, low, high)
    with pytest.raises(types.ConfigError, match="actions with bounds"):
      box_of(spec)
  widest = specs.BoundedArray((1,), np.float32, *np.float32([-3e38, 3e38]))
  box = box_of(widest)
  np.testing.assert_array_equal(box.scaled(jnp.float32([1.0])), widest.maximum)


def test_rounding_leads_to_no_action_beyond_the_bounds():
  rng = np.random.default_rng(0)
  low, high = np.sort(rng.normal(size=(2, 1000)).astype(np.float32), axis=0)
  box = box_of(specs.BoundedArray((1000,), np.float32, low, high))
  for end in (-1.0, 1.0):
    action = box.scaled(jnp.full(1000, end, jnp.float32))
    assert np.all(low <= action) and np.all(action <= high)
