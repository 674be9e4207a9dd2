"""Names, limits and errors that both ends of a call share."""

from typing import Any

import grpc
import numpy as np

from seedx import trees, types

PATH_PREFIX = "/seedx/"
METADATA_KEY = "seedx-layout-bin"
METADATA_BYTES = 1 << 20
# A client loses its place if its next message is this late. A client may need
# minutes to compile, to reset a slow simulator, or to step it for an unroll. A
# stream that has no content for longer sends empty messages.
SILENT_SECONDS = 300.0
# Details of the status of a relay's calls whose learner has gone.
AWAY = "the learner is away"
# With these options, both ends notice a lost connection after 40 s.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
  ("grpc.max_send_message_length", -1),
  ("grpc.keepalive_time_ms", 20_000),
  ("grpc.keepalive_timeout_ms", 20_000),
  ("grpc.keepalive_permit_without_calls", 1),
  ("grpc.http2.max_pings_without_data", 0),
]


def metadata_limit(size: int) -> list[tuple[str, int]]:
  """Returns gRPC options that refuse metadata of more than `size` bytes."""
  names = "grpc.max_metadata_size", "grpc.absolute_max_metadata_size"
  return [(name, size) for name in names]


class _StatusError(Exception):
  def __init__(self, code: grpc.StatusCode, message: str) -> None:
    super().__init__(f"{code.name}: {message}")
    self.code = code
    self.message = message


class WireError(_StatusError):
  """An error for a call that failed.

  Attributes:
    code: status of the call; after UNAVAILABLE, try the call again.
    message: description of the failure, for people.
  """


def bad_welcome(expected: str, actual: object) -> WireError:
  """Returns an error for a server's welcome that is not valid."""
  return WireError(
    grpc.StatusCode.FAILED_PRECONDITION,
    f"the server's welcome: expected {expected}, found {actual!r:.80}",
  )


class Refusal(_StatusError):
  """An error by which a function or session ends a call with a status.

  Attributes:
    code: status of the call, for the client's program.
    message: reason, for people.
  """


def does_not_fit(expected: str, actual: str) -> Refusal:
  """Returns a refusal for a client that does not fit this server."""
  return Refusal(
    grpc.StatusCode.FAILED_PRECONDITION, f"expected {expected}, found {actual}"
  )


def invalid(expected: str, actual: object) -> Refusal:
  """Returns a refusal for a message with a value that is not valid."""
  return Refusal(
    grpc.StatusCode.INVALID_ARGUMENT, f"expected {expected}, found {actual}"
  )


def check_range(
  what: str, array: types.Array, low: types.Array, high: types.Array
) -> None:
  """Checks that all numbers are from `low` to `high`, both included.

  The limits are broadcast to the array, which the error calls `what`.

  Raises:
    Refusal: INVALID_ARGUMENT, a number is NaN or out of range.
  """
  array = np.asarray(array)
  inside = (array >= low) & (array <= high)
  if not inside.all():
    value, low, high = (
      np.broadcast_to(x, inside.shape)[~inside].flat[0]
      for x in (array, low, high)
    )
    raise invalid(f"{what} from {low} to {high}", value)


def check_finite(what: str, nest: types.Tree) -> None:
  """Checks that a nest of arrays, called `what`, has finite numbers only.

  Raises:
    Refusal: INVALID_ARGUMENT, a number is NaN or infinite.
  """
  if (name := trees.non_finite(nest)) is not None:
    where = f" in {name}" if name else ""
    raise invalid(f"finite {what}", f"NaN or an infinity{where}")
