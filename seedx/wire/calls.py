"""What both ends of a call share: its names, its limits, and how it ends."""

from typing import Any

import grpc
import numpy as np

from seedx import trees, types

PATH_PREFIX = "/seedx/"
METADATA_KEY = "seedx-layout-bin"
METADATA_BYTES = 1 << 20
# A client that owes a message for so long loses its place. An honest one may
# compile, reset a slow simulator, or step it for a whole unroll; a stream that
# has less to say sends empty messages.
SILENT_SECONDS = 300.0
# For both ends. A peer that vanished without a word is noticed after 40 s.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
  ("grpc.max_send_message_length", -1),
  ("grpc.keepalive_time_ms", 20_000),
  ("grpc.keepalive_timeout_ms", 20_000),
  ("grpc.keepalive_permit_without_calls", 1),
  ("grpc.http2.max_pings_without_data", 0),
]


def metadata_limit(size: int) -> list[tuple[str, int]]:
  """Options of gRPC that refuse metadata of more bytes."""
  names = "grpc.max_metadata_size", "grpc.absolute_max_metadata_size"
  return [(name, size) for name in names]


class WireError(Exception):
  """A call that failed.

  Attributes:
    code: a `grpc.StatusCode`; UNAVAILABLE is worth another try.
    message: what was expected and found, for a person.
  """

  def __init__(self, code: grpc.StatusCode, message: str) -> None:
    super().__init__(f"{code.name}: {message}")
    self.code = code
    self.message = message


def unwelcome(expected: str, found: object) -> WireError:
  """The error where a server's welcome is not one for this client."""
  return WireError(
    grpc.StatusCode.FAILED_PRECONDITION,
    f"the server's welcome: expected {expected}, found {found!r:.80}",
  )


class Refused(Exception):
  """Raised by a function or session to end the call with a status.

  Attributes:
    code: a `grpc.StatusCode`, for a client to act on.
    message: for a person to read.
  """

  def __init__(self, code: grpc.StatusCode, message: str) -> None:
    super().__init__(f"{code.name}: {message}")
    self.code = code
    self.message = message


def does_not_fit(expected: str, found: str) -> Refused:
  """Refuses a client that does not fit to this server, for good."""
  return Refused(
    grpc.StatusCode.FAILED_PRECONDITION, f"expected {expected}, found {found}"
  )


def invalid(expected: str, found: object) -> Refused:
  """Refuses a message that says what cannot be."""
  return Refused(
    grpc.StatusCode.INVALID_ARGUMENT, f"expected {expected}, found {found}"
  )


def check_range(
  what: str, array: types.Array, low: types.Array, high: types.Array
) -> None:
  """Checks that all numbers are from `low` to `high`, both included.

  Args:
    what: the array, in words.
    array: of any shape.
    low: the smallest, of a shape that broadcasts.
    high: the largest.

  Raises:
    Refused: INVALID_ARGUMENT, one is not, or is NaN.
  """
  array = np.asarray(array)
  inside = (array >= low) & (array <= high)
  if not inside.all():
    found, low, high = (
      np.broadcast_to(x, inside.shape)[~inside].flat[0]
      for x in (array, low, high)
    )
    raise invalid(f"{what} from {low} to {high}", found)


def check_finite(what: str, nest: types.Tree) -> None:
  """Checks that there is neither NaN nor infinity in a nest of arrays.

  Raises:
    Refused: INVALID_ARGUMENT, there is.
  """
  if (name := trees.non_finite(nest)) is not None:
    where = f" in {name}" if name else ""
    raise invalid(f"finite {what}", f"NaN or an infinity{where}")
