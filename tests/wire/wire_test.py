"""Tests of the transport: messages, refusals, and the ends of streams."""

import collections
import contextlib
import json
import os
import pathlib
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from unittest import mock

import dm_env
import grpc
import hypothesis
import numpy as np
import pytest
import tree
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seedx import types, wire
from seedx.wire import serving
from tests import running

Code = wire.StatusCode
Pair = collections.namedtuple("Pair", ["left", "right"])
KEY = "seedx-layout-bin"
LAYOUT = wire.Layout.of({"x": np.zeros(3, np.float32)}, max_rows=8)
# For what gRPC carries also where there is a pipe.
ON_TCP = pytest.mark.parametrize("address", ["127.0.0.1:0"])


def message(value, rows=1):
  return {"x": np.full((rows, 3), value, np.float32)}


class Recorder:
  """A session that doubles; 7 blocks until `close`, 8 raises, 9 is refused."""

  def __init__(self, hello):
    self.welcome = {"you": dict(hello)}
    self.closes = 0
    self.blocked = threading.Event()
    self.closed = threading.Event()

  def __call__(self, inputs):
    value = inputs["x"][0, 0]
    if value == 7:
      self.blocked.set()
      assert self.closed.wait(300)
      raise RuntimeError("closed")
    if value == 8:
      raise KeyError("eight")
    if value == 9:
      raise wire.Refusal(Code.OUT_OF_RANGE, "no nines")
    return {"x": inputs["x"] * 2}

  def close(self):
    self.closes += 1
    self.closed_by = threading.current_thread().name
    self.closed.set()


class Requests:
  """Requests that a test hands out one by one."""

  def __init__(self, *values):
    self._values = queue.SimpleQueue()
    for value in values:
      self.put(value)

  def __iter__(self):
    while (value := self._values.get(timeout=600)) is not None:
      yield message(value)
    self.end()  # A second iterator ends, too.

  def put(self, value):
    self._values.put(value)

  def end(self):
    self._values.put(None)


def make_server(address, max_streams=4):
  server = serving.Server(address, max_streams)
  sessions = []

  def open_session(hello):
    if "nope" in hello:
      raise wire.Refusal(Code.PERMISSION_DENIED, "not you")
    sessions.append(Recorder(hello))
    return sessions[-1]

  double = Recorder({})
  server.bind("double", double, LAYOUT, LAYOUT, cancel=double.close)
  server.bind_stream("session", open_session, LAYOUT, LAYOUT)
  server.double, server.sessions = double, sessions
  return server


@pytest.fixture(params=["tcp", "unix"])
def address(request, tmp_path):
  return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/sock"


@pytest.fixture
def server(address):
  with make_server(address) as running:
    yield running


@pytest.fixture
def client(server):
  with wire.Client(server.address) as connected:
    yield connected


@pytest.fixture
def bystander(client):
  """Yields a check that another stream is still served."""
  requests = Requests()
  stream = client.stream("session", requests, LAYOUT, LAYOUT)

  def check():
    requests.put(5)
    np.testing.assert_array_equal(next(stream)["x"], message(10)["x"])

  check()
  yield check
  check()
  requests.end()
  assert list(stream) == []


def raw_stream(address, metadata, messages):
  """Calls the server without `wire`; returns its metadata and replies."""
  with grpc.insecure_channel(address) as channel:
    call = channel.stream_stream("/seedx/session")(
      iter(messages), metadata=((KEY, json.dumps(metadata).encode()),)
    )
    replies = list(call)
    return dict(call.initial_metadata()), replies


def refusal(function, *args):
  with pytest.raises((grpc.RpcError, wire.WireError)) as info:
    function(*args)
  error = info.value
  if isinstance(error, wire.WireError):
    return error.code, error.message
  return error.code(), error.details()


# Layouts.


def assert_same(actual, expected):
  tree.assert_same_structure(actual, expected)
  for a, e in zip(tree.flatten(actual), tree.flatten(expected), strict=True):
    assert a.dtype == e.dtype
    np.testing.assert_array_equal(a, e)


def layout_of(nest, max_rows=16):
  return wire.Layout.of(tree.map_structure(lambda x: x[0], nest), max_rows)


