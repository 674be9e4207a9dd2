"""The address on which a server listens, and its socket for messages."""

import contextlib
import dataclasses
import errno
import os
import resource
import secrets
import selectors
import socket
import stat
import threading
import time

import grpc

from seedx import types
from seedx.wire import authentication, unix_pipe

# Time for the client of a new stream to connect to the socket for messages.
_CONNECT_SECONDS = 5.0
# Time for a connected client to send its secret.
_SECRET_SECONDS = 1.0
# Maximum number of connections that have not sent their secret yet; beyond
# this, the oldest one is closed.
_MAX_WITHOUT_SECRET = 256
_RETRY_SECONDS = 0.1
# Temporary errors: no descriptor is free, or the client has left already.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOBUFS)
# Number of descriptors for other uses than connections, such as checkpoints.
_OTHER_DESCRIPTORS = 256
_MAX_DESCRIPTORS = 2**16


class Listener:
  """A unix socket to which clients on this machine connect for messages."""

  def __init__(self, path: str) -> None:
    """Listens beside a server's socket; raises OSError if it cannot."""
    self._path = unix_pipe.beside(path)
    if unix_pipe.is_at(path):
      os.unlink(self._path)
    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
      self._socket.bind(self._path)
      self._socket.listen(128)
    except OSError:
      self._socket.close()
      raise
    self._lock = threading.Lock()
    # By secret, the clients that are expected to connect.
    self._expected: dict[bytes, _Expected] = {}
    threading.Thread(target=self._accept, name="wire", daemon=True).start()

  def expect(self) -> str:
    """Returns a secret in hexadecimal, with which one client may connect."""
    secret = secrets.token_bytes(unix_pipe.SECRET_BYTES)
    with self._lock:
      self._expected[secret] = _Expected()
    return secret.hex()

  def wait(self, digits: str, max_bytes: int) -> unix_pipe.Pipe | None:
    """Waits for the client with a secret; returns None if it does not come.

    `digits` are the secret as `expect` returned it. A message from the client
    may have up to `max_bytes`.
    """
    secret = bytes.fromhex(digits)
    self._expected[secret].has_connected.wait(_CONNECT_SECONDS)
    with self._lock:
      connected = self._expected.pop(secret).connected
    return None if connected is None else unix_pipe.Pipe(connected, max_bytes)

  def close(self) -> None:
    """Stops listening; open pipes stay open."""
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(FileNotFoundError):
      os.unlink(self._path)

  def _accept(self) -> None:
    """Accepts clients until the socket closes; a slow one delays no other."""
    arrivals: dict[socket.socket, _Arrival] = {}  # The oldest first.
    with selectors.DefaultSelector() as waits, self._socket:
      waits.register(self._socket, selectors.EVENT_READ)
      while True:
        for key, _ in waits.select(_SECRET_SECONDS if arrivals else None):
          connected = key.fileobj
          assert isinstance(connected, socket.socket)
          if connected is not self._socket:
            arrivals[connected].receive(connected)
            continue
          try:
            connected, _ = self._socket.accept()
          except OSError as error:
            if error.errno in _PASSING:
              time.sleep(_RETRY_SECONDS)
              continue
            for connected in arrivals:
              connected.close()
            return
          connected.setblocking(False)
          arrivals[connected] = _Arrival()
          waits.register(connected, selectors.EVENT_READ)
        late = time.monotonic() - _SECRET_SECONDS
        for connected, arrival in list(arrivals.items()):
          is_over = arrival.is_over or arrival.since_seconds < late
          if is_over or len(arrivals) > _MAX_WITHOUT_SECRET:
            waits.unregister(connected)
            del arrivals[connected]
            self._admit(connected, arrival.secret)

  def _admit(self, connected: socket.socket, secret: bytes) -> None:
    connected.setblocking(True)
    with self._lock:
      expected = self._expected.get(secret)
      if expected is not None and expected.connected is None:
        expected.connected = connected
        expected.has_connected.set()
        return
    connected.close()


