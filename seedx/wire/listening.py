"""Where a server listens: its address, and a socket for messages beside it."""

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
from seedx.wire import pipe as pipe_lib
from seedx.wire import security as security_lib

# How long the other end of a stream that has been opened may need to connect,
# and then to say who it is.
_CONNECT_SECONDS = 5.0
_SAY_SECONDS = 1.0
# How many may be about to send it; the oldest makes room for one more.
_MOST_SAYING = 256
_FULL_SECONDS = 0.1
# No descriptor is left, or a client has gone already: the next may come in.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOBUFS)
# Descriptors that connections leave to all else, such as checkpoints; and how
# many a process asks for.
_OTHER_DESCRIPTORS = 256
_DESCRIPTORS = 2**16


class Listener:
  """Where the clients of a server's streams connect for their messages."""

  def __init__(self, path: str) -> None:
    """Listens.

    Args:
      path: of the server's own socket.

    Raises:
      OSError: there can be no socket beside it.
    """
    self._path = pipe_lib.beside(path)
    if pipe_lib.is_at(path):
      os.unlink(self._path)
    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
      self._socket.bind(self._path)
      self._socket.listen(128)
    except OSError:
      self._socket.close()
      raise
    self._changed = threading.Condition()
    # By token, those that are expected, with the socket if it has come.
    self._expected: dict[bytes, socket.socket | None] = {}
    threading.Thread(target=self._accept, name="wire", daemon=True).start()

  def expect(self) -> str:
    """A secret, with which one client may connect."""
    token = secrets.token_bytes(pipe_lib.TOKEN_BYTES)
    with self._changed:
      self._expected[token] = None
    return token.hex()

  def wait(self, secret: str, most_bytes: int) -> pipe_lib.Pipe | None:
    """Waits for the client with a secret; None if it does not come.

    Args:
      secret: that it was told.
      most_bytes: of its messages.
    """
    token = bytes.fromhex(secret)
    with self._changed:
      self._changed.wait_for(
        lambda: self._expected[token] is not None, _CONNECT_SECONDS
      )
      found = self._expected.pop(token)
    return None if found is None else pipe_lib.Pipe(found, most_bytes)

  def close(self) -> None:
    """Listens no longer; pipes stay open."""
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(FileNotFoundError):
      os.unlink(self._path)

  def _accept(self) -> None:
    """Lets clients in until the listener closes, however slow some are."""
    saying: dict[socket.socket, _Saying] = {}  # The oldest first.
    with selectors.DefaultSelector() as waits, self._socket:
      waits.register(self._socket, selectors.EVENT_READ)
      while True:
        for key, _ in waits.select(_SAY_SECONDS if saying else None):
          connected = key.fileobj
          assert isinstance(connected, socket.socket)
          if connected is not self._socket:
            saying[connected].hear(connected)
            continue
          try:
            connected, _ = self._socket.accept()
          except OSError as error:
            if error.errno in _PASSING:
              time.sleep(_FULL_SECONDS)
              continue
            for connected in saying:
              connected.close()
            return
          connected.setblocking(False)
          saying[connected] = _Saying()
          waits.register(connected, selectors.EVENT_READ)
        late = time.monotonic() - _SAY_SECONDS
        for connected, said in list(saying.items()):
          is_over = said.is_over or said.since_seconds < late
          if is_over or len(saying) > _MOST_SAYING:
            waits.unregister(connected)
            del saying[connected]
            self._admit(connected, said.token)

  def _admit(self, connected: socket.socket, token: bytes) -> None:
    connected.setblocking(True)
    with self._changed:
      if self._expected.get(token, connected) is None:
        self._expected[token] = connected
        self._changed.notify_all()
        return
    connected.close()


@dataclasses.dataclass
class _Saying:
  """What a client that has connected has sent of its secret.

  Attributes:
    token: the bytes so far.
    since_seconds: when it connected.
    is_over: whether no more is to come.
  """

  token: bytes = b""
  since_seconds: float = dataclasses.field(default_factory=time.monotonic)
  is_over: bool = False

  def hear(self, connected: socket.socket) -> None:
    """Takes what has come, in however many pieces."""
    try:
      more = connected.recv(pipe_lib.TOKEN_BYTES - len(self.token))
    except BlockingIOError:
      return
    except OSError:
      more = b""
    self.token += more
    self.is_over = not more or len(self.token) == pipe_lib.TOKEN_BYTES


def check_free(address: str) -> None:
  """Raises where nothing can listen, as gRPC itself would keep silent.

  gRPC takes over a unix path that somebody listens on, and is content with one
  of the addresses of a host name.
  """
  security_lib.check_address(address)
  if (path := security_lib.unix_path(address)) is not None:
    _check_unix_path(path)
    return
  host, _, port = address.rpartition(":")
  try:
    found = socket.getaddrinfo(
      host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )
  except (OSError, UnicodeError) as error:
    raise types.ConfigError(f"address {address}: {error}.") from error
  for family, kind, protocol, _, where in found:
    try:
      with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
        probe.listen()
    except OSError as error:
      unsupported = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
      if error.errno in unsupported:
        continue  # gRPC raises where no address is left.
      reason = (
        "is in use"
        if error.errno == errno.EADDRINUSE
        else f"cannot be used: {error}"
      )
      raise types.ConfigError(f"address {address} {reason}.") from error


def most_connections() -> int:
  """How many connections a server takes; raises the limit of descriptors."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = _DESCRIPTORS
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
  """Raises where somebody listens on a path; removes a stale socket."""
  try:
    mode = os.stat(path).st_mode
  except FileNotFoundError:
    return
  except (OSError, ValueError) as error:
    raise types.ConfigError(f"address unix:{path}: {error}.") from error
  if not stat.S_ISSOCK(mode):
    raise types.ConfigError(
      f"address unix:{path}: expected a socket or nothing there, found "
      "another kind of file."
    )
  with socket.socket(socket.AF_UNIX) as probe:
    probe.settimeout(1.0)
    try:
      probe.connect(path)
    except ConnectionRefusedError:
      os.unlink(path)
      return
    except (TimeoutError, BlockingIOError):
      pass  # Somebody listens but is busy.
    except OSError as error:
      raise types.ConfigError(f"address unix:{path}: {error}.") from error
  raise types.ConfigError(f"address unix:{path} is in use.")


def listen(
  server: grpc.Server,
  address: str,
  credentials: grpc.ServerCredentials | None,
) -> str:
  """Binds the address; returns it with the real port."""
  try:
    if credentials is None:
      port = server.add_insecure_port(address)
    else:
      port = server.add_secure_port(address, credentials)
  except RuntimeError as error:
    raise types.ConfigError(f"address {address}: {error}.") from error
  if not port:
    raise types.ConfigError(f"address {address} cannot be bound.")
  if security_lib.unix_path(address) is not None:
    return address
  return f"{address.rpartition(':')[0]}:{port}"
