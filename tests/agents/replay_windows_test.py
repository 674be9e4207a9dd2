"""Windows without Q-values, and updates of target parameters."""

import dataclasses

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import networks, types
from seedx.agents import a2c, base, models, replay_windows
from tests import conftest

SPEC = types.EnvironmentSpec(
  specs.Array((4,), np.float32),
  specs.BoundedArray((2,), np.float32, -1.0, 1.0),
)
CONFIG = replay_windows.Config(hidden_sizes=(), reward_scale=1.0)
GAMMA = 0.5
ENDS = np.linspace(0, 0.6, 30)


def unroll_of(length):
  agent = a2c.Config(hidden_sizes=()).make(SPEC)
  return conftest.random_unroll(agent, SPEC, length, ends=ENDS, seed=3)


def model_of():
  return models.Model.make(SPEC, CONFIG, networks.QHead(num_actions=1))


@pytest.mark.parametrize(
  ("fields", "window", "learned_steps"),
  [
    ({"transitions": 3, "n_step": 3}, 4, 1),
    ({"transitions": 5, "n_step": 2, "burn_in": 4}, 10, 4),
    ({"transitions": None, "n_step": 5}, None, 1),
  ],
)
def test_windows_determine_the_needs(fields, window, learned_steps):
  needs = replay_windows.Windows(**fields).needs
  assert (needs.window, needs.learned_steps) == (window, learned_steps)


def test_a_return_of_continuous_actions_is_one_transition():
  """Windows need neither Q-values nor discrete actions."""
  n, burn_in = 3, 2
  one_return = replay_windows.Windows(transitions=n, n_step=n, burn_in=burn_in)
  unroll = unroll_of(one_return.needs.window)
  steps = one_return.steps(model_of(), unroll, jnp.float32(GAMMA))
  assert one_return.have_one_return(model_of(), steps)
  two_returns = dataclasses.replace(one_return, n_step=n - 1)
  assert not two_returns.have_one_return(model_of(), steps)
  one = jax.jit(one_return.one_transition)(steps)
  np.testing.assert_array_equal(one.action, unroll.action[burn_in][None])
  step_type, reward, discount, _ = unroll.inputs.timestep
  for b in range(len(ENDS)):
    first, last = burn_in, int(one.at[1, b]) + burn_in
    if step_type[first + 1, b] == dm_env.StepType.FIRST:
      assert one.step_type[1, b] == dm_env.StepType.FIRST
      continue
    total, product, k = 0.0, 1.0, first
    while k < first + n and (k == first or step_type[k, b] != 2):
      k += 1
      total += product * reward[k, b]
      product *= GAMMA * discount[k, b]
    assert (last, one.step_type[1, b]) == (k, step_type[k, b])
    np.testing.assert_allclose(one.reward[1, b], total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.discount[1, b], product, rtol=1e-5)


def test_only_returns_of_n_steps_are_learned_from():
  replayed = replay_windows.Windows(
    transitions=5, n_step=3, priority_max_share=0.25
  )
  steps = replayed.steps(model_of(), unroll_of(6), jnp.float32(GAMMA))
  error = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
  np.testing.assert_array_equal(replayed.learned(error, steps), error[:3])
  every = replay_windows.Windows(transitions=None, n_step=3)
  np.testing.assert_array_equal(every.learned(error, steps), error)
  magnitude = np.abs(error)
  whole = dataclasses.replace(replayed, whole_unrolls=True)
  np.testing.assert_allclose(
    whole.priorities(error)[:, 0],
    0.25 * magnitude.max(0) + 0.75 * magnitude.mean(0),
    rtol=1e-5,
  )
  np.testing.assert_array_equal(replayed.priorities(error), magnitude.T)


def test_targets_are_averaged_every_period():
  config = replay_windows.Config(target_period=2, target_rate=0.25)
  update_targets = jax.jit(
    lambda state: replay_windows.update_targets(config, state)
  )
  rng = np.random.default_rng(0)
  params, target = rng.normal(size=(2, 3)).astype(np.float32)
  for updates in range(1, 6):
    params = params + rng.normal(size=3).astype(np.float32)
    state = base.AgentState(
      params={"w": params},
      optimizer_state=(),
      hyperparameters={},
      updates=jnp.int32(updates),
      target_params={"w": target},
    )
    new_target = np.asarray(update_targets(state).target_params["w"])
    if updates % 2:
      np.testing.assert_array_equal(new_target, target)
    else:
      expected = target + 0.25 * (params - target)
      np.testing.assert_allclose(new_target, expected, rtol=1e-5)
      assert np.abs(new_target - target).max() > 0.05
    target = new_target
