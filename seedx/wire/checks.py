"""Checks of what a peer says: each refuses, so that its stream ends."""

import grpc
import numpy as np

from seedx import trees, types
from seedx.wire import server as server_lib


def invalid(expected: str, found: object) -> server_lib.Refused:
  """Refuses a message that says what cannot be."""
  return server_lib.Refused(
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
