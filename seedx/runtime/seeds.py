"""Seeds of environments."""

import threading

import numpy as np

# Seeds of environments are int32 in EnvPool: those below are for training, as
# many above for evaluation.
_SEED_BITS = 30
_NUM_SEEDS = 2**_SEED_BITS
_MOST_ENVS = 2**16
_SEEDS_OF_PART = 2**20


class Seeds:
  """Seeds of environments, none of which is handed out twice.

  Any thread may call it.

  Attributes:
    taken: how many have been handed out.
    taken_together: how many all parts of the run have handed out, as far as
      this one knows.
  """

  def __init__(self, seed: int, part: int = 0) -> None:
    """Starts where no run of another `seed` does.

    Runs with seeds below 2^k start at least 2^(30 - k) environments apart, and
    the parts of a run 2^20.

    Args:
      seed: of the run, from 0 to 2^30 - 1.
      part: index of the part of the run that steps these environments.
    """
    self.taken = self.taken_together = 0
    self._part = part
    self._lock = threading.Lock()
    self._next = self._place(_place(seed))

  def take(self, count: int) -> int:
    """The first of `count` seeds in a row."""
    with self._lock:
      self.taken += count
      first = self._next if self._next + count <= _NUM_SEEDS else 0
      self._next = first + count
      return first

  def saved(self) -> np.integer:
    """Its state in a checkpoint, the same for all parts."""
    with self._lock:
      elsewhere = max(0, self.taken_together - self.taken)
      own = self._next - self._part * _SEEDS_OF_PART
      return np.int64((own + elsewhere) % _NUM_SEEDS)

  def restore(self, saved: np.integer) -> None:
    """Continues with seeds that the saved run has not used."""
    with self._lock:
      self._next = self._place(int(saved))

  def _place(self, of_first: int) -> int:
    """Where this part continues where the first one does at `of_first`."""
    return (of_first + self._part * _SEEDS_OF_PART) % _NUM_SEEDS


def evaluation_seed(seed: int, number: int) -> int:
  """An environment seed for evaluation, which training does not use.

  Args:
    seed: of the run.
    number: index of the seed, from 0.
  """
  # Environments beside it have the seeds that follow.
  place = (_place(seed) + number) % (_NUM_SEEDS - _MOST_ENVS)
  return _NUM_SEEDS + place


def _place(seed: int) -> int:
  """Where a run starts: its seed's bits reversed, which sets runs far apart."""
  return int(f"{seed % _NUM_SEEDS:0{_SEED_BITS}b}"[::-1], 2)
