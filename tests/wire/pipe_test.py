"""Pipes: the messages of streams between processes of one machine."""

import contextlib
import os
import pathlib
import socket
import threading
import time

import numpy as np
import pytest

from seedx import wire
from seedx.wire import layout, listening, pipe
from seedx.wire import server as server_lib

LAYOUT = wire.Layout.of(np.zeros(3, np.float32), max_rows=100_000)


def rows(value, count=1):
  return np.full((count, 3), value, np.float32)


def pair(most_bytes=1000):
  return [pipe.Pipe(x, most_bytes) for x in socket.socketpair()]


def raw_and_pipe(most_bytes=1000):
  raw, other = socket.socketpair()
  return raw, pipe.Pipe(other, most_bytes)


def test_messages_come_as_they_were_sent_and_in_order():
  one, other = pair(LAYOUT.message_bytes(100))
  messages = [LAYOUT.encode(rows(k, k + 1)) for k in range(5)]
  assert all(one.send(x) for x in messages)
  assert [other.receive() for _ in messages] == messages
  one.end()
  assert other.receive() is None
  assert other.send(messages[0])  # The other direction is open.
  assert one.receive() == messages[0]


def test_a_message_in_pieces_is_one():
  raw, end = raw_and_pipe()
  message, found = LAYOUT.encode(rows(1, 9)), []
  receives = threading.Thread(target=lambda: found.append(end.receive()))
  receives.start()
  for byte in range(len(message)):
    raw.sendall(message[byte : byte + 1])
  receives.join(300)
  assert found == [message]


@pytest.mark.parametrize("sent", [0, 5, 40])
def test_an_end_in_a_message_is_an_end(sent):
  raw, end = raw_and_pipe()
  raw.sendall(LAYOUT.encode(rows(1, 9))[:sent])
  raw.close()
  assert end.receive() is None
  assert end.cut == (sent > 0)


def test_a_message_that_is_too_long_is_not_read():
  raw, end = raw_and_pipe(most_bytes=100)
  raw.sendall(LAYOUT.encode(rows(1, 9)))
  with pytest.raises(layout.MessageError, match="at most 100 bytes"):
    end.receive()


def test_close_ends_a_wait_from_another_thread():
  one, other = pair()
  found = []
  waits = threading.Thread(target=lambda: found.append(one.receive()))
  waits.start()
  one.close()
  waits.join(300)
  assert found == [None] and other.receive() is None
  assert not one.send(b"x" * 16) and not one.send_and_receive(b"x" * 16)


def test_requests_ahead_of_long_replies_do_not_block_both_ends(tmp_path):
  """Neither end has room for what the other sends."""
  with doubling(tmp_path) as exchange:
    for value in range(12):
      exchange.send(rows(value, 100_000))
    for value in range(12):
      reply = exchange.receive()
      np.testing.assert_array_equal(reply, rows(2 * value, 100_000))


@contextlib.contextmanager
def doubling(folder, place=None, **options):
  """An exchange with a server at `folder / "sock"`, reached at `place`."""
  server = server_lib.Server(f"unix:{folder}/sock", 1, **options)
  server.bind("double", lambda x: 2 * x, LAYOUT, LAYOUT)
  with server:
    if place:
      os.link(folder / "sock", place)
    with wire.Client(f"unix:{place or folder / 'sock'}") as client:
      exchange = client.exchange("double", LAYOUT, LAYOUT)
      yield exchange
      exchange.close()


@pytest.fixture
def listener(tmp_path):
  made = listening.Listener(f"{tmp_path}/sock")
  yield made
  made.close()


def test_only_who_was_told_may_connect(tmp_path, listener):
  path = f"{tmp_path}/sock"
  secret = listener.expect()
  stranger = pipe.connect(path, "00" * 16, 1000)
  assert stranger.receive() is None
  own = pipe.connect(path, secret, 1000)
  served = listener.wait(secret, 1000)
  # Nobody is expected twice.
  assert pipe.connect(path, secret, 1000).receive() is None
  message = LAYOUT.encode(rows(1))
  own.send(message)
  assert served.receive() == message
  listener.close()
  assert not os.path.exists(f"{path}-messages")
  own.send(message)  # What is open stays open.
  assert served.receive() == message


