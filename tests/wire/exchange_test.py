"""Tests of `Client.exchange`: replies, their order, and the end."""

import threading

import numpy as np
import pytest

from seedx import wire
from seedx.wire import serving
from tests import running

INPUTS = wire.Layout.of({"x": np.zeros(3, np.float32)}, max_rows=8)
OUTPUTS = wire.Layout.of(np.zeros((), np.float64), max_rows=8)


def message(value, rows=1):
  return {"x": np.full((rows, 3), value, np.float32)}


class Summing:
  """A session that sums rows."""

  def __init__(self, hello):
    self.welcome = {"you": hello["name"]}
    self.closed = threading.Event()

  def __call__(self, inputs):
    return inputs["x"].sum(axis=1, dtype=np.float64)

  def close(self):
    self.closed.set()


@pytest.fixture
def server(tmp_path):
  sessions = []

  def open_session(hello):
    sessions.append(Summing(hello))
    return sessions[-1]

  served = serving.Server(f"unix:{tmp_path}/sock", 2)
  served.bind_stream("sum", open_session, INPUTS, OUTPUTS)
  served.sessions = sessions
  with served:
    yield served


@pytest.fixture
def client(server):
  with wire.Client(server.address) as connected:
    yield connected


@pytest.fixture
def exchange(client):
  opened = client.exchange("sum", INPUTS, OUTPUTS, {"name": "a"})
  yield opened
  opened.close()


def test_replies_come_in_the_order_of_requests_sent_ahead(exchange):
  for value in range(6):
    exchange.send(message(value))
  assert [float(exchange.receive()[0]) for _ in range(3)] == [0.0, 3.0, 6.0]
  exchange.send(message(10))
  # A call gets the reply to the oldest unanswered request.
  assert exchange(message(20))[0] == 9.0
  rest = [float(exchange.receive()[0]) for _ in range(4)]
  assert rest == [12.0, 15.0, 30.0, 60.0]


def test_both_ends_count_all_bytes_of_messages(server, client, exchange):
  assert exchange.transferred_bytes == server.transferred_bytes == 0
  expected = 0
  for rows in (1, 2, 5, 8):
    exchange(message(1, rows))
    expected += INPUTS.message_bytes(rows) + OUTPUTS.message_bytes(rows)
    assert exchange.transferred_bytes == server.transferred_bytes == expected
  other = client.exchange("sum", INPUTS, OUTPUTS, {"name": "b"})
  other(message(1))
  other.close()
  more = INPUTS.message_bytes(1) + OUTPUTS.message_bytes(1)
  assert other.transferred_bytes == more
  assert exchange.transferred_bytes == expected
  assert server.transferred_bytes == expected + more


def test_receive_returns_none_after_the_server_has_stopped(server, exchange):
  exchange(message(1))
  server.stop()
  assert exchange.receive() is None
  assert exchange(message(2)) is None


def test_receive_raises_the_error_of_a_request_that_does_not_fit(exchange):
  exchange.send({"x": np.zeros((1, 4), np.float32)})
  with pytest.raises(ValueError, match="expected"):
    exchange.receive()


def test_close_ends_the_session_and_the_clients_threads(server, client):
  before = threading.active_count()
  for _ in range(40):
    exchange = client.exchange("sum", INPUTS, OUTPUTS, {"name": "a"})
    exchange(message(1))
    exchange.close()
    exchange.close()
    running.wait_until(server.sessions[-1].closed.is_set)
  assert len(server.sessions) == 40
  # The server keeps up to 16 idle threads for the next calls.
  running.wait_until(lambda: threading.active_count() <= before + 16)