def arrays(rows):
  dtypes = st.sampled_from(
    ["?", "u1", "i1", "<u2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c16"]
  )
  shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
  return st.tuples(dtypes, shapes).flatmap(
    lambda pair: hnp.arrays(pair[0], (rows, *pair[1]))
  )


def nests(rows):
  keys = st.text("abc", min_size=1, max_size=3)
  return st.recursive(
    arrays(rows),
    lambda inner: st.one_of(
      st.lists(inner, max_size=3),
      st.lists(inner, max_size=3).map(tuple),
      st.dictionaries(keys, inner, max_size=3),
      st.builds(Pair, inner, inner),
      st.builds(dm_env.TimeStep, inner, inner, inner, inner),
    ),
    max_leaves=6,
  )


@hypothesis.settings(
  max_examples=50, deadline=None, derandomize=True, database=None
)
@hypothesis.given(st.integers(1, 5).flatmap(nests))
def test_any_nest_is_decoded_as_it_was_encoded(nest):
  layout = layout_of(nest)
  data = layout.encode(nest)
  decoded = layout.decode(data)
  assert_same(decoded, nest)
  assert len(data) % 8 == 0
  for leaf in tree.flatten(decoded):
    assert leaf.flags.aligned and not leaf.flags.owndata
    assert not leaf.flags.writeable
    assert len(data) == layout.message_bytes(len(leaf))
  described = json.loads(json.dumps(layout.to_json()))
  assert layout.difference(described) is None


def test_the_bytes_are_as_documented():
  wait, frame = wire.once(np.float32(0)), np.zeros((2, 3), np.uint8)
  layout = wire.Layout.of((wait, np.float32(0), frame), 64)
  columns = [
    {"name": "0", "dtype": "<f4", "shape": [], "once": True},
    {"name": "1", "dtype": "<f4", "shape": [], "once": False},
    {"name": "2", "dtype": "|u1", "shape": [2, 3], "once": False},
  ]
  expected = {"protocol": 2, "max_rows": 64, "columns": columns}
  assert layout.to_json() == expected
  for example in [
    '{"name": "wait", "dtype": "<f4", "shape": [], "once": true}',
    "3 rows have 16 + 8 (4 and 4 of padding) + 16 (12 and 4) + 24 (18 and 6)",
  ]:
    assert example in " ".join(wire.__doc__.split())
  by_hand = (
    b"SEDX"
    + struct.pack("<HHII", 2, 0, 3, 64)
    + struct.pack("<f", 0.25)
    + bytes(4)
    + struct.pack("<fff", 0.0, 0.5, 1.0)
    + bytes(4)
    + bytes(range(18))
    + bytes(6)
  )
  nest = (
    np.asarray(0.25, np.float32),
    np.array([0, 0.5, 1], np.float32),
    np.arange(18, dtype=np.uint8).reshape(3, 2, 3),
  )
  assert layout.encode(nest) == by_hand
  assert_same(layout.decode(by_hand), nest)


def test_a_layout_with_only_once_columns_has_one_row():
  specs = wire.once((np.zeros((2, 3), np.int32), np.float64(0)))
  layout = wire.Layout.of(specs, 7)
  nest = (np.arange(6, dtype=np.int32).reshape(2, 3), np.asarray(0.5))
  assert layout.max_rows == 1
  assert len(layout.encode(nest)) == 16 + 24 + 8
  assert_same(layout.decode(layout.encode(nest)), nest)
  with pytest.raises(wire.MessageError, match="1 to 1 rows, found 2"):
    layout.decode(header(protocol=2, rows=2, total=48) + bytes(32))


def test_a_once_column_has_no_row_axis():
  once, rows = wire.once(np.int32(0)), np.int32(0)
  layout = wire.Layout.of((once, rows), 4)
  with pytest.raises(ValueError, match=r"column '0': .*shape \(\), found"):
    layout.encode((np.zeros(2, np.int32), np.zeros(2, np.int32)))
  difference = layout.difference(wire.Layout.of((rows, rows), 4).to_json())
  assert difference == (
    "column 0: expected '0' <i4 [] once per message, found '0' <i4 []"
  )


def test_arrays_that_are_not_contiguous_are_encoded():
  nest = {"x": np.arange(12, dtype=np.float32).reshape(3, 4).T[:, :3]}
  layout = layout_of(nest)
  assert_same(layout.decode(layout.encode(nest)), nest)


