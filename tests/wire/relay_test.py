"""Tests of relays, and of the bundles between a relay and a server."""

import contextlib
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import pytest

from seedx import wire
from seedx.app import certificates
from seedx.wire import array_layout, bundles, relay, serving
from tests import running

Code = wire.StatusCode
LAYOUT = wire.Layout.of(np.zeros(3, np.float32), max_rows=1_000_000)


def rows(value, count=1):
  return np.full((count, 3), value, np.float32)


class Session:
  """A session that keeps its requests unanswered."""

  def __init__(self, hello):
    self.welcome = {"hello": hello}
    self.requests, self.closed = [], 0

  def receive(self, request):
    self.requests.append(request)

  def close(self):
    self.closed += 1

  def answer(self):
    """Waits for a request; doubles the oldest one."""
    running.wait_until(lambda: self.requests)
    request = self.requests.pop(0)
    request.reply(LAYOUT.encode(2 * LAYOUT.decode(request.message)))


class Machine:
  """A server over TCP, and clients of a relay to it.

  Attributes:
    security: TLS and token of the relay; its clients have none.
  """

  def __init__(self, folder, stack, of_relay=wire.LOCAL, **options):
    self.server = serving.Server("127.0.0.1:0", max_streams=4, **options)
    self.sessions, self.failures, self.security = [], [], of_relay
    self.leave = threading.Event()
    self._stack = stack
    self.server.bind_batched("double", self.open, LAYOUT, LAYOUT)
    self.server.bind("triple", lambda x: 3 * x, LAYOUT, LAYOUT)
    self.server.start()
    stack.callback(self.server.stop, 0)
    self.address = f"unix:{folder}/relay"
    self.relay = relay.Relay(self.address, 8)
    stack.callback(self.relay.close)
    self.run()

  def open(self, hello):
    if hello.get("wrong"):
      raise wire.invalid("right", "wrong")
    self.sessions.append(Session(hello))
    return self.sessions[-1]

  def run(self):
    client = wire.Client(self.server.address, self.security)
    self._stack.callback(client.close)

    def run():
      try:
        self.relay.run(client, self.leave)
      except wire.WireError as failure:
        self.failures.append(failure)

    self.thread = threading.Thread(target=run, daemon=True)
    self.thread.start()
    running.wait_until(lambda: self.relay._learner.done())

  def connect(self, name="double", **hello):
    """Returns an exchange and its session."""
    client = self._stack.enter_context(wire.Client(self.address))
    exchange = client.exchange(name, LAYOUT, LAYOUT, hello)
    self._stack.callback(exchange.close)
    return exchange, self.sessions[-1] if self.sessions else None


@pytest.fixture
def stack():
  with contextlib.ExitStack() as made:
    yield made


@pytest.fixture
def machine(tmp_path, stack):
  return Machine(tmp_path, stack)


def status_of(exchange):
  with pytest.raises(wire.WireError) as caught:
    while exchange.receive() is not None:
      pass
  return caught.value.code, caught.value.message


def test_clients_are_served_as_without_a_relay_over_one_call(
  machine, monkeypatch
):
  # The relay's call has begun; each further call over gRPC would fail.
  monkeypatch.setattr(machine.server._handlers, "_handle", None)
  one, session = machine.connect(a=1)
  assert one.welcome == session.welcome == {"hello": {"a": 1}}
  other, other_session = machine.connect()
  for value in range(5):
    for exchange in (one, other):
      exchange.send(rows(value, value + 1))
    for exchange, each in ((other, other_session), (one, session)):
      each.answer()
      np.testing.assert_array_equal(
        exchange.receive(), rows(2 * value, value + 1)
      )
  function, _ = machine.connect("triple")
  assert function(rows(1))[0, 0] == 3
  with wire.Client(machine.address) as client:  # A call without a pipe.
    assert client.call("triple", rows(2), LAYOUT, LAYOUT)[0, 0] == 6
  assert machine.server.transferred_bytes == 4 * LAYOUT.message_bytes(
    1
  ) + 2 * 2 * sum(LAYOUT.message_bytes(k) for k in range(1, 6))


