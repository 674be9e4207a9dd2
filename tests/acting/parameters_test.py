"""Acting parameters: a source, and clients that fetch from it."""

import jax
import numpy as np
import pytest

from seedx import wire
from seedx.acting import parameters
from seedx.wire import serving as server_lib

FORM = {"w": np.zeros(3, np.float32)}


class Weights:
  """Stand-in for a leaf on a device; it counts its copies to the host."""

  shape, dtype = (3,), np.dtype(np.float32)

  def __init__(self, value):
    self.value, self.copies = value, 0

  def __array__(self, dtype=None, copy=None):
    self.copies += 1
    return np.full(3, self.value, np.float32)


class Serving:
  """A source on a server; `asked` counts requests that reached the source."""

  def __init__(self, folder):
    self.acting, self.version, self.asked = {"w": Weights(1.5)}, 7, 0
    self.server = server_lib.Server(f"unix:{folder}/source", 4)
    parameters.Source(self._newest).bind(self.server)
    self.asked = 0
    self.server.start()
    self.clients = []

  def _newest(self):
    self.asked += 1
    return self.acting, self.version

  def publish(self, value, version):
    self.acting, self.version = {"w": Weights(value)}, version

  def fetched(self, form=FORM):
    client = wire.Client(self.server.address)
    self.clients.append(client)
    return parameters.Copy(client, form, jax.local_devices()[0])

  def close(self):
    for client in self.clients:
      client.close()
    self.server.stop(0)


@pytest.fixture
def serving(tmp_path):
  source_server = Serving(tmp_path)
  yield source_server
  source_server.close()


def check(held, value, version):
  assert held.version == version and held.version.dtype == np.int32
  assert isinstance(held.acting["w"], jax.Array)
  np.testing.assert_array_equal(held.acting["w"], np.full(3, value))


def test_clients_get_the_newest_version_and_each_is_copied_once(serving):
  first, second = serving.fetched(), serving.fetched()
  for value, version in ((1.5, 7), (-2.25, 8), (-2.25, 9), (0.5, 20)):
    serving.publish(value, version)
    check(first.newest(), value, version)
    check(second.newest(), value, version)
    assert serving.acting["w"].copies == 1
  late = serving.fetched()
  check(late.newest(), 0.5, 20)
  assert serving.acting["w"].copies == 1


def test_unchanged_parameters_are_not_sent_again(serving):
  first, second = serving.fetched(), serving.fetched()
  held = first.newest(7)
  assert serving.asked == 1
  for version in (7, np.int32(7), 3):
    assert first.newest(version) is held
  assert serving.asked == 1
  serving.publish(2.5, 9)
  # The client has seen version 8 in a reply; the source already has 9.
  check(first.newest(8), 2.5, 9)
  assert first.newest(9) is first.newest(8)
  check(second.newest(9), 2.5, 9)
  assert serving.asked == 3


def test_a_client_fetches_if_its_stream_has_long_been_silent(
  serving, monkeypatch
):
  fetched = serving.fetched()
  fetched.newest()
  monkeypatch.setattr(wire, "SILENT_SECONDS", -1.0)
  check(fetched.newest(7), 1.5, 7)
  assert serving.asked == 2


def test_a_client_returns_none_once_the_server_has_stopped(serving):
  fetched = serving.fetched()
  check(fetched.newest(), 1.5, 7)
  serving.server.stop(0)
  assert fetched.newest() is None


def test_a_client_that_expects_other_shapes_is_refused(serving):
  with pytest.raises(wire.WireError, match="acting/w") as caught:
    serving.fetched({"w": np.zeros(4, np.float32)})
  assert caught.value.code is wire.StatusCode.FAILED_PRECONDITION
