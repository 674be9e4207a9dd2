"""Measures the wire, the prioritized replay and matrix products, each work.

  python -m benchmarks.components --seconds 5
  python -m benchmarks.components --streams 1,16,128,512,1024
  python -m benchmarks.components --products "impala,ppo --hidden-sizes 64"

The wire carries what thin actors send: rows of CartPole, and of Atari's Pong
with four frames. A server in a process of its own replies with actions. With
`--streams`, it measures many clients that wait for replies at the same time;
with `--products`, what learning would cost at the speed of a large matrix
product.
"""

import argparse
import contextlib
import functools
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import matrix_products
from seedx import envs, replay, trees, types, wire
from seedx.acting import local_actor, protocol, unroll_store
from seedx.agents import acting_step
from seedx.app import devices
from seedx.app.benchmark import figures, work
from seedx.app.benchmark.figures import Figure
from seedx.app.studies import trials
from seedx.on_cpu import random_keys
from seedx.wire import server as server_lib

# The environments of the messages, and the rows of each.
_MESSAGES = (
  (envs.Config("CartPole-v1"), 1024),
  (envs.Config("Pong-v5", {"stack_num": 4}), 64),
)
_STREAM_ROWS = 16
_REPLAY_STEPS, _REPLAY_BATCH = 2**20, 512
_START_SECONDS = 60.0
# By component and figure, in seconds.
Costs = dict[tuple[str, str], float]


