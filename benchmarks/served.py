"""Servers that `benchmarks.scale` measures, each in its own process."""

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import actors
from seedx import metrics, types
from seedx.acting import (
  inference,
  inference_server,
  parameters,
  protocol,
  thin_actor,
)
from seedx.agents import base, dqn, vtrace
from seedx.app import compiled, devices
from seedx.on_cpu import allocator
from seedx.pipelines.gorila import parameter_server
from seedx.runtime import counters, seeding
from seedx.wire import relay, serving

_START_SECONDS = 600.0
_UNROLL_LENGTH = 20
_WAIT = metrics.WAIT_ENVIRONMENTS


class Load(NamedTuple):
  """The load of a server over some seconds.

  Attributes:
    seconds: seconds measured.
    messages: number of messages answered.
    cpu_seconds: CPU seconds of the process.
    threads: number of threads of the process.
    memory_mb: resident memory of the process in MB.
  """

  seconds: float
  messages: float
  cpu_seconds: float
  threads: int
  memory_mb: float


class Process:
  """A server in a process of its own."""

  def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
    """Starts `target(connection, *arguments)` in a new process."""
    context = multiprocessing.get_context("spawn")
    self._here, there = context.Pipe()
    self._process = context.Process(
      target=target, args=(there, *arguments), daemon=True
    )
    self._process.start()
    there.close()

  def receive(self) -> Any:
    """Returns the next answer.

    Raises:
      RuntimeError: the process has ended, or does not answer.
    """
    if not self._here.poll(_START_SECONDS):
      raise RuntimeError("the server does not answer")
    try:
      return self._here.recv()
    except EOFError:
      raise RuntimeError("the server has ended") from None

  def ask(self, question: Any) -> Any:
    """Sends a question, and returns the next answer."""
    self._here.send(question)
    return self.receive()

  def kill(self) -> None:
    """Kills the process."""
    self._process.kill()
    self._process.join()

  def __enter__(self) -> "Process":
    return self

  def __exit__(self, *_: object) -> None:
    self.kill()


def act(
  asked: connection.Connection,
  number: int,
  rows: int,
  kind: str,
) -> None:
  """Serves thin actors by central inference, and drops their unrolls.

  Sends "ready" once the programs are compiled. The first question is the
  address to listen at; the answer is the address with the actual port. Each
  further question is a number of seconds; the answer is their `Load`.
  """
  _prepare()
  spec = actors.spec(kind)
  # A linear function replaces the accelerator that would act on frames.
  hidden_sizes = (64, 64) if kind == actors.NUMBERS else ()
  agent = vtrace.Config(hidden_sizes=hidden_sizes).make(
    spec, None, base.Horizon.of(10**9, 1)
  )
  acting_devices = devices_of(
    agent, spec, number, rows, counters.ActingCounts()
  )
  for thread in acting_devices.threads.values():
    threading.Thread(target=thread, daemon=True).start()
  while not acting_devices.measure()[_WAIT]:  # It is compiling.
    time.sleep(0.05)
  asked.send("ready")
  server = serving.Server(asked.recv(), number)
  seeds = seeding.Seeds(0)
  inference_server.InferenceServer(
    acting_devices, seeds, counters.ActingCounts()
  ).bind(server)
  server.start()
  asked.send(server.address)
  inputs, outputs = protocol.act_layouts(spec, rows)
  message_bytes = inputs.message_bytes(rows) + outputs.message_bytes(rows)
  for seconds in _questions(asked):
    asked.send(_load(server, message_bytes, seconds))


def devices_of(
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  number: int,
  rows: int,
  acted: counters.ActingCounts,
) -> inference.Devices:
  """Returns one inference device, whose parameters stay the same.

  Args:
    agent: the agent that acts.
    spec: specification of the environments.
    number: number of actors.
    rows: number of environments of each actor.
    acted: counters of their steps.
  """
  acting = jax.jit(lambda key: agent.acting(agent.init(key)))(jax.random.key(0))
  return inference.Devices(
    inference.Config(),
    agent,
    spec,
    thin_actor.Config(num_actors=number, envs_per_actor=rows),
    acted,
    returns_are_sums=True,
    period=_UNROLL_LENGTH,
    share_size=max(1, number * rows // 2),
    newest=lambda device: (acting, 0),
    sink=lambda share: True,
    waiting=lambda device: contextlib.nullcontext(),
    rng_key=jax.random.key(1),
  )


def serve_parameters(
  asked: connection.Connection, address: str, units: int
) -> None:
  """Serves the parameters of a learner, and a shard of a parameter server.

  Each fetch finds a new version. The first message is the server's address. The
  answer to any question is the CPU seconds of this process.
  """
  _prepare()
  agent, acting, params = agent_of(units)
  server = serving.Server(address, 4)
  versions = itertools.count()
  parameters.Source(lambda: (acting, next(versions))).bind(server)
  shard = parameter_server.Shard(agent, max_staleness=100)
  shard.bind(server, len(params))
  server.start()
  asked.send(server.address)
  for _ in _questions(asked):
    asked.send(time.process_time())


def relay_calls(
  asked: connection.Connection, address: str, path: str, number: int
) -> None:
  """Relays the calls of up to `number` actors, which connect to `unix:path`.

  Sends "ready" when it relays. The answer to any question is the CPU seconds of
  this process.
  """
  work = relay.Config(address, path, number), threading.Event()
  threading.Thread(target=relay.run, args=work, daemon=True).start()
  while not os.path.exists(path):
    time.sleep(0.01)
  asked.send("ready")
  for _ in _questions(asked):
    asked.send(time.process_time())


def agent_of(units: int) -> tuple[base.Agent, types.Tree, np.ndarray]:
  """Returns a DQN, its acting parameters, and its parameters as a vector.

  Its initial parameters are constant: the decomposition that makes orthogonal
  weights would take a minute for 10 million parameters.
  """
  agent = dqn.Config(hidden_sizes=(units, units)).make(
    actors.spec(actors.NUMBERS), None, base.Horizon.of(10**9, 1)
  )
  shapes = jax.eval_shape(agent.init, jax.random.key(0))

  def constant(rng_key: jax.Array) -> base.AgentState:
    del rng_key
    return jax.tree.map(
      lambda x: jax.numpy.full(x.shape, 0.01).astype(x.dtype), shapes
    )

  agent = dataclasses.replace(agent, init=constant)
  state = jax.jit(agent.init)(jax.random.key(0))
  vector, _ = jax.flatten_util.ravel_pytree(state.params)
  return agent, jax.jit(agent.acting)(state), np.asarray(vector)


def _prepare() -> None:
  """Configures this process like those of a run."""
  compiled.keep()
  allocator.keep_freed_memory()
  devices.compute_on_own_threads()


def _questions(asked: connection.Connection) -> Iterator[Any]:
  with contextlib.suppress(EOFError):
    while True:
      yield asked.recv()


def _load(server: serving.Server, message_bytes: int, seconds: float) -> Load:
  start_seconds, start_cpu = time.monotonic(), time.process_time()
  start_bytes = server.transferred_bytes
  time.sleep(seconds)
  cpu_seconds = time.process_time() - start_cpu
  messages = (server.transferred_bytes - start_bytes) / message_bytes
  elapsed_seconds = time.monotonic() - start_seconds
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
  return Load(
    elapsed_seconds,
    messages,
    cpu_seconds,
    len(os.listdir("/proc/self/task")),
    pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
  )