def test_a_message_without_columns_has_one_row():
  layout = wire.Layout.of((), 5)
  assert layout.encode(()) == b"SEDX" + struct.pack("<HHII", 2, 0, 1, 16)
  assert layout.decode(layout.encode(())) == ()


@pytest.mark.parametrize(
  "nest, words",
  [
    ({"x": np.zeros((2, 3))}, "expected <f4 .*found <f8"),
    ({"y": np.zeros((2, 3), np.float32)}, "'x'.*'y'"),
    ({"x": np.zeros((9, 3), np.float32)}, "1 to 8 rows, found 9"),
    ({"x": np.zeros((0, 3), np.float32)}, "1 to 8 rows, found 0"),
    ({"x": np.float32(0)}, "row axis"),
  ],
)
def test_encode_refuses_arrays_that_do_not_fit(nest, words):
  with pytest.raises(ValueError, match=words):
    LAYOUT.encode(nest)
  layout = wire.Layout.of((np.int32(0), np.int32(0)), 8)
  with pytest.raises(ValueError, match="column '1'"):  # 2 and 3 rows.
    layout.encode((np.zeros(2, np.int32), np.zeros(3, np.int32)))


@pytest.mark.parametrize(
  "specs, rows, words",
  [
    ({"x": None}, 1, "leaf 'x'"),
    ({"x": np.array(object())}, 1, "leaf 'x'"),
    ({"a/b": np.zeros(1), "a": {"b": np.zeros(1)}}, 1, "two leaves"),
    (collections.OrderedDict(x=np.zeros(1)), 1, "OrderedDict"),
    (np.zeros(1), 0, "max_rows"),
    (np.zeros(2**20), 2**10, "fewer rows"),
  ],
)
def test_a_nest_that_cannot_be_sent_is_a_config_error(specs, rows, words):
  with pytest.raises(types.ConfigError, match=words):
    wire.Layout.of(specs, rows)


def test_difference_names_the_first_column_that_differs():
  x, y = np.int32(0), np.zeros((2, 3))
  layout = wire.Layout.of((x, y), 4)

  def against(*specs):
    return layout.difference(wire.Layout.of(specs, 9).to_json())

  assert against(x, y) is None
  assert against(x, y.T) == (
    "column 1: expected '1' <f8 [2, 3], found '1' <f8 [3, 2]"
  )
  assert "expected '0' <i4 [], found '0' <i8 []" in against(np.int64(0), y)
  assert "found no more columns" in against(x)
  assert "expected no more columns" in against(x, y, x)
  for nonsense in [None, 3, [], {}, {"protocol": 2}, {"protocol": "2"}]:
    assert "expected" in layout.difference(nonsense)
  assert layout.difference({"protocol": 2, "columns": [7, None]})


# Calls.


def test_calls_and_streams_return_replies(address):
  with make_server(address) as server, wire.Client(server.address) as client:
    assert not server.address.endswith(":0")
    reply = client.call("double", message(2, 8), LAYOUT, LAYOUT)
    np.testing.assert_array_equal(reply["x"], message(4, 8)["x"])
    for name in ["double", "session"]:
      requests = [message(value, 1 + value % 5) for value in range(20, 60)]
      stream = client.stream(name, requests, LAYOUT, LAYOUT)
      replies = list(stream)
      assert len(replies) == 40
      for request, reply in zip(requests, replies, strict=True):
        np.testing.assert_array_equal(reply["x"], request["x"] * 2)
    assert [session.closes for session in server.sessions] == [1]
    # A thread of the server closes the session before the client receives the
    # end, so that the client finds its lease free.
    assert server.sessions[0].closed_by == "wire"
  if address.startswith("unix:"):
    assert not os.path.exists(address.removeprefix("unix:"))


@ON_TCP
def test_hello_and_welcome_may_be_large(client):
  hello = {"text": "ü" * 2_000, "number": 3}
  stream = client.stream("session", [], LAYOUT, LAYOUT, hello)
  assert stream.welcome == {"you": hello}
  assert list(stream) == []


