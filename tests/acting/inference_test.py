"""Inference devices: random keys, metrics, early copies of actions, shares."""

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
from seedx.runtime import counters, seeding
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


def devices_of(*indices, share_size=ROWS, sink=lambda share: True):
  """Returns devices, each for one actor with `ROWS` environments."""
  return inference.Devices(
    inference.Config(indices, inference_batch_size=ROWS),
    random_agent(),
    envs.spec(envs.Config("CartPole-v1")),
    thin_actor.Config(num_actors=len(indices), envs_per_actor=ROWS),
    counters.ActingCounts(),
    returns_are_sums=True,
    period=2,
    share_size=share_size,
    newest=lambda device: (jax.device_put(jnp.float32(0), device), 7),
    sink=sink,
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


def rows_of(spec):
  """Returns the first observations of `ROWS` environments, which are zeros."""
  index = np.arange(ROWS, dtype=np.int32)
  timestep = acting_step.zero_inputs(spec, ROWS).timestep
  return types.Rows(index, timestep, np.full(ROWS, np.nan, np.float32))


def actions_of(server, layouts):
  """Returns each device's actions for the same first observations."""
  inputs = rows_of(server._acting.spec)
  actors = [
    devices.Actor(server.open({"num_envs": ROWS}), layouts)
    for _ in server._acting.devices
  ]
  for actor in actors:
    actor.send(inputs)
  return [actor.receive() for actor in actors]


def server_of(made):
  return inference_server.InferenceServer(
    made, seeding.Seeds(0), counters.ActingCounts()
  )


def test_each_device_acts_with_its_own_random_key():
  with running_threads(devices_of(0, 1)) as acting:
    first, second = actions_of(server_of(acting), acting.layouts)
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
  device.example = lambda: None  # A real example needs a real device.

  @contextlib.contextmanager
  def waiting(of_device):
    assert of_device is device._device
    events.append("begin")
    yield
    events.append("end")

  device._waiting = waiting
  with running_threads(made):
    actions_of(server_of(made), made.layouts)
  assert events[-4:] == expected
  assert events.count("wait") == 1


def test_close_refuses_further_messages():
  made = devices_of(0)
  server = server_of(made)
  made.close()
  with pytest.raises(wire.Refusal, match="this run is over"):
    actions_of(server, made.layouts)


@pytest.mark.parametrize("size", [ROWS // 2, 3 * ROWS // 2])
def test_shares_have_all_unrolls_in_order_and_begin_without_zeros(size):
  """No share is filled with zeros; one in two of 3 / 2 messages is added to."""
  shares = []
  made = devices_of(
    0, share_size=size, sink=lambda share: shares.append(share) or True
  )
  (device,), added = made.devices, []
  add = device._add
  device._add = lambda *x: added.append(x[-1]) or add(*x)
  with running_threads(made):
    actor = devices.Actor(
      server_of(made).open({"num_envs": ROWS}), made.layouts
    )
    rows = rows_of(made.spec)
    for step in range(7):  # Unrolls end at steps 2, 4 and 6.
      number = step * ROWS + rows.index
      rows.timestep.observation[:] = number[:, None]
      rows.timestep.step_type[:] = min(step, 1)
      actor(rows)
    running.wait_until(lambda: len(shares) == 3 * ROWS // size)
  observed = np.concatenate(
    [x.data.inputs.timestep.observation[..., 0] for x in shares], axis=1
  )
  first = np.concatenate([2 * k * ROWS + rows.index for k in range(3)])
  np.testing.assert_array_equal(observed, first + ROWS * np.arange(3)[:, None])
  in_run = [row for row in added if row.any()]  # Compiling adds zeros.
  assert len(in_run) == (2 if size > ROWS else 0)
