"""The learner's side of actors that act for themselves."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import tree

from seedx import metrics, trees, types, wire
from seedx.runtime import leases, local_actor, progress, protocol

# `(unroll [L, S, ...], priorities [S, windows] or ())`, False if all is over.
Sink = Callable[[tuple[types.Unroll, types.Tree]], bool]


class Collection:
  """Takes the actors' unrolls in, and hands parameters out."""

  def __init__(
    self,
    programs: local_actor.Programs,
    num_envs: int,
    unrolls_per_item: int,
    newest: Callable[[], tuple[types.Tree, int]],
    sink: Sink,
    counts: progress.Progress,
    seed: int,
  ) -> None:
    """Serves nothing before `bind`.

    Args:
      programs: the actors', of any number of environments.
      num_envs: environments that there is place for, of all actors.
      unrolls_per_item: S, unrolls that are handed to the sink at a time.
      newest: the newest parameters that can act, and their version.
      sink: takes items; blocks while there is no place, which is how actors
        are held back.
      counts: what the actors have done.
      seed: of the run; the environments' seeds are derived from it.
    """
    agent = programs.agent
    self._programs = programs
    self._num_envs = num_envs
    self._newest = newest
    self._sink = sink
    self._counts = counts
    self._exploration = agent.exploration(num_envs)
    self._reports = progress.reports(self._exploration)
    self._leases = leases.Leases(num_envs)
    self._seeds = leases.Seeds(seed)
    self._lock = threading.Lock()
    self._sessions: set[_Session] = set()
    # Held while the sink blocks, so not what anything else waits for.
    self._filling = threading.Lock()
    self._items = _Items(unrolls_per_item)
    self._fetching = threading.Lock()
    self._fetched: protocol.Versioned | None = None

  def bind(self, server: wire.Server) -> None:
    """Binds the methods that actors call."""
    programs = self._programs
    acting, _ = self._newest()
    server.bind_stream(
      protocol.EXPERIENCE,
      self._open,
      inputs=protocol.experience_layout(
        programs.item(), programs.window, self._num_envs
      ),
      outputs=protocol.VERSION,
    )
    server.bind(
      protocol.PARAMETERS,
      self._parameters,
      inputs=protocol.NOTHING,
      outputs=protocol.parameters_layout(acting),
    )

  def shares(self) -> dict[str, float]:
    """How much of their time actors wait, on average, by name."""
    with self._lock:
      waits = [session.waits for session in self._sessions]
    environments, learner = np.mean(waits or [(0.0, 0.0)], axis=0).tolist()
    return {
      metrics.WAIT_REQUESTS: environments,
      metrics.WAIT_QUEUE: learner,
    }

  def _open(self, hello: Mapping[str, Any]) -> "_Session":
    num_envs = leases.wanted(hello, self._num_envs)
    slots = self._leases.take(num_envs)
    if slots is None:
      raise leases.no_place(self._leases.free, num_envs)
    self._counts.start()
    session = _Session(self, slots, self._seeds.take(num_envs))
    with self._lock:
      self._sessions.add(session)
    return session

  def close(self, session: "_Session") -> None:
    """Gives a session's slots back."""
    with self._lock:
      self._sessions.discard(session)
    self._leases.give_back(session.slots)

  def take(
    self, session: "_Session", experience: protocol.Experience
  ) -> np.ndarray:
    """Takes a session's message; returns the newest version, `[1]`."""
    reported = self._reports[session.slots]
    returns = experience.episode_return[reported]
    self._counts.add(
      int(experience.env_steps.sum()), returns[~np.isnan(returns)]
    )
    with self._filling:
      for item in self._items.add(experience.unroll, experience.priorities):
        if not self._sink(item):
          raise wire.Refused(wire.StatusCode.UNAVAILABLE, "this run is over")
    return np.array([self._newest()[1]], np.int32)

  def exploration(self, slots: np.ndarray) -> list[float]:
    """How much the environments of some slots explore."""
    return self._exploration[slots].tolist()

  def _parameters(self, nothing: types.Tree) -> protocol.Versioned:
    del nothing
    with self._fetching:
      acting, version = self._newest()
      if self._fetched is None or self._fetched.version[0] != version:
        host = jax.tree.map(lambda leaf: np.asarray(leaf)[None], acting)
        self._fetched = protocol.Versioned(np.array([version], np.int32), host)
      return self._fetched


class _Session:
  """One actor's lease: its slots, from the stream's start to its end.

  Attributes:
    welcome: what the actor is told first.
    slots: `[N]`, its places among all environments.
    waits: the shares of time that it waits for environments, and for us.
  """

  def __init__(
    self, collection: Collection, slots: np.ndarray, first_seed: int
  ) -> None:
    self.welcome = {
      "first_seed": first_seed,
      "exploration": collection.exploration(slots),
    }
    self.slots = slots
    self.waits = (0.0, 0.0)
    self._collection = collection

  def __call__(self, inputs: protocol.Experience) -> np.ndarray:
    """Takes unrolls of all the lease's environments.

    Raises:
      wire.Refused: they are not of all of them; or the run is over.
    """
    if len(inputs.env_steps) != len(self.slots):
      raise wire.Refused(
        wire.StatusCode.INVALID_ARGUMENT,
        f"expected unrolls of all {len(self.slots)} environments, found"
        f" {len(inputs.env_steps)}",
      )
    self.waits = (
      float(inputs.wait_environments[0]),
      float(inputs.wait_learner[0]),
    )
    return self._collection.take(self, inputs)

  def close(self) -> None:
    """Gives the slots back."""
    self._collection.close(self)


class _Items:
  """Cuts what comes in any number of rows into items of one size."""

  def __init__(self, size: int) -> None:
    self._size = size
    self._waiting: list[types.Tree] = []
    self._rows = 0

  def add(
    self, unroll: types.Unroll, priorities: types.Tree
  ) -> Iterator[tuple[types.Unroll, types.Tree]]:
    """Takes `[S, L, ...]`, and yields the items that are full."""
    self._waiting.append((unroll, priorities))
    self._rows += len(unroll.version)
    while self._rows >= self._size:
      everything = trees.concatenate(self._waiting, self._rows)
      item = tree.map_structure(lambda x: x[: self._size], everything)
      self._waiting = [
        tree.map_structure(lambda x: x[self._size :], everything)
      ]
      self._rows -= self._size
      yield _time_major(item[0]), item[1]


def _time_major(unroll: types.Unroll) -> types.Unroll:
  """`[S, L, ...]` unrolls as `[L, S, ...]`."""
  steps = tree.map_structure(
    lambda leaf: np.swapaxes(leaf, 0, 1), tuple(unroll[:-1])
  )
  return types.Unroll._make([*steps, unroll.core_state])