@ON_TCP
def test_a_client_without_seedx_gets_the_documented_answer(server):
  data = LAYOUT.encode(message(3, 2))
  metadata = {
    "protocol": 2,
    "columns": [{"name": "x", "dtype": "<f4", "shape": [3], "once": False}],
  }
  initial, replies = raw_stream(server.address, metadata, [data])
  assert json.loads(initial[KEY]) == {
    **metadata,
    "max_rows": 8,
    "welcome": {"you": {}},
  }
  assert replies == [LAYOUT.encode(message(6, 2))]


def header(magic=b"SEDX", protocol=2, reserved=0, rows=1, total=32):
  return struct.pack("<4sHHII", magic, protocol, reserved, rows, total)


@pytest.mark.parametrize(
  "data, words",
  [
    (header(magic=b"HTTP") + bytes(16), "b'SEDX', found b'HTTP'"),
    (header(protocol=1) + bytes(16), "protocol 2, found 1"),
    (header(reserved=1) + bytes(16), "expected 0 .*found 1"),
    (header(rows=0, total=16), "1 to 8 rows, found 0"),
    (header(rows=9, total=128) + bytes(112), "1 to 8 rows, found 9"),
    (header() + bytes(8), "expected 32 bytes .*found 24"),
    (header(total=40) + bytes(16), "expected 32 .*40 in the header"),
    (b"SEDX", "16 bytes, found a message of 4"),
  ],
)
def test_a_message_that_does_not_follow_its_layout_is_refused(data, words):
  with pytest.raises(wire.MessageError, match=words):
    LAYOUT.decode(data)


@ON_TCP
def test_a_bad_message_ends_only_its_stream(server, bystander):
  data = header(magic=b"HTTP") + bytes(16)
  code, text = refusal(raw_stream, server.address, LAYOUT.to_json(), [data])
  assert code is Code.INVALID_ARGUMENT
  assert "found b'HTTP'" in text
  bystander()
  running.wait_until(lambda: server.sessions[-1].closes == 1)
  assert server.sessions[0].closes == 0


@ON_TCP
def test_an_oversized_message_is_refused_by_grpc(server, bystander):
  data = header(rows=1) + bytes(1 << 20)
  code, text = refusal(raw_stream, server.address, LAYOUT.to_json(), [data])
  assert code is Code.RESOURCE_EXHAUSTED
  assert "larger than max" in text
  bystander()
  running.wait_until(lambda: server.sessions[-1].closes == 1)


@ON_TCP
@pytest.mark.parametrize(
  "change, words",
  [
    ({"protocol": 1}, "expected protocol 2, found 1"),
    ({"columns": []}, "column 0: expected 'x' <f4 [3], found no more"),
    ({"max_rows": "x"}, "expected max_rows from 1 to 8, found 'x'"),
    ({"hello": 3}, "expected an object as hello, found 3"),
    (None, "expected a JSON object, found None"),
  ],
)
def test_a_bad_handshake_ends_only_its_stream(server, bystander, change, words):
  metadata = change and {**LAYOUT.to_json(), **change}
  code, text = refusal(raw_stream, server.address, metadata, [])
  assert code is Code.FAILED_PRECONDITION
  assert words in text
  assert len(server.sessions) == 1


@ON_TCP
def test_a_handshake_that_is_not_json_is_refused(server):
  with grpc.insecure_channel(server.address) as channel:
    method = channel.stream_stream("/seedx/session")
    for metadata in [(), ((KEY, b"\xff{"),)]:
      code, text = refusal(list, method(iter([]), metadata=metadata))
      assert code is Code.FAILED_PRECONDITION
      assert KEY in text


@ON_TCP
def test_layouts_that_differ_are_refused_in_both_directions(client):
  other = wire.Layout.of({"x": np.zeros(4, np.float32)}, 8)
  code, text = refusal(client.stream, "double", [], other, LAYOUT)
  assert code is Code.FAILED_PRECONDITION
  assert "column 0: expected 'x' <f4 [3], found 'x' <f4 [4]" in text
  code, text = refusal(client.stream, "double", [], LAYOUT, other)
  assert code is Code.FAILED_PRECONDITION
  assert "column 0: expected 'x' <f4 [4], found 'x' <f4 [3]" in text
  code, _ = refusal(client.call, "double", message(1), LAYOUT, other)
  assert code is Code.FAILED_PRECONDITION


