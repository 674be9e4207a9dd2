"""TLS and the token of a run: who may connect to a server, and to which."""

import contextlib
import dataclasses
import hmac
import ipaddress
import os
import pathlib
import re
import shlex
import socket
import ssl
from collections.abc import Iterable
from typing import NamedTuple

import grpc

from seedx import types

# The environment variable with the token, where there is no `token_file`.
TOKEN_VARIABLE = "SEEDX_TOKEN"
_AUTHORIZATION = "authorization"
_BEARER = "Bearer "
_LEAST_TOKEN_CHARACTERS = 16
# How long `problem` waits for a server to say something.
_PROBE_SECONDS = 2.0
# What a client of HTTP/2 says first: a fixed text, and no settings.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
  [0, 0, 0, 4, 0, 0, 0, 0, 0]
)


@dataclasses.dataclass(frozen=True)
class Security:
  """How the processes of a run know each other; none of it is a secret.

  Unix sockets need nothing of it: files have permissions. Files are PEM, and
  are read whenever something listens or connects. The token is the content of
  `token_file`, or else the environment variable SEEDX_TOKEN; it is sent over
  TLS only.

  Attributes:
    tls_ca: file of the authorities whose signature the other end needs. With
      it a client uses TLS, and a server takes only clients with certificates.
    tls_certificate: file of this process's certificate; a server uses TLS with
      it.
    tls_key: file of its private key.
    token_file: file of the run's token.
    insecure: reach other machines, and be reached, without TLS and a token.
  """

  tls_ca: str = ""
  tls_certificate: str = ""
  tls_key: str = ""
  token_file: str = ""
  insecure: bool = False

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a part without another that it needs."""
    if bool(self.tls_certificate) != bool(self.tls_key):
      raise types.ConfigError(
        "expected tls_certificate and tls_key together, found one of them"
      )
    if self.token_file and not (self.tls_ca or self.tls_certificate):
      raise types.ConfigError(
        "expected TLS with a token_file, by tls_ca at a client or"
        " tls_certificate and tls_key at a server, found none; a token is never"
        " sent without"
      )

  def of_server(self, address: str) -> "Door":
    """What a server at an address asks of its clients.

    Raises:
      types.ConfigError: it would be open to other machines, or a file cannot be
        used.
    """
    if is_unix(address):
      return Door()
    token = self._token() if self.tls_certificate else ""
    missing = self._missing(address, self.tls_certificate, token)
    warning = missing and (
      f"warning: {address} is open without {missing} (--insecure): whoever"
      " reaches it can read and overwrite parameters, send experience, and end"
      " the run"
    )
    if not self.tls_certificate:
      if self.tls_ca:
        raise types.ConfigError(
          f"expected tls_certificate and tls_key for a server at {address},"
          " found tls_ca alone"
        )
      return Door(warning=warning)
    warning = "\n".join(filter(None, (warning, self._exposed())))
    _use(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self)
    credentials = grpc.ssl_server_credentials(
      [(_read(self.tls_key), _read(self.tls_certificate))],
      root_certificates=_read(self.tls_ca) if self.tls_ca else None,
      require_client_auth=bool(self.tls_ca),
    )
    return Door(credentials, token, warning)

  def of_client(self, address: str) -> "Key":
    """What a client shows to the server at an address.

    Raises:
      types.ConfigError: it would trust other machines, or a file cannot be
        used.
    """
    if is_unix(address):
      return Key()
    token = self._token() if self.tls_ca else ""
    missing = self._missing(address, self.tls_ca, token)
    warning = missing and (
      f"warning: {address} is reached without {missing} (--insecure): whoever"
      " is on the way can be the learner, and read and change what is sent"
    )
    if not self.tls_ca:
      if self.tls_certificate:
        raise types.ConfigError(
          f"expected tls_ca for a client of {address}, found tls_certificate"
          " alone"
        )
      return Key(warning=warning)
    warning = "\n".join(filter(None, (warning, self._exposed())))
    _use(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self)
    own = bool(self.tls_certificate)
    credentials = grpc.ssl_channel_credentials(
      _read(self.tls_ca),
      private_key=_read(self.tls_key) if own else None,
      certificate_chain=_read(self.tls_certificate) if own else None,
    )
    if token:
      # gRPC sends these over secure channels only.
      credentials = grpc.composite_channel_credentials(
        credentials, grpc.access_token_call_credentials(token)
      )
    return Key(credentials, warning)

  def problem(self, address: str) -> str:
    """Why a server cannot be talked to, as gRPC says only UNAVAILABLE.

    Returns:
      What is wrong; empty if nothing is, or nothing listens there.
    """
    if is_unix(address):
      return ""
    host, _, port = address.rpartition(":")
    try:
      where = host.strip("[]"), int(port)
      with socket.create_connection(where, _PROBE_SECONDS) as plain:
        if self.tls_ca:
          return _tls_problem(plain, where[0], self)
        return _plain_problem(plain, where)
    except (OSError, ValueError):
      return ""

  def _missing(self, address: str, tls: str, token: str) -> str:
    """Which of TLS and a token an address goes without, where `insecure`.

    Returns:
      The words; empty if it has both, or no other machine reaches it.

    Raises:
      types.ConfigError: it needs both.
    """
    missing = " and ".join(
      name for name, found in (("TLS", tls), ("a token", token)) if not found
    )
    if not missing or is_local(address):
      return ""
    if not self.insecure:
      raise types.ConfigError(
        f"expected TLS and a token at the address {address}, which other"
        f" machines may reach, found it without {missing}; `seedx"
        " certificates` makes what is needed, and --insecure goes"
        " without, in a network that you trust"
        f"{types.see('a-learner-cannot-be-reached')}"
      )
    return missing

  def _exposed(self) -> str:
    """Names the secret files that other users of this machine can read."""
    open_to_others = []
    for path in filter(None, (self.token_file, self.tls_key)):
      with contextlib.suppress(OSError):
        if pathlib.Path(path).expanduser().stat().st_mode & 0o044:
          open_to_others.append(path)
    if not open_to_others:
      return ""
    names = " ".join(map(shlex.quote, open_to_others))
    return (
      "warning: others on this machine can read the secret of the run; `chmod"
      f" 600 {names}` ends that"
    )

  def _token(self) -> str:
    if not self.token_file:
      token, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
      if not token:
        return ""
    else:
      token, where = _read(self.token_file).decode("latin-1"), self.token_file
    token = token.strip()
    fits = token.isascii() and token.isprintable() and " " not in token
    if not fits or len(token) < _LEAST_TOKEN_CHARACTERS:
      raise types.ConfigError(
        f"expected a token of at least {_LEAST_TOKEN_CHARACTERS} letters,"
        f" digits and signs in {where}, found another text"
      )
    return token


# Of processes on one machine.
LOCAL = Security()


class Door(NamedTuple):
  """What a server asks of its clients.

  Attributes:
    credentials: of TLS; None without.
    token: that a client has to say; empty for none.
    warning: what is wrong with it; empty for nothing.
  """

  credentials: grpc.ServerCredentials | None = None
  token: str = ""
  warning: str = ""

  def admits(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether the metadata of a call have the token."""
    if not self.token:
      return True
    said = dict(metadata).get(_AUTHORIZATION, "")
    said = said.encode() if isinstance(said, str) else said
    return hmac.compare_digest(said, f"{_BEARER}{self.token}".encode())


