"""Which connection holds which slots."""

import threading

import numpy as np


class Leases:
  """Places for environments, handed out and taken back.

  Any thread may call it.
  """

  def __init__(self, num_slots: int) -> None:
    """All of `num_slots` are free."""
    self._free = np.arange(num_slots, dtype=np.int32)
    self._lock = threading.Lock()

  @property
  def free(self) -> int:
    """How many slots nobody holds."""
    return len(self._free)

  def take(self, count: int) -> np.ndarray | None:
    """Takes `[count]` int32 slots; None where fewer are free."""
    with self._lock:
      if count > len(self._free):
        return None
      taken, self._free = self._free[:count], self._free[count:]
      return taken

  def give_back(self, slots: np.ndarray) -> None:
    """Frees the slots of an ended lease."""
    with self._lock:
      self._free = np.sort(np.concatenate([self._free, slots]))
