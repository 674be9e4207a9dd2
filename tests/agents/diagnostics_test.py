"""The diagnostics that agents log in addition to losses."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest

from seedx import losses
from seedx.agents import a2c, base, models, policy_model, ppo, vtrace
from tests import conftest
from tests.agents import cases

ACTOR_CRITICS = {
  "a2c": a2c.Config(hidden_sizes=(8,), reward_scale=1.0, td_lambda=1.0),
  "vtrace": vtrace.Config(hidden_sizes=(8,), reward_scale=1.0),
  "ppo": ppo.Config(
    hidden_sizes=(8,), reward_scale=1.0, epochs=4, minibatches=3
  ),
}
SPEC = cases.VECTOR
HORIZON = base.Horizon(env_steps=1_000, updates=10)
KEY = jax.random.key(0)


@functools.cache
def agent_of(name):
  return ACTOR_CRITICS[name].make(SPEC, None, HORIZON)


@functools.cache
def jitted(method, name):
  return jax.jit(getattr(agent_of(name), method))


@functools.cache
def state_of(name):
  return cases.random_state(agent_of(name), ACTOR_CRITICS[name])


@functools.cache
def batch():
  return conftest.random_unroll(
    agent_of("a2c"), SPEC, 5, np.linspace(0, 0.5, 3)
  )


def metrics_of(name, unroll):
  _, output = jitted("gradients", name)(state_of(name), KEY, unroll)
  return jax.device_get(output.metrics)


@functools.cache
def evaluated():
  """Evaluates the batch with the parameters, which all agents here share."""
  state, config = state_of("a2c"), ACTOR_CRITICS["a2c"]
  variables = models.Variables(state.params, ())
  evaluate = config.policy(SPEC).evaluate
  return jax.jit(evaluate)(variables, batch(), state.hyperparameters)


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_gradient_norm_is_unclipped_and_entropy_within_its_range(name):
  gradients, output = jitted("gradients", name)(state_of(name), KEY, batch())
  squares = [np.square(x).sum() for x in jax.tree.leaves(gradients.params)]
  assert output.metrics["gradient_norm"] == pytest.approx(
    sum(squares) ** 0.5, rel=1e-5
  )
  assert 0.0 < output.metrics["entropy"] <= math.log(3) + 1e-6


def test_advantages_and_explained_variance_exclude_resets():
  metrics = metrics_of("a2c", batch())
  steps = jax.jit(jax.vmap(losses.a2c, in_axes=1, out_axes=1))(
    *evaluated().streams
  )
  kept = np.asarray(steps.weight) > 0
  assert 0 < kept.sum() < kept.size
  values = {k: np.asarray(x)[kept] for k, x in steps.diagnostics.items()}
  unexplained = values["value_error"].var() / values["value_target"].var()
  expected = {
    "advantage_mean": values["advantage"].mean(),
    "advantage_std": values["advantage"].std(),
    "explained_variance": max(1 - unexplained, -1),
  }
  for metric, value in expected.items():
    assert metrics[metric] == pytest.approx(value, rel=1e-4), metric


@pytest.mark.parametrize("name", ["vtrace", "ppo"])
@pytest.mark.parametrize(
  ("log_ratio", "clipped"),
  # A ratio of 1.0001 may be a rounding error, and does not count as clipped.
  [(1e-4, {}), (0.1, {"vtrace"}), (0.3, {"vtrace", "ppo"}), (-0.3, {"ppo"})],
)
def test_divergence_and_clipping_compare_with_the_policy_that_acted(
  name, log_ratio, clipped
):
  log_prob = np.asarray(evaluated().log_prob) - np.float32(log_ratio)
  log_prob = np.concatenate([log_prob, batch().extras.log_prob[-1:]])
  acted = batch()._replace(extras=policy_model.Extras(log_prob))
  metrics = metrics_of(name, acted)
  expected = math.exp(log_ratio) - 1 - log_ratio
  assert metrics["approx_kl"] == pytest.approx(expected, rel=1e-3, abs=1e-6)
  assert metrics["clip_fraction"] == pytest.approx(float(name in clipped))
  if name == "vtrace":
    assert metrics["importance_weight"] == pytest.approx(math.exp(log_ratio))
    assert metrics["effective_sample_size"] == pytest.approx(1.0, rel=1e-4)
    mass = max(math.exp(log_ratio) - 1, 0.0)
    assert metrics["clip_mass"] == pytest.approx(mass, rel=1e-3)


def test_vtrace_logs_effective_sample_size_and_clipped_mass():
  """The log ratios are standard normal."""
  log_prob = np.asarray(evaluated().log_prob)
  draws = np.random.default_rng(0).normal(size=log_prob.shape)
  log_ratio = draws.astype(np.float32)
  acting = np.concatenate([log_prob - log_ratio, batch().extras.log_prob[-1:]])
  acted = batch()._replace(extras=policy_model.Extras(acting))
  kept = np.asarray(batch().inputs.timestep.step_type[1:]) != 0
  metrics, ratio = metrics_of("vtrace", acted), np.exp(log_ratio)[kept]
  expected = {
    "effective_sample_size": ratio.sum() ** 2 / len(ratio) / (ratio**2).sum(),
    "clip_mass": np.maximum(ratio - 1, 0).mean(),
    "clip_fraction": (ratio > 1).mean(),
  }
  for name, value in expected.items():
    assert metrics[name] == pytest.approx(value, rel=1e-3), name


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_the_learning_rate_follows_the_schedule(name):
  # PPO logs the metrics of `update`, which takes several optimizer steps.
  run = jitted("update" if name == "ppo" else "gradients", name)
  state = state_of(name)
  for updates, rate in ((0, 0.01), (1, 0.01), (2, 1.0)):
    rates = state.hyperparameters | {"learning_rate": np.float32(rate)}
    count = state.optimizer_state[-1]._replace(count=np.int32(3 * updates))
    now = dataclasses.replace(
      state,
      updates=np.int32(updates),
      hyperparameters=rates,
      optimizer_state=(*state.optimizer_state[:-1], count),
    )
    _, output = run(now, KEY, batch())
    assert output.metrics["learning_rate"] == pytest.approx(
      rate * (1 - updates / 10), rel=1e-5
    )