def test_a_request_that_follows_early_waits_for_the_reply(machine):
  exchange, session = machine.connect()
  for value in range(3):
    exchange.send(rows(value))
  other, other_session = machine.connect()
  other.send(rows(9))
  other_session.answer()
  assert len(session.requests) == 1
  for value in range(3):
    session.answer()
    assert exchange.receive()[0, 0] == 2 * value


def test_a_client_that_does_not_read_delays_no_other(machine):
  """The client's reply of 12 MB does not fit into the socket."""
  exchange, session = machine.connect()
  other, other_session = machine.connect()
  exchange.send(rows(1, 1_000_000))
  session.answer()
  for _ in range(3):
    other.send(rows(2))
    other_session.answer()
    assert other.receive()[0, 0] == 4
  np.testing.assert_array_equal(exchange.receive(), rows(2, 1_000_000))


def test_errors_end_one_call_with_the_status_of_the_server(machine):
  other, other_session = machine.connect()
  for name, hello, code, reason in (
    ("double", {"wrong": 1}, "INVALID_ARGUMENT", "double: expected right"),
    ("quadruple", {}, "UNIMPLEMENTED", "/seedx/double"),
  ):
    with pytest.raises(wire.WireError, match=f"{code}: .*{reason}"):
      machine.connect(name, **hello)
  refused, session = machine.connect()
  refused.send(rows(1))
  running.wait_until(lambda: session.requests)
  session.requests[0].refuse(wire.invalid("1", 2))
  assert status_of(refused) == (
    Code.INVALID_ARGUMENT,
    "double: expected 1, found 2",
  )
  malformed, _ = machine.connect()
  malformed._pipe.send(b"XXXX" + LAYOUT.encode(rows(1))[4:])
  code, message = status_of(malformed)
  assert code is Code.INVALID_ARGUMENT and "magic" in message
  running.wait_until(lambda: sum(x.closed for x in machine.sessions) == 2)
  for _ in range(4 - 1):
    machine.connect()
  with pytest.raises(wire.WireError, match="at most 4 connections"):
    machine.connect()
  other.send(rows(2))
  other_session.answer()
  assert other.receive()[0, 0] == 4


def test_the_death_of_a_client_closes_its_session_only(machine):
  dies, session = machine.connect()
  other, other_session = machine.connect()
  for exchange in (dies, other):
    exchange.send(rows(1))
  running.wait_until(lambda: session.requests and other_session.requests)
  dies.close()
  running.wait_until(lambda: session.closed)
  session.answer()  # This answer is discarded.
  other_session.answer()
  assert other.receive()[0, 0] == 2
  assert not other_session.closed


def test_a_client_without_a_pipe_that_leaves_keeps_no_thread(machine):
  with (
    wire.Client(machine.address) as client,
    pytest.raises(wire.WireError, match="DEADLINE_EXCEEDED"),
  ):
    client.call("double", rows(1), LAYOUT, LAYOUT, timeout_seconds=0.5)
  (session,) = machine.sessions
  running.wait_until(lambda: session.closed)
  method = machine.relay._server._methods["double"]
  running.wait_until(lambda: not method.num_streams())


def test_a_call_is_refused_if_the_learner_has_left_meanwhile():
  relays, learner = relay.Relay("unix:/relay", 1), mock.Mock()
  relays._learner = learner

  def leaves():
    relays._learner = None
    return mock.Mock(put=mock.Mock(side_effect=AssertionError))

  learner.result = leaves
  with pytest.raises(wire.Refusal, match="UNAVAILABLE: the learner is away"):
    relays._open("double", LAYOUT, {})


def test_a_silent_client_loses_its_place_even_between_requests(tmp_path, stack):
  machine = Machine(tmp_path, stack, silent_seconds=0.2)
  exchange, session = machine.connect()
  code, message = status_of(exchange)
  assert code is Code.UNAVAILABLE and "0.2 seconds" in message
  running.wait_until(lambda: session.closed)


