"""SAC: updates, the temperature, and the policy."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from dm_env import specs

from seedx import types
from seedx.agents import sac
from tests import conftest
from tests.agents import critics_cases
from tests.agents import critics_reference as reference


def test_updates_match_numpy():
  critics_cases.check_updates("sac", reference.SAC, updates=1)
  critics_cases.check_updates("sac", reference.SAC)


@pytest.mark.slow
def test_updates_with_three_steps_and_one_critic_match_numpy():
  fields = {"n_step": 3, "num_critics": 1, "target_entropy": 0.3}
  critics_cases.check_updates("sac", reference.SAC, **fields)


def test_the_policy_draws_from_a_squashed_gaussian():
  state = dataclasses.replace(
    critics_cases.state_of("sac"), updates=np.int32(1)
  )
  inputs, key = critics_cases.inputs_of(), jax.random.key(0)
  noise = np.asarray(
    jax.random.normal(jax.random.split(key)[0], (critics_cases.ROWS, 2))
  )
  learner = reference.SAC(
    state.params, state.target_params, critics_cases.config_of("sac")
  )
  observation = inputs.timestep.observation.astype(float)
  expected, _, _ = learner.drawn(observation, noise.astype(float))
  action = critics_cases.act("sac", state, inputs)
  np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)
  outputs, _ = reference.forward(learner.params["actor"], observation)
  greedy = critics_cases.act("sac", state, inputs, "greedy")
  np.testing.assert_allclose(
    greedy, np.tanh(outputs[:, :2]), rtol=1e-5, atol=1e-5
  )


# The temperature

STEEPNESS = 2.0


def policies_of_mean_0():
  """Returns actions before the tanh, their weights, and entropies, by scale."""
  noise = np.linspace(-8, 8, 1001)
  weight = np.exp(-0.5 * noise**2) / np.sqrt(2 * np.pi) * (noise[1] - noise[0])
  log_scale = np.linspace(-4, 1, 1001)
  unbounded = np.exp(log_scale)[:, None] * noise
  # log(1 - tanh(u)^2) without cancellation.
  size = np.abs(unbounded)
  log_slope = 2 * (np.log(2) - size - np.log1p(np.exp(-2 * size)))
  entropies = log_scale + 0.5 * np.log(2 * np.pi * np.e) + log_slope @ weight
  return unbounded, weight, entropies


def test_a_target_above_every_reachable_entropy_is_refused():
  _, _, entropies = policies_of_mean_0()
  highest = np.max(entropies)
  assert sac.Config(target_entropy=highest - 0.01)
  for target in (highest + 1e-3, 1.0):
    with pytest.raises(
      types.ConfigError, match=r"from -1000.0 to 0.6\d, found"
    ):
      sac.Config(target_entropy=target)


def temperature_of(entropy):
  """Returns the alpha for which the best policy for -2 a^2 has an entropy.

  By quadrature. The policy's mean is 0, and its scale s maximizes

      V(s) = E[-2 a^2] + alpha H(s), so alpha = -(dE[-2 a^2]/ds) / (dH/ds).
  """
  unbounded, weight, entropies = policies_of_mean_0()
  values = -STEEPNESS * np.tanh(unbounded) ** 2 @ weight
  rises = np.flatnonzero(np.diff(entropies) > 0)
  best = rises[np.argmin(np.abs(entropies[rises] - entropy))]
  return -np.gradient(values)[best] / np.gradient(entropies)[best]


@pytest.mark.slow
def test_the_temperature_keeps_the_entropy_at_its_target():
  """The temperature is that of which the best policy has this entropy."""
  target = 0.2
  expected = temperature_of(target)
  config = sac.Config(
    hidden_sizes=(32,),
    activation="tanh",
    target_entropy=target,
    learning_rate=3e-3,
    critic_learning_rate=1e-2,
    temperature_learning_rate=1e-2,
    temperature=3.0,
  )
  agent = config.make(critics_cases.ONE_ACTION)
  rng = np.random.default_rng(0)
  actions = rng.uniform(-1, 1, (1500, 128))
  samples = critics_cases.bandit_samples(actions, -STEEPNESS * actions**2)
  state, metrics = critics_cases.train(agent, samples, jax.random.key(0))
  late = {key: np.mean(x[-500:]) for key, x in metrics.items()}
  assert late["entropy"] == pytest.approx(target, abs=0.03)
  assert late["temperature"] == pytest.approx(expected, rel=0.1)
  assert np.mean(metrics["temperature"][:50]) > 5 * expected
  alpha = float(np.exp(state.params["temperature"]))
  assert alpha == pytest.approx(float(late["temperature"]), rel=0.15)


CHOICE = types.EnvironmentSpec(
  specs.Array((2,), np.float32), specs.DiscreteArray(3)
)


@functools.cache
def choosing():
  """Returns a linear agent of three actions, and a state whose params are 0."""
  agent = sac.Config(hidden_sizes=(), target_entropy_share=0.75).make(CHOICE)
  shapes = jax.eval_shape(agent.init, jax.random.key(0)).params
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
  return agent, agent.start(params, 1)


def test_discrete_actions_are_drawn_from_the_softmax():
  agent, state = choosing()
  outputs = np.array([0.0, 1.0, 2.0], np.float32)
  actor = jax.tree.map(
    lambda x: outputs if x.shape == (3,) else x, state.params["actor"]
  )
  state = dataclasses.replace(state, params=state.params | {"actor": actor})
  inputs = conftest.random_unroll(agent, CHOICE, 1, np.zeros(3000), 0).inputs
  output, _ = jax.jit(agent.step)(
    agent.acting(state),
    jax.random.key(0),
    jax.tree.map(lambda x: x[0], inputs),
    agent.initial_core_state(3000),
  )
  expected = np.exp(outputs) / np.exp(outputs).sum()
  actual = np.bincount(output.action, minlength=3) / 3000
  np.testing.assert_allclose(actual, expected, atol=4 * 0.5 / 3000**0.5)


def test_the_temperature_of_a_uniform_policy_falls_to_a_share_of_its_entropy():
  agent, state = choosing()
  batch = conftest.random_unroll(agent, CHOICE, 2, np.zeros(4), 0)
  gradients, _ = jax.jit(agent.gradients)(
    state, jax.random.key(0), types.Sample(batch, np.ones(4, np.float32))
  )
  # log alpha is 0.
  assert gradients.params["temperature"] == pytest.approx(0.25 * np.log(3))


def test_the_initial_temperature_is_the_configs():
  agent = critics_cases.agent_of("sac", temperature=0.25)
  state = jax.jit(agent.init)(jax.random.key(0))
  assert np.exp(state.params["temperature"]) == pytest.approx(0.25)
  with pytest.raises(types.ConfigError, match="expected temperature"):
    sac.Config(temperature=0.0)
