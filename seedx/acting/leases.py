"""Leases of slots and seeds, one of each for every environment of an actor."""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seedx import wire
from seedx.runtime import counters, seeding


@dataclasses.dataclass(frozen=True, eq=False)
class Lease:
  """The slots and seeds of an actor with N environments while it is connected.

  Attributes:
    pool: index of the pool of the slots.
    slots: `[N]` int32 slots of the environments.
    first_seed: seed of environment 0; environment k has `first_seed + k`.
    env_steps: env steps of the run at the start of the lease.
  """

  pool: int
  slots: np.ndarray
  first_seed: int
  env_steps: int

  @property
  def envs(self) -> np.ndarray:
    """`[N]` int32, the seeds, which differ for all environments of the run."""
    return self.first_seed + np.arange(len(self.slots), dtype=np.int32)

  @property
  def welcome(self) -> dict[str, Any]:
    """The first message to the actor."""
    return {"first_seed": self.first_seed, "env_steps": self.env_steps}


class Leases:
  """Pools of slots, each leased to one actor at a time; thread-safe."""

  def __init__(
    self,
    sizes: Sequence[int],
    seeds: seeding.Seeds | None,
    acted: counters.ActingCounts,
  ) -> None:
    """Makes pools of free slots, numbered from 0, of these sizes.

    Without seeds, an actor's hello has the `first_seed` of its environments,
    which the learner of a pool leased to it.
    """
    self._free = [np.arange(size, dtype=np.int32) for size in sizes]
    self._maximum = max(sizes)
    self._seeds = seeds
    self._acted = acted
    self._lock = threading.Lock()

  @property
  def free(self) -> list[int]:
    """Number of slots of each pool that no actor holds."""
    return [*map(len, self._free)]

  def grant(self, hello: Mapping[str, Any]) -> Lease:
    """Leases n slots of a pool to an actor whose hello is `{"num_envs": n}`.

    Raises:
      wire.Refusal: the hello is malformed, or no pool has n free slots.
    """
    count = num_envs(hello, self._maximum)
    first_seed = 0 if self._seeds else _first_seed(hello, count)
    with self._lock:
      pool = int(np.argmax(self.free))
      free = self._free[pool]
      if count > len(free):
        raise wire.Refusal(
          wire.StatusCode.RESOURCE_EXHAUSTED,
          f"expected at most {len(free)} environments, the number of slots that"
          f" are free now, found {count}",
        )
      slots, self._free[pool] = free[:count], free[count:]
    if self._seeds:
      first_seed = self._seeds.take(count)
    return Lease(pool, slots, first_seed, self._acted.env_steps)

  def close(self, lease: Lease) -> None:
    """Frees the slots of an actor that has left."""
    with self._lock:
      free = np.concatenate([self._free[lease.pool], lease.slots])
      self._free[lease.pool] = np.sort(free)


def num_envs(hello: Mapping[str, Any], maximum: int) -> int:
  """Returns the number of environments in a hello.

  Raises:
    wire.Refusal: it is no number from 1 to `maximum`.
  """
  count = hello.get("num_envs")
  if type(count) is not int or count < 1:
    raise wire.invalid("num_envs of at least 1 in the hello", f"{count!r:.80}")
  if count > maximum:
    raise wire.Refusal(
      wire.StatusCode.FAILED_PRECONDITION,
      f"expected an actor with at most {maximum} environments, found {count}",
    )
  return count


def _first_seed(hello: Mapping[str, Any], count: int) -> int:
  """Returns the seed of the first of `count` environments in a hello."""
  seed = hello.get("first_seed")
  if type(seed) is not int or not 0 <= seed <= seeding.NUM_SEEDS - count:
    raise wire.invalid("the learner's first_seed in the hello", f"{seed!r:.80}")
  return seed
