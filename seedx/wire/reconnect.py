"""Sessions with a server that may be late, full, or gone for a while."""

import sys
import threading
import time
from collections.abc import Callable

from grpc import StatusCode

from seedx.wire import client as client_lib

# The server is not there yet, is full, or went away: try again.
_PATIENCE = (
  StatusCode.UNAVAILABLE,
  StatusCode.RESOURCE_EXHAUSTED,
)
# A server that is started together with its clients needs this long.
_QUIET_SECONDS = 10.0
# What took longer than this was no mere try.
_SESSION_SECONDS = 5.0


def until_done(
  address: str,
  session: Callable[[client_lib.Client], None],
  stop: threading.Event,
  role: str,
  retry_seconds: float = 0.5,
) -> None:
  """Runs a session with a server until the server says that it is done.

  Args:
    address: of the server.
    session: `(client)`, returns when the server's work is over.
    stop: ends the waiting for a server.
    role: who says, after a while, that it waits.
    retry_seconds: between two tries.

  Raises:
    WireError: the server refuses.
  """
  said, waiting_since = "", time.monotonic()
  while not stop.is_set():
    tried = time.monotonic()
    try:
      with client_lib.Client(address) as client:
        session(client)
      return
    except client_lib.WireError as error:
      if error.code not in _PATIENCE:
        raise
      now = time.monotonic()
      if now > tried + _SESSION_SECONDS:
        waiting_since = now
      if error.message != said and now > waiting_since + _QUIET_SECONDS:
        said = error.message
        print(f"{role}: waiting for {address}: {said}", file=sys.stderr)
      stop.wait(retry_seconds)
