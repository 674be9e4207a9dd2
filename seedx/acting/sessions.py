"""The actors that compute actions by themselves: what each holds and counts."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedx import envs, metrics, wire
from seedx.acting import episodes
from seedx.acting import slots as slots_lib
from seedx.runtime import counters
from seedx.runtime import seeds as seeds_lib


@dataclasses.dataclass(eq=False)
class Session:
  """A connected actor that computes actions by itself.

  Attributes:
    slots: `[N]` int32, of its environments, among those of all actors.
    first_seed: of its environments; environment k has `first_seed + k`.
    exploration: `[N]`, epsilon of each environment.
    episodes: of its environments.
    environments: counts what they do.
    waits: shares of time that the actor waits for its environments, and for
      the learner.
  """

  slots: np.ndarray
  first_seed: int
  exploration: np.ndarray
  episodes: episodes.Episodes
  environments: counters.Environments
  waits: tuple[float, float] = (0.0, 0.0)

  @property
  def welcome(self) -> dict[str, Any]:
    """What the actor is told."""
    return {
      "first_seed": self.first_seed,
      "exploration": self.exploration.tolist(),
    }


class Sessions:
  """The connected actors that compute actions by themselves.

  Any thread may call it.
  """

  def __init__(
    self,
    exploration: np.ndarray,
    acted: counters.Acted,
    seeds: seeds_lib.Seeds,
    env: envs.Config,
  ) -> None:
    """Starts without actors.

    Args:
      exploration: `[slots]`, epsilon of each slot, see `base.Agent`.
      acted: counts the steps of all actors.
      seeds: of the actors' environments.
      env: the environment.
    """
    self._acted = acted
    self._exploration = exploration
    self._reported = counters.explores_least(exploration)
    self._returns_are_sums = envs.returns_are_sums(env)
    self._slots = slots_lib.Slots(len(exploration))
    self._seeds = seeds
    self._lock = threading.Lock()
    self._open: set[Session] = set()
    self._waits: list[tuple[float, float]] = [(0.0, 0.0)]

  def open(self, hello: Mapping[str, Any]) -> Session:
    """Takes in an actor with a hello of `{"num_envs": n}`.

    Raises:
      wire.Refused: the hello is malformed, or too few slots are free.
    """
    num_envs = slots_lib.wanted(hello, len(self._exploration))
    slots = self._slots.take(num_envs)
    self._acted.start()
    first_seed = self._seeds.take(num_envs)
    session = Session(
      slots,
      first_seed,
      self._exploration[slots],
      episodes.Episodes(num_envs, self._returns_are_sums),
      self._acted.join(self._reported[slots]),
    )
    with self._lock:
      self._open.add(session)
    return session

  def close(self, session: Session) -> None:
    """Frees an actor's slots."""
    with self._lock:
      self._open.discard(session)
    self._slots.give_back(session.slots)
    session.environments.leave()

  def count(
    self,
    session: Session,
    steps: episodes.Steps,
    waits: tuple[float, float],
  ) -> None:
    """Counts what an actor did since its last message.

    Args:
      session: of the actor.
      steps: `[N, K]`, its environments' K steps since then.
      waits: see `Session`.

    Raises:
      wire.Refused: it is not of all of the actor's environments, a number is
        out of its range, or steps are not in order; nothing is counted.
    """
    check_rows(session, len(steps.step_type))
    wire.check_range("shares of time that are waited", waits, 0, 1)
    ended = session.episodes.add(steps, slice(None))
    session.waits = waits
    session.environments.add(
      ended.env_steps, slice(None), ended.returns, ended.lengths
    )

  def measure(self) -> dict[str, float]:
    """The share of time that actors wait, on average, by name."""
    with self._lock:
      # At the end all have left.
      self._waits = [session.waits for session in self._open] or self._waits
      environments, others = np.mean(self._waits, axis=0).tolist()
    return {
      metrics.WAIT_ENVIRONMENTS: environments,
      metrics.WAIT_LEARNER: others,
    }


def check_rows(session: Session, rows: int) -> None:
  """Raises wire.Refused where a message is not of all its environments."""
  num_envs = len(session.slots)
  if rows != num_envs:
    raise wire.invalid(
      f"a message of all {num_envs} environments", f"one of {rows}"
    )