@ON_TCP
def test_the_refusal_of_an_unknown_method_names_the_methods(client):
  code, text = refusal(client.stream, "dubble", [], LAYOUT, LAYOUT)
  assert code is Code.UNIMPLEMENTED
  assert "/seedx/double" in text


def test_streams_beyond_the_maximum_are_refused(server, client):
  requests = Requests()
  streams = [
    client.stream("session", requests, LAYOUT, LAYOUT) for _ in range(4)
  ]
  code, text = refusal(client.stream, "session", [], LAYOUT, LAYOUT)
  assert code is Code.RESOURCE_EXHAUSTED
  assert "at most 4" in text
  client.call("double", message(1), LAYOUT, LAYOUT)  # Another method has room.
  requests.end()
  assert list(streams[0]) == []

  def opens():
    try:
      return client.stream("session", [], LAYOUT, LAYOUT)
    except wire.WireError:
      return None

  running.wait_until(opens)


def test_an_error_of_a_session_ends_only_its_stream(client, bystander, caplog):
  requests = [message(1), message(8), message(1)]
  stream = client.stream("session", requests, LAYOUT, LAYOUT)
  assert next(stream)["x"][0, 0] == 2
  code, text = refusal(next, stream)
  assert code is Code.INTERNAL
  assert "KeyError: 'eight'" in text
  assert "Traceback" in caplog.text and "eight" in caplog.text
  bystander()
  caplog.clear()
  stream = client.stream("session", [message(9)], LAYOUT, LAYOUT)
  assert refusal(next, stream) == (Code.OUT_OF_RANGE, "session: no nines")
  hello = {"nope": 1}
  code, text = refusal(client.stream, "session", [], LAYOUT, LAYOUT, hello)
  assert (code, text) == (Code.PERMISSION_DENIED, "session: not you")
  assert not caplog.records
  code, _ = refusal(client.call, "double", message(8), LAYOUT, LAYOUT)
  assert code is Code.INTERNAL


def test_an_exchange_is_in_order_and_both_ends_count_its_bytes(server, client):
  exchange = client.exchange("session", LAYOUT, LAYOUT)
  for value in range(1, 5):
    exchange.send(message(value, value))
  assert [exchange.receive()["x"][0, 0] for _ in range(2)] == [2, 4]
  # A call gets the reply to the oldest unanswered request.
  assert exchange(message(5))["x"][0, 0] == 6
  assert [exchange.receive()["x"][0, 0] for _ in range(2)] == [8, 10]
  expected = 2 * sum(map(LAYOUT.message_bytes, (1, 2, 3, 4, 1)))
  assert exchange.transferred_bytes == server.transferred_bytes == expected
  other = client.exchange("session", LAYOUT, LAYOUT)
  other(message(1))
  assert other.transferred_bytes == 2 * LAYOUT.message_bytes(1)
  assert exchange.transferred_bytes == expected
  more = expected + other.transferred_bytes
  assert server.transferred_bytes == more
  exchange.send({"x": np.zeros((1, 4), np.float32)})
  with pytest.raises(ValueError, match="expected"):
    exchange.receive()


def test_an_error_of_the_requests_is_raised_by_the_stream(server, client):
  def broken():
    yield message(1)
    raise OSError("the emulator died")

  stream = client.stream("session", broken(), LAYOUT, LAYOUT)
  with pytest.raises(OSError, match="emulator"):
    list(stream)
  stream = client.stream("session", [{"x": np.zeros(3)}], LAYOUT, LAYOUT)
  with pytest.raises(ValueError, match="column 'x'"):
    list(stream)
  running.wait_until(lambda: [s.closes for s in server.sessions] == [1, 1])


@ON_TCP
def test_deadlines_and_missing_servers_have_their_statuses(server, client):
  code, _ = refusal(client.call, "double", message(7), LAYOUT, LAYOUT, 0.2)
  assert code is Code.DEADLINE_EXCEEDED
  with wire.Client("127.0.0.1:1") as without_server:
    code, _ = refusal(without_server.call, "double", message(1), LAYOUT, LAYOUT)
    assert code is Code.UNAVAILABLE
    assert refusal(without_server.stream, "x", [], LAYOUT, LAYOUT)[0] is code


# Addresses.