def test_a_server_that_stops_ends_all_calls_after_their_replies(machine):
  exchange, session = machine.connect()
  idle, _ = machine.connect()
  exchange.send(rows(1))
  running.wait_until(lambda: session.requests)
  stops = threading.Thread(target=machine.server.stop, args=(300.0,))
  stops.start()
  assert idle.receive() is None
  session.answer()
  assert exchange.receive()[0, 0] == 2
  assert exchange.receive() is None
  stops.join(300)
  machine.thread.join(300)
  assert not machine.thread.is_alive() and not machine.failures


def test_clients_of_a_relay_that_leaves_try_again(machine):
  exchange, session = machine.connect()
  exchange.send(rows(1))
  running.wait_until(lambda: session.requests)
  idle, _ = machine.connect()
  machine.leave.set()
  machine.relay._learner.result().end()
  machine.thread.join(300)
  for each in (exchange, idle):
    assert status_of(each)[0] is Code.UNAVAILABLE
  running.wait_until(lambda: all(x.closed for x in machine.sessions))
  machine.leave.clear()
  connecting = threading.Timer(0.2, machine.run)
  connecting.start()
  again, session = machine.connect()  # It waits.
  again.send(rows(2))
  session.answer()
  assert again.receive()[0, 0] == 4
  connecting.join()


def test_the_clients_of_a_relay_need_no_token(tmp_path, stack):
  folder = tmp_path / "tls"
  assert certificates.main([str(folder), "--hosts", "localhost"]) == 0
  token = {"token_file": str(folder / "token")}
  machine = Machine(
    tmp_path,
    stack,
    wire.Security(tls_ca=str(folder / "ca.pem"), **token),
    security=wire.Security(
      tls_certificate=str(folder / "certificate.pem"),
      tls_key=str(folder / "key.pem"),
      **token,
    ),
  )
  exchange, _ = machine.connect("triple")
  assert exchange(rows(1))[0, 0] == 3
  stranger = wire.Security(tls_ca=str(folder / "ca.pem"))
  with (
    wire.Client(machine.server.address, stranger) as client,
    pytest.raises(wire.WireError, match="UNAUTHENTICATED"),
  ):
    machine.relay.run(client, machine.leave)


# The stream of a machine without a relay.


def frame(call, kind, content=b"", reserved=0, size=None):
  header = bundles._FRAME.pack(
    call, kind, len(content) if size is None else size, reserved
  )
  return header + content + bytes(-len(content) % 8)


def opening(call, name="double"):
  text = '{"protocol": 2, "columns": [], "pipe": true}'
  if name == "double":
    columns = str(LAYOUT.to_json()["columns"]).replace("'", '"')
    text = text.replace("[]", columns.replace("False", "false"))
  return frame(call, bundles.OPEN, f"/seedx/{name}\n{text}".encode())


def sent(machine, *frames):
  """Sends each frame in a bundle; returns the frames received by then."""
  requests = [np.frombuffer(x, np.uint8) for x in frames]
  received = []
  with wire.Client(machine.server.address) as client:
    stream = client.stream(
      bundles.BUNDLES, iter(requests), bundles.LAYOUT, bundles.LAYOUT
    )
    for bundle in stream:
      received += [(*x, bytes(y)) for *x, y in bundles.frames(bundle)]
  return received


MESSAGE = frame(1, bundles.MESSAGE, LAYOUT.encode(rows(1)))


@pytest.mark.parametrize(
  ("frames", "reason"),
  [
    ([b"12345678"], "found a part of one"),
    ([frame(1, 7)], "found kind 7"),
    ([frame(1, bundles.MESSAGE, reserved=3)], "3 and 0 bytes"),
    ([frame(1, bundles.MESSAGE, size=2**32 - 1)], "4294967295 bytes"),
    ([opening(1), opening(1)], "frame of kind 0"),
    ([opening(1), frame(1, bundles.ACCEPT)], "frame of kind 1"),
    ([opening(1), MESSAGE, MESSAGE, MESSAGE], "at a time, found two"),
  ],
)
def test_a_malformed_bundle_ends_the_calls_of_its_machine_only(
  machine, frames, reason
):
  other, other_session = machine.connect()
  with pytest.raises(wire.WireError, match=f"INVALID_ARGUMENT: .*{reason}"):
    sent(machine, *frames)
  running.wait_until(lambda: all(x.closed for x in machine.sessions[1:]))
  other.send(rows(2))
  other_session.answer()
  assert other.receive()[0, 0] == 4


