"""Sessions of the actors that compute actions themselves."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx import envs, metrics, wire
from seedx.acting import episodes, leases
from seedx.runtime import counters, seeding


@dataclasses.dataclass(eq=False)
class Session:
  """The session of an actor that computes actions itself.

  Attributes:
    lease: slots and seeds of the actor's environments.
    exploration: `[N]`, exploration of each environment, see `types.Inputs`.
    episodes: episodes of the environments.
    environments: counter of the environments' experience.
    waits: shares of time that the actor waits for its environments, and for
      the learner.
  """

  lease: leases.Lease
  exploration: np.ndarray
  episodes: episodes.Episodes
  environments: counters.Environments
  waits: tuple[float, float] = (0.0, 0.0)

  @property
  def welcome(self) -> dict[str, Any]:
    """The first message to the actor."""
    return {**self.lease.welcome, "exploration": self.exploration.tolist()}


class Sessions:
  """The sessions of all connected actors; thread-safe.

  Attributes:
    leases: leases of the slots.
  """

  def __init__(
    self,
    exploration: np.ndarray,
    acted: counters.ActingCounts,
    seeds: seeding.Seeds,
    env: envs.Config,
  ) -> None:
    """Makes a free slot for each element of the `[slots]` exploration."""
    self.leases = leases.Leases([len(exploration)], seeds, acted)
    self._acted = acted
    self._exploration = exploration
    self._reported = counters.explores_least(exploration)
    self._returns_are_sums = envs.returns_are_sums(env)
    self._lock = threading.Lock()
    self._open: set[Session] = set()
    self._waits: list[tuple[float, float]] = [(0.0, 0.0)]

  def open(self, hello: Mapping[str, Any]) -> Session:
    """Leases n slots to an actor whose hello is `{"num_envs": n}`.

    Raises:
      wire.Refusal: the hello is malformed, or fewer than n slots are free.
    """
    lease = self.leases.grant(hello)
    session = Session(
      lease,
      self._exploration[lease.slots],
      episodes.Episodes(len(lease.slots), self._returns_are_sums),
      self._acted.join(self._reported[lease.slots]),
    )
    with self._lock:
      self._open.add(session)
    return session

  def close(self, session: Session) -> None:
    """Frees an actor's slots."""
    with self._lock:
      self._open.discard(session)
    self.leases.close(session.lease)
    session.environments.leave()

  def count(
    self,
    session: Session,
    steps: episodes.Steps,
    waits: tuple[float, float],
  ) -> None:
    """Counts an actor's experience since its last message.

    Args:
      session: session of the actor.
      steps: `[N, K]`, the last K steps of its environments.
      waits: shares of time, see `Session`.

    Raises:
      wire.Refusal: an environment is missing, a number is out of its range, or
        steps are out of order; nothing is counted.
    """
    check_rows(session, len(steps.step_type))
    wire.check_range("shares of time spent waiting", waits, 0, 1)
    ended = session.episodes.add(steps, slice(None))
    session.waits = waits
    session.environments.add(
      ended.env_steps, slice(None), ended.returns, ended.lengths, steps.info
    )

  def measure(self) -> dict[str, float]:
    """Returns the mean shares of time that actors wait, by metric."""
    with self._lock:
      # The last line of metrics comes after all actors have left.
      self._waits = [session.waits for session in self._open] or self._waits
      environments, learner = np.mean(self._waits, axis=0).tolist()
    return {
      metrics.WAIT_ENVIRONMENTS: environments,
      metrics.WAIT_LEARNER: learner,
    }


def check_rows(session: Session, rows: int) -> None:
  """Raises wire.Refusal unless a message has a row for each environment."""
  num_envs = len(session.lease.slots)
  if rows != num_envs:
    raise wire.invalid(
      f"a message of all {num_envs} environments", f"one of {rows}"
    )
