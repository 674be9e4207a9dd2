"""Labellers and their server."""

import threading

import jax
import numpy as np
import pytest

from seedx import channels, envs, types, wire
from seedx.acting import labels
from seedx.agents import qt_opt
from seedx.wire import serving
from tests import running

ENV = envs.Config("Pendulum-v1")
SPEC = envs.spec(ENV)
CONFIG = qt_opt.Config(
  hidden_sizes=(8,), value_min=-100.0, cem_samples=256, target_lag=3
)
AGENT = CONFIG.make(SPEC)
SIZE = 4
STATE = jax.jit(AGENT.init)(jax.random.key(0))


def windows(number):
  """Returns windows whose rewards are a number."""
  sample = labels.example(AGENT, SPEC, SIZE)
  timestep = sample.unroll.inputs.timestep
  timestep = timestep._replace(
    reward=np.full_like(timestep.reward, number),
    step_type=np.ones_like(timestep.step_type),
    discount=np.ones_like(timestep.discount),
  )
  inputs = sample.unroll.inputs._replace(timestep=timestep)
  return sample._replace(unroll=sample.unroll._replace(inputs=inputs))


class Served:
  """A server of labellers, and the labels that it has received."""

  def __init__(self, tmp_path):
    self.work = channels.Channel()
    self.given, self.version = [], 7
    service = labels.LabelServer(
      lambda: next(iter(self.work.get()), None),
      windows,
      lambda *arguments: self.given.append(arguments),
      self.work.put,
      lambda: (AGENT.targets(STATE), self.version),
      lambda: self.version,
    )
    self.server = serving.Server(f"unix:{tmp_path}/learner", 4)
    service.bind(self.server, windows(0))
    self.address = f"unix:{tmp_path}/learner"

  def __enter__(self):
    self.server.start()
    return self

  def __exit__(self, *exception):
    self.work.close()
    self.server.stop()


def exchange(client):
  zeros = np.zeros((AGENT.needs.window, SIZE), np.float32)
  return client.exchange(labels.LABELS, *labels._layouts(windows(0), zeros))


def request(version, value=0.0):
  shape = AGENT.needs.window, SIZE
  return labels.Labels(np.int32(version), np.full(shape, value, np.float32))


def test_a_labeller_computes_the_agents_labels(tmp_path):
  with Served(tmp_path) as served:
    for number in range(5):
      served.work.put(number)
    stop = threading.Event()
    work = labels.Work(served.address, ENV, CONFIG, SIZE, fetch_interval=2)
    thread = threading.Thread(target=labels.run, args=(work, stop))
    thread.start()
    running.wait_until(lambda: len(served.given) == 5)
    stop.set()
    served.work.close()
    thread.join(60)
    assert not thread.is_alive()
  label = jax.jit(AGENT.label)
  for number, actual, version in served.given:
    expected = label(AGENT.targets(STATE), jax.random.key(1), windows(number))
    # Another key draws other actions.
    np.testing.assert_allclose(actual, expected, rtol=0.01)
    assert version == 0 and actual[0, 0] != 0


def test_the_work_of_a_labeller_that_leaves_is_given_to_another(tmp_path):
  with Served(tmp_path) as served:
    served.work.put(1)
    with wire.Client(served.address) as client:
      stream = exchange(client)
      first = stream(request(-1))
      stream.close()
      running.wait_until(lambda: len(served.work) == 1)
      again = exchange(client)(request(-1))
    reward = first.unroll.inputs.timestep.reward
    assert (reward == 1).all() and not served.given
    np.testing.assert_array_equal(again.unroll.inputs.timestep.reward, reward)


def test_work_for_a_labeller_that_has_left_is_given_to_another(tmp_path):
  with Served(tmp_path) as served, wire.Client(served.address) as client:
    waits = exchange(client)
    waits.send(request(-1))
    other = exchange(client)
    # Both wait for work, and the first one leaves.
    running.wait_until(lambda: served.work._waiting == 1)
    waits.close()
    other.send(request(-1))
    running.wait_until(lambda: served.work._waiting == 2)
    served.work.put(5)
    assert other.receive().unroll.inputs.timestep.reward[0, 0] == 5
    assert not served.given


@pytest.mark.parametrize(
  ("second", "message"),
  [
    (request(8), "version"),
    (request(-2), "version"),
    (request(3, np.nan), "finite labels"),
  ],
)
def test_wrong_labels_are_refused(tmp_path, second, message):
  with Served(tmp_path) as served, wire.Client(served.address) as client:
    served.work.put(1)
    served.work.put(2)
    stream = exchange(client)
    stream(request(-1))
    with pytest.raises(wire.WireError, match=message):
      stream(second)
    # The windows wait for another labeller.
    running.wait_until(lambda: len(served.work) == 2)
    assert not served.given


def test_labels_without_windows_are_refused(tmp_path):
  with Served(tmp_path) as served, wire.Client(served.address) as client:
    served.work.put(1)
    with pytest.raises(wire.WireError, match="before the first windows"):
      exchange(client)(request(3))


def test_a_labeller_ends_with_the_run(tmp_path):
  with Served(tmp_path) as served, wire.Client(served.address) as client:
    stream = exchange(client)
    stream.send(request(-1))
    served.work.close()
    assert stream.receive() is None


def test_examples_have_no_core_state():
  sample = labels.example(AGENT, SPEC, SIZE)
  assert sample.unroll.core_state == () and sample.unroll.extras == ()
  assert sample.unroll.version.shape == (2, SIZE)
  assert isinstance(sample, types.Sample)
