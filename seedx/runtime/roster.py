"""Whose environments are where among all, and what they have done."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np

from seedx import metrics, types
from seedx.agents import base
from seedx.runtime import leases, progress


@dataclasses.dataclass(eq=False)
class Entry:
  """An actor's environments.

  Attributes:
    slots: `[N]` int32, their places among those of all actors.
    first_seed: of their seeds.
    exploration: `[N]`, how much they explore.
    waits: shares of time that the actor waits for environments, and for whom
      it sends its experience to; it is written by the actor's session.
  """

  slots: np.ndarray
  first_seed: int
  exploration: np.ndarray
  waits: tuple[float, float] = (0.0, 0.0)

  @property
  def welcome(self) -> dict[str, Any]:
    """What the actor is told."""
    return {
      "first_seed": self.first_seed,
      "exploration": self.exploration.tolist(),
    }


class Roster:
  """Actors that act for themselves, on the side of whom they work for.

  Any thread may call it.

  Attributes:
    seeds: of their environments.
  """

  def __init__(
    self,
    agent: base.Agent,
    num_envs: int,
    counts: progress.Progress,
    seed: int,
  ) -> None:
    """Nobody is here yet.

    Args:
      agent: that acts; it says how much each environment explores.
      num_envs: environments that there is place for.
      counts: what all of them do is added to it.
      seed: of the run; the environments' seeds are derived from it.
    """
    self._num_envs = num_envs
    self._counts = counts
    self._exploration = agent.exploration(num_envs)
    self._reports = progress.reports(self._exploration)
    self._leases = leases.Leases(num_envs)
    self.seeds = leases.Seeds(seed)
    self._lock = threading.Lock()
    self._entries: set[Entry] = set()
    self._waits: list[tuple[float, float]] = [(0.0, 0.0)]

  def enter(self, hello: Mapping[str, Any]) -> Entry:
    """Enters an actor with a hello of `{"num_envs": n}`.

    Raises:
      wire.Refused: the hello is malformed, or there is no place.
    """
    num_envs = leases.wanted(hello, self._num_envs)
    slots = self._leases.take(num_envs)
    if slots is None:
      raise leases.no_place(self._leases.free, num_envs)
    self._counts.start()
    first_seed = self.seeds.take(num_envs)
    entry = Entry(slots, first_seed, self._exploration[slots])
    with self._lock:
      self._entries.add(entry)
    return entry

  def leave(self, entry: Entry) -> None:
    """Frees an actor's place."""
    with self._lock:
      self._entries.discard(entry)
    self._leases.give_back(entry.slots)

  def count(
    self, entry: Entry, env_steps: np.ndarray, episode_return: np.ndarray
  ) -> None:
    """Counts what an actor says that it did; see `Done`."""
    returns = episode_return[self._reports[entry.slots]]
    self._counts.add(int(env_steps.sum()), returns[~np.isnan(returns)])

  def shares(self) -> dict[str, float]:
    """How much of their time actors wait, on average, by name."""
    with self._lock:
      # At the end all have left.
      self._waits = [entry.waits for entry in self._entries] or self._waits
      environments, others = np.mean(self._waits, axis=0).tolist()
    return {metrics.WAIT_REQUESTS: environments, metrics.WAIT_QUEUE: others}


class Done:
  """What an actor's environments have done since it last said so."""

  def __init__(self, num_envs: int, length: int) -> None:
    """`length`: the most steps between two times."""
    self._num_envs = num_envs
    self._length = length
    self._rows: list[types.Rows] = []

  def add(self, rows: types.Rows) -> None:
    """Adds a step of all environments."""
    self._rows.append(rows)

  def take(self) -> tuple[np.ndarray, np.ndarray]:
    """What has been added since the last call.

    Returns:
      `env_steps`, `[N]` int32, and `episode_return`, `[N, length]` float32, as
      in `types.Rows`, with NaN behind the steps that there were.
    """
    rows, self._rows = self._rows, []
    env_steps = np.zeros(self._num_envs, np.int32)
    shape = (self._num_envs, self._length)
    episode_return = np.full(shape, np.nan, np.float32)
    for time, row in enumerate(rows):
      env_steps += row.timestep.step_type != dm_env.StepType.FIRST
      episode_return[:, time] = row.episode_return
    return env_steps, episode_return
