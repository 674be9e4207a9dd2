"""Hostile peers, which send anything to a learner's port."""

import collections
import contextlib
import dataclasses
import json
import math
import random
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import jax
import numpy as np
import tree

from seedx import envs, types, wire
from seedx.acting import (
  forwarded,
  labels,
  local_actor,
  perturbed,
  protocol,
  unroll_messages,
  unroll_store,
)
from seedx.agents import evolution as agents
from seedx.launch import joining
from seedx.pipelines import evolution, gorila, impala, pool, seed
from seedx.pipelines.gorila import parameter_server, reports, worker
from seedx.wire import calls

# Maximum time until a server ends a stream that it must end.
_TIMEOUT_SECONDS = 20.0
_IDLE_SECONDS = 1.0
# Statuses with which a call may end, according to `seedx.wire`.
_CLEAN = {*grpc.StatusCode} - {
  grpc.StatusCode.INTERNAL,
  grpc.StatusCode.UNKNOWN,
  grpc.StatusCode.DEADLINE_EXCEEDED,
}


@dataclasses.dataclass(frozen=True)
class Method:
  """A method to attack: its name, its requests, and a hello that it accepts."""

  name: str
  inputs: wire.Layout
  hello: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def methods(config: Any) -> list[Method]:
  join = Method(joining.JOIN, wire.NOTHING, dataclasses.asdict(joining.Hello()))
  if isinstance(config, seed.Config):
    return [join, *acting(config)]
  if isinstance(config, pool.Config):
    message = _programs(config, config.message_size).share()
    return [
      join,
      *acting(config),
      Method(
        forwarded.FORWARD,
        forwarded.layout(message, config.actors.num_envs, 0),
        {"process": 0},
      ),
      Method(unroll_messages.PARAMETERS, wire.NOTHING),
    ]
  if isinstance(config, impala.Config):
    return [join, *_of_unrolls(config)]
  if isinstance(config, evolution.Config):
    state = jax.eval_shape(
      config.agent.make(envs.spec(config.env)).init, jax.random.key(0)
    )
    totals = agents.no_totals(state.statistics)
    results, _ = perturbed.layouts(totals, config.population)
    return [
      join,
      Method(perturbed.RESULTS, results),
      Method(perturbed.FITNESS, wire.NOTHING),
      Method(unroll_messages.PARAMETERS, wire.NOTHING),
    ]
  agent = _agent(config)
  shapes = worker.Shapes.of(
    agent, envs.spec(config.env), config.plan, config.workers
  )
  hello = {"num_envs": config.workers.envs_per_worker}
  return [
    join,
    Method(reports.REPORT, shapes.report, hello),
    Method(reports.SERVERS, wire.NOTHING),
  ]


def acting(config: seed.Config | pool.Config) -> list[Method]:
  """Returns the method that acts for thin actors."""
  rows = config.actors.envs_per_actor
  inputs, _ = protocol.act_layouts(envs.spec(config.env), rows)
  return [Method(protocol.ACT, inputs, {"num_envs": rows})]


def shards(config: gorila.Config) -> list[list[Method]]:
  agent = _agent(config)
  parts = parameter_server.parts(
    parameter_server.num_params(agent), config.num_servers
  )
  all_methods = []
  for part in parts:
    size = part.stop - part.start
    vector, _ = parameter_server.layouts(size)
    state = parameter_server.state_layout(
      parameter_server.state_form(agent, size)
    )
    all_methods.append(
      [
        Method(parameter_server.PUSH, vector),
        Method(parameter_server.START, vector),
        Method(parameter_server.TARGET, wire.NOTHING),
        Method(parameter_server.SAVE, wire.NOTHING),
        Method(parameter_server.RESTORE, state),
      ]
    )
  return all_methods


