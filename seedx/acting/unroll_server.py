"""The learner's server of unroll actors: sends parameters, receives unrolls."""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dm_env
import jax
import numpy as np
import tree

from seedx import envs, types, wire
from seedx.acting import (
  episodes,
  local_actor,
  parameters,
  protocol,
  sessions,
  unroll_messages,
)
from seedx.runtime import counters, seeding
from seedx.wire import serving

_MAX_PRIORITY = float(np.finfo(np.float32).max)
# Takes a share. Blocks while the learner's queue is full, and returns False
# when the run is over.
Sink = Callable[[types.Share], bool]


class UnrollServer:
  """Server that opens a session for each unroll actor.

  Attributes:
    sessions: sessions of the connected actors.
  """

  def __init__(
    self,
    programs: local_actor.Programs,
    actors: protocol.Actors,
    acted: counters.ActingCounts,
    seeds: seeding.Seeds,
    env: envs.Config,
    newest: Callable[[], tuple[types.Tree, int]],
    sink: Sink,
  ) -> None:
    """Makes the server; `bind` adds its streams to a `wire` server.

    Args:
      programs: programs of an actor with as many environments as a share has
        unrolls.
      actors: settings of the actors.
      acted: counts of all actors' experience.
      seeds: seeds for the actors' environments.
      env: the environment.
      newest: function that returns the newest acting parameters and their
        version; each message is answered with the version.
      sink: function that takes shares; actors wait while it blocks.
    """
    self._programs = programs
    exploration = programs.agent.exploration(actors.num_envs)
    self.sessions = sessions.Sessions(exploration, acted, seeds, env)
    self._parameters = parameters.Source(newest)
    self._max_rows = actors.envs_per_actor
    self._newest = newest
    self._shares = Shares(programs.layout.num_slots, newest, sink)

  def bind(self, server: serving.Server) -> None:
    """Binds the streams for parameters and for unrolls."""
    self._parameters.bind(server)
    server.bind_stream(
      unroll_messages.EXPERIENCE,
      self._open,
      inputs=unroll_messages.experience_layout(
        self._programs.share(),
        self._max_rows,
        len(self._programs.spec.log_info),
      ),
      outputs=unroll_messages.VERSION,
    )

  def measure(self) -> dict[str, float]:
    """Returns the mean shares of time that actors wait, by metric."""
    return self.sessions.measure()

  def example(self) -> types.Share:
    """Returns a share of zeros."""
    return self._programs.example()

  def check(
    self, experience: unroll_messages.Experience, exploration: np.ndarray
  ) -> None:
    """Checks the range of each number in a message.

    `exploration` is the `[S]` values in the actor's welcome.

    Raises:
      wire.Refusal: INVALID_ARGUMENT, a number is out of its range.
    """
    check(
      experience.unroll,
      experience.priorities,
      self._programs.spec.action,
      self._newest()[1],
    )
    exact = exploration[:, None]
    seen = experience.unroll.inputs.exploration
    wire.check_range("exploration", seen, exact, exact)

  def take(
    self, experience: unroll_messages.Experience, env: np.ndarray, number: int
  ) -> np.int32:
    """Takes a message's unrolls, and returns the newest parameters' version.

    Origins are `env`, `[S]`, and one `number` for all, see `types.Share`.

    Raises:
      wire.Refusal: CANCELLED, the run is over.
    """
    origin = self._programs.agent.needs.origin(env, number)
    unroll = unroll_messages.swapped(experience.unroll)
    return self._shares.take(types.Share(unroll, experience.priorities, origin))

  def _open(self, hello: Mapping[str, Any]) -> "_Session":
    session = self.sessions.open(hello)
    return _Session(self, session, self._programs.layout.period)


def check(
  unroll: types.Unroll,
  priorities: types.Tree,
  spec: dm_env.specs.BoundedArray,
  version: int,
) -> None:
  """Checks the range of each number of unrolls from a peer.

  Args:
    unroll: unrolls, with or without the time axis first.
    priorities: priorities of their windows; () without priorities.
    spec: specification of the actions.
    version: version of the newest acting parameters.

  Raises:
    wire.Refusal: INVALID_ARGUMENT, a number is out of its range.
  """
  wire.check_finite("unrolls", unroll)
  wire.check_range("step_type", unroll.inputs.timestep.step_type, 0, 2)
  wire.check_range("discount", unroll.inputs.timestep.discount, 0, 1)
  wire.check_range("version", unroll.version, 0, version)
  count = None
  if isinstance(spec, types.HybridArray):
    spec, count = spec.choices, spec.num_choices
  if np.dtype(spec.dtype).kind in "iu":  # Environments clip floats.
    for action in (unroll.action, unroll.inputs.action_tm1):
      choices = action if count is None else action[..., :count]
      wire.check_range("actions", choices, spec.minimum, spec.maximum)
  for leaf in jax.tree.leaves(priorities):
    wire.check_range("priorities", leaf, 0, _MAX_PRIORITY)


