"""Gorila's parameter servers, each with one shard of the parameters.

The parameters are flattened into one vector; shard k is the k-th of K nearly
equal slices. A shard holds its parameters, their version (the number of
updates), the target parameters, and the optimizer's state. Elementwise
optimizers (Adam, RMSProp) compute the same on a slice. The norm of a gradient
needs all of it, so workers clip gradients.

A shard starts empty, and so does the shard of a restarted server. The first
worker that connects fills it with parameters and their version; at the start of
a run all workers have the same parameters. The optimizer's state of a dead
server is lost. A checkpoint's state can be restored only before the first
gradient.

A worker sends gradients on the stream `PUSH`, whose replies have the newest
parameters. `START` is a call with parameters for an empty shard, and `TARGET`
a call for newer target parameters. Checkpoints call `SAVE` and `RESTORE`.
"""

import dataclasses
import functools
import itertools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from seedx import envs, types, wire
from seedx.agents import base
from seedx.learning import updates
from seedx.pipelines.gorila import settings
from seedx.wire import serving

PUSH = "push"
START = "start"
TARGET = "target"
SAVE = "save"
RESTORE = "restore"
_MAX_UPDATES = 2**30  # Far from the overflow of an int32.
_LOOK_SECONDS = 0.2


class Vector(NamedTuple):
  """A gradient, or parameters.

  Attributes:
    version: `[]` int32, version of the parameters, or of those that the
      gradient was computed with.
    resets: `[]` float32, the parameters' `base.AgentState.resets`, or the
      fraction of the gradient's batch that is resets, from 0 to 1.
    vector: `[P]` float32, one number for each of the shard's P parameters.
  """

  version: types.Array
  resets: types.Array
  vector: types.Array


class Reply(NamedTuple):
  """A shard's newest parameters.

  Attributes:
    version: `[]` int32, version of the parameters.
    target_version: `[]` int32, version of the target parameters; -1 if there
      are none.
    applied: `[]` bool, whether the gradient was applied, see `Shard.push`.
    resets: `[]` float32, see `Vector`.
    vector: `[P]` float32, the parameters.
  """

  version: types.Array
  target_version: types.Array
  applied: types.Array
  resets: types.Array
  vector: types.Array