def test_an_address_in_use_is_a_config_error(address):
  with make_server(address) as server, wire.Client(server.address) as client:
    with pytest.raises(types.ConfigError, match="in use"):
      make_server(server.address).start()
    client.call("double", message(1), LAYOUT, LAYOUT)


@ON_TCP
def test_servers_that_start_together_do_not_share_an_address(
  server, monkeypatch
):
  name = "seedx.wire.listening.check_free"
  monkeypatch.setattr(name, lambda address: None)
  with pytest.raises(types.ConfigError, match=server.address):
    make_server(server.address).start()


def test_a_port_in_use_on_one_address_of_a_host_is_a_config_error():
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(types.ConfigError, match="in use"):
      make_server(f"localhost:{port}").start()


def test_a_stale_unix_path_is_used_again(tmp_path):
  path = tmp_path / "sock"
  with socket.socket(socket.AF_UNIX) as stale:
    stale.bind(str(path))
  assert path.exists()
  server = make_server(f"unix:{path}")
  with server, wire.Client(f"unix:{path}") as client:
    client.call("double", message(1), LAYOUT, LAYOUT)


@pytest.mark.parametrize(
    "bad",
    ["", "127.0.0.1", "127.0.0.1:٣", "127.0.0.1:99999", "a:" + "1" * 5000,
     ":5", "unix:", "unix:/no/such/folder/sock", "unix:/" + "x" * 200,
     "8.8.8.8:5000"],
)  # fmt: skip
def test_a_bad_address_is_a_config_error(bad):
  server = serving.Server(bad, 1, security=wire.Security(insecure=True))
  with pytest.raises(types.ConfigError, match="address"):
    server.start()


def test_a_file_in_the_place_of_a_socket_stays(tmp_path):
  path = tmp_path / "precious"
  path.write_text("data")
  with pytest.raises(types.ConfigError, match="another kind of file"):
    make_server(f"unix:{path}").start()
  assert path.read_text() == "data"


# Ends.


_FEW_DESCRIPTORS = """
import resource, sys
import numpy as np
from seedx import wire
from seedx.wire import serving as server_lib

resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
options = dict(server_lib._SERVER_OPTIONS)
options["grpc.server_handshake_timeout_ms"] = 1000
server_lib._SERVER_OPTIONS = list(options.items())
echo = wire.Layout.of(np.zeros(1, np.float32), max_rows=1)
server = server_lib.Server("127.0.0.1:0", 4)
server.bind("echo", lambda x: x, echo, echo)
with server:
  limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  print(limit, server.address, flush=True)
  for _ in sys.stdin:
    files = [open("/dev/null") for _ in range(60)]
    print(len(files), flush=True)
    del files
"""


