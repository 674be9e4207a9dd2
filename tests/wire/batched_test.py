"""Streams with requests that other threads answer, by pipes and by gRPC."""

import contextlib
import json
import threading
import time

import grpc
import numpy as np
import pytest

from seedx import wire
from seedx.wire import serving
from tests import fuzz, running

LAYOUT = wire.Layout.of(np.zeros(3, np.float32), max_rows=1_000_000)
ON_EACH = pytest.mark.parametrize("on", ["unix", "tcp"])


def rows(value, count=1):
  return np.full((count, 3), value, np.float32)


class Session:
  """A session that keeps its requests unanswered."""

  def __init__(self, opened):
    self.welcome = {}
    self.requests, self.threads, self.closed = [], [], 0
    opened.append(self)

  def receive(self, request):
    self.threads.append(threading.current_thread().name)
    self.requests.append(request)

  def close(self):
    self.closed += 1

  def answer(self):
    """Waits for a request; doubles the oldest one."""
    running.wait_until(lambda: self.requests)
    request = self.requests.pop(0)
    request.reply(LAYOUT.encode(2 * LAYOUT.decode(request.message)))


class Served:
  """A server with one method, and exchanges with it."""

  def __init__(self, server, stack, session=Session):
    self.server, self.sessions, self._stack = server, [], stack
    server.bind_batched(
      "double", lambda hello: session(self.sessions), LAYOUT, LAYOUT
    )

  def connect(self):
    """Returns an exchange and its session."""
    client = self._stack.enter_context(wire.Client(self.server.address))
    exchange = client.exchange("double", LAYOUT, LAYOUT)
    self._stack.callback(exchange.close)
    return exchange, self.sessions[-1]


@contextlib.contextmanager
def served(folder, on="unix", session=Session, **options):
  address = f"unix:{folder}/sock" if on == "unix" else "127.0.0.1:0"
  server = serving.Server(address, 8, **options)
  with contextlib.ExitStack() as stack:
    made = Served(server, stack, session)
    with server:
      yield made


def status_of(exchange):
  with pytest.raises(wire.WireError) as caught:
    exchange.receive()
  return caught.value.code, caught.value.message


@ON_EACH
def test_requests_are_answered_in_order_from_another_thread(tmp_path, on):
  with served(tmp_path, on) as made:
    exchange, session = made.connect()
    for value in range(5):
      exchange.send(rows(value, value + 1))
    for value in range(5):
      session.answer()
      np.testing.assert_array_equal(
        exchange.receive(), rows(2 * value, value + 1)
      )
    assert made.server.transferred_bytes == 2 * sum(
      LAYOUT.message_bytes(value + 1) for value in range(5)
    )


def test_one_thread_receives_from_all_pipes(tmp_path):
  with served(tmp_path) as made:
    connected = [made.connect() for _ in range(5)]
    for exchange, _ in connected:
      exchange.send(rows(1))
    for exchange, session in connected:
      session.answer()
      assert exchange.receive() is not None
      assert session.threads == ["pipes"]


@ON_EACH
def test_a_request_is_received_after_the_previous_answer(tmp_path, on):
  with served(tmp_path, on) as made:
    exchange, session = made.connect()
    other, other_session = made.connect()
    exchange.send(rows(0))
    session.answer()
    assert exchange.receive()[0, 0] == 0
    exchange.send(rows(1))
    exchange.send(rows(2))
    running.wait_until(lambda: session.requests)
    other.send(rows(3))  # Arrives after `rows(2)`.
    other_session.answer()
    assert len(session.requests) == 1
    session.answer()
    session.answer()
    assert [exchange.receive()[0, 0] for _ in range(2)] == [2, 4]


def test_a_request_in_pieces_delays_no_other(tmp_path):
  with served(tmp_path) as made:
    exchange, session = made.connect()
    other, other_session = made.connect()
    message = LAYOUT.encode(rows(1, 3))
    for first in range(0, len(message), 7):
      exchange._pipe.send(message[first : first + 7])
      other.send(rows(2))
      other_session.answer()
      assert other.receive()[0, 0] == 4
    session.answer()
    np.testing.assert_array_equal(exchange.receive(), rows(2, 3))


def test_a_client_that_does_not_read_delays_no_other(tmp_path):
  """The client's reply of 12 MB does not fit into the socket."""
  with served(tmp_path) as made:
    exchange, session = made.connect()
    other, other_session = made.connect()
    exchange.send(rows(1, 1_000_000))
    session.answer()
    for _ in range(3):
      other.send(rows(2))
      other_session.answer()
      assert other.receive()[0, 0] == 4
    np.testing.assert_array_equal(exchange.receive(), rows(2, 1_000_000))
    exchange.send(rows(3))
    session.answer()
    assert exchange.receive()[0, 0] == 6


