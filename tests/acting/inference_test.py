"""Inference devices: random keys, metrics, early copies of actions."""

import contextlib
import dataclasses
import types as types_lib

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


def devices_of(*indices):
  """Returns devices, each for one actor with `ROWS` environments."""
  return inference.Devices(
    inference.Config(indices, inference_batch_size=ROWS),
    random_agent(),
    envs.spec(envs.Config("CartPole-v1")),
    thin_actor.Config(num_actors=len(indices), envs_per_actor=ROWS),
    counters.Acted(),
    returns_are_sums=True,
    period=2,
    share_size=ROWS,
    newest=lambda device: (jax.device_put(jnp.float32(0), device), 7),
    sink=lambda share: True,
    waiting=lambda device: contextlib.nullcontext(),
    rng_key=jax.random.key(0),
  )


@contextlib.contextmanager
def running_threads(made):
  """Runs the threads of `made`."""
  team = running_lib.ThreadGroup()
  for name, run in made.threads.items():
    team.start(name, run)
  yield made
  made.close()
  team.join(60.0)


@pytest.fixture
def acting():
  """Runs two devices."""
  with running_threads(devices_of(0, 1)) as made:
    yield made


def actions_of(server, layouts):
  """Returns each device's actions for the same first observations."""
  rows = np.arange(ROWS, dtype=np.int32)
  timestep = acting_step.zero_inputs(server._acting.spec, ROWS).timestep
  inputs = types.Rows(rows, timestep, np.full(ROWS, np.nan, np.float32))
  actors = [
    devices.Actor(server.open({"num_envs": ROWS}), layouts)
    for _ in server._acting.devices
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


class Recorded:
  """Actions that record when they are copied, and when the host waits."""

  def __init__(self, actions, events):
    self._actions, self._events = actions, events

  def copy_to_host_async(self):
    self._events.append("copy")

  def __array__(self, *arguments, **options):
    self._events.append("wait")
    return np.asarray(self._actions)


@pytest.mark.parametrize(
  ("platform", "expected"),
  [
    ("cuda", ["copy", "begin", "wait", "end"]),
    ("cpu", ["begin", "wait", "end"]),
  ],
)
def test_the_copy_of_actions_begins_before_a_measured_wait(platform, expected):
  made, events = devices_of(0), []
  (device,) = made.devices
  act = device._act

  def recorded(*arguments):
    store, actions = act(*arguments)
    return store, Recorded(actions, events)

  device._act = recorded
  device._device = types_lib.SimpleNamespace(platform=platform)
  device._newest = lambda _: (jnp.float32(0), 7)

  @contextlib.contextmanager
  def waiting(of_device):
    assert of_device is device._device
    events.append("begin")
    yield
    events.append("end")

  device._waiting = waiting
  with running_threads(made):
    server = inference_server.InferenceServer(made, seeds.Seeds(0))
    actions_of(server, made.layouts)
  assert events[-4:] == expected
  assert events.count("wait") == 1


def test_close_refuses_further_messages(acting):
  server = inference_server.InferenceServer(acting, seeds.Seeds(0))
  acting.close()
  with pytest.raises(wire.Refused, match="this run is over"):
    actions_of(server, acting.layouts)
