"""TLS and a token, by which the processes of a run authenticate each other."""

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

# The environment variable with the token, if there is no `token_file`.
TOKEN_VARIABLE = "SEEDX_TOKEN"
_AUTHORIZATION = "authorization"
_BEARER = "Bearer "
_MIN_TOKEN_CHARACTERS = 16
# The limit of Linux is 108 bytes, the last of which is 0.
_MAX_PATH_BYTES = 107
# Time that `problem` waits for a server's answer.
_PROBE_SECONDS = 2.0
# The first bytes of every HTTP/2 client: a fixed text, and an empty SETTINGS
# frame.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
  [0, 0, 0, 4, 0, 0, 0, 0, 0]
)


@dataclasses.dataclass(frozen=True)
class Security:
  """Settings of TLS and the token; only paths, so nothing here is secret.

  Certificates and keys are PEM files. Each new `Server` and `Client` reads all
  files again. The token is the content of `token_file`, or of the
  environment variable SEEDX_TOKEN, and is sent over TLS only. Unix sockets use
  none of these: file permissions protect them.

  Attributes:
    tls_ca: file of the authorities that must have signed the other end's
      certificate. With this file, a client uses TLS, and a server accepts only
      clients with certificates.
    tls_certificate: file of this process's certificate; with it, a server uses
      TLS.
    tls_key: file of the certificate's private key.
    token_file: file of the run's token; without it, SEEDX_TOKEN has the token.
    insecure: whether to allow connections between machines without TLS or
      without a token.
  """

  tls_ca: str = types.setting("", changes="start")
  tls_certificate: str = types.setting("", changes="start")
  tls_key: str = types.setting("", changes="start")
  token_file: str = types.setting("", changes="start")
  insecure: bool = types.setting(False, changes="start")

  def __post_init__(self) -> None:
    if bool(self.tls_certificate) != bool(self.tls_key):
      raise types.ConfigError(
        "expected tls_certificate and tls_key together, found one of them"
      )
    if self.token_file and not (self.tls_ca or self.tls_certificate):
      raise types.ConfigError(
        "expected TLS with a token_file, found none; a token is sent over TLS"
        " only: set tls_ca for a client, tls_certificate and tls_key for a"
        " server"
      )

  def of_server(self, address: str) -> "ServerSecurity":
    """Reads the files for a server at an address.

    Raises:
      types.ConfigError: other machines could reach the server without TLS and
        the token, or a file cannot be used.
    """
    if is_unix(address):
      return ServerSecurity()
    token = self._token() if self.tls_certificate else ""
    missing = self._missing(address, self.tls_certificate, token)
    warning = missing and (
      f"warning: {address} is open without {missing} (--insecure): anyone in"
      " its network can read and overwrite parameters, send experience, and"
      " end the run"
    )
    if not self.tls_certificate:
      if self.tls_ca:
        raise types.ConfigError(
          f"expected tls_certificate and tls_key for a server at {address},"
          " found tls_ca alone"
        )
      return ServerSecurity(warning=warning)
    warning = "\n".join(filter(None, (warning, self._exposed())))
    _use(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self)
    credentials = grpc.ssl_server_credentials(
      [(_read(self.tls_key), _read(self.tls_certificate))],
      root_certificates=_read(self.tls_ca) if self.tls_ca else None,
      require_client_auth=bool(self.tls_ca),
    )
    return ServerSecurity(credentials, token, warning)

  def of_client(self, address: str) -> "ClientSecurity":
    """Reads the files for a client of the server at an address.

    Raises:
      types.ConfigError: the client would trust another machine without TLS and
        the token, or a file cannot be used.
    """
    if is_unix(address):
      return ClientSecurity()
    token = self._token() if self.tls_ca else ""
    missing = self._missing(address, self.tls_ca, token)
    warning = missing and (
      f"warning: {address} is reached without {missing} (--insecure): anyone in"
      " the network between can pose as the learner, and read and change the"
      " messages"
    )
    if not self.tls_ca:
      if self.tls_certificate:
        raise types.ConfigError(
          f"expected tls_ca for a client of {address}, found tls_certificate"
          " alone"
        )
      return ClientSecurity(warning=warning)
    warning = "\n".join(filter(None, (warning, self._exposed())))
    _use(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self)
    has_certificate = bool(self.tls_certificate)
    credentials = grpc.ssl_channel_credentials(
      _read(self.tls_ca),
      private_key=_read(self.tls_key) if has_certificate else None,
      certificate_chain=(
        _read(self.tls_certificate) if has_certificate else None
      ),
    )
    if token:
      # gRPC sends a token over secure channels only.
      credentials = grpc.composite_channel_credentials(
        credentials, grpc.access_token_call_credentials(token)
      )
    return ClientSecurity(credentials, warning)

  def problem(self, address: str) -> str:
    """Describes why a server is UNAVAILABLE, which gRPC does not report.

    Returns:
      The description; empty if nothing is wrong, or no server listens there.
    """
    if is_unix(address):
      return ""
    host, _, port = address.rpartition(":")
    try:
      host_and_port = host.strip("[]"), int(port)
      with socket.create_connection(host_and_port, _PROBE_SECONDS) as plain:
        if self.tls_ca:
          return _tls_problem(plain, host_and_port[0], self)
        return _plain_problem(plain, host_and_port)
    except (OSError, ValueError):
      return ""

  def _missing(self, address: str, tls: str, token: str) -> str:
    """Names the missing ones of TLS and a token; an error unless `insecure`."""
    missing = " and ".join(
      name for name, value in (("TLS", tls), ("a token", token)) if not value
    )
    if not missing or is_local(address):
      return ""
    if not self.insecure:
      raise types.ConfigError(
        f"expected TLS and a token for the address {address}, which other"
        f" machines can reach, found it without {missing}; make the files with"
        " `seedx certificates`, or set --insecure in a network that you trust"
        f"{types.see('a-learner-cannot-be-reached')}"
      )
    return missing

  def _exposed(self) -> str:
    """Returns a warning about secret files that other users can read."""
    open_to_others = []
    for path in filter(None, (self.token_file, self.tls_key)):
      with contextlib.suppress(OSError):
        if pathlib.Path(path).expanduser().stat().st_mode & 0o044:
          open_to_others.append(path)
    if not open_to_others:
      return ""
    names = " ".join(map(shlex.quote, open_to_others))
    return (
      "warning: other users of this machine can read secrets of the run; run"
      f" `chmod 600 {names}`"
    )

  def _token(self) -> str:
    if not self.token_file:
      token, source = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
      if not token:
        return ""
    else:
      token, source = _read(self.token_file).decode("latin-1"), self.token_file
    token = token.strip()
    fits = token.isascii() and token.isprintable() and " " not in token
    if not fits or len(token) < _MIN_TOKEN_CHARACTERS:
      raise types.ConfigError(
        f"expected a token of at least {_MIN_TOKEN_CHARACTERS} letters,"
        f" digits and signs in {source}, found another text"
      )
    return token


