"""Tests of the packing of actions into one array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree
from dm_env import specs

from seedx import types
from seedx.envs import actions as actions_lib
from seedx.envs import finishing

CHOICE = specs.BoundedArray((), np.int64, 1, 3)
NUMBERS = specs.BoundedArray((2, 1), np.float64, -1, [[1], [np.inf]])


@pytest.mark.parametrize(
  ("native", "spec", "action", "expected"),
  [
    (CHOICE, specs.DiscreteArray(3), [0, 2], [1, 3]),
    # A dict with one choice is one discrete action, also for Q-values.
    ({"a": CHOICE}, specs.DiscreteArray(3), [0, 2], {"a": [1, 3]}),
    (
      (CHOICE, [CHOICE]),
      specs.BoundedArray((2,), np.int32, 0, [2, 2]),
      [[0, 1], [2, 2]],
      ([1, 3], [[2, 3]]),
    ),
    (
      specs.BoundedArray((2, 2), np.int8, [[-1, 0], [0, 1]], 1),
      specs.BoundedArray((4,), np.int32, 0, [2, 1, 1, 0]),
      [[0, 1, 1, 0]],
      [[[-1, 1], [1, 1]]],
    ),
    (
      specs.BoundedArray((2,), bool, False, True),
      specs.BoundedArray((2,), np.int32, 0, [1, 1]),
      [[0, 1]],
      [[False, True]],
    ),
    (
      NUMBERS,
      specs.BoundedArray((2,), np.float32, -1, [1, np.inf]),
      [[9, 9], [-9, 0.5]],
      [[[1], [9]], [[-1], [0.5]]],
    ),
    (
      specs.Array((), np.float32),
      specs.BoundedArray((1,), np.float32, -np.inf, np.inf),
      [[9], [-9]],
      [9, -9],
    ),
    # The keys are sorted, and choices precede numbers.
    (
      {"z": CHOICE, "b": NUMBERS, "a": specs.BoundedArray((2,), int, 0, 4)},
      types.HybridArray(3, [0, 0, 0, -1, -1], [4, 4, 2, 1, np.inf]),
      [[4, 0, 2, -9, 9]],
      {"z": [3], "b": [[[-1], [9]]], "a": [[4, 0]]},
    ),
  ],
  ids=str,
)
def test_actions_become_the_environments(native, spec, action, expected):
  actions = actions_lib.Actions("env", native)
  assert type(actions.spec) is type(spec) and actions.spec == spec
  action = np.array(action, spec.dtype)
  leaves = tree.flatten_up_to(native, expected)
  on_cpu = tree.flatten_up_to(native, actions(action))
  rows = actions.rows(action)
  jitted = jax.jit(lambda action: actions(action, jnp))(action)
  on_device = tree.flatten_up_to(native, jitted)
  for k, leaf_spec in enumerate(tree.flatten(native)):
    np.testing.assert_array_equal(on_cpu[k], leaves[k])
    np.testing.assert_array_equal(on_device[k], leaves[k])
    assert on_cpu[k].dtype == leaf_spec.dtype
    for row, wanted in zip(rows, leaves[k], strict=True):
      leaf = tree.flatten_up_to(native, row)[k]
      np.testing.assert_array_equal(leaf, wanted)
      assert (leaf.shape, leaf.dtype) == (leaf_spec.shape, leaf_spec.dtype)


UNSUPPORTED = [
  ({}, "ActionWrapper"),
  (None, "ActionWrapper"),
  (specs.StringArray(()), "ActionWrapper"),
  (specs.Array((2,), np.int32), "ActionWrapper"),
  ({"a": CHOICE, "b": specs.Array((0,), np.float32)}, "action b .*Wrapper"),
  (specs.BoundedArray((2,), np.float32, [0, -1], [0, 1]), "leave such elem"),
  (specs.BoundedArray((), np.int64, -(2**62), 2**62), "floats instead"),
]


@pytest.mark.parametrize(("native", "remedy"), UNSUPPORTED, ids=str)
def test_unsupported_actions_are_refused_with_a_remedy(native, remedy):
  with pytest.raises(types.ConfigError, match=f"^env takes.*{remedy}"):
    actions_lib.Actions("env", native)


@pytest.mark.parametrize("wrong", [-1, 4, np.nan])
def test_choices_among_numbers_are_checked(wrong):
  spec = types.HybridArray(1, [0, -1], [3, 1])
  action = np.array([[3, 9], [wrong, 0]], np.float32)
  with pytest.raises(ValueError, match="from 0 to"):
    finishing.checked_action(spec, spec, np.arange(2), action)
  finishing.checked_action(spec, spec, np.arange(1), action[:1])


def test_a_number_of_a_combination_becomes_the_choices():
  actions = actions_lib.Actions("env", (specs.DiscreteArray(3), CHOICE))
  first, second = actions(np.array([0, 5, 8]))
  assert (first.tolist(), second.tolist()) == ([0, 1, 2], [1, 3, 3])
