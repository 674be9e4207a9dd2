"""The learner's side of actors that act for themselves."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
import tree

from seedx import trees, types, wire
from seedx.agents import base
from seedx.runtime import (
  feeds,
  local_actor,
  progress,
  protocol,
  roster,
  unrolls,
)

# `(unroll [L, S, ...], priorities [S, windows] or ())`, False if all is over.
Item = tuple[types.Unroll, types.Tree]
Sink = Callable[[Item], bool]


class Collection:
  """Takes the actors' unrolls in, and hands parameters out."""

  def __init__(
    self,
    programs: local_actor.Programs,
    actors: roster.Roster,
    max_rows: int,
    unrolls_per_item: int,
    newest: Callable[[], tuple[types.Tree, int]],
    sink: Sink,
  ) -> None:
    """Serves nothing before `bind`.

    Args:
      programs: the actors', of any number of environments.
      actors: where they are entered.
      max_rows: environments of the largest actor.
      unrolls_per_item: S, unrolls that are handed to the sink at a time.
      newest: the newest parameters that can act, and their version.
      sink: takes items; blocks while there is no place, which is how actors
        are held back.
    """
    self._programs = programs
    self._actors = actors
    self._max_rows = max_rows
    self._newest = newest
    self._sink = sink
    # Held while the sink blocks.
    self._filling = threading.Lock()
    self._items = _Items(unrolls_per_item)
    self._fetching = threading.Lock()
    self._fetched: protocol.Versioned | None = None

  def bind(self, server: wire.Server) -> None:
    """Binds the methods that actors call."""
    programs = self._programs
    server.bind_stream(
      protocol.EXPERIENCE,
      self._open,
      inputs=protocol.experience_layout(
        programs.item(), programs.window, self._max_rows
      ),
      outputs=protocol.VERSION,
    )
    acting, _ = self._newest()
    server.bind(
      protocol.PARAMETERS,
      self._parameters,
      inputs=protocol.NOTHING,
      outputs=protocol.parameters_layout(acting),
    )

  def example(self, device: jax.Device) -> Item:
    """An item of zeros on a device, to compile for."""
    programs, window = self._programs, self._programs.window
    unroll = programs.item()
    length, size = unroll.version.shape
    item = (
      unroll,
      ()
      if window is None
      else jax.ShapeDtypeStruct((size, length - window + 1), np.float32),
    )
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), item)
    return jax.device_put(zeros, device)

  def take(self, experience: protocol.Experience) -> np.ndarray:
    """Takes a message's unrolls; returns the newest version, `[1]`.

    Raises:
      wire.Refused: all is over.
    """
    with self._filling:
      for item in self._items.add(experience.unroll, experience.priorities):
        if not self._sink(item):
          raise wire.Refused(wire.StatusCode.CANCELLED, "this run is over")
    return np.array([self._newest()[1]], np.int32)

  def _open(self, hello: Mapping[str, Any]) -> "_Session":
    return _Session(self, self._actors, self._actors.enter(hello))

  def _parameters(self, nothing: types.Tree) -> protocol.Versioned:
    del nothing
    with self._fetching:
      acting, version = self._newest()
      if self._fetched is None or self._fetched.version[0] != version:
        host = jax.tree.map(lambda leaf: np.asarray(leaf)[None], acting)
        self._fetched = protocol.Versioned(np.array([version], np.int32), host)
      return self._fetched


class Config(Protocol):
  """What a pipeline's config says of actors that act for themselves."""

  @property
  def seed(self) -> int:
    """Of the run; the environments' seeds are derived from it."""

  @property
  def num_actors(self) -> int:
    """Actors that there is place for."""

  @property
  def envs_per_actor(self) -> int:
    """Environments of each."""

  @property
  def unroll_length(self) -> int:
    """T, new steps of an unroll."""

  @property
  def batch_size(self) -> int:
    """Unrolls that are handed on at a time, on all learner devices."""

  @property
  def learner_devices(self) -> Sequence[int]:
    """Each gets its share of them."""


def serve(
  server: wire.Server,
  config: Config,
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  counts: progress.Progress,
  newest: Callable[[], tuple[types.Tree, int]],
  sink: Sink,
) -> tuple[Collection, roster.Roster]:
  """Binds a collection to a server that has not started; see `Collection`.

  Returns:
    The collection, and the roster of its actors.
  """
  num_envs = config.num_actors * config.envs_per_actor
  actors = roster.Roster(agent, num_envs, counts, config.seed)
  size = config.batch_size // len(config.learner_devices)
  layout = unrolls.Layout(
    num_slots=size,
    length=feeds.unroll_length(agent, config.unroll_length),
    period=config.unroll_length,
  )
  programs = local_actor.Programs(agent, spec, layout)
  collected = Collection(
    programs, actors, config.envs_per_actor, size, newest, sink
  )
  collected.bind(server)
  return collected, actors


class _Session:
  """One actor, from its stream's start to its end.

  Attributes:
    welcome: what the actor is told first.
  """

  def __init__(
    self, collection: Collection, actors: roster.Roster, entry: roster.Entry
  ) -> None:
    self.welcome = entry.welcome
    self._collection = collection
    self._actors = actors
    self._entry = entry

  def __call__(self, inputs: protocol.Experience) -> np.ndarray:
    """Takes unrolls of all the actor's environments.

    Raises:
      wire.Refused: they are not of all of them; or the run is over.
    """
    num_envs = len(self._entry.slots)
    if len(inputs.env_steps) != num_envs:
      raise wire.Refused(
        wire.StatusCode.INVALID_ARGUMENT,
        f"expected unrolls of all {num_envs} environments, found"
        f" {len(inputs.env_steps)}",
      )
    self._entry.waits = (
      float(inputs.wait_environments[0]),
      float(inputs.wait_learner[0]),
    )
    self._actors.count(self._entry, inputs.env_steps, inputs.episode_return)
    return self._collection.take(inputs)

  def close(self) -> None:
    """Frees the actor's place."""
    self._actors.leave(self._entry)


class _Items:
  """Cuts what comes in any number of rows into items of one size."""

  def __init__(self, size: int) -> None:
    self._size = size
    self._waiting: list[types.Tree] = []
    self._rows = 0

  def add(self, unroll: types.Unroll, priorities: types.Tree) -> Iterator[Item]:
    """Takes `[S, L, ...]`, and yields the items that are full."""
    self._waiting.append((unroll, priorities))
    self._rows += len(unroll.version)
    while self._rows >= self._size:
      everything = trees.concatenate(self._waiting, self._rows)
      item = tree.map_structure(lambda x: x[: self._size], everything)
      rest = tree.map_structure(lambda x: x[self._size :], everything)
      self._waiting = [rest]
      self._rows -= self._size
      yield _time_major(item[0]), item[1]


def _time_major(unroll: types.Unroll) -> types.Unroll:
  """`[S, L, ...]` unrolls as `[L, S, ...]`."""
  steps = tree.map_structure(
    lambda leaf: np.swapaxes(leaf, 0, 1), tuple(unroll[:-1])
  )
  return types.Unroll._make([*steps, unroll.core_state])
