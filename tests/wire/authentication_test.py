"""Tests of TLS and the token: accepted and refused clients, and messages."""

import contextlib
import dataclasses
import socket
import subprocess
import threading
from concurrent import futures
from unittest import mock

import grpc
import numpy as np
import pytest

from seedx import types, wire
from seedx.app import certificates
from seedx.launch import admission
from seedx.pipelines.gorila import saved_shards
from seedx.runtime import process_parts
from seedx.wire import authentication, reconnect
from seedx.wire import serving as server_lib
from tests import fakes

ECHO = wire.Layout.of(np.zeros(4, np.float32), 1)
REQUEST = (np.ones((1, 4), np.float32), ECHO, ECHO)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Folders with certificates and tokens: ours and a stranger's."""
  made = {}
  for name, hosts in (("ours", "a-name"), ("strangers", "a-name")):
    folder = tmp_path_factory.mktemp("certificates") / name
    assert certificates.main([str(folder), "--hosts", hosts]) == 0
    made[name] = folder
  return made


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
  monkeypatch.delenv(authentication.TOKEN_VARIABLE, raising=False)


def client_of(folder, **changes):
  fields = {
    "tls_ca": str(folder / "ca.pem"),
    "token_file": str(folder / "token"),
  }
  return wire.Security(**fields | changes)


def certificate_of(folder):
  return {
    "tls_certificate": str(folder / "certificate.pem"),
    "tls_key": str(folder / "key.pem"),
  }


def server_of(folder, mutual=False, **changes):
  fields = {"token_file": str(folder / "token"), **certificate_of(folder)}
  if mutual:
    fields["tls_ca"] = str(folder / "ca.pem")
  return wire.Security(**fields | changes)


@contextlib.contextmanager
def serving(security, address="127.0.0.1:0"):
  """Yields the address of a server of `echo`, and the requests it received."""
  calls = []

  def echo(nest):
    calls.append(nest)
    return nest

  server = server_lib.Server(address, 8, security=security)
  server.bind("echo", echo, ECHO, ECHO)
  with server:
    yield server.address, calls


def call(address, security):
  with wire.Client(address, security) as client:
    return client.call("echo", *REQUEST, timeout_seconds=300)


# Accepted and refused clients


@pytest.mark.parametrize(
  ("mutual", "host"), [(False, "127.0.0.1"), (True, "localhost")]
)
def test_a_client_with_certificates_and_token_is_accepted(files, mutual, host):
  ours = files["ours"]
  with serving(server_of(ours, mutual)) as (address, calls):
    certificate = certificate_of(ours) if mutual else {}
    port = address.rpartition(":")[2]
    reply = call(f"{host}:{port}", client_of(ours, **certificate))
  np.testing.assert_array_equal(reply, np.ones((1, 4)))
  assert len(calls) == 1


def test_the_token_may_come_from_the_environment(files, monkeypatch):
  ours = files["ours"]
  token = (ours / "token").read_text()
  monkeypatch.setenv(authentication.TOKEN_VARIABLE, token)
  with serving(server_of(ours, token_file="")) as (address, _):
    call(address, client_of(ours, token_file=""))
    monkeypatch.delenv(authentication.TOKEN_VARIABLE)
    with pytest.raises(wire.WireError, match="UNAUTHENTICATED"):
      call(address, client_of(ours, token_file=""))


@pytest.mark.parametrize("token", [None, "almost"])
def test_a_client_without_the_token_gets_one_error_for_all_methods(
  files, tmp_path, token, capfd
):
  ours, path = files["ours"], tmp_path / "token"
  path.write_text((ours / "token").read_text().strip()[:-1])
  security = client_of(ours, token_file=str(path) if token else "")
  with serving(server_of(ours)) as (address, calls):
    with wire.Client(address, security) as client:
      for name in ("echo", "no-such-method"):
        with pytest.raises(wire.WireError) as caught:
          client.call(name, *REQUEST, timeout_seconds=300)
        assert caught.value.code is wire.StatusCode.UNAUTHENTICATED
        assert caught.value.message == "expected the run's token"
    with pytest.raises(wire.WireError, match="UNAUTHENTICATED"):
      wire.until_done(
        address=address,
        session=lambda client: client.stream("echo", (), ECHO, ECHO),
        stop=threading.Event(),
        role="actor",
        security=security,
      )
  assert not calls
  printed = capfd.readouterr().err
  # The server prints one line; further calls within a minute are only counted.
  refused = "refused 1 call(s) without the run's token, the last"
  assert printed.count(refused) == 1