@ON_EACH
def test_a_refused_request_ends_only_its_stream(tmp_path, on):
  with served(tmp_path, on) as made:
    exchange, session = made.connect()
    other, other_session = made.connect()
    exchange.send(rows(1))
    running.wait_until(lambda: session.requests)
    (request,) = session.requests
    request.refuse(wire.invalid("1", 2))
    request.reply(b"")  # Only the first answer counts.
    code, message = status_of(exchange)
    assert code is wire.StatusCode.INVALID_ARGUMENT
    assert message == "double: expected 1, found 2"
    running.wait_until(lambda: session.closed)
    other.send(rows(2))
    other_session.answer()
    assert other.receive()[0, 0] == 4
  assert session.closed == other_session.closed == 1


WRONG_MAGIC = b"XXXX" + LAYOUT.encode(rows(1))[4:]
CUT = LAYOUT.encode(rows(1))[:20]


@pytest.mark.parametrize(
  ("message", "reason"), [(WRONG_MAGIC, "magic"), (CUT, "within a message")]
)
def test_a_malformed_request_on_a_pipe_ends_its_stream(
  tmp_path, message, reason
):
  with served(tmp_path) as made:
    exchange, session = made.connect()
    exchange._pipe.send(message)
    exchange._pipe.end()
    code, text = status_of(exchange)
    assert code is wire.StatusCode.INVALID_ARGUMENT and reason in text
    assert not session.requests


@pytest.mark.parametrize("message", [WRONG_MAGIC, b""], ids=len)
def test_a_malformed_request_over_grpc_ends_its_stream(tmp_path, message):
  with served(tmp_path, "tcp") as made:
    method = fuzz.Method("double", LAYOUT, {}, [])
    text = json.dumps({**LAYOUT.to_json(), "hello": {}}).encode()
    with grpc.insecure_channel(made.server.address) as channel:
      code = fuzz.send_over(channel, method, text, [message])
    assert code is wire.StatusCode.INVALID_ARGUMENT
    assert not made.sessions[-1].requests


@ON_EACH
def test_an_error_of_a_session_ends_its_stream_with_internal(
  tmp_path, on, caplog
):
  class Broken(Session):
    def receive(self, request):
      raise KeyError("broken")

  with served(tmp_path, on, Broken) as made:
    exchange, _ = made.connect()
    exchange.send(rows(1))
    code, message = status_of(exchange)
  assert code is wire.StatusCode.INTERNAL and "KeyError: 'broken'" in message
  assert "a call raised an error" in caplog.text


@ON_EACH
def test_a_session_is_closed_when_its_client_leaves_without_an_answer(
  tmp_path, on
):
  with served(tmp_path, on) as made:
    exchange, session = made.connect()
    exchange.send(rows(1))
    running.wait_until(lambda: session.requests)
    exchange.close()
    running.wait_until(lambda: session.closed)
    session.answer()  # This answer is discarded.
    other, other_session = made.connect()
    other.send(rows(2))
    other_session.answer()
    assert other.receive()[0, 0] == 4
  assert session.closed == 1


@ON_EACH
def test_a_stopping_server_sends_the_replies_under_way(tmp_path, on):
  with served(tmp_path, on) as made:
    exchange, session = made.connect()
    idle, _ = made.connect()
    exchange.send(rows(1))
    running.wait_until(lambda: session.requests)
    stops = threading.Thread(target=made.server.stop, args=(300.0,))
    stops.start()
    running.wait_until(made.server._stopping.is_set)
    time.sleep(0.3)  # Meanwhile, idle streams are cancelled.
    session.answer()
    assert exchange.receive()[0, 0] == 2
    assert exchange.receive() is None  # OK
    assert idle.receive() is None
    stops.join(300)


@ON_EACH
def test_a_stopping_server_cancels_requests_that_have_no_answer(tmp_path, on):
  with served(tmp_path, on) as made:
    exchange, session = made.connect()

    def close():
      session.closed += 1
      for request in session.requests:
        request.refuse(wire.Refusal(wire.StatusCode.CANCELLED, "over"))

    session.close = close
    exchange.send(rows(1))
    running.wait_until(lambda: session.requests)
    made.server.stop(0.1)
    assert exchange.receive() is None  # The server's work is over.
  assert session.closed == 1


def test_a_silent_client_of_a_pipe_loses_its_place(tmp_path):
  with served(tmp_path, silent_seconds=0.2) as made:
    exchange, session = made.connect()
    code, message = status_of(exchange)
    assert code is wire.StatusCode.UNAVAILABLE and "0.2 seconds" in message
    running.wait_until(lambda: session.closed)


def test_the_thread_of_the_pipes_ends_with_the_server(tmp_path):
  def pipes():
    return {x for x in threading.enumerate() if x.name == "pipes"}

  before = pipes()  # The thread of an earlier test may still end.
  with served(tmp_path) as made:
    made.connect()
    (thread,) = pipes() - before
  running.wait_until(lambda: not thread.is_alive())


def test_without_epoll_each_streams_thread_receives(tmp_path, monkeypatch):
  monkeypatch.delattr(serving.select, "epoll")
  with served(tmp_path) as made:
    exchange, session = made.connect()
    assert exchange._pipe is not None
    for value in range(3):
      exchange.send(rows(value))
      session.answer()
      assert exchange.receive()[0, 0] == 2 * value
    assert "pipes" not in session.threads