# Enough if all processes run on one machine.
LOCAL = Security()


class ServerSecurity(NamedTuple):
  """Credentials of a server, and the token that it demands.

  Attributes:
    credentials: TLS credentials; None for no TLS.
    token: token that clients must send; empty for none.
    warning: warning for the user; empty for none.
  """

  credentials: grpc.ServerCredentials | None = None
  token: str = ""
  warning: str = ""

  def admits(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Returns whether the metadata of a call have the token."""
    if not self.token:
      return True
    sent = dict(metadata).get(_AUTHORIZATION, "")
    sent = sent.encode() if isinstance(sent, str) else sent
    return hmac.compare_digest(sent, f"{_BEARER}{self.token}".encode())


class ClientSecurity(NamedTuple):
  """Credentials of a client.

  Attributes:
    credentials: TLS credentials with the token; None for no TLS.
    warning: warning for the user; empty for none.
  """

  credentials: grpc.ChannelCredentials | None = None
  warning: str = ""


def check_address(address: str) -> None:
  """Checks the form of an address, without connecting.

  Raises:
    types.ConfigError: the address is neither HOST:PORT nor unix:PATH.
  """
  if is_unix(address):
    if not address.removeprefix("unix:"):
      raise types.ConfigError(
        "address: expected unix:/path, found unix:, which has no path"
      )
    size = len((unix_path(address) or "").encode(errors="replace"))
    if size > _MAX_PATH_BYTES:
      raise types.ConfigError(
        f"address: expected unix:/path with a path of at most {_MAX_PATH_BYTES}"
        f" bytes, the limit of the system, found one of {size}; choose a"
        " shorter path"
      )
    return
  host, separator, port = address.rpartition(":")
  is_port = re.fullmatch("[0-9]{1,5}", port) and int(port) <= 65_535
  if not separator or not host or not is_port:
    raise types.ConfigError(
      "address: expected host:port (up to 65535) or unix:/path, found"
      f" {address!r}"
    )


def is_unix(address: str) -> bool:
  """Returns whether an address is unix:PATH."""
  return address.startswith("unix:")


def unix_path(address: str) -> str | None:
  """Returns the path of a unix address; None for other addresses."""
  if not address.startswith("unix:"):
    return None
  path = address.removeprefix("unix:")
  return path.removeprefix("//") if path.startswith("///") else path


def reachable_address(address: str, by: str = "") -> str:
  """Returns the address at which other processes reach a server.

  The host `by` replaces 0.0.0.0 and [::]. If `by` is empty, the loopback
  address replaces them.
  """
  host, separator, port = address.rpartition(":")
  loopback = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
  if host in loopback:
    host = by or loopback[host]
  return host + separator + port


def is_local(address: str) -> bool:
  """Returns whether an address can only be reached from this machine."""
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
      f"cannot read {path!r} ({error.strerror})"
    ) from error


def _use(context: ssl.SSLContext, security: Security) -> None:
  """Loads the TLS files into a context, which checks them."""
  paths = security.tls_ca, security.tls_certificate, security.tls_key
  for path in filter(None, paths):
    _read(path)
  ca, certificate, key = (os.path.expanduser(path) for path in paths)
  try:
    if ca:
      context.load_verify_locations(ca)
    if certificate:
      # Without this, OpenSSL asks for a pass phrase on the terminal.
      context.load_cert_chain(certificate, key, password=lambda: "")
  except (ssl.SSLError, ValueError) as error:
    files = ", ".join(filter(None, paths))
    raise types.ConfigError(
      "expected PEM files of certificates, and of the key of the first"
      f" certificate in tls_certificate, found others in {files} ({error})"
    ) from error


def _tls_problem(plain: socket.socket, host: str, security: Security) -> str:
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
    # With other errors, a proxy may have closed the connection because the
    # server is not running.
    if error.reason == "WRONG_VERSION_NUMBER":
      return "it does not speak TLS, but this process does (tls_ca)"
    return ""
  # A server checks the client's certificate only after the handshake.
  return (
    "it does not accept this process without a certificate, or does not accept"
    " this certificate (tls_certificate, tls_key)"
  )


def _plain_problem(plain: socket.socket, address: tuple[str, int]) -> str:
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
  """Returns whether a server closes a connection instead of answering."""
  try:
    connection.sendall(_HTTP2)
    return not connection.recv(1)
  except TimeoutError:
    return False
  except OSError:
    return True
