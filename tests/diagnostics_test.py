"""What agents log of an update beside its losses."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seedx import losses
from seedx.agents import (
  a2c,
  base,
  dqn,
  model,
  policy_gradient,
  ppo,
  value_based,
  vtrace,
)
from tests import agents_test

ACTOR_CRITICS = {"a2c": a2c.Config, "vtrace": vtrace.Config, "ppo": ppo.Config}
RATE = 0.01


def made(config, horizon=None):
  """An agent, its state and a batch; what it makes of the batch."""
  spec = agents_test.KINDS["vector"].spec
  agent = config(hidden_sizes=(16,), reward_scale=1.0, learning_rate=RATE).make(
    spec, None, horizon
  )
  state = agent.init(jax.random.key(0))
  batch = (
    agents_test.unrolls(agent, spec, 1)
    if agent.needs.window is None
    else agents_test.samples(agent, spec, 1)
  )
  return agent, state, batch


def metrics_of(agent, state, batch):
  _, output = jax.jit(agent.gradients)(state, jax.random.key(0), batch)
  return jax.device_get(output.metrics)


def evaluated(state, batch):
  """The batch, evaluated by the state's parameters."""
  spec = agents_test.KINDS["vector"].spec
  policy = policy_gradient.Policy.make(
    spec, a2c.Config(hidden_sizes=(16,), reward_scale=1.0)
  )
  variables = model.Variables(state.params, state.statistics)
  return policy.evaluate(variables, batch, state.hyperparameters)


def acted_with(batch, log_prob):
  """The batch, as if its actions had such log-probabilities when acted."""
  log_prob = np.concatenate([log_prob, batch.extras.log_prob[-1:]])
  return batch._replace(extras=batch.extras._replace(log_prob=log_prob))


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_the_gradients_norm_is_that_before_clipping(name):
  agent, state, batch = made(ACTOR_CRITICS[name])
  gradients, output = agent.gradients(state, jax.random.key(0), batch)
  expected = float(optax.global_norm(gradients.params))
  assert output.metrics["gradient_norm"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_entropy_is_positive_and_at_most_that_of_chance(name):
  found = metrics_of(*made(ACTOR_CRITICS[name]))
  assert 0.0 < found["entropy"] <= math.log(5) + 1e-6


def test_advantages_and_explained_variance_are_of_steps_that_are_no_resets():
  agent, state, batch = made(a2c.Config)
  found = metrics_of(agent, state, batch)
  steps = jax.vmap(losses.a2c, in_axes=1, out_axes=1)(*evaluated(state, batch))
  kept = np.asarray(steps.weight) > 0
  assert 0 < kept.sum() < kept.size
  said = {k: np.asarray(x)[kept] for k, x in steps.diagnostics.items()}
  unexplained = said["value_error"].var() / said["value_target"].var()
  expected = {
    "advantage_mean": said["advantage"].mean(),
    "advantage_std": said["advantage"].std(),
    "explained_variance": 1 - unexplained,
  }
  for metric, value in expected.items():
    assert found[metric] == pytest.approx(value, rel=1e-4), metric


def test_values_that_are_the_targets_explain_all_of_them():
  means = {"value_target": jnp.float32(3), "value_error": jnp.float32(0)}
  variances = {"value_target": jnp.float32(4), "value_error": jnp.float32(0)}
  found = policy_gradient._diagnosed(means, variances)
  assert found == {"explained_variance": 1.0}


@pytest.mark.parametrize("name", ["vtrace", "ppo"])
@pytest.mark.parametrize(
  ("log_ratio", "clipped"),
  # What rounding may make of 0 is not clipped.
  [
    (0.0, {}),
    (1e-4, {}),
    (0.1, {"vtrace"}),
    (0.3, {"vtrace", "ppo"}),
    (-0.3, {"ppo"}),
  ],
)
def test_how_far_the_policy_is_from_the_one_that_acted(
  name, log_ratio, clipped
):
  agent, state, batch = made(ACTOR_CRITICS[name])
  log_prob = np.asarray(evaluated(state, batch).log_prob)
  found = metrics_of(agent, state, acted_with(batch, log_prob - log_ratio))
  expected = math.exp(log_ratio) - 1 - log_ratio
  assert found["approx_kl"] == pytest.approx(expected, rel=1e-3, abs=1e-6)
  assert found["clip_fraction"] == pytest.approx(float(name in clipped))
  if name == "vtrace":
    assert found["importance_weight"] == pytest.approx(math.exp(log_ratio))


@pytest.mark.parametrize("name", [*ACTOR_CRITICS, "dqn"])
def test_the_learning_rate_is_that_of_the_schedule(name):
  horizon = base.Horizon(env_steps=1_000, updates=10)
  config = ACTOR_CRITICS.get(name, dqn.Config)
  if name == "ppo":
    agent, state, batch = made(
      lambda **fields: ppo.Config(minibatches=3, **fields), horizon
    )
  else:
    agent, state, batch = made(config, horizon)
  update = jax.jit(agent.update)
  for k in range(3):
    before = state
    state, output = update(state, jax.random.key(k), batch)
    assert output.metrics["learning_rate"] == pytest.approx(
      RATE * (1 - k / 10), rel=1e-5
    )
  # As it is in the state, at run time.
  other = before.hyperparameters | {"learning_rate": jnp.float32(1.0)}
  faster = dataclasses.replace(before, hyperparameters=other)
  _, output = update(faster, jax.random.key(0), batch)
  assert output.metrics["learning_rate"] == pytest.approx(0.8, rel=1e-5)


def test_dqn_logs_its_q_values_errors_and_epsilon():
  horizon = base.Horizon(env_steps=100_000, updates=100)
  agent, state, batch = made(dqn.Config, horizon)
  state = dataclasses.replace(state, updates=jnp.int32(25))
  _, output = jax.jit(agent.gradients)(state, jax.random.key(0), batch)
  found = jax.device_get(output.metrics)
  assert found["epsilon"] == agent.acting(state).epsilon
  assert 0.01 < found["epsilon"] < 1.0
  assert 0 <= found["td_error_p50"] <= found["td_error"] * 2
  assert found["td_error_p50"] <= found["td_error_p95"]
  errors = np.asarray(output.priorities)
  assert found["td_error_p95"] <= errors.max() + 1e-6
  assert found["gradient_norm"] > 0
  assert found["q_mean"] == pytest.approx(q_mean(agent, state, batch), rel=1e-4)


def q_mean(agent, state, batch):
  """Of the actions that were taken, by the gradient of plain Q."""
  spec = agents_test.KINDS["vector"].spec
  config = dqn.Config(hidden_sizes=(16,), reward_scale=1.0)
  q_model = value_based._model(spec, config, None)
  variables = model.Variables(state.params, state.statistics)
  unroll = batch.unroll
  output = q_model.unroll(variables, unroll.inputs, unroll.core_state)
  action = np.asarray(unroll.action, np.int32)[0]
  first = np.asarray(output.head)[0]
  kept = np.asarray(unroll.inputs.timestep.step_type)[1] != 0
  return first[np.arange(len(action)), action][kept].mean()
