"""Agents with a critic of (state, action): what DDPG and SAC share."""

import dataclasses

import chex
import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from seedx import types
from seedx.agents import (
  acting_step,
  base,
  replay_windows,
  sac,
)
from tests import conftest
from tests.agents import cases
from tests.agents.critics_cases import (
  BATCH,
  CAMERA,
  HALF,
  MIDDLE,
  SPECS,
  VECTOR,
  act,
  agent_of,
  config_of,
  inputs_of,
  jitted,
  sample_of,
  state_of,
  still,
)

# Gradients of the groups


def gradients_of(name, state, sample, **fields):
  gradients = jitted("gradients", name, **fields)
  return gradients(state, jax.random.key(0), sample)[0].params


def assert_differ(actual, expected):
  gaps = jax.tree.map(lambda x, y: np.abs(x - y).max(), actual, expected)
  assert max(jax.tree.leaves(gaps)) > 1e-4


class FourSteps(sac.Config):
  """Windows of four returns of one step."""

  windows = replay_windows.Windows(transitions=4)


def test_learning_rates_fall_with_the_updates_of_a_windows_learned_steps():
  agents = [
    kind(learning_rate_end=0.0).make(VECTOR, None, base.Horizon(100, 80))
    for kind in (sac.Config, FourSteps)
  ]
  groups = np.ones(1, np.float32)
  params = dict.fromkeys(("actor", "critic", "temperature"), groups)
  gradients = base.Gradients(params)
  steps = []
  for agent, updates in zip(agents, (40, 10), strict=True):
    state = agent.start(params, updates)
    learned = agent.apply(state, gradients).params
    steps.append([float(learned[key][0] - 1) for key in params])
  np.testing.assert_allclose(*steps, rtol=1e-5)
  np.testing.assert_allclose(steps[0], [-1.5e-4, -5e-4, -5e-4], rtol=1e-3)


# Acting


def assert_uniform(actions):
  for column in actions.T:
    assert scipy.stats.kstest(column, scipy.stats.uniform(-1, 2).cdf)[1] > 1e-3
  assert abs(np.corrcoef(actions.T)[0, 1]) < 0.06


