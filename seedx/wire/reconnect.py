"""Sessions with a server that may be late, full, or gone for a while."""

import math
import sys
import threading
import time
from collections.abc import Callable, Sequence

from grpc import StatusCode

from seedx import types
from seedx.wire import calls
from seedx.wire import client as client_lib
from seedx.wire import security as security_lib

# The server is not there yet, is full, or went away: try again.
_PATIENCE = (
  StatusCode.UNAVAILABLE,
  StatusCode.RESOURCE_EXHAUSTED,
)
# A server that is started together with its clients needs this long.
_QUIET_SECONDS = 30.0
# How often a server that is there and fails is looked at, when what was found
# is too old to count, and how long it may go on.
_LOOK_SECONDS = 2.0
_FORGET_SECONDS = 10.0
_WRONG_SECONDS = 30.0


class GaveUpError(calls.WireError):
  """There was no server for too long."""


def until_done(
  address: str,
  session: Callable[[client_lib.Client], None],
  stop: threading.Event,
  role: str,
  retry_seconds: float = 0.5,
  give_up_seconds: float = math.inf,
  security: security_lib.Security = security_lib.LOCAL,
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
    security: see `Client`.

  Raises:
    WireError: the server refuses; or something else is wrong with it, see
      `Doubts`.
    GaveUpError: there was none for `give_up_seconds`.
    types.ConfigError: see `Client`.
  """
  said, without_session, without_server = "", *2 * [time.monotonic()]
  doubts, ever_accepted = Doubts(role, security), False
  while not stop.is_set():
    try:
      client = client_lib.Client(address, security)
    except types.ConfigError as error:
      if not ever_accepted:
        raise
      # A file of TLS that is being replaced, or is away for a while.
      if str(error) != said:
        said = str(error)
        print(f"{role}: waiting for {said}", file=sys.stderr)
      stop.wait(retry_seconds)
      continue
    try:
      with client:
        session(client)
      return
    except calls.WireError as error:
      if error.code is StatusCode.CANCELLED:
        return
      if error.code not in _PATIENCE:
        raise
      now = time.monotonic()
      if client.was_accepted:
        said, without_session, ever_accepted = "", now, True
      if client.was_accepted or error.code is StatusCode.RESOURCE_EXHAUSTED:
        without_server = now
      elif not ever_accepted:
        doubts.look([address])
      if now >= without_server + give_up_seconds:
        raise GaveUpError(
          error.code,
          f"expected a server within {give_up_seconds:g} s, found none:"
          f" {error.message}{types.see('a-learner-cannot-be-reached')}",
        ) from error
      if error.message != said and now > without_session + _QUIET_SECONDS:
        said = error.message
        print(f"{role}: waiting for {address}: {said}", file=sys.stderr)
      stop.wait(retry_seconds)


class Doubts:
  """Tells a server that speaks in another way from one that is not there.

  gRPC says UNAVAILABLE for both: that a certificate is wrong, or that only one
  end has TLS, is no reason to wait.
  """

  def __init__(self, role: str, security: security_lib.Security) -> None:
    """Has none yet.

    Args:
      role: who says what is wrong.
      security: of the clients that failed.
    """
    self._role = role
    self._security = security
    self._looked_seconds = -math.inf
    self._said: set[str] = set()
    # Since when something has been wrong.
    self._since_seconds: float | None = None

  def look(self, addresses: Sequence[str]) -> None:
    """Looks for what is wrong, after a client has failed; says it once.

    Args:
      addresses: of the servers, some of which have failed.

    Raises:
      WireError: UNAUTHENTICATED, something has been wrong for 30 s.
    """
    now = time.monotonic()
    if now < self._looked_seconds + _LOOK_SECONDS:
      return
    if now > self._looked_seconds + _FORGET_SECONDS:
      self._since_seconds = None
    self._looked_seconds = now
    found = ((x, self._security.problem(x)) for x in addresses)
    wrong = [f"{address}: {problem}" for address, problem in found if problem]
    if not wrong:
      self._since_seconds = None
      return
    if self._since_seconds is None:
      self._since_seconds = now
    elif now >= self._since_seconds + _WRONG_SECONDS:
      raise calls.WireError(
        StatusCode.UNAUTHENTICATED,
        wrong[0] + types.see("a-learner-cannot-be-reached"),
      )
    for text in wrong:
      if text not in self._said:
        self._said.add(text)
        print(f"{self._role}: {text}", file=sys.stderr, flush=True)
