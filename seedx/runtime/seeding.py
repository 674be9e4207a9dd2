"""Seeds of environments."""

import threading

import numpy as np

# EnvPool's seeds are int32: the lower half is for training, the upper half for
# evaluation.
_SEED_BITS = 30
# The number of seeds for training.
NUM_SEEDS = 2**_SEED_BITS
_MAX_ENVS = 2**16
_SEEDS_OF_PART = 2**20


class Seeds:
  """Seeds of environments, each handed out once; any thread may take them.

  Attributes:
    taken: number of seeds handed out.
    taken_together: number of seeds that all parts of the run have handed out,
      as of the last exchange.
  """

  def __init__(self, seed: int, part: int = 0) -> None:
    """Starts at a seed that depends on the run's seed and the part.

    Runs with seeds below 2^k start at least 2^(30 - k) environments apart, and
    the parts of a run start 2^20 apart.

    Args:
      seed: the run's seed, from 0 to 2^30 - 1.
      part: index of the part of the run that hands out the seeds, such as a
        learner host.
    """
    self.taken = self.taken_together = 0
    self._part = part
    self._lock = threading.Lock()
    self._next = self._place(_place(seed))

  def take(self, count: int) -> int:
    """Returns the first of `count` consecutive seeds."""
    with self._lock:
      self.taken += count
      first = self._next if self._next + count <= NUM_SEEDS else 0
      self._next = first + count
      return first

  def saved(self) -> np.integer:
    """Returns the state for a checkpoint, which is the same for all parts."""
    with self._lock:
      by_others = max(0, self.taken_together - self.taken)
      of_first = self._next - self._part * _SEEDS_OF_PART
      return np.int64((of_first + by_others) % NUM_SEEDS)

  def restore(self, saved: np.integer) -> None:
    """Continues with seeds that the saved run has not used."""
    with self._lock:
      self._next = self._place(int(saved))

  def _place(self, of_first: int) -> int:
    """Returns the place of this part, given the place of the first part."""
    return (of_first + self._part * _SEEDS_OF_PART) % NUM_SEEDS


def evaluation_seed(seed: int, number: int) -> int:
  """Returns the seed of evaluation episode `number` of a run with `seed`."""
  # The evaluation's other environments have the seeds that follow.
  place = (_place(seed) + number) % (NUM_SEEDS - _MAX_ENVS)
  return NUM_SEEDS + place


def _place(seed: int) -> int:
  """Returns the seed with its bits reversed, so that runs start far apart."""
  return int(f"{seed % NUM_SEEDS:0{_SEED_BITS}b}"[::-1], 2)
