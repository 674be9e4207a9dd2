"""Sessions with a server that may be late, full, or gone for a while."""

import math
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
_QUIET_SECONDS = 30.0


class GaveUpError(client_lib.WireError):
  """There was no server for too long."""


def until_done(
  address: str,
  session: Callable[[client_lib.Client], None],
  stop: threading.Event,
  role: str,
  retry_seconds: float = 0.5,
  give_up_seconds: float = math.inf,
) -> None:
  """Runs a session with a server until the server says that it is done.

  Args:
    address: of the server.
    session: `(client)`, returns when the server's work is over.
    stop: ends the waiting for a server.
    role: who says, after a while, that it waits.
    retry_seconds: between two tries.
    give_up_seconds: of no server, after which it gives up. One that is there
      and has no room is waited for as long as it is there.

  Raises:
    WireError: the server refuses.
    GaveUpError: there was none for `give_up_seconds`.
  """
  said, without_session, without_server = "", *2 * [time.monotonic()]
  while not stop.is_set():
    try:
      with client_lib.Client(address) as client:
        session(client)
      return
    except client_lib.WireError as error:
      if error.code is StatusCode.CANCELLED:
        return
      if error.code not in _PATIENCE:
        raise
      now = time.monotonic()
      if client.was_accepted:
        said, without_session = "", now
      if client.was_accepted or error.code is StatusCode.RESOURCE_EXHAUSTED:
        without_server = now
      if now >= without_server + give_up_seconds:
        raise GaveUpError(
          error.code,
          f"expected a server within {give_up_seconds:g} s, found none:"
          f" {error.message}",
        ) from error
      if error.message != said and now > without_session + _QUIET_SECONDS:
        said = error.message
        print(f"{role}: waiting for {address}: {said}", file=sys.stderr)
      stop.wait(retry_seconds)
