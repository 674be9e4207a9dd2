"""Optimizers of several groups of parameters, each with its learning rate."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seedx import types
from seedx.agents import base, optimizers

CONFIG = optimizers.Config(
  learning_rate_end=0.5, adam_epsilon=1e-8, max_gradient_norm=1.0
)
HORIZON = base.Horizon(env_steps=100, updates=10)
# The name and the value of each group's learning rate.
RATES = {"actor": ("learning_rate", 0.01), "critic": ("critic_rate", 0.1)}
NAMES = {key: name for key, (name, _) in RATES.items()}


def optimizer_of(config=CONFIG):
  return optimizers.Optimizer.make(config, HORIZON, rates=NAMES)


def state_of(optimizer, params, **rates):
  return base.AgentState(
    params=params,
    optimizer_state=optimizer.start(params, 0),
    hyperparameters={name: jnp.float32(rate) for name, rate in rates.items()},
    updates=jnp.int32(0),
  )


def drawn(scale):
  rng = np.random.default_rng(int(scale))
  shapes = {"kernel": (3, 2), "bias": (2,)}
  return {
    name: scale * rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_groups_learn_as_if_each_had_its_own_optimizer(kind):
  """Each group is clipped by its own norm, and has its own scheduled rate."""
  config = dataclasses.replace(CONFIG, optimizer=kind)
  # With one norm for both groups, clipping would leave little of the critic's
  # gradient.
  gradients = {"actor": drawn(100.0), "critic": drawn(1.0)}
  optimizer = optimizer_of(config)
  together = state_of(optimizer, gradients, **dict(RATES.values()))
  single = optimizers.Optimizer.make(config, HORIZON)
  apart = {
    key: state_of(single, gradients[key], learning_rate=rate)
    for key, (_, rate) in RATES.items()
  }
  step, single_step = jax.jit(optimizer.descend), jax.jit(single.descend)
  for updates in range(12):
    given = jax.tree.map(lambda x, k=updates: x * np.cos(k), gradients)
    together = step(together, given)
    for key in apart:
      apart[key] = single_step(apart[key], given[key])
      jax.tree.map(
        np.testing.assert_array_equal, together.params[key], apart[key].params
      )


def test_radam_takes_steps_without_the_variance_until_it_is_known():
  """Liu et al. 2020, algorithm 2, with the betas 0.9 and 0.999."""
  config = optimizers.Config(
    optimizer="radam", adam_epsilon=1e-8, max_gradient_norm=0.0
  )
  optimizer = optimizers.Optimizer.make(config, None)
  state = state_of(optimizer, drawn(1.0), learning_rate=0.5)
  step, first, second = jax.jit(optimizer.descend), 0.0, 0.0
  expected = drawn(1.0)["bias"].astype(float)
  for t in range(1, 9):
    gradient = jax.tree.map(lambda x, t=t: x * np.cos(t), drawn(1.0))
    state = step(state, gradient)
    first = 0.9 * first + 0.1 * gradient["bias"]
    second = 0.999 * second + 0.001 * np.square(gradient["bias"], dtype=float)
    direction = first / (1 - 0.9**t)
    longest = 2 / 0.001 - 1
    length = longest - 2 * t * 0.999**t / (1 - 0.999**t)
    if length > 5:
      variance = second / (1 - 0.999**t)
      ratio = (length - 4) * (length - 2) * longest
      ratio /= (longest - 4) * (longest - 2) * length
      direction = np.sqrt(ratio / variance) * direction
    assert (length > 5) == (t > 5)
    expected = expected - 0.5 * direction
    np.testing.assert_allclose(state.params["bias"], expected, rtol=2e-3)


def test_each_group_has_its_own_metrics():
  gradients = {"actor": drawn(100.0), "critic": drawn(1.0)}
  optimizer = optimizer_of()
  state = state_of(optimizer, gradients, **dict(RATES.values()))
  state = dataclasses.replace(state, updates=jnp.int32(5))
  metrics = optimizer.measure(state, gradients)
  assert set(metrics) == {
    "learning_rate_actor",
    "learning_rate_critic",
    "gradient_norm_actor",
    "gradient_norm_critic",
  }
  for key, (_, rate) in RATES.items():
    # The decay to half of the rate is half done.
    assert float(metrics[f"learning_rate_{key}"]) == pytest.approx(0.75 * rate)
    norm = optax.global_norm(gradients[key])
    assert metrics[f"gradient_norm_{key}"] == norm


def test_parameters_of_other_groups_are_refused():
  optimizer = optimizer_of()
  for params, message in (
    ({"actor": drawn(1.0)}, r"found \['actor'\]"),
    ({"actor": 0.0, "critic": 0.0, "z": 0.0}, "'critic', 'z'"),
    # A parameter server has one vector, which has no groups.
    (np.zeros(3, np.float32), "found a part of them"),
  ):
    with pytest.raises(
      types.ConfigError, match=f"'actor', 'critic'.*{message}"
    ):
      optimizer.start(params, 0)


@pytest.mark.parametrize("kind", ["adam", "transformation"])
def test_a_group_with_a_period_skips_the_updates_that_are_not_due(kind):
  """The skipped gradients change neither parameters nor moments."""
  fields = {"optimizer": kind}
  if kind == "transformation":
    fields = {"transformation": functools.partial(optax.adam, 0.1)}
  config = dataclasses.replace(CONFIG, **fields)
  periods = {"actor": 3}
  optimizer = optimizers.Optimizer.make(
    config, None, rates=NAMES, periods=periods
  )
  single = optimizers.Optimizer.make(config, None)
  start = {"actor": drawn(2.0), "critic": drawn(1.0)}
  together = state_of(optimizer, start, **dict(RATES.values()))
  apart = {
    key: state_of(single, start[key], learning_rate=rate)
    for key, (_, rate) in RATES.items()
  }
  step, single_step = jax.jit(optimizer.descend), jax.jit(single.descend)
  for updates in range(7):
    together = dataclasses.replace(together, updates=jnp.int32(updates))
    is_due = updates in (2, 5)
    assert optimizers.is_due(together.updates, 3) == is_due
    gradients = jax.tree.map(lambda x, k=updates: x * np.cos(k), start)
    together = step(together, gradients)
    for key in ("critic", *(["actor"] if is_due else [])):
      apart[key] = single_step(apart[key], gradients[key])
    for key, state in apart.items():
      jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7),
        together.params[key],
        state.params,
      )


def test_a_skipped_update_keeps_a_gradient_that_is_not_finite_out():
  optimizer = optimizers.Optimizer.make(
    CONFIG, None, rates=NAMES, periods={"actor": 2}
  )
  start = {"actor": drawn(2.0), "critic": drawn(1.0)}
  state = state_of(optimizer, start, **dict(RATES.values()))
  wrong = start | {"actor": jax.tree.map(lambda x: x * np.nan, start["actor"])}
  step = jax.jit(optimizer.descend)
  state = step(state, wrong)
  jax.tree.map(
    np.testing.assert_array_equal, state.params["actor"], start["actor"]
  )
  state = step(dataclasses.replace(state, updates=jnp.int32(1)), start)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


def test_a_largest_norm_of_0_does_not_clip():
  def trained(norm):
    config = dataclasses.replace(CONFIG, max_gradient_norm=norm)
    optimizer = optimizers.Optimizer.make(config, HORIZON)
    state = state_of(optimizer, drawn(2.0), learning_rate=0.01)
    for scale in (1.0, 50.0, 3.0):
      gradients = jax.tree.map(lambda x, k=scale: k * x, drawn(1.0))
      state = optimizer.descend(state, gradients)
    return jnp.concatenate([x.ravel() for x in jax.tree.leaves(state.params)])

  unclipped = trained(0.0)
  np.testing.assert_allclose(unclipped, trained(1e9), rtol=1e-6)
  assert np.abs(unclipped - trained(0.5)).max() > 1e-4
