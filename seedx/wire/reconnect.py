"""Sessions with a server that may be late, full, or away for a while."""

import math
import sys
import threading
import time
from collections.abc import Callable, Sequence

from grpc import StatusCode

from seedx import types
from seedx.wire import authentication, calls, clients

# The server has not started, is full, or has gone: try again.
_PATIENCE = (
  StatusCode.UNAVAILABLE,
  StatusCode.RESOURCE_EXHAUSTED,
)
# Time before the first message about waiting: a server that starts together
# with its clients needs this long.
_QUIET_SECONDS = 30.0
# Time between two examinations of a server, time after which the last
# examination does not count any more, and time for which a problem may last.
_LOOK_SECONDS = 2.0
_FORGET_SECONDS = 10.0
_WRONG_SECONDS = 30.0


class GaveUpError(calls.WireError):
  """An error for a server that could not be reached for too long."""


def until_done(
  address: str,
  session: Callable[[clients.Client], None],
  stop: threading.Event,
  role: str,
  retry_seconds: float = 0.5,
  give_up_seconds: float = math.inf,
  security: authentication.Security = authentication.LOCAL,
) -> None:
  """Runs sessions with a server until its work is over.

  Args:
    address: address of the server.
    session: function of a client, which returns when the server's work is over.
    stop: event that ends the waiting for a server.
    role: name of this process in messages.
    retry_seconds: seconds between two tries.
    give_up_seconds: seconds without a server until GaveUpError. A server that
      is running but full does not count as missing.
    security: TLS and token of the run.

  Raises:
    WireError: the server refuses this client, or a `SecurityCheck` fails.
    GaveUpError: there was no server for `give_up_seconds`.
    types.ConfigError: see `Client`.
  """
  reported, without_session, without_server = "", *2 * [time.monotonic()]
  security_check, ever_accepted = SecurityCheck(role, security), False
  while not stop.is_set():
    try:
      client = clients.Client(address, security)
    except types.ConfigError as error:
      if not ever_accepted:
        raise
      # A TLS file may be missing for a moment while it is replaced.
      if str(error) != reported:
        reported = str(error)
        print(f"{role}: waiting: {reported}", file=sys.stderr)
      stop.wait(retry_seconds)
      continue
    try:
      with client:
        while True:
          try:
            return session(client)
          except calls.WireError as error:
            # A relay makes new calls over the same connection wait.
            if stop.is_set() or not error.message.endswith(calls.AWAY):
              raise
    except calls.WireError as error:
      if error.code is StatusCode.CANCELLED:
        return
      if error.code not in _PATIENCE:
        raise
      now = time.monotonic()
      if client.was_accepted:
        reported, without_session, ever_accepted = "", now, True
      if client.was_accepted or error.code is StatusCode.RESOURCE_EXHAUSTED:
        without_server = now
      elif not ever_accepted:
        security_check.run([address])
      if now >= without_server + give_up_seconds:
        raise GaveUpError(
          error.code,
          f"expected a server within {give_up_seconds:g} s, found none:"
          f" {error.message}{types.see('a-learner-cannot-be-reached')}",
        ) from error
      is_quiet = now <= without_session + _QUIET_SECONDS
      if error.message != reported and not is_quiet:
        reported = error.message
        print(f"{role}: waiting for {address}: {reported}", file=sys.stderr)
      stop.wait(retry_seconds)


class SecurityCheck:
  """A search for security problems behind UNAVAILABLE.

  gRPC reports a server that is not running, a wrong certificate, and TLS at
  only one end all as UNAVAILABLE. Only the first is a reason to wait.
  """

  def __init__(self, role: str, security: authentication.Security) -> None:
    self._role = role
    self._security = security
    self._examined_seconds = -math.inf
    self._reported: set[str] = set()
    # The time when a problem was first seen; None if there is no problem.
    self._since_seconds: float | None = None

  def run(self, addresses: Sequence[str]) -> None:
    """Looks for servers' problems after a client failed; prints each once.

    Raises:
      WireError: UNAUTHENTICATED, a problem has lasted for 30 s.
    """
    now = time.monotonic()
    if now < self._examined_seconds + _LOOK_SECONDS:
      return
    if now > self._examined_seconds + _FORGET_SECONDS:
      self._since_seconds = None
    self._examined_seconds = now
    problems = [
      f"{address}: {problem}"
      for address in addresses
      if (problem := self._security.problem(address))
    ]
    if not problems:
      self._since_seconds = None
      return
    if self._since_seconds is None:
      self._since_seconds = now
    elif now >= self._since_seconds + _WRONG_SECONDS:
      raise calls.WireError(
        StatusCode.UNAUTHENTICATED,
        problems[0] + types.see("a-learner-cannot-be-reached"),
      )
    for problem in problems:
      if problem not in self._reported:
        self._reported.add(problem)
        print(f"{self._role}: {problem}", file=sys.stderr, flush=True)