def parts(num_params: int, num_shards: int) -> list[slice]:
  """Returns the slice of the parameters that each shard holds."""
  ends = [num_params * k // num_shards for k in range(num_shards + 1)]
  return list(itertools.starmap(slice, itertools.pairwise(ends)))


def layouts(size: int) -> tuple[wire.Layout, wire.Layout]:
  """Returns the layouts of a `Vector` and a `Reply`, for `size` parameters."""
  number, resets = np.zeros((), np.int32), np.zeros((), np.float32)
  vector = np.zeros(size, np.float32)
  reply = Reply(number, number, np.zeros((), np.bool_), resets, vector)
  return (
    wire.Layout.of(wire.once(Vector(number, resets, vector)), 1),
    wire.Layout.of(wire.once(reply), 1),
  )


def state_form(agent: base.Agent, size: int) -> base.AgentState:
  """Returns the shapes of the state of a shard of `size` parameters.

  Raises:
    types.ConfigError: the agent cannot be updated in parts.
  """
  if agent.start is None:
    raise types.ConfigError(
      "expected an agent that can `start` from a part of its parameters, so"
      " that each parameter server can hold a shard; found one that cannot"
    )
  vector = jax.ShapeDtypeStruct((size,), np.float32)
  start = agent.start
  return jax.eval_shape(lambda params: start(params, 0), vector)


def state_layout(form: base.AgentState) -> wire.Layout:
  """Returns the layout of the leaves of a shard's state, see `state_form`."""
  return wire.Layout.of(wire.once(tuple(jax.tree.leaves(form))), 1)


class Shard:
  """A part of the parameters; any thread may use it.

  Attributes:
    version: number of updates so far; -1 while the shard is empty.
  """

  def __init__(self, agent: base.Agent, max_staleness: int) -> None:
    """Makes an empty shard, see `coordinator.Config` for `max_staleness`.

    Raises:
      types.ConfigError: the agent cannot be updated in parts.
    """
    # The structure is the same for shards of any size.
    self._structure = jax.tree.structure(state_form(agent, 1))
    assert agent.start is not None
    self.version = -1
    self._agent = agent
    self._start = agent.start
    self._apply = jax.jit(functools.partial(updates.apply_gradients, agent))
    self._max_staleness = max_staleness
    self._lock = threading.Lock()
    self._has_learned = False
    self._state: base.AgentState | None = None
    self._target = np.zeros(0, np.float32)
    self._target_version = -1

  def bind(self, server: serving.Server, size: int) -> None:
    """Binds the calls of workers and checkpoints, for `size` parameters."""
    vector, reply = layouts(size)
    server.bind(PUSH, self.push, vector, reply)
    server.bind(START, self.start, vector, reply)
    server.bind(TARGET, self.target, wire.NOTHING, vector)
    state = state_layout(state_form(self._agent, size))
    server.bind(SAVE, self.save, wire.NOTHING, state)
    server.bind(RESTORE, self.restore, state, wire.NOTHING)

  def start(self, params: Vector) -> Reply:
    """Fills the shard if it is empty; replies with the shard's parameters.

    Raises:
      wire.Refusal: INVALID_ARGUMENT, a parameter is not finite, or a number is
        out of its range.
    """
    wire.check_finite("parameters", params.vector)
    wire.check_range("version", params.version, 0, _MAX_UPDATES)
    # Below 0 after a resume, see `base.AgentState.leave_out`.
    wire.check_range("resets", params.resets, -_MAX_UPDATES, params.version)
    with self._lock:
      if self._state is None:
        state = self._start(
          jax.numpy.asarray(params.vector), int(params.version)
        )
        resets = jax.numpy.asarray(params.resets)
        self._take(dataclasses.replace(state, resets=resets))
      return self._reply(applied=True)

  def push(self, gradient: Vector) -> Reply:
    """Applies a gradient, and replies with the newest parameters.

    A gradient is dropped if its parameters are more than `max_staleness`
    updates old, or if the result would not be finite.

    Raises:
      wire.Refusal: UNAVAILABLE, the shard is empty: `start` it; or
        INVALID_ARGUMENT, the gradient is not finite, or a number is out of its
        range, such as a version higher than the shard's.
    """
    wire.check_finite("gradients", gradient.vector)
    wire.check_range("resets", gradient.resets, 0, 1)
    with self._lock:
      state = self._filled()
      wire.check_range("version", gradient.version, 0, self.version)
      fresh = self.version - int(gradient.version) <= self._max_staleness
      if fresh:
        self._has_learned = True
        gradients = base.Gradients(gradient.vector)
        fraction = 1 - gradient.resets
        state, skipped = self._apply(state, gradients, fraction)
        self._take(state)
        fresh = not skipped
      return self._reply(applied=fresh)

  def target(self, nothing: types.Tree) -> Vector:
    """Returns the target parameters and their version; their `resets` are 0.

    Raises:
      wire.Refusal: UNAVAILABLE, the shard is empty.
    """
    del nothing
    with self._lock:
      self._filled()
      version = np.int32(self._target_version)
      return Vector(version, np.float32(0), self._target)

  def save(self, nothing: types.Tree) -> types.Tree:
    """Returns the leaves of the whole state.

    Raises:
      wire.Refusal: UNAVAILABLE, the shard is empty.
    """
    del nothing
    with self._lock:
      return tuple(map(np.asarray, jax.tree.leaves(self._filled())))

  def restore(self, leaves: types.Tree) -> tuple[()]:
    """Continues from what `save` returned.

    Raises:
      wire.Refusal: UNAVAILABLE, the shard has already applied gradients; or
        INVALID_ARGUMENT, the state is not finite, or a number is out of its
        range.
    """
    leaves = list(map(jax.numpy.array, leaves))
    state: base.AgentState = jax.tree.unflatten(self._structure, leaves)
    arrays = state.params, state.optimizer_state, state.target_params
    wire.check_finite("shards", jax.tree.leaves(arrays))
    wire.check_range("updates", state.updates, 0, _MAX_UPDATES)
    wire.check_range("resets", state.resets, -_MAX_UPDATES, state.updates)
    with self._lock:
      if self._has_learned:
        raise wire.Refusal(
          wire.StatusCode.UNAVAILABLE,
          "the shard has already applied gradients (its version is"
          f" {self.version}); restart its server to restore a checkpoint",
        )
      self._take(state)
    return ()

  def _filled(self) -> base.AgentState:
    """Returns the state; raises wire.Refusal if the shard is empty."""
    if self._state is None:
      raise wire.Refusal(
        wire.StatusCode.UNAVAILABLE, "this shard has no parameters yet"
      )
    return self._state

  def _take(self, state: base.AgentState) -> None:
    self._state = state
    self.version = int(state.updates)
    if isinstance(state.target_params, jax.Array):
      target = np.asarray(state.target_params)
      if not np.array_equal(target, self._target):
        self._target, self._target_version = target, self.version

  def _reply(self, applied: bool) -> Reply:
    state, version = self._filled(), np.int32(self.version)
    target_version = np.int32(self._target_version)
    resets, params = np.asarray(state.resets), np.asarray(state.params)
    return Reply(version, target_version, np.bool_(applied), resets, params)


def run(work: settings.Work, stop: threading.Event) -> None:
  """Serves until `stop` is set.

  Raises:
    types.ConfigError: the address is in use, or the agent cannot be updated in
      parts.
  """
  agent = work.agent.make(envs.spec(work.env), None, work.plan.horizon)
  part = parts(num_params(agent), work.num_shards)[work.shard]
  shard = Shard(agent, work.max_staleness)
  # Twice, because a dead worker holds its stream until its death is noticed.
  streams = 2 * work.workers.num_workers
  server = serving.Server(work.address, streams, security=work.security)
  shard.bind(server, part.stop - part.start)
  with server:
    # Short waits, because a signal just before a wait does not interrupt it.
    while not stop.wait(_LOOK_SECONDS):
      pass


def num_params(agent: base.Agent) -> int:
  """Returns the number of an agent's parameters."""
  state = jax.eval_shape(agent.init, jax.random.key(0))
  return sum(leaf.size for leaf in jax.tree.leaves(state.params))


class Client:
  """A worker's client of all parameter servers.

  Attributes:
    params: float32 vector of the newest parameters received from all shards.
    target_params: float32 vector of the newest target parameters.
  """

  def __init__(
    self,
    params: np.ndarray,
    num_shards: int,
    security: wire.Security = wire.LOCAL,
  ) -> None:
    """Does not connect yet; empty shards will receive the initial `params`."""
    self._security = security
    self._parts = parts(len(params), num_shards)
    self._layouts = [layouts(part.stop - part.start) for part in self._parts]
    self._clients: list[wire.Client] = []
    self._streams: list[wire.Stream] = []
    self._versions = np.zeros(num_shards, np.int32)
    self._resets = np.zeros(num_shards, np.float32)
    self._target_versions = np.full(num_shards, -1, np.int32)
    self._closed_bytes = 0
    self.params = np.array(params)
    self.target_params = np.array(params)

  @property
  def version(self) -> int:
    """The smallest of the shards' versions."""
    return int(self._versions.min())

  @property
  def resets(self) -> float:
    """The mean of the shards' `base.AgentState.resets`."""
    return float(self._resets.mean())

  @property
  def transferred_bytes(self) -> int:
    """The number of bytes sent and received on the streams so far."""
    now = sum(stream.transferred_bytes for stream in self._streams)
    return self._closed_bytes + now

  def connect(self, addresses: Sequence[str]) -> None:
    """Opens streams to all shards in order; fills the empty ones.

    Raises:
      wire.WireError: UNAVAILABLE, a server does not answer: try again; or
        FAILED_PRECONDITION, there are more or fewer addresses than shards.
    """
    self.close()
    if len(addresses) != len(self._parts):
      raise wire.bad_welcome(f"{len(self._parts)} addresses", addresses)
    self._clients = [wire.Client(x, self._security) for x in addresses]
    for k, client in enumerate(self._clients):
      vector, reply = self._layouts[k]
      # Target parameters are fetched again, because a restart loses them.
      self._target_versions[k] = -1
      params = self._vector(k, self.params, self._resets[k])
      self._update(k, client.call(START, params, vector, reply))
      self._streams.append(client.exchange(PUSH, vector, reply))

  def push(
    self, gradient: np.ndarray, resets: float = 0.0
  ) -> tuple[bool, float]:
    """Sends a gradient to all shards, and receives their newest parameters.

    Args:
      gradient: float32 vector, gradient of the loss with respect to `params`.
      resets: fraction of the gradient's batch that is resets.

    Returns:
      Whether all shards applied the gradient, and its staleness: the mean
      number of other updates since its parameters were received.

    Raises:
      wire.WireError: UNAVAILABLE, a server has stopped; `connect` again.
    """
    last_versions = self._versions.copy()
    for k, stream in enumerate(self._streams):
      stream.send(self._vector(k, gradient, resets))
    applied = []
    for k, stream in enumerate(self._streams):
      reply = stream.receive()
      if reply is None:
        raise wire.WireError(
          wire.StatusCode.UNAVAILABLE, f"parameter server {k} has stopped"
        )
      self._update(k, reply)
      applied.append(bool(reply.applied))
    staleness = self._versions - last_versions - np.array(applied)
    return all(applied), float(staleness.mean())

  def close(self) -> None:
    """Disconnects from all shards."""
    self._closed_bytes = self.transferred_bytes
    for stream in self._streams:
      stream.close()
    for client in self._clients:
      client.close()
    self._streams, self._clients = [], []

  def _vector(self, shard: int, vector: np.ndarray, resets: float) -> Vector:
    part = vector[self._parts[shard]]
    return Vector(self._versions[shard], np.float32(resets), part)

  def _update(self, shard: int, reply: Reply) -> None:
    self._versions[shard] = reply.version
    self._resets[shard] = reply.resets
    self.params[self._parts[shard]] = reply.vector
    if reply.target_version > self._target_versions[shard]:
      target = self._clients[shard].call(
        TARGET, (), wire.NOTHING, self._layouts[shard][0]
      )
      self._target_versions[shard] = target.version
      self.target_params[self._parts[shard]] = target.vector
