"""Mutated frames and handshakes for every method of the pipelines.

  python -m tests.fuzz [COUNT]

serves the methods of seed, impala, gorila and join, with devices and learners
that do nothing. The program sends COUNT (default: a million) streams with one
mutated frame or handshake each, while a healthy actor is served. An error is
raised unless every stream ends with a clean status, nothing is logged, and
threads, open files and memory do not grow. Most streams are served in this
process without gRPC; one in `PER_SOCKET` comes over a socket.
"""

import collections
import dataclasses
import gc
import itertools
import json
import logging
import os
import random
import struct
import sys
import tempfile
import threading

import dm_env
import grpc
import jax.numpy as jnp
import numpy as np
import tree

from seedx import envs, replay, types, wire
from seedx.acting import (
  inference,
  local_actor,
  protocol,
  sessions,
  thin_actor,
  unroll_messages,
  unroll_server,
  unroll_store,
)
from seedx.agents import base, dqn
from seedx.launch import admission, joining, topology
from seedx.pipelines.gorila import parameter_server, reports
from seedx.runtime import counters, seeding
from seedx.wire import calls, serving
from tests import fakes
from tests.acting import devices

Code = wire.StatusCode
CLEAN = {
  Code.OK,
  Code.INVALID_ARGUMENT,
  Code.FAILED_PRECONDITION,
  Code.RESOURCE_EXHAUSTED,
  Code.UNAVAILABLE,
  Code.UNIMPLEMENTED,
}
CARTPOLE = envs.Config("CartPole-v1")
ENVS, PERIOD, SIZE = 4, 3, 16
PER_SOCKET = 50


@dataclasses.dataclass
class Method:
  """A method, with the hello and the messages of a well-behaved client."""

  name: str
  inputs: wire.Layout
  hello: dict
  messages: list  # Frames in order.


def rows_of(num_envs, step_type=0):
  """Returns rows of a thin actor with CartPoles."""
  number = np.ones(num_envs, np.float32)
  timestep = dm_env.TimeStep(
    np.full(num_envs, step_type, np.uint8),
    number,
    number,
    np.zeros((num_envs, 4), np.float32),
  )
  return types.Rows(np.arange(num_envs, dtype=np.int32), timestep, number)


def zeros_of(layout, rows):
  """Returns a message of zeros."""
  arrays = [
    np.zeros(x.shape if x.once else (rows, *x.shape), x.dtype)
    for x in layout.columns
  ]
  return tree.map_structure(lambda k: arrays[k], layout.structure)


