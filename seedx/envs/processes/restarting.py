"""Restarts of worker processes whose environments have failed."""

import dataclasses
import sys
import threading
from collections.abc import Callable


@dataclasses.dataclass
class Restarts:
  """The limit, the seeds and the number of worker restarts; thread-safe.

  Attributes:
    maximum: number of consecutive restarts of a process after which its failure
      is raised. The count starts again when the process has ended as many
      episodes as it has environments.
    take_seeds: function `(count) -> seed` that reserves `count` unused seeds,
      of which it returns the first.
    count: number of restarts so far.
  """

  maximum: int
  take_seeds: Callable[[int], int]
  count: int = 0

  def __post_init__(self) -> None:
    self._lock = threading.Lock()

  def add(self, failure: str) -> None:
    """Counts a restart; prints its cause, the first time with a traceback."""
    with self._lock:
      self.count += 1
      count = self.count
    first, *rest = failure.strip().splitlines() or [""]
    if count > 1 and rest:
      failure = f"{first.strip()} {rest[-1]}"
    event = f"its process starts again with new seeds (restart {count})"
    separator = "\n" if "\n" in failure.strip() else "; "
    print(failure.strip(), event, sep=separator, file=sys.stderr, flush=True)

  def measure(self) -> dict[str, int]:
    """Returns the metric `env_restarts`."""
    return {"env_restarts": self.count}
