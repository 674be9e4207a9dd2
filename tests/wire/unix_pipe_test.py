"""Tests of pipes, which carry the messages of streams on one machine."""

import contextlib
import os
import pathlib
import queue
import resource
import select
import socket
import threading
import time

import numpy as np
import pytest

from seedx import wire
from seedx.wire import array_layout, listening, serving, unix_pipe

LAYOUT = wire.Layout.of(np.zeros(3, np.float32), max_rows=100_000)


def rows(value, count=1):
  return np.full((count, 3), value, np.float32)


def pair(max_bytes=1000):
  return [unix_pipe.Pipe(x, max_bytes) for x in socket.socketpair()]


def raw_and_pipe(max_bytes=1000):
  raw, other = socket.socketpair()
  return raw, unix_pipe.Pipe(other, max_bytes)


def test_messages_arrive_unchanged_and_in_order():
  one, other = pair(LAYOUT.message_bytes(100))
  messages = [LAYOUT.encode(rows(k, k + 1)) for k in range(5)]
  assert all(one.send(x) for x in messages)
  assert [other.receive() for _ in messages] == messages
  one.end()
  assert other.receive() is None
  assert other.send(messages[0])  # The other direction stays open.
  assert one.receive() == messages[0]


@pytest.mark.parametrize("sent", [0, 5, 40])
def test_receive_returns_none_at_an_end_even_within_a_message(sent):
  raw, end = raw_and_pipe()
  raw.sendall(LAYOUT.encode(rows(1, 9))[:sent])
  raw.close()
  assert end.receive() is None
  assert end.cut == (sent > 0)


def test_a_message_that_is_too_long_is_not_read():
  raw, end = raw_and_pipe(max_bytes=100)
  raw.sendall(LAYOUT.encode(rows(1, 9)))
  with pytest.raises(array_layout.MessageError, match="at most 100 bytes"):
    end.receive()


def test_close_ends_the_wait_of_another_thread():
  one, other = pair()
  received = []
  waits = threading.Thread(target=lambda: received.append(one.receive()))
  waits.start()
  one.close()
  waits.join(300)
  assert received == [None] and other.receive() is None
  assert not one.send(b"x" * 16) and not one.send_and_receive(b"x" * 16)


def test_requests_ahead_of_long_replies_do_not_block_both_ends(tmp_path):
  """Both sockets are full while both ends send."""
  with doubling(tmp_path) as exchange:
    for value in range(12):
      exchange.send(rows(value, 100_000))
    for value in range(12):
      reply = exchange.receive()
      np.testing.assert_array_equal(reply, rows(2 * value, 100_000))


@contextlib.contextmanager
def doubling(folder, link=None, **options):
  """Yields an exchange with a server at `folder / "sock"`, or at its `link`."""
  server = serving.Server(f"unix:{folder}/sock", 1, **options)
  server.bind("double", lambda x: 2 * x, LAYOUT, LAYOUT)
  with server:
    if link:
      os.link(folder / "sock", link)
    with wire.Client(f"unix:{link or folder / 'sock'}") as client:
      exchange = client.exchange("double", LAYOUT, LAYOUT)
      yield exchange
      exchange.close()


@pytest.fixture
def listener(tmp_path):
  made = listening.Listener(f"{tmp_path}/sock")
  yield made
  made.close()


def test_a_secret_lets_one_client_connect_once(tmp_path, listener):
  path = f"{tmp_path}/sock"
  secret = listener.expect()
  stranger = unix_pipe.connect(path, "00" * 16, 1000)
  assert stranger.receive() is None
  client, other = (unix_pipe.connect(path, secret, 1000) for _ in range(2))
  # A secret is valid once, before and after the server takes the pipe.
  assert select.select([other], [], [], 60)[0] and other.receive() is None
  served = listener.wait(secret, 1000)
  assert unix_pipe.connect(path, secret, 1000).receive() is None
  message = LAYOUT.encode(rows(1))
  client.send(message)
  assert served.receive() == message
  listener.close()
  assert not os.path.exists(f"{path}-messages")
  client.send(message)  # An open pipe stays open.
  assert served.receive() == message


