"""Pipes: the messages of streams between processes of one machine."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from seedx import wire
from seedx.wire import layout, pipe

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


@pytest.mark.parametrize("sent", [0, 5, 16, 40])
def test_an_end_in_a_message_is_an_end(sent):
  raw, end = raw_and_pipe()
  raw.sendall(LAYOUT.encode(rows(1, 9))[:sent])
  raw.close()
  assert end.receive() is None


def test_a_message_that_is_too_long_is_not_read():
  raw, end = raw_and_pipe(most_bytes=100)
  raw.sendall(LAYOUT.encode(rows(1, 9)))
  with pytest.raises(layout.MessageError, match="at most 100 bytes"):
    end.receive()


def test_a_header_that_says_less_than_itself_is_not_waited_for():
  raw, end = raw_and_pipe()
  header = layout.HEADER.pack(layout.MAGIC, layout.PROTOCOL, 0, 1, 3)
  raw.sendall(header)
  assert end.receive() == header


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
  server = wire.Server(f"unix:{tmp_path}/sock", 1)
  server.bind("double", lambda x: 2 * x, LAYOUT, LAYOUT)
  with server, wire.Client(server.address) as client:
    exchange = wire.Exchange(client, "double", LAYOUT, LAYOUT)
    for value in range(12):
      exchange.send(rows(value, 100_000))
    for value in range(12):
      np.testing.assert_array_equal(
        exchange.receive(), rows(2 * value, 100_000)
      )
    exchange.close()


@pytest.fixture
def listener(tmp_path):
  made = pipe.Listener(f"{tmp_path}/sock")
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


def test_who_says_nothing_holds_up_nobody_for_long(tmp_path, listener):
  silent = socket.socket(socket.AF_UNIX)
  silent.connect(f"{tmp_path}/sock-messages")
  secret = listener.expect()
  pipe.connect(f"{tmp_path}/sock", secret, 1000)
  assert listener.wait(secret, 1000) is not None
  silent.close()


def test_who_does_not_come_is_waited_for_no_longer(listener, monkeypatch):
  monkeypatch.setattr(pipe, "_CONNECT_SECONDS", 0.1)
  assert listener.wait(listener.expect(), 1000) is None


@pytest.mark.parametrize("name", ["sock", "x" * 95])
def test_streams_use_a_pipe_where_there_is_room_for_its_path(
  tmp_path, name, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  server = wire.Server(f"unix:{name}", 1)
  server.bind("double", lambda x: 2 * x, LAYOUT, LAYOUT)
  with server, wire.Client(server.address) as client:
    exchange = wire.Exchange(client, "double", LAYOUT, LAYOUT)
    assert (exchange._stream._pipe is not None) == (name == "sock")
    np.testing.assert_array_equal(exchange(rows(3)), rows(6))
    exchange.close()
  assert os.listdir(tmp_path) == []


def test_a_server_behind_a_lone_socket_is_reached_without_a_pipe(tmp_path):
  """As where somebody has forwarded, or mounted, the server's socket alone."""
  server = wire.Server(f"unix:{tmp_path}/sock", 1)
  server.bind("double", lambda x: 2 * x, LAYOUT, LAYOUT)
  (tmp_path / "elsewhere").mkdir()
  with server:
    os.link(tmp_path / "sock", tmp_path / "elsewhere" / "sock")
    with wire.Client(f"unix:{tmp_path}/elsewhere/sock") as client:
      exchange = wire.Exchange(client, "double", LAYOUT, LAYOUT)
      assert exchange._stream._pipe is None
      np.testing.assert_array_equal(exchange(rows(3)), rows(6))
      exchange.close()


def test_a_file_where_the_pipes_would_be_stays(tmp_path):
  file = tmp_path / "sock-messages"
  file.write_text("somebody's")
  server = wire.Server(f"unix:{tmp_path}/sock", 1)
  server.bind("double", lambda x: 2 * x, LAYOUT, LAYOUT)
  with server, wire.Client(server.address) as client:
    exchange = wire.Exchange(client, "double", LAYOUT, LAYOUT)
    np.testing.assert_array_equal(exchange(rows(3)), rows(6))
    exchange.close()
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
  server = wire.Server(f"unix:{tmp_path}/sock", 1, silent_seconds=0.2)
  server.bind("double", lambda x: 2 * x, LAYOUT, LAYOUT)
  with server, wire.Client(server.address) as client:
    exchange = wire.Exchange(client, "double", LAYOUT, LAYOUT)
    with pytest.raises(wire.WireError, match=r"within 0\.2 seconds") as caught:
      exchange.receive()
  assert caught.value.code is wire.StatusCode.UNAVAILABLE


_CLIENT = """
import sys, numpy as np
from seedx import wire
layout = wire.Layout.of(np.zeros(3, np.float32), 100_000)
client = wire.Client(sys.argv[1])
exchange = wire.Exchange(client, "say", layout, layout)
exchange.send(np.zeros((1, 3), np.float32))
print("sent", flush=True)
exchange.receive()
"""


def test_a_session_is_closed_when_its_client_is_killed(tmp_path):
  """While it answers, nobody reads what the client sends."""
  busy, closed = threading.Event(), threading.Event()

  def answer(inputs):
    busy.set()
    assert closed.wait(300)
    return inputs

  server = wire.Server(f"unix:{tmp_path}/sock", 1)
  server.bind_stream(
    "say",
    lambda hello: wire.FunctionSession(answer, close=closed.set),
    LAYOUT,
    LAYOUT,
  )
  with server:
    words = [sys.executable, "-c", _CLIENT, server.address]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as client:
      assert client.stdout.readline() == b"sent\n"
      assert busy.wait(300) and not closed.is_set()
      client.send_signal(signal.SIGKILL)
    assert closed.wait(300)