class Key(NamedTuple):
  """What a client shows to a server.

  Attributes:
    credentials: of TLS, and the token; None without.
    warning: what is wrong with it; empty for nothing.
  """

  credentials: grpc.ChannelCredentials | None = None
  warning: str = ""


def check_address(address: str) -> None:
  """Checks the form of an address; nothing is connected.

  Raises:
    types.ConfigError: it is neither HOST:PORT nor unix:PATH.
  """
  if is_unix(address):
    if not address.removeprefix("unix:"):
      raise types.ConfigError("address unix: has no path; expected unix:/path.")
    return
  host, separator, port = address.rpartition(":")
  is_port = re.fullmatch("[0-9]{1,5}", port) and int(port) <= 65_535
  if not separator or not host or not is_port:
    raise types.ConfigError(
      "address: expected host:port (up to 65535) or unix:/path, "
      f"found {address!r}."
    )


def is_unix(address: str) -> bool:
  """Whether an address is unix:PATH."""
  return address.startswith("unix:")


def unix_path(address: str) -> str | None:
  """The path of a unix address, else None."""
  if not address.startswith("unix:"):
    return None
  path = address.removeprefix("unix:")
  return path.removeprefix("//") if path.startswith("///") else path


def reached(address: str, by: str = "") -> str:
  """Where others reach a server of this machine.

  Args:
    address: where it listens.
    by: the host by which they reach it if it listens everywhere; the loopback
      address if empty, for processes of this machine.
  """
  host, separator, port = address.rpartition(":")
  loopback = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
  if host in loopback:
    host = by or loopback[host]
  return host + separator + port


