"""Environments that are made again where one of a process has failed."""

import dataclasses
import sys
import threading
from collections.abc import Callable


@dataclasses.dataclass
class Restarts:
  """How the environments of a process are made again where one has failed.

  Several environments may share it, on threads of their own.

  Attributes:
    most: restarts in a row of a process, after which its failure is raised. A
      row ends where the process has ended an episode of each environment.
    take_seeds: `(count) -> seed`, gives seeds that no environment has had: this
      one and those after it.
    count: restarts so far.
  """

  most: int
  take_seeds: Callable[[int], int]
  count: int = 0

  def __post_init__(self) -> None:
    """Has said nothing yet."""
    self._lock = threading.Lock()

  def add(self, failure: str) -> None:
    """Counts a restart, and prints why; the first time, all of it."""
    with self._lock:
      self.count += 1
      count = self.count
    first, *rest = failure.strip().splitlines() or [""]
    if count > 1 and rest:
      failure = f"{first.strip()} {rest[-1]}"
    again = f"its process starts again with new seeds (restart {count})"
    between = "\n" if "\n" in failure.strip() else "; "
    print(failure.strip(), again, sep=between, file=sys.stderr, flush=True)

  def measure(self) -> dict[str, int]:
    """What it adds to a line of metrics."""
    return {"env_restarts": self.count}