@dataclasses.dataclass
class _Expected:
  """A client that is expected to connect, for which one thread waits.

  Each has its own event, so that a client that connects wakes up only the
  thread that waits for it.
  """

  has_connected: threading.Event = dataclasses.field(
    default_factory=threading.Event
  )
  connected: socket.socket | None = None


@dataclasses.dataclass
class _Arrival:
  """A client that has connected and is sending its secret."""

  secret: bytes = b""
  since_seconds: float = dataclasses.field(default_factory=time.monotonic)
  is_over: bool = False  # The secret is complete, or the client has left.

  def receive(self, connected: socket.socket) -> None:
    """Adds those bytes of the secret that have arrived so far."""
    try:
      more = connected.recv(unix_pipe.SECRET_BYTES - len(self.secret))
    except BlockingIOError:
      return
    except OSError:
      more = b""
    self.secret += more
    self.is_over = not more or len(self.secret) == unix_pipe.SECRET_BYTES


def check_free(address: str) -> None:
  """Checks that a server can listen at an address; gRPC does not check enough.

  gRPC takes over a unix path on which another server listens. If a host name
  has several addresses, one that is free is enough for gRPC.

  Raises:
    types.ConfigError: the address is not valid, or is in use.
  """
  authentication.check_address(address)
  if (path := authentication.unix_path(address)) is not None:
    _check_unix_path(path)
    return
  host, _, port = address.rpartition(":")
  try:
    resolved = socket.getaddrinfo(
      host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )
  except (OSError, UnicodeError) as error:
    raise types.ConfigError(f"address {address}: {error}") from error
  for family, kind, protocol, _, socket_address in resolved:
    try:
      with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(socket_address)
        probe.listen()
    except OSError as error:
      unsupported = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
      if error.errno in unsupported:
        continue  # gRPC raises an error if no address is left.
      reason = (
        "is in use"
        if error.errno == errno.EADDRINUSE
        else f"cannot be used: {error}"
      )
      raise types.ConfigError(f"address {address} {reason}") from error


def max_connections() -> int:
  """Raises the limit of descriptors; returns the limit of connections."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = _MAX_DESCRIPTORS
  if hard != resource.RLIM_INFINITY:
    wanted = min(wanted, hard)
  if soft != resource.RLIM_INFINITY and soft < wanted:
    with contextlib.suppress(OSError, ValueError):
      resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
      soft = wanted
  if soft == resource.RLIM_INFINITY:
    soft = wanted
  return max(soft - _OTHER_DESCRIPTORS, soft // 2)


def _check_unix_path(path: str) -> None:
  """Checks that no server listens on a path; removes a stale socket."""
  try:
    mode = os.stat(path).st_mode
  except FileNotFoundError:
    return
  except (OSError, ValueError) as error:
    raise types.ConfigError(f"address unix:{path}: {error}") from error
  if not stat.S_ISSOCK(mode):
    raise types.ConfigError(
      f"address unix:{path}: expected a socket or nothing there, found another"
      " kind of file"
    )
  with socket.socket(socket.AF_UNIX) as probe:
    probe.settimeout(1.0)
    try:
      probe.connect(path)
    except ConnectionRefusedError:
      os.unlink(path)
      return
    except (TimeoutError, BlockingIOError):
      pass  # A server listens but is busy.
    except OSError as error:
      raise types.ConfigError(f"address unix:{path}: {error}") from error
  raise types.ConfigError(f"address unix:{path} is in use")


def listen(
  server: grpc.Server,
  address: str,
  credentials: grpc.ServerCredentials | None,
) -> str:
  """Binds the address; returns it with the actual port.

  Raises:
    types.ConfigError: the address cannot be bound.
  """
  try:
    if credentials is None:
      port = server.add_insecure_port(address)
    else:
      port = server.add_secure_port(address, credentials)
  except RuntimeError as error:
    raise types.ConfigError(f"address {address}: {error}") from error
  if not port:
    raise types.ConfigError(f"address {address} cannot be bound")
  if authentication.unix_path(address) is not None:
    return address
  return f"{address.rpartition(':')[0]}:{port}"