def test_a_client_wakes_up_only_the_thread_that_waits_for_it(
  tmp_path, listener
):
  number = 64
  secrets = [listener.expect() for _ in range(number)]
  arrived: queue.SimpleQueue[unix_pipe.Pipe] = queue.SimpleQueue()

  def wait(secret):
    arrived.put(listener.wait(secret, 1000))

  for secret in secrets:
    threading.Thread(target=wait, args=(secret,), daemon=True).start()

  def wake_ups():  # The wake-ups of all threads of this process.
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

  time.sleep(0.1)  # Until the threads wait.
  start, connected = wake_ups(), []
  for secret in secrets:
    connected.append(unix_pipe.connect(f"{tmp_path}/sock", secret, 1000))
    assert arrived.get() is not None
  # If each client woke up all threads that wait, there would be 2,000 more.
  assert wake_ups() - start < 16 * number


def test_clients_without_a_secret_do_not_delay_others(
  tmp_path, listener, monkeypatch
):
  monkeypatch.setattr(listening, "_SECRET_SECONDS", 600.0)
  monkeypatch.setattr(listening, "_MAX_WITHOUT_SECRET", 30)
  with contextlib.ExitStack() as stack:
    silent = [
      stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(50)
    ]
    for each in silent:
      each.connect(f"{tmp_path}/sock-messages")
    secret = listener.expect()
    unix_pipe.connect(f"{tmp_path}/sock", secret, 1000)
    assert listener.wait(secret, 1000) is not None
    assert silent[0].recv(1) == b""  # Closed to make room.


def test_a_client_without_a_secret_is_closed_after_a_while(
  tmp_path, listener, monkeypatch
):
  monkeypatch.setattr(listening, "_SECRET_SECONDS", 0.05)
  with socket.socket(socket.AF_UNIX) as silent:
    silent.connect(f"{tmp_path}/sock-messages")
    silent.settimeout(300)
    assert silent.recv(1) == b""


def test_a_secret_may_arrive_in_pieces(tmp_path, listener):
  secret = listener.expect()
  with socket.socket(socket.AF_UNIX) as client:
    client.connect(f"{tmp_path}/sock-messages")
    for byte in bytes.fromhex(secret):
      client.sendall(bytes([byte]))
      time.sleep(0.005)
    assert listener.wait(secret, 1000) is not None


def test_the_wait_for_a_client_ends_after_a_while(listener, monkeypatch):
  monkeypatch.setattr(listening, "_CONNECT_SECONDS", 0.1)
  assert listener.wait(listener.expect(), 1000) is None


@pytest.mark.parametrize("name", ["x", "x" * 90])
def test_streams_use_a_pipe_unless_its_path_is_too_long(
  tmp_path, name, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  pathlib.Path(name).mkdir()
  with doubling(pathlib.Path(name)) as exchange:
    assert (exchange._pipe is not None) == (name == "x")
    np.testing.assert_array_equal(exchange(rows(3)), rows(6))
  assert os.listdir(name) == []


def test_a_server_is_reached_without_a_pipe_if_only_its_socket_is_linked(
  tmp_path,
):
  (tmp_path / "elsewhere").mkdir()
  with doubling(tmp_path, tmp_path / "elsewhere" / "sock") as exchange:
    assert exchange._pipe is None
    np.testing.assert_array_equal(exchange(rows(3)), rows(6))


def test_a_file_in_the_place_of_the_socket_for_messages_stays(tmp_path):
  file = tmp_path / "sock-messages"
  file.write_text("data")
  with doubling(tmp_path) as exchange:
    np.testing.assert_array_equal(exchange(rows(3)), rows(6))
  assert file.read_text() == "data"


def test_a_silent_stream_ends_with_unavailable(tmp_path, monkeypatch):
  """The status is right even if the pipe is closed long before gRPC's call."""
  close, closed = unix_pipe.Pipe.close, threading.Event()

  def slow(self):
    close(self)
    if not closed.is_set():  # Only the thread that ends the stream is slow.
      closed.set()
      time.sleep(0.2)

  monkeypatch.setattr(unix_pipe.Pipe, "close", slow)
  with (
    doubling(tmp_path, silent_seconds=0.2) as exchange,
    pytest.raises(wire.WireError, match=r"within 0\.2 seconds") as caught,
  ):
    exchange.receive()
  assert caught.value.code is wire.StatusCode.UNAVAILABLE