def main(argv: Sequence[str] | None = None) -> int:
  """Measures what is asked for; without options the wire and the replay."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--seconds", type=float, default=5.0)
  parser.add_argument("--streams", default="", help="numbers of clients, A,B")
  parser.add_argument("--products", default="", help="experiments, A,B")
  parser.add_argument("--output", default="components.jsonl")
  options = parser.parse_args(argv)
  found = figures.Figures(options.output)
  for number in map(int, filter(None, options.streams.split(","))):
    seconds, rate = work.in_process(streams, number, options.seconds)
    connected = Figure("to connect all", "s", seconds)
    replies = Figure("replies", "messages/s", rate)
    found.add(f"wire, {number} streams", [connected, replies])
  if options.products:
    for words in trials.experiments_of(options.products.split(",")):
      share = work.in_process(
        matrix_products.of_learning, words, options.seconds
      )
      name = "learning at the speed of a matrix product"
      found.add(words, [Figure(name, "", share)])
  if not options.streams and not options.products:
    for measure in (wire_alone, replay_alone):
      costs = work.in_process(_with_a_server, measure, options.seconds)
      for (of, figure), cost in costs.items():
        found.add(of, [Figure(figure, "us", 1e6 * cost)])
  print(found.table())
  return 0


def _with_a_server(measure: Callable[[float], Costs], seconds: float) -> Costs:
  """Measures with the settings of a program that has a server."""
  devices.compute_on_own_threads()
  return measure(seconds)


def wire_alone(seconds: float) -> Costs:
  """The seconds that messages of thin actors take.

  Args:
    seconds: to measure for, altogether.

  Returns:
    CPU seconds to encode and decode each; and seconds until a reply, the median
    and the 99th percentile.
  """
  found: Costs = {}
  for env, num_rows in _MESSAGES:
    name = f"wire, {num_rows} rows of {env.env}"
    spec = envs.spec(env)
    inputs, outputs = protocol.act_layouts(spec, num_rows)
    rows = _rows(spec, num_rows)

    share = seconds / (2 * len(_MESSAGES))
    found[name, "encode and decode"] = work.cpu_seconds_per_call(
      functools.partial(_coded, inputs, rows), share
    )
    with _echo(env, num_rows, 1) as address, wire.Client(address) as client:
      exchange = client.exchange(protocol.ACT, inputs, outputs)
      times = _times(functools.partial(exchange, rows), share)
      exchange.close()
    found[name, "reply, median"] = statistics.median(times)
    found[name, "reply, 99th percentile"] = float(np.quantile(times, 0.99))
  return found


def replay_alone(seconds: float) -> Costs:
  """The seconds that a prioritized replay of 2^20 steps takes.

  Args:
    seconds: to measure for, altogether.

  Returns:
    Seconds to add 512 steps of CartPole, to sample 512 windows, to write their
    new priorities, and for all three.
  """
  config = work.config_of("apex_dqn", "CartPole-v1")
  agent = config.plan.agent(config.agent, envs.spec(config.env))
  period, window = config.learner.unroll_length, agent.needs.window
  assert window is not None
  layout = unroll_store.Layout.of(agent, period, _REPLAY_BATCH // period)
  shapes = local_actor.Programs(agent, envs.spec(config.env), layout).share()
  share = jax.device_put(work.made_up(shapes))
  own = replay.Prioritized(_REPLAY_STEPS // period, window)
  add = jax.jit(own.add, donate_argnums=0)
  sample = jax.jit(own.sample, static_argnums=2)
  update = jax.jit(own.update, donate_argnums=0)
  new = jax.random.uniform(jax.random.key(1), (_REPLAY_BATCH,))
  # As `replayed.CoreReplay` draws.
  keys = jax.random.split(random_keys.unrolled(jax.random.key(0)))
  state, step = own.init(share), 0
  for _ in range(_REPLAY_STEPS // _REPLAY_BATCH):
    state = add(state, share)
  times: dict[str, list[float]] = {"add": [], "sample": [], "update": []}

  def timed(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    start_seconds = time.monotonic()
    result = jax.block_until_ready(function(*arguments))
    times[name].append(time.monotonic() - start_seconds)
    return result

  end_seconds = time.monotonic() + seconds
  while step < _LEAST or time.monotonic() < end_seconds:
    state = timed("add", add, state, share)
    drawn = timed("sample", sample, state, keys[step % 2], _REPLAY_BATCH)
    state = timed("update", update, state, drawn[1], new)
    step += 1
  name = f"prioritized replay of {_REPLAY_STEPS} steps, {_REPLAY_BATCH} a time"
  found = {k: statistics.median(x) for k, x in times.items()}
  found["add, sample and update"] = sum(found.values())
  return {(name, figure): cost for figure, cost in found.items()}


# Calls, of which the first compile.
_LEAST = 20


def streams(number: int, seconds: float) -> tuple[float, float]:
  """What a server carries for many clients that send at the same time.

  Args:
    number: of streams, each of which has one message on its way.
    seconds: to measure for.

  Returns:
    Seconds to open all of them, and messages per second.
  """
  env, _ = _MESSAGES[0]
  spec = envs.spec(env)
  layouts = protocol.act_layouts(spec, _STREAM_ROWS)
  rows = _rows(spec, _STREAM_ROWS)
  with contextlib.ExitStack() as opened:
    address = opened.enter_context(_echo(env, _STREAM_ROWS, number))
    start_seconds, exchanges = time.monotonic(), []
    for _ in range(number):
      client = opened.enter_context(wire.Client(address))
      exchanges.append(client.exchange(protocol.ACT, *layouts))
      opened.callback(exchanges[-1].close)
    connect_seconds = time.monotonic() - start_seconds

    def all_once() -> None:
      for exchange in exchanges:
        exchange.send(rows)
      for exchange in exchanges:
        exchange.receive()

    times = _times(all_once, seconds)
  return connect_seconds, number * len(times) / sum(times)


def _coded(layout: wire.Layout, rows: types.Rows) -> types.Tree:
  return layout.decode(layout.encode(rows))


def _times(call: Callable[[], Any], seconds: float) -> list[float]:
  """The seconds of each call, for so many seconds, after the first."""
  call()
  found: list[float] = []
  end_seconds = time.monotonic() + seconds
  while not found or time.monotonic() < end_seconds:
    start_seconds = time.monotonic()
    call()
    found.append(time.monotonic() - start_seconds)
  return found


def _rows(spec: types.EnvironmentSpec, num_rows: int) -> types.Rows:
  return types.Rows(
    index=np.arange(num_rows, dtype=np.int32),
    timestep=acting_step.zero_inputs(spec, num_rows).timestep,
    episode_return=np.full(num_rows, np.nan, np.float32),
  )


@contextlib.contextmanager
def _echo(env: envs.Config, num_rows: int, max_streams: int) -> Iterator[str]:
  """The address of a server in another process, which replies with actions."""
  context = multiprocessing.get_context("spawn")
  started, stop = context.Event(), context.Event()
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    address = f"unix:{os.path.join(folder, 'echo')}"
    process = context.Process(
      target=_serve,
      args=(address, env, num_rows, max_streams, started, stop),
      daemon=True,
    )
    process.start()
    try:
      if not started.wait(_START_SECONDS):
        raise types.ConfigError(
          f"expected a server within {_START_SECONDS:g} seconds, found none"
        )
      yield address
    finally:
      stop.set()
      process.join()


def _serve(
  address: str,
  env: envs.Config,
  num_rows: int,
  max_streams: int,
  started: threading.Event,
  stop: threading.Event,
) -> None:
  """Serves until told to stop, see `_echo`."""
  spec = envs.spec(env)
  actions = trees.zeros(spec.action, (num_rows,))
  server = server_lib.Server(address, max_streams)
  server.bind_stream(
    protocol.ACT,
    lambda hello: server_lib.FunctionSession(lambda rows: actions),
    *protocol.act_layouts(spec, num_rows),
  )
  with server:
    started.set()
    stop.wait()


if __name__ == "__main__":
  sys.exit(main())
