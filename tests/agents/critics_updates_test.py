"""Updates of agents with critics: a delayed actor, and metrics."""

import dataclasses
import functools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import sharding, types
from seedx.agents import ddpg, sac
from seedx.learning import updates

ACTION = specs.BoundedArray((2,), np.float32, -2.0, 2.0)
SPEC = types.EnvironmentSpec(specs.Array((3,), np.float32), ACTION)
BATCH = 8
SMALL = {"hidden_sizes": (8,), "n_step": 1}
TD3 = dataclasses.replace(ddpg.td3(), target_noise=0.0, **SMALL)


def unroll_of(steps, core_state=()):
  rng = np.random.default_rng(0)

  def drawn(*shape):
    return rng.normal(size=(steps, BATCH, *shape)).astype(np.float32)

  timestep = dm_env.TimeStep(
    step_type=np.ones((steps, BATCH), np.int32),
    reward=drawn(),
    discount=np.ones((steps, BATCH), np.float32),
    observation=drawn(3),
  )
  return types.Unroll(
    inputs=types.Inputs(timestep, drawn(2), np.zeros_like(timestep.reward)),
    action=np.clip(drawn(2), -2, 2),
    extras=(),
    version=np.zeros((steps, BATCH), np.int32),
    core_state=core_state,
  )


def sample():
  weights = np.linspace(0.1, 0.9, BATCH, dtype=np.float32)
  return types.Sample(unroll_of(steps=2), weights)


@functools.cache
def update_of(config, micro_batches=1):
  """Returns a function that updates a state on one core, and a first state."""
  agent = config.make(SPEC, sharding.CORES)
  mesh = sharding.mesh(jax.devices()[:1])
  on_core = updates.OnCore(agent)
  if micro_batches == 1:
    program: updates.Program = updates.Whole(on_core, mesh)
  else:
    program = updates.Accumulation(on_core, mesh, micro_batches)
  key = jax.random.key_data(jax.random.key(0))

  def update(state):
    inputs = updates.Inputs(np.int32(state.updates), key, sample())
    result = program(state, inputs)
    assert not result.skipped
    return result.state, result.output.metrics.copied()

  return update, jax.jit(agent.init)(jax.random.key(0))


@pytest.mark.slow
def test_metrics_of_an_actor_are_nan_in_updates_in_which_it_takes_no_step():
  """A line of metrics has those of the newest update, not a mean."""
  every, start = update_of(dataclasses.replace(TD3, actor_period=1))
  delayed, state = update_of(TD3)
  names = ("loss_actor", "q_actor", "gradient_norm_actor")
  _, without = delayed(state)
  assert np.isnan([without[name] for name in names]).all()
  assert np.isfinite([x for k, x in without.items() if k not in names]).all()
  due = dataclasses.replace(state, updates=jnp.int32(1))
  _, metrics = delayed(due)
  _, expected = every(start)
  for name in names:
    assert metrics[name] == pytest.approx(expected[name], rel=1e-4), name
    assert metrics[name] != 0


@pytest.mark.slow
def test_micro_batches_report_the_norm_of_each_groups_mean_gradient():
  whole, state = update_of(TD3)
  parts, _ = update_of(TD3, micro_batches=4)
  for updates_before in (0, 1):
    before = dataclasses.replace(state, updates=jnp.int32(updates_before))
    (_, expected), (_, metrics) = whole(before), parts(before)
    for name in ("gradient_norm_actor", "gradient_norm_critic"):
      np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-4)
  assert metrics["gradient_norm_actor"] > 0


@pytest.mark.slow
def test_importance_weights_do_not_scale_the_reported_temperature():
  update, state = update_of(sac.Config(temperature=0.5, **SMALL))
  _, metrics = update(state)
  assert metrics["importance_weight"] == pytest.approx(0.5)
  assert metrics["temperature"] == pytest.approx(0.5)


@pytest.mark.slow
def test_a_delayed_actor_learns_from_gradients_that_are_one_update_old():
  """A3C applies the gradients of its workers to a newer state."""
  agent = dataclasses.replace(TD3, replayed=False).make(SPEC)
  batch = unroll_of(3, agent.initial_core_state(BATCH))
  state = read = start = jax.jit(agent.init)(jax.random.key(0))

  @jax.jit
  def step(read, state):
    gradients, fraction, _ = updates.compute_gradients(
      agent, read, jax.random.key(0), batch
    )
    return updates.apply_gradients(agent, state, gradients, fraction)[0]

  for _ in range(3):
    state, read = step(read, state), state
  for group in ("actor", "critic"):
    moved = jax.tree.map(
      lambda a, b: np.abs(a - b).max(), state.params[group], start.params[group]
    )
    assert max(map(float, jax.tree.leaves(moved))) > 1e-4, group