def test_a_secret_that_other_users_can_read_causes_a_warning(files, tmp_path):
  ours, path = files["ours"], tmp_path / "a token"
  path.write_text((ours / "token").read_text())
  for mode, warned in ((0o600, False), (0o640, True), (0o644, True)):
    path.chmod(mode)
    for security in (
      client_of(ours, token_file=str(path)).of_client("far:1"),
      server_of(ours, token_file=str(path)).of_server("0.0.0.0:1"),
    ):
      assert ("chmod 600" in security.warning) == warned
      assert security.warning.count("\n") == 0


def test_a_token_is_never_sent_without_tls(files):
  """Clients with and without TLS send no token to a server without TLS."""
  ours, received = files["ours"], []

  class Spy(grpc.GenericRpcHandler):
    def service(self, handler_call_details):
      received.append(dict(handler_call_details.invocation_metadata))

  server = grpc.server(futures.ThreadPoolExecutor(2), [Spy()])
  port = server.add_insecure_port("127.0.0.1:0")
  server.start()
  try:
    address = f"127.0.0.1:{port}"
    with pytest.raises(wire.WireError):
      call(address, wire.Security())
    assert (
      len(received) == 1 and authentication._AUTHORIZATION not in received[0]
    )
    with pytest.raises(wire.WireError, match="UNAVAILABLE"):
      call(address, client_of(ours))
    assert len(received) == 1
  finally:
    server.stop(0)
  with pytest.raises(types.ConfigError, match="sent over TLS only"):
    wire.Security(token_file=str(ours / "token"))


# Mistakes that gRPC reports as UNAVAILABLE

MISTAKES = {
  "authority": "certificate is not accepted: .*(issuer|self-signed|signature)",
  "name": "certificate is not accepted: .*not valid for",
  "plain client": "speaks TLS, and this process does not",
  "plain server": "does not speak TLS",
  "no certificate": "does not accept this process without a certificate",
  "another's certificate": "does not accept this process without a certificate",
}


@contextlib.contextmanager
def mistaken(kind, files):
  """Yields a server's address, the client's settings, and the requests."""
  ours, strangers = files["ours"], files["strangers"]
  mutual = kind in ("no certificate", "another's certificate")
  server, client = server_of(ours, mutual), client_of(ours)
  if kind == "plain server":
    server = wire.Security()
  elif kind == "plain client":
    client = wire.Security()
  elif kind == "authority":
    client = client_of(strangers, token_file=str(ours / "token"))
  elif kind == "another's certificate":
    client = client_of(ours, **certificate_of(strangers))
  # This address is on this machine, but not in the certificate.
  host = "127.0.0.2" if kind == "name" else "127.0.0.1"
  with serving(server, f"{host}:0") as (address, calls):
    yield address, client, calls


@pytest.fixture
def hasty(monkeypatch):
  """Makes clients give up soon after a mistake."""
  monkeypatch.setattr(reconnect, "_LOOK_SECONDS", 0.05)
  monkeypatch.setattr(reconnect, "_WRONG_SECONDS", 0.2)
  monkeypatch.setattr(reconnect, "_FORGET_SECONDS", 1e9)


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_reported_once_and_ends_the_client(
  kind, files, hasty, capfd
):
  with mistaken(kind, files) as (address, client, calls):
    with pytest.raises(wire.WireError, match="UNAVAILABLE"):
      call(address, client)
    with pytest.raises(wire.WireError, match=MISTAKES[kind]) as caught:
      wire.until_done(
        address=address,
        session=lambda client: client.call("echo", *REQUEST),
        stop=threading.Event(),
        role="actor",
        retry_seconds=0.05,
        security=client,
      )
  assert caught.value.code is wire.StatusCode.UNAUTHENTICATED
  lines = capfd.readouterr().err.splitlines()
  lines = [line for line in lines if line.startswith("actor")]
  assert len(lines) == 1 and lines[0].startswith(f"actor: {address}: ")
  assert not calls