class _Session:
  """The session of one actor, from the start of its stream to the end."""

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
    # The environments' seeds also identify them in `types.Share`.
    self._envs = session.lease.envs
    self._messages = 0
    # `[S, L - period]` step types with which the next unrolls begin.
    self._overlap: np.ndarray | None = None

  def __call__(self, inputs: unroll_messages.Experience) -> np.int32:
    """Takes unrolls of all environments, and returns the newest version."""
    self._count(inputs)
    self._messages += 1
    return self._server.take(inputs, self._envs, self._messages - 1)

  @functools.partial(jax.profiler.annotate_function, name="receive")
  def _count(self, inputs: unroll_messages.Experience) -> None:
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
        inputs.info[:, :count] if len(inputs.info) else (),
      ),
      waits=(inputs.wait_environments.item(), inputs.wait_learner.item()),
    )
    self._overlap = step_type[:, self._period :].copy()

  def _new_from(self, step_type: np.ndarray) -> int:
    """Returns the index of the first new step; refuses changed earlier ones."""
    if self._overlap is None:
      return 0
    overlap = self._overlap.shape[1]
    if not np.array_equal(step_type[:, :overlap], self._overlap):
      raise wire.invalid(
        f"unrolls that begin with the last {overlap} steps of the previous"
        " ones",
        "others",
      )
    return overlap

  def close(self) -> None:
    """Frees the actor's slots when its stream ends."""
    self._server.sessions.close(self._session)


class Shares:
  """Unrolls of any number of peers, which are cut into shares; thread-safe."""

  def __init__(
    self,
    size: int,
    newest: Callable[[], tuple[types.Tree, int]],
    sink: Sink,
  ) -> None:
    """Starts without unrolls.

    Args:
      size: number of unrolls of a share.
      newest: function that returns the newest acting parameters and their
        version.
      sink: function that takes shares; peers wait while it blocks.
    """
    self._size = size
    self._newest = newest
    self._sink = sink
    # Held while the sink blocks, so that shares arrive one by one.
    self._filling = threading.Lock()
    self._waiting: list[types.Share] = []
    self._rows = 0

  def take(self, unrolls: types.Share) -> np.int32:
    """Adds any number of unrolls; returns the newest parameters' version.

    Raises:
      wire.Refusal: CANCELLED, the run is over.
    """
    with self._filling:
      for share in self._full(unrolls):
        if not self._sink(share):
          raise wire.Refusal(wire.StatusCode.CANCELLED, "this run is over")
    return np.int32(self._newest()[1])

  def _full(self, unrolls: types.Share) -> Iterator[types.Share]:
    self._waiting.append(unrolls)
    self._rows += unrolls.data.version.shape[1]
    while self._rows >= self._size:
      everything = self._waiting[0]
      if len(self._waiting) > 1:
        # Contiguous, so that JAX for CPU need not copy the share again.
        everything = _mapped(
          lambda axis, *x: np.concatenate(x, axis), *self._waiting
        )
      full, rest = (
        _mapped(
          lambda axis, x, k=k: np.split(x, [self._size], axis)[k], everything
        )
        for k in range(2)
      )
      self._waiting = [rest]
      self._rows -= self._size
      yield full


def _mapped(
  function: Callable[..., np.ndarray], *shares: types.Share
) -> types.Share:
  """Maps each leaf of shares by a function of its axis of unrolls, and it."""
  steps = [x.data._replace(core_state=()) for x in shares]
  unrolls = [(x.data.core_state, x.priorities, x.origin) for x in shares]
  data, (core_state, *others) = (
    tree.map_structure(functools.partial(function, axis), *nests)
    for axis, nests in ((1, steps), (0, unrolls))
  )
  return types.Share(data._replace(core_state=core_state), *others)
