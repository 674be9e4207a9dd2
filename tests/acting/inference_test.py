"""Inference devices: separate random keys, and common metrics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, metrics, types, wire
from seedx.acting import inference, inference_server, thin_actor
from seedx.agents import acting_step
from seedx.runtime import counters, seeds
from seedx.runtime import running as running_lib
from tests import fakes, running
from tests.acting import devices

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
  made = inference.Devices(
    inference.Config((0, 1), inference_batch_size=ROWS),
    random_agent(),
    envs.spec(envs.Config("CartPole-v1")),
    thin_actor.Config(num_actors=2, envs_per_actor=ROWS),
    counters.Acted(),
    returns_are_sums=True,
    period=2,
    share_size=ROWS,
    newest=lambda device: (jax.device_put(jnp.float32(0), device), 7),
    sink=lambda share: True,
    rng_key=jax.random.key(0),
  )
  team = running_lib.ThreadGroup()
  for name, run in made.threads.items():
    team.start(name, run)
  yield made
  made.close()
  team.join(60.0)


def actions_of(server, layouts):
  """Returns each device's actions for the same first observations."""
  rows = np.arange(ROWS, dtype=np.int32)
  timestep = acting_step.zero_inputs(server._acting.spec, ROWS).timestep
  inputs = types.Rows(rows, timestep, np.full(ROWS, np.nan, np.float32))
  actors = [
    devices.Actor(server.open({"num_envs": ROWS}), layouts) for _ in range(2)
  ]
  for actor in actors:
    actor.send(inputs)
  return [actor.receive() for actor in actors]


def test_each_device_acts_with_its_own_random_key(acting):
  server = inference_server.InferenceServer(acting, seeds.Seeds(0))
  first, second = actions_of(server, acting.layouts)
  assert first.shape == second.shape == (ROWS,)
  assert (first != second).any()
  lines = []
  running.wait_until(
    lambda: lines.append(acting.measure()) or lines[-1]["inference_rows"]
  )
  assert lines[-1]["inference_rows"] == ROWS
  assert {metrics.WAIT_ENVIRONMENTS, metrics.WAIT_LEARNER} < set(lines[-1])


def test_close_refuses_further_messages(acting):
  server = inference_server.InferenceServer(acting, seeds.Seeds(0))
  acting.close()
  with pytest.raises(wire.Refused, match="this run is over"):
    actions_of(server, acting.layouts)