def test_who_says_nothing_holds_up_nobody(tmp_path, listener, monkeypatch):
  """However many there are; each is let go after a while."""
  monkeypatch.setattr(listening, "_SAY_SECONDS", 600.0)
  monkeypatch.setattr(listening, "_MOST_SAYING", 30)
  with contextlib.ExitStack() as stack:
    silent = [
      stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(50)
    ]
    for each in silent:
      each.connect(f"{tmp_path}/sock-messages")
    secret = listener.expect()
    pipe.connect(f"{tmp_path}/sock", secret, 1000)
    assert listener.wait(secret, 1000) is not None
    assert silent[0].recv(1) == b""  # It made room for others.


def test_who_says_nothing_for_a_while_is_let_go(
  tmp_path, listener, monkeypatch
):
  monkeypatch.setattr(listening, "_SAY_SECONDS", 0.05)
  with socket.socket(socket.AF_UNIX) as silent:
    silent.connect(f"{tmp_path}/sock-messages")
    silent.settimeout(300)
    assert silent.recv(1) == b""


def test_a_secret_may_come_in_pieces(tmp_path, listener):
  secret = listener.expect()
  with socket.socket(socket.AF_UNIX) as client:
    client.connect(f"{tmp_path}/sock-messages")
    for byte in bytes.fromhex(secret):
      client.sendall(bytes([byte]))
      time.sleep(0.005)
    assert listener.wait(secret, 1000) is not None


def test_a_stream_that_ends_within_a_message_ends_with_an_error(tmp_path):
  with doubling(tmp_path) as exchange:
    assert exchange(rows(1)) is not None
    pipe_of_client = exchange._pipe
    pipe_of_client.send(LAYOUT.encode(rows(1, 9))[:40])
    pipe_of_client.end()
    with pytest.raises(wire.WireError, match="ended within a message"):
      exchange.receive()


def test_who_does_not_come_is_waited_for_no_longer(listener, monkeypatch):
  monkeypatch.setattr(listening, "_CONNECT_SECONDS", 0.1)
  assert listener.wait(listener.expect(), 1000) is None


@pytest.mark.parametrize("name", ["x", "x" * 90])
def test_streams_use_a_pipe_where_there_is_room_for_its_path(
  tmp_path, name, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  pathlib.Path(name).mkdir()
  with doubling(pathlib.Path(name)) as exchange:
    assert (exchange._pipe is not None) == (name == "x")
    np.testing.assert_array_equal(exchange(rows(3)), rows(6))
  assert os.listdir(name) == []


def test_a_server_behind_a_lone_socket_is_reached_without_a_pipe(tmp_path):
  """As where somebody has forwarded, or mounted, the server's socket alone."""
  (tmp_path / "elsewhere").mkdir()
  with doubling(tmp_path, tmp_path / "elsewhere" / "sock") as exchange:
    assert exchange._pipe is None
    np.testing.assert_array_equal(exchange(rows(3)), rows(6))


def test_a_file_where_the_pipes_would_be_stays(tmp_path):
  file = tmp_path / "sock-messages"
  file.write_text("somebody's")
  with doubling(tmp_path) as exchange:
    np.testing.assert_array_equal(exchange(rows(3)), rows(6))
  assert file.read_text() == "somebody's"


def test_a_silent_stream_is_told_to_try_again(tmp_path, monkeypatch):
  """Though its pipe is closed before gRPC knows of it."""
  close, closed = pipe.Pipe.close, threading.Event()

  def slow(self):
    close(self)
    if not closed.is_set():  # By who ends the stream, not by who serves it.
      closed.set()
      time.sleep(0.2)

  monkeypatch.setattr(pipe.Pipe, "close", slow)
  with (
    doubling(tmp_path, silent_seconds=0.2) as exchange,
    pytest.raises(wire.WireError, match=r"within 0\.2 seconds") as caught,
  ):
    exchange.receive()
  assert caught.value.code is wire.StatusCode.UNAVAILABLE
