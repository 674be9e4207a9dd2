"""Hostile peers: what may reach a learner's port beside its actors."""

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
import numpy as np
import tree

from seedx import envs, types, wire
from seedx.acting import local_actor, protocol, unroll_messages, unroll_store
from seedx.launch import joining
from seedx.pipelines import gorila, impala, seed
from seedx.pipelines.gorila import parameter_server, reports, worker
from seedx.wire import calls

# The longest that a server may take to end a stream that it should end.
_TIMEOUT_SECONDS = 20.0
_IDLE_SECONDS = 1.0
# The statuses that `seedx.wire` says a call may end with.
_CLEAN = frozenset(
  code
  for code in grpc.StatusCode
  if code
  not in (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
  )
)


@dataclasses.dataclass(frozen=True)
class Method:
  """A method to attack.

  Attributes:
    name: of it.
    inputs: layout of its requests.
    hello: that is taken.
  """

  name: str
  inputs: wire.Layout
  hello: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def methods(config: Any) -> list[Method]:
  """The methods of a pipeline's learner; of parameter servers, see `shards`."""
  found = [
    Method(joining.JOIN, wire.NOTHING, dataclasses.asdict(joining.Hello()))
  ]
  if isinstance(config, seed.Config):
    rows = config.actors.envs_per_actor
    inputs, _ = protocol.act_layouts(envs.spec(config.env), rows)
    return [*found, Method(protocol.ACT, inputs, {"num_envs": rows})]
  if isinstance(config, impala.Config):
    return [*found, *_of_unrolls(config)]
  agent = _agent(config)
  known = worker.Shapes.of(
    agent, envs.spec(config.env), config.plan, config.workers
  )
  hello = {"num_envs": config.workers.envs_per_worker}
  return [
    *found,
    Method(reports.REPORT, known.report, hello),
    Method(reports.SERVERS, wire.NOTHING),
  ]


def shards(config: gorila.Config) -> list[list[Method]]:
  """The methods of each parameter server."""
  agent = _agent(config)
  sizes = parameter_server.parts(
    parameter_server.num_params(agent), config.num_servers
  )
  found = []
  for part in sizes:
    size = part.stop - part.start
    vector, _ = parameter_server.layouts(size)
    state = parameter_server.state_layout(
      parameter_server.state_form(agent, size)
    )
    found.append(
      [
        Method(parameter_server.PUSH, vector),
        Method(parameter_server.START, vector),
        Method(parameter_server.TARGET, wire.NOTHING),
        Method(parameter_server.SAVE, wire.NOTHING),
        Method(parameter_server.RESTORE, state),
      ]
    )
  return found


class Peers:
  """Streams of hostile peers, one after the other.

  Attributes:
    statuses: how many streams ended how.
    violations: what a server must not have done.
  """

  def __init__(self, seed: int) -> None:
    """Has made no stream yet."""
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

  def attack(self, address: str, known: Sequence[Method]) -> None:
    """Opens one stream, of any kind, to any of the methods."""
    kind, method = self._rng.choice(self._kinds), self._rng.choice(known)
    status = kind(address, method)
    name = "none" if status is None else status.name
    self.statuses[name] += 1
    if status is not None and status not in _CLEAN:
      words = f"{kind.__name__} of {method.name} ended with {name}"
      self.violations.append(f"a stream {words}")

  def _mutated(self, address: str, method: Method) -> grpc.StatusCode:
    """A message with some bytes that are others, more, or missing."""
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
    """A message that follows its layout, of any bytes."""

    def fill(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
      text = self._rng.randbytes(math.prod(shape) * dtype.itemsize)
      return np.frombuffer(text, dtype).reshape(shape)

    text = method.inputs.encode(self._nest(method, fill))
    return self._call(address, method, [text])

  def _extreme(self, address: str, method: Method) -> grpc.StatusCode:
    """A message that follows its layout, of the same number everywhere."""
    number = self._rng.choice((np.nan, np.inf, -1.0, 3e38))

    def fill(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
      if dtype.kind == "f":
        return np.full(shape, number, dtype)
      if dtype == np.bool_:
        return np.ones(shape, dtype)
      most = np.iinfo(dtype).max if number != -1.0 else np.iinfo(dtype).min
      return np.full(shape, most, dtype)

    text = method.inputs.encode(self._nest(method, fill))
    return self._call(address, method, [text])

  def _lie(self, address: str, method: Method) -> grpc.StatusCode:
    """An actor's first step, as an honest one sends it, then a lie."""
    if method.name != protocol.ACT:
      return self._extreme(address, method)
    first = self._nest(method, _zeros)
    first.index[:] = np.arange(len(first.index))
    first.timestep.discount[:] = 1.0
    first.episode_return[:] = np.nan
    for lease in first.timestep.observation["lease"]:
      lease[0] = self._rng.randrange(1, 2**31)
    lie = tree.map_structure(np.copy, first)
    lie.timestep.observation["lease"][:, 1] = 1
    lie.timestep.step_type[:] = self._rng.randrange(256)
    lie.timestep.reward[:] = np.nan
    encode = method.inputs.encode
    return self._call(address, method, [encode(first), encode(lie)])

  def _handshake(self, address: str, method: Method) -> grpc.StatusCode:
    """Metadata that is no JSON, or another one than is expected."""
    fits = {**method.inputs.to_json(), "hello": dict(method.hello)}
    bad: Any = (None, -1, {"num_envs": -1}, [[]], "x" * 1000, 1e308, {"": {}})
    kind = self._rng.randrange(4)
    if kind == 0:
      text = self._rng.randbytes(self._rng.randrange(200))
    elif kind == 1:
      text = b"[" * 20_000
    else:
      fits[self._rng.choice([*fits])] = self._rng.choice(bad)
      text = json.dumps(fits).encode()
    return self._call(address, method, [], metadata=text)

  def _idle(self, address: str, method: Method) -> grpc.StatusCode:
    """A stream that is opened well, says nothing, and holds what it got."""
    return self._call(address, method, None)

  def _no_http(self, address: str, method: Method) -> None:
    """Bytes that are not even HTTP."""
    del method
    unix = address.startswith("unix:")
    where: Any = address.removeprefix("unix:")
    if not unix:
      host, _, port = address.rpartition(":")
      where = (host, int(port))
    family = socket.AF_UNIX if unix else socket.AF_INET
    with socket.socket(family) as peer, contextlib.suppress(OSError):
      peer.settimeout(_IDLE_SECONDS)
      peer.connect(where)
      peer.sendall(self._rng.randbytes(500))
      peer.recv(1)

  def _nest(
    self,
    method: Method,
    fill: Callable[[Sequence[int], np.dtype], np.ndarray],
  ) -> types.Tree:
    """A nest that follows a layout, with arrays that are made so."""
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
    """Sends messages, or is silent for a while; returns how the stream ends."""
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
  layout = unroll_store.Layout.of(agent, config.learner.unroll_length, rows)
  programs = local_actor.Programs(agent, envs.spec(config.env), layout)
  inputs = unroll_messages.experience_layout(programs.share(), rows)
  return [
    Method(unroll_messages.EXPERIENCE, inputs, {"num_envs": rows}),
    Method(unroll_messages.PARAMETERS, wire.NOTHING),
  ]


def _agent(config: Any) -> Any:
  return config.agent.make(envs.spec(config.env), None, config.plan.horizon)


def _zeros(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
  return np.zeros(shape, dtype)
