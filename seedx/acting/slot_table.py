"""The slots of all actors' environments."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx import wire


class Slots:
  """Slots, each leased to one session at a time; thread-safe."""

  def __init__(self, num_slots: int) -> None:
    """Makes slots 0 to `num_slots - 1`, all free."""
    self._free = np.arange(num_slots, dtype=np.int32)
    self._lock = threading.Lock()

  @property
  def free(self) -> int:
    """Number of slots that no session holds."""
    return len(self._free)

  def take(self, count: int) -> np.ndarray:
    """Leases `[count]` int32 slots.

    Raises:
      wire.Refusal: RESOURCE_EXHAUSTED, fewer slots are free.
    """
    with self._lock:
      if count > len(self._free):
        raise wire.Refusal(
          wire.StatusCode.RESOURCE_EXHAUSTED,
          f"expected at most {len(self._free)} environments, the number of"
          f" slots that are free now, found {count}",
        )
      taken, self._free = self._free[:count], self._free[count:]
      return taken

  def give_back(self, slots: np.ndarray) -> None:
    """Frees the slots of an ended session."""
    with self._lock:
      self._free = np.sort(np.concatenate([self._free, slots]))


def wanted(hello: Mapping[str, Any], maximum: int) -> int:
  """Returns the number of environments in a hello of `{"num_envs": n}`.

  Raises:
    wire.Refusal: the hello is malformed, or n is larger than `maximum`.
  """
  num_envs = hello.get("num_envs")
  if type(num_envs) is not int or num_envs < 1:
    raise wire.invalid(
      "num_envs of at least 1 in the hello", f"{num_envs!r:.80}"
    )
  if num_envs > maximum:
    raise wire.Refusal(
      wire.StatusCode.FAILED_PRECONDITION,
      f"expected an actor with at most {maximum} environments, found"
      f" {num_envs}",
    )
  return num_envs