def is_local(address: str) -> bool:
  """Whether no other machine reaches an address."""
  host = address.rpartition(":")[0].strip("[]")
  if is_unix(address) or host == "localhost":
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


def _read(path: str) -> bytes:
  try:
    return pathlib.Path(path).expanduser().read_bytes()
  except OSError as error:
    raise types.ConfigError(
      f"expected a file that can be read, found {path!r} ({error.strerror})"
    ) from error


def _use(context: ssl.SSLContext, security: Security) -> None:
  """Gives a context the files of TLS, and checks them by that."""
  paths = security.tls_ca, security.tls_certificate, security.tls_key
  for path in filter(None, paths):
    _read(path)
  ca, certificate, key = (os.path.expanduser(path) for path in paths)
  try:
    if ca:
      context.load_verify_locations(ca)
    if certificate:
      # A key with a pass phrase would be asked for on the terminal.
      context.load_cert_chain(certificate, key, password=lambda: "")
  except (ssl.SSLError, ValueError) as error:
    files = ", ".join(filter(None, paths))
    raise types.ConfigError(
      f"expected PEM files of certificates, and of the key of the first, found"
      f" others in {files} ({error})"
    ) from error


def _tls_problem(plain: socket.socket, host: str, security: Security) -> str:
  """What a client with TLS finds wrong with a server."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  _use(context, security)
  context.set_alpn_protocols(["h2"])
  try:
    with context.wrap_socket(plain, server_hostname=host) as tls:
      if not _is_closed(tls):
        return ""
  except ssl.SSLCertVerificationError as error:
    return f"its certificate is not accepted: {error.verify_message}"
  except ssl.SSLError as error:
    # Who only closes may stand in the way of a server that is not there.
    if error.reason == "WRONG_VERSION_NUMBER":
      return "it does not speak TLS, as this process does (tls_ca)"
    return ""
  # A server looks at a client's certificate after the handshake.
  return (
    "it does not accept this process without a certificate, or with this one"
    " (tls_certificate, tls_key)"
  )


def _plain_problem(plain: socket.socket, address: tuple[str, int]) -> str:
  """What a client without TLS finds wrong with a server."""
  if not _is_closed(plain):
    return ""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  context.set_alpn_protocols(["h2"])
  try:
    with (
      socket.create_connection(address, _PROBE_SECONDS) as other,
      context.wrap_socket(other),
    ):
      return "it speaks TLS, and this process does not (tls_ca)"
  except OSError:
    return ""


def _is_closed(connection: socket.socket) -> bool:
  """Whether a server closes a connection on which it is greeted."""
  try:
    connection.sendall(_HTTP2)
    return not connection.recv(1)
  except TimeoutError:
    return False
  except OSError:
    return True
