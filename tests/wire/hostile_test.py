"""Tests of hostile peers: their calls end cleanly, and others are served."""

import contextlib
import json
import subprocess
import sys
import threading
import time

import hypothesis
import numpy as np
import pytest
import tree
from hypothesis import strategies as st

import seedx
from seedx import wire
from seedx.acting import protocol, unroll_messages
from seedx.launch import admission, joining
from seedx.pipelines.gorila import reports
from seedx.wire import array_layout, calls, serving
from tests import fuzz, programs, running

Code = wire.StatusCode
ONE = wire.Layout.of({"x": np.zeros((), np.bool_)}, 4)


@pytest.fixture(scope="module")
def served():
  """A server that is not started, and its methods by name."""
  server = serving.Server("unix:/nowhere", 1)
  return server, {method.name: method for method in fuzz.bound(server)}


NAMES = st.sampled_from(
  ("act", "experience", "report", "servers", "push", "start", "restore", "join")
)
JSON = st.recursive(
  st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(),
    st.sampled_from(["\ud800", "actor", seedx.__version__, "unix:/a"]),
  ),
  lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
  max_leaves=8,
)
few_examples = hypothesis.settings(
  max_examples=60,
  deadline=None,
  derandomize=True,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)


@few_examples
@hypothesis.given(st.data())
def test_a_mutated_frame_is_decoded_or_refused(served, data):
  """Decoded arrays have the layout's shapes and types, and are read-only."""
  _, methods = served
  method = methods[data.draw(NAMES)]
  frame = data.draw(st.sampled_from(method.messages))
  rng = data.draw(st.randoms(use_true_random=False))
  layout = method.inputs
  try:
    nest = layout.decode(fuzz.mutated(rng, frame))
  except wire.MessageError as error:
    assert "expected" in str(error)
    return
  leaves = tree.flatten(nest)
  assert len(leaves) == len(layout.columns)
  for leaf, column in zip(leaves, layout.columns, strict=True):
    rows = () if column.once else leaf.shape[:1]
    assert leaf.shape == (*rows, *column.shape)
    assert all(1 <= count <= layout.max_rows for count in rows)
    assert leaf.dtype == column.dtype and not leaf.flags.writeable


@few_examples
@hypothesis.given(st.data())
def test_an_odd_handshake_ends_with_a_clean_status(served, caplog, data):
  server, methods = served
  method = methods[data.draw(NAMES)]
  valid = {**method.inputs.to_json(), "hello": method.hello}
  names = [*valid, "x"]
  odd_hello = st.dictionaries(st.sampled_from([*method.hello, "x"]), JSON)
  handshake = st.one_of(
    JSON,
    st.dictionaries(st.sampled_from(names), JSON).map(lambda x: valid | x),
    odd_hello.map(lambda x: valid | {"hello": method.hello | x}),
  ).map(lambda x: json.dumps(x).encode())
  text = data.draw(st.binary() | handshake)
  assert fuzz.send_here(server, method, text, method.messages) in fuzz.CLEAN
  assert not caplog.records


ASSIGNMENT = {
  "role": "actor",
  "needs_jax": False,
  "experiment": "ppo",
  "options": {"env": "CartPole-v1"},
  "version": joining.Hello().version,
}


@few_examples
@hypothesis.given(
  st.dictionaries(st.sampled_from([*ASSIGNMENT, "x"]), JSON),
  st.dictionaries(st.sampled_from(["env", "observation_transform"]), JSON),
)
def test_an_odd_assignment_is_accepted_or_refused(changes, options):
  welcome = {
    **ASSIGNMENT,
    "options": {**ASSIGNMENT["options"], **options},
    **changes,
  }
  try:
    assignment = joining._accepted(welcome, joining.Hello())
  except wire.WireError as error:
    assert error.code is Code.FAILED_PRECONDITION
    return
  assert type(assignment.role) is str and type(assignment.options) is dict


@few_examples
@hypothesis.given(JSON)
def test_an_odd_welcome_is_accepted_or_refused_with_a_reason(odd):
  readers = [
    lambda: protocol.first_seed({"first_seed": odd}),
    lambda: unroll_messages.exploration({"exploration": odd}, 2),
    lambda: reports.addresses({"addresses": odd}),
  ]
  for read in readers:
    try:
      value = read()
    except wire.WireError as error:
      assert error.code is Code.FAILED_PRECONDITION
      assert "expected" in error.message
    else:
      assert np.size(value) == 0 or np.all(np.asarray(value) != "")


@pytest.mark.parametrize("address", ["nowhere", "\ud800:1", "a:1\n", "unix:"])
def test_an_address_that_is_not_valid_is_refused(address):
  security = wire.Security(insecure=True)
  with pytest.raises(wire.Refusal, match="HOST:PORT or unix:PATH") as caught:
    admission.Addresses(1, security=security).take(address)
  assert caught.value.code is Code.FAILED_PRECONDITION
  for good in ("learner.example:80", "[::1]:80", "unix:/tmp/a b"):
    assert admission.Addresses(1, security=security).take(good) == 0