def bound(server):
  """Binds and returns all methods."""
  spec, agent = envs.spec(CARTPOLE), dqn.Config().make(envs.spec(CARTPOLE))
  actors = thin_actor.Config(num_actors=64, envs_per_actor=ENVS)
  sizes = inference.Config().sizes(agent, actors, PERIOD, share_size=4)
  act = devices.Served(sizes)
  act.server.bind(server)
  layouts = act.layouts
  hello = {"num_envs": ENVS}
  rows = [rows_of(ENVS, k) for k in (0, 1, 2)]
  methods = [Method(protocol.ACT, layouts[0], hello, rows)]

  fake = fakes.counting_agent()
  layout = unroll_store.Layout.of(fake, PERIOD, 4)
  programs = local_actor.Programs(fake, spec, layout)
  unrolls = unroll_server.UnrollServer(
    programs,
    protocol.Actors(256 // ENVS, ENVS),
    counters.ActingCounts(),
    seeding.Seeds(0),
    CARTPOLE,
    newest=lambda: (jnp.float32(0), 7),
    sink=lambda share: True,
  )
  unrolls.bind(server)
  inputs = unroll_messages.experience_layout(programs.share(), ENVS)
  hello = {"num_envs": ENVS}
  message = zeros_of(inputs, ENVS)
  message.unroll.inputs.timestep.step_type[:] = [0, 1, 2, 0]
  methods += [
    Method(unroll_messages.EXPERIENCE, inputs, hello, [message, message]),
    Method(unroll_messages.PARAMETERS, wire.NOTHING, {}, [()]),
  ]

  exploration = np.zeros(256, np.float32)
  connected = sessions.Sessions(
    exploration, counters.ActingCounts(), seeding.Seeds(0), CARTPOLE
  )
  reported = reports.Reports(
    connected,
    lambda: True,
    replay.Config(),
    base.Needs(4),
  )
  inputs = reports.layout(layout.length, ENVS, ["loss", "q_mean"])
  reported.bind(server, inputs, admission.Addresses(1, ["unix:/server"]))
  shard = parameter_server.Shard(fakes.adding_agent(), 10)
  shard.bind(server, SIZE)
  vector, _ = parameter_server.layouts(SIZE)
  state = parameter_server.state_layout(
    parameter_server.state_form(fakes.adding_agent(), SIZE)
  )
  methods += [
    Method(reports.REPORT, inputs, hello, [zeros_of(inputs, ENVS)]),
    Method(reports.SERVERS, wire.NOTHING, {}, [()]),
    *(
      Method(name, layout, {}, [zeros_of(layout, 1)])
      for name, layout in (
        (parameter_server.START, vector),
        (parameter_server.PUSH, vector),
        (parameter_server.TARGET, wire.NOTHING),
        (parameter_server.SAVE, wire.NOTHING),
        (parameter_server.RESTORE, state),
      )
    ),
  ]
  roles = [topology.Node("actor", run=print, config=None, count=64)]
  admission.Roles(roles, "ppo", {"seed": 3}, {}).bind(server)
  asked = dataclasses.asdict(joining.Hello(role="actor"))
  methods.append(Method(joining.JOIN, wire.NOTHING, asked, [()]))
  for method in methods:
    method.messages = [method.inputs.encode(x) for x in method.messages]
  return methods


# Mutations

NUMBERS = [0, 1, -1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, -(2**31)]
FLOATS = [float("nan"), float("inf"), -float("inf"), 3e38, -1e-30, 0.5]
ODD = [None, True, -1, 0, 2**40, 1e300, "", "\ud800", "x" * 999, [], {}, [[0]]]


def mutated(rng, frame):
  """Returns a frame with random changes."""
  data = bytearray(frame)
  for _ in range(rng.choice((1, 1, 2, 8))):
    kind, at = rng.randrange(8), rng.randrange(len(data) + 1)
    if kind == 0:
      data[at : at + 1] = bytes([rng.randrange(256)])
    elif kind == 1:
      del data[at : at + rng.randrange(1, 40)]
    elif kind == 2:
      data[at:at] = rng.randbytes(rng.randrange(1, 40))
    elif kind == 3:
      del data[rng.randrange(17) :]
      data += frame[len(data) :]
    elif len(data) >= 20:
      # The body is changed more often than the header.
      at = rng.choice((4, 8, 12, *[16] * 5)) if at < 16 or kind < 5 else at & ~3
      at = min(at, len(data) - 4)
      number = rng.choice(NUMBERS) & 0xFFFFFFFF
      word = rng.choice(
        (struct.pack("<I", number), struct.pack("<f", rng.choice(FLOATS)))
      )
      data[at : at + 4] = word
  return bytes(data)


def odd(rng, value):
  """Returns a JSON value in which one value is odd or missing."""
  if isinstance(value, dict) and value and rng.random() < 0.8:
    key = rng.choice(list(value))
    if rng.random() < 0.1:
      return {name: x for name, x in value.items() if name != key}
    return {**value, key: odd(rng, value[key])}
  if isinstance(value, list) and value and rng.random() < 0.8:
    k = rng.randrange(len(value))
    return [*value[:k], odd(rng, value[k]), *value[k + 1 :]]
  return rng.choice(ODD)


def nested(rng):
  """Returns deeply nested JSON, sometimes without its end."""
  depth = rng.choice((10, 33, 300, 900, 2_000, 50_000))
  opening, closing = rng.choice(((b"[", b"]"), (b'{"hello":', b"}")))
  return opening * depth + b"1" + closing * (depth * rng.randrange(2))


def handshake(rng, method):
  """Returns a mutated handshake."""
  valid = {**method.inputs.to_json(), "hello": method.hello}
  kind = rng.randrange(6)
  if kind == 0:
    return nested(rng)
  if kind == 1:
    return mutated(rng, json.dumps(valid).encode())
  if kind == 2:
    hello = nested(rng).decode()
    text = json.dumps({**valid, "hello": 0})
    return text.replace('"hello": 0', f'"hello": {hello}').encode()
  if kind == 3:
    return rng.randbytes(rng.randrange(50))
  return json.dumps(odd(rng, valid)).encode()


def stream_of(rng, method):
  """Returns a stream's handshake and frames, one of which is mutated."""
  if rng.random() < 0.3:
    return handshake(rng, method), method.messages
  valid = {**method.inputs.to_json(), "hello": method.hello}
  valid_frames = method.messages[: rng.randrange(len(method.messages) + 1)]
  frames = [*valid_frames, mutated(rng, rng.choice(method.messages))]
  return json.dumps(valid).encode(), frames


# Sending


class _Context:
  """The part of `grpc.ServicerContext` that the server uses."""

  def __init__(self, text):
    self._metadata = ((calls.METADATA_KEY, text),)

  def invocation_metadata(self):
    return self._metadata

  def peer(self):
    return "ipv4:192.0.2.1:1"

  def add_callback(self, callback):
    return True

  def send_initial_metadata(self, metadata):
    pass


def send_here(server, method, text, frames):
  """Serves a stream without gRPC; returns its status."""
  context = _Context(text)
  stream = serving._Stream(
    server._methods[method.name], context, threading.Event(), None
  )
  try:
    for _ in stream.serve(iter(frames)):
      pass
  except wire.Refusal as refused:
    refused.message.encode()
    return refused.code
  return Code.OK


def send_over(channel, method, text, frames):
  """Sends a stream to a server; returns its status."""
  call = channel.stream_stream(calls.PATH_PREFIX + method.name)(
    iter(frames), metadata=((calls.METADATA_KEY, text),), timeout=600
  )
  try:
    for _ in call:
      pass
  except grpc.RpcError:
    pass
  return call.code()


class Healthy(threading.Thread):
  """A thread of a healthy actor, which counts its messages."""

  def __init__(self, address, num_envs):
    super().__init__(daemon=True)
    self.count, self.stop, self.failure = 0, threading.Event(), None
    self._address, self._num_envs = address, num_envs

  def run(self):
    layouts = protocol.act_layouts(envs.spec(CARTPOLE), self._num_envs)
    try:
      with wire.Client(self._address) as client:
        exchange = client.exchange(
          protocol.ACT, *layouts, {"num_envs": self._num_envs}
        )
        for k in itertools.count():
          if self.stop.is_set():
            return
          exchange(rows_of(self._num_envs, min(k, 1)))
          self.count += 1
    except Exception as failure:
      self.failure = failure


def resources():
  """Returns the numbers of threads, open files and resident MiB."""
  gc.collect()
  with open("/proc/self/statm") as file:
    pages = int(file.read().split()[1])
  resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
  files = len(os.listdir("/proc/self/fd"))
  return threading.active_count(), files, resident


def run(count):
  """Sends mutated streams; returns the number of streams by status.

  Raises:
    AssertionError: a stream ended with another status, something was logged or
      leaked, or the healthy actor was not served.
  """
  rng, statuses = random.Random(0), collections.Counter()
  logged, handler = [], logging.Handler(logging.WARNING)
  handler.emit = logged.append
  logging.getLogger().addHandler(handler)
  with tempfile.TemporaryDirectory() as folder:
    server = serving.Server(f"unix:{folder}/server", 64)
    methods = bound(server)
    with server:
      healthy = Healthy(server.address, ENVS)
      healthy.start()
      before = None
      for sent in range(count):
        method = rng.choice(methods)
        text, frames = stream_of(rng, method)
        if rng.randrange(PER_SOCKET):
          statuses[send_here(server, method, text, frames)] += 1
        else:  # The number of refused calls on a connection is limited.
          with grpc.insecure_channel(server.address) as channel:
            statuses[send_over(channel, method, text, frames)] += 1
        if before is None and sent >= count / 5:
          before, served = resources(), healthy.count
      after = resources()
      served = healthy.count - served
      healthy.stop.set()
      healthy.join(300)
  logging.getLogger().removeHandler(handler)
  unclean = {code.name: n for code, n in statuses.items() if code not in CLEAN}
  assert not unclean and not logged, (unclean, logged[:1])
  assert healthy.failure is None, healthy.failure
  assert served > 0
  assert after[0] <= before[0] + 4, (before, after)
  assert after[1] <= before[1] + 4, (before, after)
  assert after[2] <= before[2] + 8.0, (before, after)
  return {code.name: n for code, n in statuses.items()}


if __name__ == "__main__":
  print(run(int(sys.argv[1]) if sys.argv[1:] else 1_000_000))