def test_idle_connections_leave_descriptors_for_files_and_clients():
  program = subprocess.Popen(
    [sys.executable, "-c", _FEW_DESCRIPTORS],
    cwd=pathlib.Path(__file__).parents[2],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    limit, address = program.stdout.readline().split()
    assert limit == "400"  # The hard limit.
    host, _, port = address.rpartition(":")
    echo = wire.Layout.of(np.zeros(1, np.float32), max_rows=1)
    with contextlib.ExitStack() as stack:
      for _ in range(450):
        idle = stack.enter_context(socket.socket())
        idle.settimeout(300)
        idle.connect((host, int(port)))
      program.stdin.write("\n")
      program.stdin.flush()
      assert program.stdout.readline() == "60\n"

      def is_served():
        with wire.Client(address) as client:
          try:
            value = np.ones((1, 1), np.float32)
            client.call("echo", value, echo, echo, timeout_seconds=5)
          except wire.WireError:
            return False
        return True

      running.wait_until(is_served)
  finally:
    program.stdin.close()
    program.stdout.close()
    assert program.wait(300) == 0


def test_stop_ends_idle_streams_as_finished(address):
  server = make_server(address)
  with server, wire.Client(server.address) as client:
    requests = Requests(1)
    stream = client.stream("session", requests, LAYOUT, LAYOUT)
    assert next(stream)["x"][0, 0] == 2
    exchange = client.exchange("session", LAYOUT, LAYOUT)
    server.stop(3600.0)  # Idle streams end without waiting for the grace.
    assert list(stream) == []
    assert exchange.receive() is None
    assert exchange(message(2)) is None
    assert [session.closes for session in server.sessions] == [1, 1]
    code, _ = refusal(client.call, "double", message(1), LAYOUT, LAYOUT)
    assert code is Code.UNAVAILABLE
    requests.end()
    server.stop()  # A second call does nothing.


def test_stop_lets_a_request_finish_and_ends_its_stream_with_ok():
  release, entered = threading.Event(), threading.Event()

  def slow(inputs):
    entered.set()
    assert release.wait(300)
    return inputs

  server = serving.Server("127.0.0.1:0", 4)
  server.bind("slow", slow, LAYOUT, LAYOUT)
  with server, wire.Client(server.address) as client:
    requests = [message(1), message(2), message(3)]
    stream = client.stream("slow", requests, LAYOUT, LAYOUT)
    assert entered.wait(300)
    stopper = threading.Thread(target=server.stop, args=(300.0,))
    stopper.start()
    stopping = Code.UNAVAILABLE, "the server is stopping"
    call = client.call, "slow", message(1), LAYOUT, LAYOUT, 0.3
    running.wait_until(lambda: refusal(*call) == stopping)
    release.set()
    assert [reply["x"][0, 0] for reply in stream] == [1]
    stopper.join(300)
    assert not stopper.is_alive()


@pytest.mark.parametrize("name", ["double", "session"])
def test_stop_ends_a_blocked_call(server, client, name):
  stream = client.stream(name, [message(7)], LAYOUT, LAYOUT)
  running.wait_until(lambda: server.sessions or name == "double")
  called = server.double if name == "double" else server.sessions[0]
  assert called.blocked.wait(300)
  server.stop(0.3)
  assert called.closes == 1
  assert list(stream) == []


def test_a_client_that_leaves_closes_its_session(server, client, caplog):
  for leave in ["stream", "client"]:
    for value in [1, 7]:  # An idle and a blocked session.
      leaving = wire.Client(server.address)
      stream = leaving.stream("session", Requests(value), LAYOUT, LAYOUT)
      session = server.sessions[-1]
      if value == 7:
        assert session.blocked.wait(300)
      else:
        next(stream)
      (stream if leave == "stream" else leaving).close()
      assert list(stream) == []
      assert session.closed.wait(300)
      leaving.close()
  client.call("double", message(1), LAYOUT, LAYOUT)
  time.sleep(0.1)
  assert [session.closes for session in server.sessions] == [1] * 4
  assert not caplog.records


def run_python(code, *args):
  return subprocess.Popen(
    [sys.executable, "-c", code, *args],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


CLIENT = """
import sys, time
import numpy as np
from seedx import wire
layout = wire.Layout.of({"x": np.zeros(3, np.float32)}, max_rows=8)
def requests():
  yield {"x": np.full((1, 3), 7, np.float32)}
  time.sleep(600)
stream = wire.Client(sys.argv[1]).stream("session", requests(), layout, layout)
next(stream)
time.sleep(600)
"""


def test_a_killed_client_closes_its_session(server, bystander):
  process = run_python(CLIENT, server.address)
  try:
    running.wait_until(lambda: len(server.sessions) == 2)
    session = server.sessions[1]
    assert session.blocked.wait(300)
    assert session.closes == 0
    process.kill()
    assert session.closed.wait(300)
    assert session.closes == 1
  finally:
    process.kill()
    process.communicate()


# Two threads print, so each writes its line in one call. The main thread waits
# in short pieces, since a signal just before a wait would not end that wait.
SERVER = """
import sys, threading, time
import numpy as np
from seedx import wire
from seedx.wire import serving as server_lib
layout = wire.Layout.of({"x": np.zeros(3, np.float32)}, max_rows=8)
entered = threading.Event()
def function(inputs):
  print("blocked\\n", end="", flush=True)
  entered.set()
  threading.Event().wait()
server = server_lib.Server(sys.argv[1], 4)
server.bind("f", function, layout, layout)
def main():
  client = wire.Client(server.address)
  stream = client.stream(
    "f", [{"x": np.zeros((1, 3), np.float32)}], layout, layout
  )
  print(f"{server.address}\\n", end="", flush=True)
  while not entered.is_set() or sys.argv[2] != "raise":
    time.sleep(0.05)
  raise ArithmeticError("on purpose")
if sys.argv[2] == "raise":
  with server:
    main()
server.start()
main()
"""


@pytest.mark.parametrize("end", ["raise", "interrupt"])
def test_a_server_with_a_blocked_call_exits(end):
  process = run_python(SERVER, "127.0.0.1:0", end)
  try:
    lines = {process.stdout.readline() for _ in range(2)}
    assert "blocked\n" in lines
    if end == "interrupt":
      process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    expected = "KeyboardInterrupt" if end == "interrupt" else "on purpose"
    assert expected in errors.splitlines()[-1]
    assert process.returncode != 0
  finally:
    process.kill()
    process.communicate()


# `look` is registered first, so it is called last, after the functions that
# seedx and gRPC have registered.
SENDING = """
import atexit, threading, time
def look():
  left = [x for x in threading.enumerate() if x is not threading.main_thread()]
  print(len([x for x in left if "_run" in x.name]), flush=True)
atexit.register(look)
import numpy as np
from seedx import wire
from seedx.wire import serving as server_lib
layout = wire.Layout.of({"x": np.zeros(3, np.float32)}, max_rows=8)
def requests():
  yield {"x": np.zeros((1, 3), np.float32)}
  time.sleep(0.5)
server = server_lib.Server("127.0.0.1:0", 4)
server.bind("f", lambda inputs: inputs, layout, layout)
with server:
  with wire.Client(server.address) as client:
    next(client.stream("f", requests(), layout, layout))
"""


def test_an_exit_waits_for_the_threads_that_send():
  """A thread that Python ends within gRPC's C++ may abort the program."""
  process = run_python(SENDING)
  printed, errors = process.communicate(timeout=600)
  assert process.returncode == 0, errors
  assert printed == "0\n"


def test_a_crashed_server_is_unavailable_not_finished():
  process = run_python(SERVER, "127.0.0.1:0", "interrupt")
  try:
    lines = [process.stdout.readline() for _ in range(2)]
    address = next(line for line in lines if ":" in line).strip()
    with wire.Client(address) as client:
      stream = client.stream("f", [message(1)], LAYOUT, LAYOUT)
      assert process.stdout.readline() == "blocked\n"
      process.kill()
      code, _ = refusal(list, stream)
      assert code is Code.UNAVAILABLE
  finally:
    process.kill()
    process.communicate()


# Threads and races.


def test_close_ends_the_session_and_the_clients_threads(tmp_path):
  address = f"unix:{tmp_path}/sock"
  with make_server(address) as server, wire.Client(address) as client:
    before = threading.active_count()
    for _ in range(40):
      exchange = client.exchange("session", LAYOUT, LAYOUT)
      exchange(message(1))
      exchange.close()
      exchange.close()
      running.wait_until(server.sessions[-1].closed.is_set)
    assert len(server.sessions) == 40
    # The server keeps up to 16 idle threads for the next calls.
    running.wait_until(lambda: threading.active_count() <= before + 16)


def test_stopped_servers_leave_no_thread_behind():
  threads = set(threading.enumerate())
  with make_server("127.0.0.1:0") as server, wire.Client(server.address) as c:
    c.call("double", message(1), LAYOUT, LAYOUT)
    assert {t.name for t in set(threading.enumerate()) - threads} >= {"wire"}
  running.wait_until(lambda: not set(threading.enumerate()) - threads)


def test_a_request_that_arrives_while_a_call_ends_is_freed():
  newest = serving._Newest()
  assert newest.receive(b"request").take() == b"request"
  newest.receive(b"late")
  newest.close()
  assert newest.receive(b"later").take() == b""


def test_a_stream_that_another_thread_ends_has_that_threads_status():
  """The error of the session, which the other thread has closed, is ignored."""
  code = wire.StatusCode
  stream = serving._Stream(*[mock.MagicMock()] * 4)

  def session(request):
    stream._ended = wire.Refusal(code.UNAVAILABLE, "silent")
    raise wire.Refusal(code.CANCELLED, "closed")

  stream._open = lambda: session
  stream._next = lambda requests: b"request"
  stream._answer = lambda session, request: session(request)
  with pytest.raises(wire.Refusal, match=r"UNAVAILABLE: .*silent"):
    list(stream.serve(iter(())))