def test_a_foreign_certificate_of_a_parameter_server_is_reported(
  files, hasty, capfd
):
  """The report comes when the coordinator sends the restored state."""
  agent = fakes.adding_agent()
  start = agent.start(np.zeros(4, np.float32), 0)
  agent = dataclasses.replace(agent, init=lambda _: start)
  ours = client_of(files["ours"])
  with serving(server_of(files["strangers"])) as (address, calls):
    addresses = admission.Addresses(1, [address], ours)
    shards = saved_shards.SavedShards(agent, addresses, threading.Event(), ours)
    shards.restore(process_parts.PartState(start, ()))
    with pytest.raises(wire.WireError, match=MISTAKES["authority"]):
      shards.give_restored()
  assert f"learner: {address}: " in capfd.readouterr().err
  assert not calls


class Silent:
  """A server that accepts connections, then sends nothing or closes them."""

  def __init__(self, ends):
    self._socket = socket.create_server(("127.0.0.1", 0))
    self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
    self._ends, self._kept = ends, []
    threading.Thread(target=self._accept, daemon=True).start()

  def _accept(self):
    with contextlib.suppress(OSError):
      while True:
        connection, _ = self._socket.accept()
        if self._ends:
          connection.close()
        else:
          self._kept.append(connection)

  def close(self):
    self._socket.close()


@pytest.mark.parametrize(
  "there", ["nothing", "silence", "a tunnel", "a server"]
)
@pytest.mark.parametrize("tls", [True, False])
def test_a_missing_server_is_not_a_mistake(there, tls, files, monkeypatch):
  """Silent servers, tunnels to nothing and working servers are no mistakes."""
  monkeypatch.setattr(authentication, "_PROBE_SECONDS", 0.3)
  security = client_of(files["ours"]) if tls else wire.Security()
  with contextlib.ExitStack() as opened:
    if there == "a server":
      server = server_of(files["ours"]) if tls else wire.Security()
      address, _ = opened.enter_context(serving(server))
    else:
      silent = Silent(ends=there == "a tunnel")
      opened.callback(silent.close)
      address = silent.address
      if there == "nothing":
        silent.close()
    assert security.problem(address) == ""


def test_only_a_mistake_that_lasts_half_a_minute_ends_the_client(
  monkeypatch, capfd
):
  """The first two mistakes last for seconds, and are an hour apart."""
  now, wrong = [0.0], ["a certificate"]
  monkeypatch.setattr(reconnect.time, "monotonic", lambda: now[0])
  security = mock.Mock(problem=lambda address: wrong[0])
  security_check = wire.SecurityCheck("actor", security)
  for now[0] in (100.0, 3700.0, 3702.0, 3704.0):
    security_check.run(["there:1"])
  wrong[0] = ""
  now[0] = 3730.0
  security_check.run(["there:1"])
  wrong[0] = "a certificate"
  with pytest.raises(wire.WireError, match="there:1: a certificate"):
    for now[0] in np.arange(3740.0, 3790.0, 5.0):
      security_check.run(["there:1"])
  assert now[0] == 3770.0
  assert capfd.readouterr().err == "actor: there:1: a certificate\n"


def test_a_client_waits_for_a_file_that_is_missing_for_a_while(
  files, tmp_path, capfd
):
  """The client was accepted before the file disappeared."""
  token, elsewhere = tmp_path / "token", tmp_path / "elsewhere"
  token.write_text((files["ours"] / "token").read_text())
  security = client_of(files["ours"], token_file=str(token))
  tries = []

  def session(client):
    client.was_accepted = True
    tries.append(client)
    if len(tries) == 1:
      token.rename(elsewhere)
      threading.Timer(0.3, elsewhere.rename, [token]).start()
      raise wire.WireError(wire.StatusCode.UNAVAILABLE, "gone")

  stop = threading.Event()
  wire.until_done(
    "127.0.0.1:1", session, stop, "actor", 0.05, security=security
  )
  assert len(tries) == 2
  assert capfd.readouterr().err.count("cannot read") == 1


# Other machines


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "a-name:8470"])
def test_other_machines_need_tls_and_a_token_or_insecure(address, files):
  ours = files["ours"]
  for start, complete in (
    (lambda x: server_lib.Server(address, 1, security=x), server_of(ours)),
    (lambda x: wire.Client(address, x).close(), client_of(ours)),
  ):
    no_token = dataclasses.replace(complete, token_file="")
    for security, missing in (
      (wire.Security(), "TLS and a token"),
      (no_token, "a token"),
    ):
      with pytest.raises(types.ConfigError, match=f"without {missing};"):
        start(security)
      start(dataclasses.replace(security, insecure=True))
    start(complete)