def test_a_bool_other_than_0_and_1_is_refused():
  frame = bytearray(ONE.encode({"x": np.array([True, False])}))
  assert ONE.decode(bytes(frame))["x"].tolist() == [True, False]
  frame[-7] = 2
  with pytest.raises(wire.MessageError, match="expected 0 or 1"):
    ONE.decode(bytes(frame))


# Over a socket


@pytest.mark.parametrize("depth", [33, 8_000])
@pytest.mark.parametrize("where", ["metadata", "hello"])
def test_a_deeply_nested_handshake_is_refused_without_a_traceback(
  tmp_path, caplog, depth, where
):
  server = serving.Server(f"unix:{tmp_path}/server", 4)
  server.bind("same", lambda x: x, ONE, ONE)
  nested = "[" * depth + "]" * depth
  if where == "hello":
    text = json.dumps({**ONE.to_json(), "hello": 0})
    nested = text.replace('"hello": 0', f'"hello": {nested}')
  method = fuzz.Method("same", ONE, {}, [])
  with server, fuzz.grpc.insecure_channel(server.address) as channel:
    code = fuzz.send_over(channel, method, nested.encode(), [])
    assert code is Code.FAILED_PRECONDITION
    assert not caplog.records


def handshake_of(layout, hello=(), indent=None):
  return json.dumps(
    {**layout.to_json(), "hello": dict(hello)}, indent=indent
  ).encode()


def test_a_handshake_that_is_too_large_is_not_decoded(tmp_path, monkeypatch):
  texts, from_json = [], array_layout.from_json
  monkeypatch.setattr(
    array_layout,
    "from_json",
    lambda text: texts.append(text) or from_json(text),
  )
  server = serving.Server(f"unix:{tmp_path}/server", 4)
  wide = wire.Layout.of({f"a_leaf_{k}": np.zeros(2) for k in range(60)}, 1)
  server.bind("same", lambda x: x, wide, wide)
  method = fuzz.Method("same", wide, {}, [])
  with server, fuzz.grpc.insecure_channel(server.address) as channel:
    large = handshake_of(wide, {"x": "[]" * 2**17})
    code = fuzz.send_over(channel, method, large, [])
    assert code is Code.RESOURCE_EXHAUSTED and not texts
    # A valid handshake fits, even with many spaces in its JSON.
    valid = handshake_of(wide, {"x": "y" * 10_000}, indent=4)
    assert fuzz.send_over(channel, method, valid, []) is Code.OK
    assert texts == [valid]


@pytest.mark.parametrize(
  "how",
  [pytest.param("refused", marks=pytest.mark.slow), "reset", "answered"],
)
def test_a_connection_has_a_limit_of_refused_and_reset_calls(
  tmp_path, monkeypatch, how
):
  """The limit ends after some seconds, and other clients are not affected."""
  clock, opened = Clock(), []
  monkeypatch.setattr(serving, "time", clock)
  server = serving.Server(f"unix:{tmp_path}/server", 8)

  def open_session(hello):
    opened.append(hello)
    if how == "refused":
      raise wire.Refusal(Code.FAILED_PRECONDITION, "expected another")
    return serving.FunctionSession(lambda inputs: inputs)

  server.bind_stream("echo", open_session, ONE, ONE)
  server.bind("same", lambda x: x, ONE, ONE)
  frame = ONE.encode({"x": np.zeros(1, np.bool_)})
  method = fuzz.Method("echo", ONE, {}, [frame])
  limit = serving._CALLS_PER_CONNECTION

  def call_reaches_python():
    num_opened = len(opened)
    if how == "reset":
      done = threading.Event()
      call = channel.stream_stream(calls.PATH_PREFIX + "echo")(
        iter(done.wait, True), metadata=metadata
      )
      with contextlib.suppress(fuzz.grpc.RpcError):
        call.initial_metadata()
      call.cancel()
      done.set()
    else:
      fuzz.send_over(channel, method, handshake_of(ONE), method.messages)
    return len(opened) > num_opened

  metadata = ((calls.METADATA_KEY, handshake_of(ONE)),)
  with server, fuzz.grpc.insecure_channel(server.address) as channel:
    reached = [call_reaches_python() for _ in range(limit)]
    assert all(reached)
    if how == "answered":
      assert all(call_reaches_python() for _ in range(limit))
      return
    # A reset can look like the end of the requests; such a call does not count.
    assert not all(call_reaches_python() for _ in range(limit))
    with wire.Client(server.address) as other:
      other.call("same", {"x": np.zeros(1, np.bool_)}, ONE, ONE, 300)
    clock.now += serving._SPENT_SECONDS + 1.0
    running.wait_until(call_reaches_python)
    monkeypatch.setattr(serving, "time", time)