def test_actions_are_uniform_until_the_first_update():
  state, inputs = state_of("sac"), inputs_of()
  actions = act("sac", state, inputs)
  assert_uniform(actions)
  greedy = act("sac", state, inputs, "greedy")
  updated = dataclasses.replace(state, updates=np.int32(1))
  later = act("sac", updated, inputs)
  without = act("sac", state, inputs, random_start=False)
  np.testing.assert_allclose(without, later, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(act("sac", updated, inputs, "greedy"), greedy)
  # The policy's actions follow the observation; random ones do not.
  for x, follows in ((actions, False), (later, True)):
    correlation = np.corrcoef(x[:, 0], greedy[:, 0])[0, 1]
    assert correlation > 0.3 if follows else abs(correlation) < 0.06


def test_no_program_computes_the_acting_parameters():
  """Publishing them after each update would copy all parameters otherwise."""
  program = jax.make_jaxpr(agent_of("sac").acting)(state_of("sac")).jaxpr
  assert not program.eqns


def test_noise_is_correlated_within_an_episode():
  length, rows, reset, rho = 60, 500, 30, 0.8
  fields = {"noise_correlation": rho}
  agent, state = agent_of("sac", **fields), still(state_of("sac", **fields))

  @jax.jit
  def play(state, rng_key):
    acting = agent.acting(state)

    def step(carry, t):
      key, acting_state = carry
      key, step_key = jax.random.split(key)
      inputs = inputs_of(rows)
      step_type = jnp.where(
        t % reset == 0, int(dm_env.StepType.FIRST), int(dm_env.StepType.MID)
      )
      timestep = inputs.timestep._replace(
        step_type=jnp.full(rows, step_type, jnp.uint8)
      )
      result = acting_step.take(
        agent, acting, step_key, timestep, acting_state, inputs.exploration
      )
      return (key, result.acting_state), result.output.action

    start = acting_step.initial_state(agent, VECTOR, rows)
    return jax.lax.scan(step, (rng_key, start), jnp.arange(length))[1]

  actions = np.asarray(play(state, jax.random.key(0)), float)
  noise = np.arctanh((actions - MIDDLE) / HALF) / np.exp(-1.5)
  # Each step has mean 0 and variance 1, also the first of an episode.
  np.testing.assert_allclose(noise.mean(axis=(1, 2)), 0, atol=0.15)
  np.testing.assert_allclose(noise.var(axis=(1, 2)), 1, atol=0.25)
  assert noise.var() == pytest.approx(1, abs=0.05)
  for lag in (1, 2):
    products = np.mean(noise[lag:] * noise[:-lag], axis=(1, 2))
    across = products[reset - lag : reset]
    np.testing.assert_allclose(across, 0, atol=0.15)
    within = np.delete(products, np.arange(reset - lag, reset))
    assert within.mean() == pytest.approx(rho**lag, abs=0.05)
  # Dimensions and environments are independent.
  assert abs(np.mean(noise[..., 0] * noise[..., 1])) < 0.05
  assert abs(np.mean(noise[:, 1:] * noise[:, :-1])) < 0.05
  # Random actions are still uniform.
  start = dataclasses.replace(state, updates=np.int32(0))
  random = np.asarray(play(start, jax.random.key(1)), float)
  assert_uniform(((random - MIDDLE) / HALF)[reset - 1])


# Observations and networks


def part(unroll, length, start=0, core_state=()):
  steps = jax.tree.map(
    lambda x: x[start : start + length], unroll._replace(core_state=())
  )
  return steps._replace(core_state=core_state)


def played(agent, state, unroll):
  """Returns an unroll with the actions and extras of the agent."""
  acting = agent.acting(state)

  @jax.jit
  def play(acting, inputs):
    def step(carry, inputs):
      key, core_state = carry
      key, step_key = jax.random.split(key)
      output, core_state = agent.step(acting, step_key, inputs, core_state)
      return (key, core_state), output

    start = agent.initial_core_state(BATCH)
    return jax.lax.scan(step, (jax.random.key(0), start), inputs)

  (_, core_state), output = play(acting, unroll.inputs)
  unroll = unroll._replace(
    action=np.asarray(output.action), extras=jax.device_get(output.extras)
  )
  return unroll, core_state


@pytest.mark.slow
def test_a_window_has_the_frames_before_its_transition():
  """A window's gradients are those of its transition with acting's frames."""
  stacked = {"stack_frames": 3, "hidden_sizes": (8,)}
  windows = agent_of("ddpg", "camera", **stacked)
  assert windows.needs.window == 4
  state = state_of("ddpg", "camera", **stacked)
  sample = sample_of(windows, CAMERA)._replace(
    importance_weight=np.ones(BATCH, np.float32)
  )
  _, core_state = played(windows, state, part(sample.unroll, 2))
  transition = part(sample.unroll, 2, 2, core_state)
  key = jax.random.key(0)
  actual, output = jitted("gradients", "ddpg", "camera", **stacked)(
    state, key, sample
  )
  expected, _ = jitted(
    "gradients", "ddpg", "camera", replayed=False, **stacked
  )(state, key, transition)
  assert 0 < output.weight < BATCH
  chex.assert_trees_all_close(
    actual.params, expected.params, rtol=1e-3, atol=1e-5
  )
  for gradient in jax.tree.leaves(actual.params):
    assert np.abs(gradient).max() > 0


@pytest.mark.slow
def test_normalized_observations_are_what_actor_and_critics_see():
  mean, variance = np.float32([1, -2, 3, 0]), np.float32([4, 1, 0.25, 9])
  fields = {"normalize_observations": True}
  agent, state = agent_of("sac", **fields), state_of("sac", **fields)
  statistics = state.statistics._replace(
    mean=(mean,), variance=(variance,), batches=(np.int32(9),)
  )
  state = dataclasses.replace(state, statistics=statistics)
  sample = sample_of(agent)
  actual, _ = jitted("gradients", "sac", **fields)(
    state, jax.random.key(0), sample
  )
  timestep = sample.unroll.inputs.timestep
  seen = (timestep.observation - mean) / np.sqrt(variance)
  inputs = sample.unroll.inputs._replace(
    timestep=timestep._replace(observation=seen)
  )
  plain = sample._replace(unroll=sample.unroll._replace(inputs=inputs))
  expected = gradients_of(
    "sac", dataclasses.replace(state, statistics=()), plain
  )
  chex.assert_trees_all_close(actual.params, expected, rtol=1e-4, atol=1e-5)
  new = jitted("apply", "sac", **fields)(state, actual).statistics
  assert new.batches == (10,)
  learned = timestep.step_type[1] != dm_env.StepType.FIRST
  observed = timestep.observation[0, learned].mean(axis=0)
  step = (np.asarray(new.mean[0]) - mean) / (observed - mean)
  assert np.all(step > 0) and np.ptp(step) < 1e-4
  action = act("sac", state, inputs_of(8), "greedy", **fields)
  assert_differ(action, act("sac", state, inputs_of(8), "greedy"))


@pytest.mark.slow
def test_bfloat16_is_close_to_float32():
  half = {"compute_dtype": "bfloat16"}
  state, sample = state_of("sac"), sample_of(agent_of("sac"))
  # Only the networks round: inputs have few bits, and without values of later
  # states, errors of the actor do not reach the critics.
  inputs, action = sample.unroll.inputs, sample.unroll.action
  timestep = inputs.timestep._replace(
    discount=np.zeros_like(inputs.timestep.discount),
    observation=np.round(8 * inputs.timestep.observation) / 8,
  )
  unroll = sample.unroll._replace(
    inputs=inputs._replace(timestep=timestep),
    action=MIDDLE + HALF * np.round(8 * (action - MIDDLE) / HALF) / 8,
  )
  sample = sample._replace(unroll=unroll)
  exact = gradients_of("sac", state, sample)
  rounded = gradients_of("sac", state, sample, **half)
  for key, gradient in exact.items():
    gap = jax.tree.map(np.subtract, rounded[key], gradient)
    share = float(optax.global_norm(gap) / optax.global_norm(gradient))
    assert 1e-4 < share < 0.1
  chex.assert_trees_all_equal_shapes_and_dtypes(
    jax.eval_shape(agent_of("sac", **half).init, jax.random.key(0)), state
  )


class Squares(nn.Module):
  """Features of a user: the squares of a layer's outputs."""

  @nn.compact
  def __call__(self, observation):
    return nn.Dense(3)(observation) ** 2


def test_a_users_torso_is_in_actor_and_critics():
  fields = {"torso": Squares(), "hidden_sizes": (8,)}
  state = state_of("ddpg", **fields)
  shapes = {
    key: jax.tree.map(np.shape, group["params"])
    for key, group in state.params.items()
  }

  def layer(inputs, outputs):
    return {"kernel": (inputs, outputs), "bias": (outputs,)}

  torso = {"Dense_0": layer(4, 3)}
  assert shapes == {
    "actor": {"torso": torso, "head": {"Dense_0": layer(3, 2)}},
    # The head sees three features and two dimensions of the action.
    "critic": {
      "torso": torso,
      "head": {"Dense_0": layer(5, 8), "Dense_1": layer(8, 1)},
    },
  }
  gradients = gradients_of("ddpg", state, sample_of(agent_of("ddpg")), **fields)
  for gradient in jax.tree.leaves(gradients):
    assert np.abs(gradient).max() > 0


# Priorities


@pytest.mark.parametrize(
  ("name", "kind", "fields"),
  conftest.slow_but(
    [("sac", "vector", {"n_step": 2})],
    [
      ("sac", "vector", {"n_step": 2}),
      ("ddpg", "vector", {"num_atoms": 5, "value_min": -3, "value_max": 3}),
      ("ddpg", "camera", {"stack_frames": 2}),
    ],
  ),
)
def test_actors_compute_the_priorities_of_the_learner(
  name, kind, fields, monkeypatch
):
  # The same noise for all steps: actors and learners have different keys.
  noise = np.float32([0.7, -1.2])
  monkeypatch.setattr(
    jax.random, "normal", lambda key, shape: jnp.broadcast_to(noise, shape)
  )
  agent = config_of(name, **fields).make(SPECS[kind])
  state = cases.random_state(agent, config_of(name, **fields))
  targets = {key: state.params[key] for key in state.target_params}
  state = dataclasses.replace(state, target_params=targets, updates=np.int32(1))
  windows, length = 3, agent.needs.window
  unroll = conftest.random_unroll(
    agent, SPECS[kind], length + windows - 1, np.linspace(0, 0.6, BATCH)
  )
  unroll, _ = played(agent, state, unroll)
  actual = np.asarray(jax.jit(agent.priorities)(agent.acting(state), unroll))
  assert actual.shape == (BATCH, windows)
  gradients, ones = jax.jit(agent.gradients), np.ones(BATCH, np.float32)
  for start in range(windows):
    window = part(unroll, length, start)
    _, output = gradients(state, jax.random.key(0), types.Sample(window, ones))
    np.testing.assert_allclose(
      actual[:, start], output.priorities, rtol=1e-3, atol=1e-5
    )
  assert np.std(actual) > 1e-2 and np.any(actual == 0)