def test_parameter_servers_need_tls_and_a_token(files):
  """The learner is a client of the parameter servers."""
  there = "10.0.0.5:8471"
  with pytest.raises(types.ConfigError, match="TLS and a token"):
    admission.Addresses(1, [there])
  with pytest.raises(wire.Refusal, match="that the learner may reach"):
    admission.Addresses(1).take(there)
  addresses = admission.Addresses(1, [there], client_of(files["ours"]))
  assert addresses.take(there) == 0


def test_the_warning_about_insecure_names_the_dangers(files, capfd):
  with serving(wire.Security(insecure=True), "0.0.0.0:0"):
    printed = capfd.readouterr().err
  assert "0.0.0.0:0" in printed and "overwrite parameters" in printed
  warning = wire.Security(insecure=True).of_client("a-name:1").warning
  assert "a-name:1" in warning and "read and change" in warning
  for address in ("127.0.0.1:0", "localhost:0", "[::1]:0"):
    assert not wire.Security(insecure=True).of_client(address).warning
    with serving(wire.Security(insecure=True), address):
      assert not capfd.readouterr().err


def test_a_unix_socket_needs_no_security(tmp_path, files):
  """Both ends may have settings of TLS, which have no effect."""
  ours = files["ours"]
  complete = client_of(ours, **certificate_of(ours))
  with serving(complete, f"unix:{tmp_path}/socket") as (address, calls):
    call(address, wire.Security())
    call(address, complete)
  assert len(calls) == 2


@pytest.mark.parametrize("name", ["tls_ca", "tls_certificate", "tls_key"])
@pytest.mark.parametrize("content", [None, "nonsense"])
def test_a_file_that_cannot_be_used_is_named(name, content, files, tmp_path):
  ours, path = files["ours"], tmp_path / "wrong.pem"
  if content:
    path.write_text(content)
  server = server_of(ours, True, **{name: str(path)})
  with pytest.raises(types.ConfigError, match=str(path)):
    server_lib.Server("localhost:0", 1, security=server)
  client = client_of(ours, **{**certificate_of(ours), name: str(path)})
  with pytest.raises(types.ConfigError, match=str(path)):
    wire.Client("localhost:1", client)


def test_a_token_that_is_not_valid_is_refused_without_printing_it(
  files, tmp_path
):
  wrong = server_of(files["ours"], token_file=str(tmp_path / "token"))
  for token in ("short", "with a space in it", "é" * 20):
    (tmp_path / "token").write_text(token)
    with pytest.raises(types.ConfigError, match="at least 16") as caught:
      server_lib.Server("localhost:0", 1, security=wrong)
    assert token not in str(caught.value)


def test_incomplete_settings_are_refused(files):
  ours = files["ours"]
  with pytest.raises(types.ConfigError, match="together"):
    wire.Security(tls_key=str(ours / "key.pem"))
  with pytest.raises(types.ConfigError, match="tls_certificate and tls_key"):
    server_lib.Server("localhost:0", 1, security=client_of(ours))
  with pytest.raises(types.ConfigError, match="tls_ca"):
    wire.Client("localhost:1", server_of(ours))


# The program that makes certificates


def test_certificates_name_the_hosts_and_only_the_owner_can_read_them(files):
  ours = files["ours"]
  names = {path.name for path in ours.iterdir()}
  assert names == {"ca.pem", "certificate.pem", "key.pem", "token"}
  for path in (ours, *ours.iterdir()):
    assert path.stat().st_mode & 0o077 == 0
  words = ["openssl", "x509", "-in", str(ours / "certificate.pem"), "-noout"]
  text = subprocess.check_output([*words, "-text"], text=True)
  for name in ("DNS:a-name", "DNS:localhost", "IP Address:127.0.0.1"):
    assert name in text


def test_certificates_that_cannot_be_made_are_refused(tmp_path, capfd):
  for words, message in (
    ([tmp_path], "does not exist"),
    ([tmp_path / "new", "--hosts", "a b"], "names or IP addresses"),
    ([tmp_path / "new", "--days", 0], "days from 1"),
  ):
    with pytest.raises(SystemExit, match="2"):
      certificates.main([*map(str, words)])
    assert message in capfd.readouterr().err
  assert not (tmp_path / "new").exists()