def counted(open_sessions):
  """Returns an `open_session` that keeps the list of open sessions."""

  def open_session(hello):
    open_sessions.append(hello)
    return serving.FunctionSession(
      lambda inputs: inputs, close=open_sessions.pop
    )

  return open_session


class Clock:
  """The module `time` with a monotonic clock that a test advances."""

  def __init__(self):
    self.now = 100.0

  def monotonic(self):
    return self.now

  def __getattr__(self, name):
    return getattr(time, name)


def test_a_silent_stream_ends_and_other_hosts_get_its_place(
  tmp_path, monkeypatch
):
  clock, open_sessions = Clock(), []
  monkeypatch.setattr(serving, "time", clock)
  server = serving.Server(f"unix:{tmp_path}/server", 2, silent_seconds=0.4)
  server.bind_stream("echo", counted(open_sessions), ONE, ONE)
  message = {"x": np.zeros(1, np.bool_)}

  def opened():
    return client.exchange("echo", ONE, ONE)

  with server, wire.Client(server.address) as client:
    silent, active = opened(), opened()
    with pytest.raises(wire.WireError, match="at most 2 connections"):
      opened()

    def has_ended():
      clock.now += 0.1
      return active(message) is not None and len(open_sessions) == 1

    running.wait_until(has_ended)
    with pytest.raises(wire.WireError, match=r"within 0\.4 seconds") as caught:
      silent.receive()
    assert caught.value.code is Code.UNAVAILABLE  # The client may try again.
    # For a while, the host of the silent client is refused.
    with pytest.raises(wire.WireError, match="was silent") as caught:
      opened()
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert active(message) is not None
    # Another host is accepted.
    other = fuzz.Method("echo", ONE, {}, [ONE.encode(message)])
    text = handshake_of(ONE)
    assert fuzz.send_here(server, other, text, other.messages) is Code.OK
    active.close()
    running.wait_until(lambda: not open_sessions)
    clock.now += serving._YIELD_SECONDS
    opened().close()
    monkeypatch.setattr(serving, "time", time)


def test_a_client_that_receives_no_replies_counts_as_silent(tmp_path):
  open_sessions = []
  big = wire.Layout.of({"x": np.zeros(2**20, np.uint8)}, 1)
  server = serving.Server(f"unix:{tmp_path}/server", 2, silent_seconds=0.4)
  server.bind_stream("echo", counted(open_sessions), big, big)
  frames = [big.encode({"x": np.zeros((1, 2**20), np.uint8)})] * 64
  with server, fuzz.grpc.insecure_channel(server.address) as channel:
    call = channel.stream_stream(calls.PATH_PREFIX + "echo")(
      iter(frames),
      metadata=((calls.METADATA_KEY, json.dumps(big.to_json()).encode()),),
    )
    assert call.initial_metadata()
    running.wait_until(lambda: not open_sessions)
    with pytest.raises(fuzz.grpc.RpcError) as caught:
      list(call)
    assert caught.value.code() is Code.CANCELLED


def test_a_client_that_was_silent_over_tcp_finds_the_server_running():
  open_sessions = []
  server = serving.Server("127.0.0.1:0", 2, silent_seconds=0.2)
  server.bind_stream("echo", counted(open_sessions), ONE, ONE)
  server.bind("done", refuse, ONE, ONE)
  message = {"x": np.zeros(1, np.bool_)}
  with server, wire.Client(server.address) as client:
    stream = client.exchange("echo", ONE, ONE)
    stream.over.wait()
    stream.close()  # The server has already ended the stream.
    with pytest.raises(wire.WireError, match="silent for too long") as caught:
      stream.receive()
    assert caught.value.code is Code.UNAVAILABLE  # The client may try again.
    assert not open_sessions
    # With a reason, CANCELLED means that the work is over.
    assert client.exchange("done", ONE, ONE)(message) is None


def refuse(inputs):
  raise wire.Refusal(Code.CANCELLED, "this run is over")


def test_a_process_that_has_joined_sends_messages_regularly(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(joining, "_SIGN_SECONDS", 0.1)
  server, messages = serving.Server(f"unix:{tmp_path}/server", 1), []
  server.bind_stream(
    joining.JOIN,
    lambda hello: serving.FunctionSession(
      lambda _: messages.append(1) or (), ASSIGNMENT
    ),
    wire.NOTHING,
    wire.NOTHING,
  )
  with server:
    joining.join(
      server.address,
      joining.Hello(role="actor"),
      lambda assignment, ended: running.wait_until(lambda: len(messages) > 2),
      threading.Event(),
    )


@pytest.mark.slow
def test_mutated_frames_and_handshakes_leave_nothing_behind():
  """A process of its own: the memory of other tests' threads varies."""
  words = [sys.executable, "-m", "tests.fuzz", "10000"]
  subprocess.run(words, cwd=programs.ROOT, check=True, timeout=300)