class Peers:
  """Hostile peers, which open one stream after the other.

  Attributes:
    statuses: number of streams by the status with which they ended.
    violations: descriptions of streams that ended with a wrong status.
  """

  def __init__(self, seed: int) -> None:
    self.statuses: collections.Counter[str] = collections.Counter()
    self.violations: list[str] = []
    self._rng = random.Random(seed)
    self._kinds: list[Callable[[str, Method], grpc.StatusCode | None]] = [
      self._mutated,
      self._anything,
      self._extreme,
      self._lie,
      self._handshake,
      self._idle,
      self._no_http,
    ]

  def attack(self, address: str, methods: Sequence[Method]) -> None:
    """Opens a stream of a random kind to a random method."""
    kind, method = self._rng.choice(self._kinds), self._rng.choice(methods)
    status = kind(address, method)
    name = "none" if status is None else status.name
    self.statuses[name] += 1
    if status is not None and status not in _CLEAN:
      words = f"{kind.__name__} of {method.name} ended with {name}"
      self.violations.append(f"a stream {words}")

  def _mutated(self, address: str, method: Method) -> grpc.StatusCode:
    """Sends a message with changed, additional or missing bytes."""
    text = bytearray(method.inputs.encode(self._nest(method, _zeros)))
    for _ in range(self._rng.randint(1, 3)):
      text[self._rng.randrange(len(text))] = self._rng.randrange(256)
    cut = self._rng.randrange(3)
    if cut == 0:
      del text[self._rng.randrange(len(text)) :]
    elif cut == 1:
      text += self._rng.randbytes(self._rng.randint(1, 64))
    return self._call(address, method, [bytes(text)])

  def _anything(self, address: str, method: Method) -> grpc.StatusCode:
    """Sends a message that follows its layout, with random bytes."""

    def fill(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
      text = self._rng.randbytes(math.prod(shape) * dtype.itemsize)
      return np.frombuffer(text, dtype).reshape(shape)

    text = method.inputs.encode(self._nest(method, fill))
    return self._call(address, method, [text])

  def _extreme(self, address: str, method: Method) -> grpc.StatusCode:
    """Sends a message that follows its layout, with one extreme number."""
    number = self._rng.choice((np.nan, np.inf, -1.0, 3e38))

    def fill(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
      if dtype.kind == "f":
        return np.full(shape, number, dtype)
      if dtype == np.bool_:
        return np.ones(shape, dtype)
      limits = np.iinfo(dtype)
      extreme = limits.max if number != -1.0 else limits.min
      return np.full(shape, extreme, dtype)

    text = method.inputs.encode(self._nest(method, fill))
    return self._call(address, method, [text])

  def _lie(self, address: str, method: Method) -> grpc.StatusCode:
    """Sends the first step of an honest actor, and then a false step."""
    if method.name != protocol.ACT:
      return self._extreme(address, method)
    first = self._nest(method, _zeros)
    first.index[:] = np.arange(len(first.index))
    first.timestep.discount[:] = 1.0
    first.episode_return[:] = np.nan
    for origin in first.timestep.observation["origin"]:
      origin[0] = self._rng.randrange(1, 2**31)
    lie = tree.map_structure(np.copy, first)
    lie.timestep.observation["origin"][:, 1] = 1
    lie.timestep.step_type[:] = self._rng.randrange(256)
    lie.timestep.reward[:] = np.nan
    encode = method.inputs.encode
    return self._call(address, method, [encode(first), encode(lie)])

  def _handshake(self, address: str, method: Method) -> grpc.StatusCode:
    """Sends metadata that is not JSON, or has a wrong value."""
    hello = {**method.inputs.to_json(), "hello": dict(method.hello)}
    bad: Any = (None, -1, {"num_envs": -1}, [[]], "x" * 1000, 1e308, {"": {}})
    kind = self._rng.randrange(4)
    if kind == 0:
      text = self._rng.randbytes(self._rng.randrange(200))
    elif kind == 1:
      text = b"[" * 20_000
    else:
      hello[self._rng.choice([*hello])] = self._rng.choice(bad)
      text = json.dumps(hello).encode()
    return self._call(address, method, [], metadata=text)

  def _idle(self, address: str, method: Method) -> grpc.StatusCode:
    """Opens a valid stream, and sends nothing."""
    return self._call(address, method, None)

  def _no_http(self, address: str, method: Method) -> None:
    """Sends bytes that are not even HTTP."""
    del method
    unix = address.startswith("unix:")
    target: Any = address.removeprefix("unix:")
    if not unix:
      host, _, port = address.rpartition(":")
      target = (host, int(port))
    family = socket.AF_UNIX if unix else socket.AF_INET
    with socket.socket(family) as peer, contextlib.suppress(OSError):
      peer.settimeout(_IDLE_SECONDS)
      peer.connect(target)
      peer.sendall(self._rng.randbytes(500))
      peer.recv(1)

  def _nest(
    self,
    method: Method,
    fill: Callable[[Sequence[int], np.dtype], np.ndarray],
  ) -> types.Tree:
    """Returns a nest that follows a method's layout, filled by a function."""
    layout = method.inputs
    rows = self._rng.randint(1, layout.max_rows)

    def leaf(number: int) -> np.ndarray:
      column = layout.columns[number]
      shape = column.shape if column.once else (rows, *column.shape)
      return fill(shape, np.dtype(column.dtype))

    return tree.map_structure(leaf, layout.structure)

  def _call(
    self,
    address: str,
    method: Method,
    messages: Sequence[bytes] | None,
    metadata: bytes | None = None,
  ) -> grpc.StatusCode:
    """Sends messages, or nothing for a while; returns the stream's status."""
    if metadata is None:
      hello = {**method.inputs.to_json(), "hello": dict(method.hello)}
      metadata = json.dumps(hello).encode()
    over = threading.Event()

    def requests() -> Iterator[bytes]:
      if messages is None:
        over.wait(_IDLE_SECONDS)
      yield from messages or ()

    with grpc.insecure_channel(address) as channel:
      call = channel.stream_stream(calls.PATH_PREFIX + method.name)(
        requests(),
        metadata=((calls.METADATA_KEY, metadata),),
        timeout=_TIMEOUT_SECONDS,
      )
      try:
        for _ in call:
          pass
        return grpc.StatusCode.OK
      except grpc.RpcError as error:
        return error.code()
      finally:
        over.set()


def _of_unrolls(config: impala.Config) -> list[Method]:
  rows = config.actors.envs_per_actor
  agent = _agent(config)
  share = _programs(config, rows).share()
  inputs = unroll_messages.experience_layout(share, rows)
  methods = [
    Method(unroll_messages.EXPERIENCE, inputs, {"num_envs": rows}),
    Method(unroll_messages.PARAMETERS, wire.NOTHING),
  ]
  if agent.label is None:
    return methods
  size = config.plan.replay.replay_batch_size
  zeros = np.zeros((agent.needs.window, size), np.float32)
  request = labels.Labels(np.int32(-1), zeros)
  layout = wire.Layout.of(wire.once(request), 1)
  return [
    *methods,
    Method(labels.LABELS, layout),
    Method(labels.TARGETS, wire.NOTHING),
  ]


def _programs(config: Any, rows: int) -> local_actor.Programs:
  agent = _agent(config)
  layout = unroll_store.Layout.of(agent, config.learner.unroll_length, rows)
  return local_actor.Programs(agent, envs.spec(config.env), layout)


def _agent(config: Any) -> Any:
  return config.agent.make(envs.spec(config.env), None, config.plan.horizon)


def _zeros(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
  return np.zeros(shape, dtype)
