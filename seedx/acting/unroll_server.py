"""The learner's server of actors with a copy of the parameters.

It sends them the newest parameters, and receives their unrolls.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import tree

from seedx import envs, trees, types, wire
from seedx.acting import (
  episodes,
  local_actor,
  parameters,
  protocol,
  sessions,
  unroll_messages,
)
from seedx.runtime import counters
from seedx.runtime import seeds as seeds_lib
from seedx.wire import server as server_lib

_MOST_PRIORITY = float(np.finfo(np.float32).max)
# Takes `[L, S, ...]` unrolls with priorities; False once the run has stopped.
Sink = Callable[[types.Share], bool]


class UnrollServer:
  """Opens a session for each actor, and takes its unrolls.

  Attributes:
    sessions: of the connected actors.
  """

  def __init__(
    self,
    programs: local_actor.Programs,
    actors: protocol.Actors,
    acted: counters.Acted,
    seeds: seeds_lib.Seeds,
    env: envs.Config,
    newest: Callable[[], tuple[types.Tree, int]],
    sink: Sink,
  ) -> None:
    """Serves nothing before `bind`.

    Args:
      programs: the actors', of as many environments as a share has unrolls.
      actors: how many actors and environments.
      acted: counts the steps of all actors.
      seeds: of the actors' environments.
      env: the environment.
      newest: returns the newest acting parameters and their version, which is
        the reply to a message.
      sink: takes shares; it blocks while the learner's queue is full, and so
        makes actors wait.
    """
    self._programs = programs
    exploration = programs.agent.exploration(actors.num_envs)
    self.sessions = sessions.Sessions(exploration, acted, seeds, env)
    self._parameters = parameters.Source(newest)
    self._max_rows = actors.envs_per_actor
    self._newest = newest
    self._sink = sink
    # Held while the sink blocks.
    self._filling = threading.Lock()
    self._shares = _Shares(programs.layout.num_slots)

  def bind(self, server: server_lib.Server) -> None:
    """Binds what actors call: for parameters, and with unrolls."""
    self._parameters.bind(server)
    server.bind_stream(
      unroll_messages.EXPERIENCE,
      self._open,
      inputs=unroll_messages.experience_layout(
        self._programs.share(), self._max_rows
      ),
      outputs=unroll_messages.VERSION,
    )

  def measure(self) -> dict[str, float]:
    """See `sessions.Sessions.measure`."""
    return self.sessions.measure()

  def example(self) -> types.Share:
    """A share of zeros, to compile for."""
    return jax.tree.map(
      lambda x: np.zeros(x.shape, x.dtype), self._programs.share()
    )

  def check(
    self, experience: unroll_messages.Experience, exploration: np.ndarray
  ) -> None:
    """Checks each number of a message by itself.

    Args:
      experience: of an actor.
      exploration: `[S]`, what it was told.

    Raises:
      wire.Refused: INVALID_ARGUMENT, a number is out of its range.
    """
    unroll = experience.unroll
    wire.check_finite("unrolls", unroll)
    step_type = unroll.inputs.timestep.step_type
    wire.check_range("step_type", step_type, 0, 2)
    wire.check_range("discount", unroll.inputs.timestep.discount, 0, 1)
    wire.check_range("version", unroll.version, 0, self._newest()[1])
    told = exploration[:, None]
    wire.check_range("exploration", unroll.inputs.exploration, told, told)
    action = self._programs.spec.action
    if np.dtype(action.dtype).kind in "iu":  # Others are clipped.
      for found in (unroll.action, unroll.inputs.action_tm1):
        wire.check_range("actions", found, action.minimum, action.maximum)
    for found in jax.tree.leaves(experience.priorities):
      wire.check_range("priorities", found, 0, _MOST_PRIORITY)

  def take(self, experience: unroll_messages.Experience) -> np.int32:
    """Takes a message's unrolls; returns the newest version.

    Raises:
      wire.Refused: all is over.
    """
    with self._filling:
      shares = self._shares.add(experience.unroll, experience.priorities)
      for share in shares:
        if not self._sink(share):
          raise wire.Refused(wire.StatusCode.CANCELLED, "this run is over")
    return np.int32(self._newest()[1])

  def _open(self, hello: Mapping[str, Any]) -> "_Session":
    session = self.sessions.open(hello)
    return _Session(self, session, self._programs.layout.period)


class _Session:
  """One actor, from its stream's start to its end.

  Attributes:
    welcome: what the actor is told first.
  """

  def __init__(
    self,
    server: UnrollServer,
    session: sessions.Session,
    period: int,
  ) -> None:
    self.welcome = session.welcome
    self._server = server
    self._session = session
    self._period = period
    # `[S, L - period]`, with which the next unrolls begin.
    self._shared: np.ndarray | None = None

  def __call__(self, inputs: unroll_messages.Experience) -> np.int32:
    """Takes unrolls of all the actor's environments.

    Raises:
      wire.Refused: they are not of all of them, or do not follow upon those
        before; a number is out of its range; or the run is over.
    """
    self._count(inputs)
    return self._server.take(inputs)

  @functools.partial(jax.profiler.annotate_function, name="receive")
  def _count(self, inputs: unroll_messages.Experience) -> None:
    """Checks and counts a message."""
    session = self._session
    timestep = inputs.unroll.inputs.timestep
    step_type = timestep.step_type
    sessions.check_rows(session, len(step_type))
    self._server.check(inputs, session.exploration)
    new = slice(self._new_from(step_type), None)
    count = step_type[:, new].shape[1]
    self._server.sessions.count(
      session,
      episodes.Steps(
        step_type[:, new],
        timestep.reward[:, new],
        timestep.discount[:, new],
        inputs.episode_return[:, :count],
      ),
      waits=(inputs.wait_environments.item(), inputs.wait_learner.item()),
    )
    self._shared = step_type[:, self._period :].copy()

  def _new_from(self, step_type: np.ndarray) -> int:
    """The first time step of unrolls `[S, L]` that has not been sent before.

    Raises:
      wire.Refused: INVALID_ARGUMENT, what has been sent before is another now.
    """
    if self._shared is None:
      return 0
    shared = self._shared.shape[1]
    if not np.array_equal(step_type[:, :shared], self._shared):
      raise wire.invalid(
        f"unrolls that begin with the last {shared} steps of those before",
        "others",
      )
    return shared

  def close(self) -> None:
    """Frees the actor's slots."""
    self._server.sessions.close(self._session)


class _Shares:
  """Cuts what comes in any number of rows into shares of one size."""

  def __init__(self, size: int) -> None:
    self._size = size
    self._waiting: list[types.Tree] = []
    self._rows = 0

  def add(
    self, unroll: types.Unroll, priorities: types.Tree
  ) -> Iterator[types.Share]:
    """Takes `[S, L, ...]`, and yields the shares that are full."""
    self._waiting.append((unroll, priorities))
    self._rows += len(unroll.version)
    while self._rows >= self._size:
      everything = trees.concatenate(self._waiting, self._rows)
      full = tree.map_structure(lambda x: x[: self._size], everything)
      rest = tree.map_structure(lambda x: x[self._size :], everything)
      self._waiting = [rest]
      self._rows -= self._size
      yield types.Share(_time_major(full[0]), full[1])


def _time_major(unroll: types.Unroll) -> types.Unroll:
  """`[S, L, ...]` unrolls as `[L, S, ...]`."""
  steps = tree.map_structure(
    lambda leaf: np.swapaxes(leaf, 0, 1), unroll._replace(core_state=())
  )
  return steps._replace(core_state=unroll.core_state)
