"""Inference devices: separate random keys, and common metrics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, metrics, types
from seedx.acting import batcher, inference, thin_actor, unroll_store
from seedx.agents import acting_step
from seedx.runtime import running
from tests import fakes

ROWS = 64


def random_agent():
  """Returns an agent with random actions."""

  def step(acting, rng_key, inputs, core_state):
    rows = inputs.timestep.step_type.shape
    action = jax.random.randint(rng_key, rows, 0, 2, jnp.int32)
    return types.AgentOutput(action, {"sum": core_state + acting}), core_state

  return dataclasses.replace(fakes.counting_agent(), step=step)


@pytest.fixture
def acting():
  """Runs two devices, each for one actor with `ROWS` environments."""
  devices = inference.Devices(
    inference.Config((0, 1), inference_batch_size=ROWS),
    random_agent(),
    envs.spec(envs.Config("CartPole-v1")),
    thin_actor.Config(num_actors=2, envs_per_actor=ROWS),
    period=2,
    share_size=ROWS,
    newest=lambda device: (jax.device_put(jnp.float32(0), device), 7),
    sink=lambda share: True,
    rng_key=jax.random.key(0),
  )
  team = running.ThreadGroup()
  for name, run in devices.threads.items():
    team.start(name, run)
  yield devices
  devices.close()
  team.join(60.0)


def actions_of(devices):
  """Returns each device's actions for the same first observations."""
  rows = np.arange(ROWS, dtype=np.int32)
  timestep = acting_step.zero_inputs(devices.spec, ROWS).timestep
  batch = unroll_store.Batch(rows, np.zeros_like(rows), timestep)
  return [device.requests(batch, ROWS) for device in devices.devices]


def test_each_device_acts_with_its_own_random_key(acting):
  first, second = actions_of(acting)
  assert first.shape == second.shape == (ROWS,)
  assert (first != second).any()
  line = acting.measure()
  assert line["inference_rows"] == ROWS
  assert {metrics.WAIT_ENVIRONMENTS, metrics.WAIT_LEARNER} < set(line)
  acting.close()
  with pytest.raises(batcher.Closed):
    actions_of(acting)