def test_calls_are_limited_in_number_and_size(machine, monkeypatch):
  long = frame(1, bundles.OPEN, b"/seedx/double\n" + bytes(20_000))
  ((call, kind, content),) = sent(machine, long, MESSAGE)
  assert (call, kind) == (1, bundles.END)
  assert b"RESOURCE_EXHAUSTED" in content and b"handshake of at most" in content
  monkeypatch.setattr(serving, "_max_calls", lambda methods: 1)
  statuses = {
    call: content
    for call, kind, content in sent(machine, opening(1), opening(2))
    if kind == bundles.END
  }
  assert b"expected at most 1 calls" in statuses[2]


def test_waiting_frames_leave_in_one_bundle_of_limited_size():
  sender = bundles.Sender()
  content = bytes(bundles.BUNDLE_BYTES // 3)
  for call in range(7):
    sender.put(call, bundles.MESSAGE, content)
  sender.end()
  received = [
    [call for call, _, _ in bundles.frames(bundles.LAYOUT.decode(each))]
    for each in map(bundles.LAYOUT.encode, sender.bundles())
  ]
  assert received == [[0, 1, 2, 3], [4, 5, 6]]


def test_frames_keep_content_of_any_size_aligned():
  sender = bundles.Sender()
  contents = [bytes(range(size)) for size in (0, 1, 7, 8, 9, 255)]
  for call, content in enumerate(contents):
    sender.put(call, call % 4, content)
  sender.end()
  (parts,) = sender.bundles()
  bundle = bundles.LAYOUT.encode(parts)
  array = bundles.LAYOUT.decode(bundle)
  assert len(array) % array_layout.ALIGNMENT_BYTES == 0
  assert [(x, y, bytes(z)) for x, y, z in bundles.frames(array)] == [
    (call, call % 4, content) for call, content in enumerate(contents)
  ]


_SERVER = """
import sys, numpy as np
from seedx import wire
from seedx.wire import serving
layout = wire.Layout.of(np.zeros(3, np.float32), max_rows=1_000_000)
server = serving.Server(sys.argv[1], 8)
server.bind("double", lambda x: 2 * x, layout, layout)
server.start()
print(server.address, flush=True)
sys.stdin.read()
"""


def test_the_relay_alone_tries_to_reach_a_server_that_was_killed(
  tmp_path, stack
):
  def serve(address):
    process = subprocess.Popen(
      [sys.executable, "-c", _SERVER, address],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process, process.stdout.readline().strip()

  process, address = serve("127.0.0.1:0")
  stop, tries = threading.Event(), []
  relays = relay.Relay(f"unix:{tmp_path}/relay", 8)
  stack.callback(relays.close)

  def session(client):
    tries.append(client)
    relays.run(client, stop)

  threading.Thread(
    target=wire.until_done,
    args=(address, session, stop, "relay", 0.05),
    daemon=True,
  ).start()
  stack.callback(stop.set)
  results, opened = [0] * 3, [0] * 3

  def client(k):
    def double(client):
      exchange = client.exchange("double", LAYOUT, LAYOUT)
      opened[k] += 1
      while (reply := exchange(rows(k))) is not None and not stop.is_set():
        assert (reply == 2 * k).all()
        results[k] += 1
        stop.wait(0.01)
      exchange.close()

    wire.until_done(f"unix:{tmp_path}/relay", double, stop, "client", 0.05)

  threads = [threading.Thread(target=client, args=(k,)) for k in range(3)]
  for thread in threads:
    thread.start()
  running.wait_until(lambda: min(results) > 2)
  process.kill()
  running.wait_until(lambda: not relays._learner.done())
  before, results[:] = len(tries), [0] * 3
  running.wait_until(lambda: len(tries) > before + 2)
  serve(address)
  running.wait_until(lambda: min(results) > 2)
  assert opened == [2] * 3  # Meanwhile, no client tried in vain.
  stop.set()
  for thread in threads:
    thread.join(300)
