"""Measures the wire, the prioritized replay and matrix products, each alone.

  python -m benchmarks.components --seconds 5
  python -m benchmarks.components --streams 1,16,128,512,1024
  python -m benchmarks.components --products "impala,ppo --hidden-sizes 64"

The messages are those of thin actors: rows of CartPole, and of Atari's Pong
with four stacked frames. A server in a process of its own replies with actions.
`--streams` measures many clients that send at the same time. `--products`
measures the share of learning's CPU time that its matrix products would need at
the speed of one large product.
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

import numpy as np

from benchmarks import matrix_products
from benchmarks.peers import replays
from seedx import envs, trees, types, wire
from seedx.acting import protocol
from seedx.agents import acting_step
from seedx.app import devices
from seedx.app.benchmark import figures, work
from seedx.app.benchmark.figures import Figure
from seedx.app.studies import trials
from seedx.wire import server as server_lib

# For each kind of message: its environment, and its number of rows.
_MESSAGES = (
  (envs.Config("CartPole-v1"), 1024),
  (envs.Config("Pong-v5", {"stack_num": 4}), 64),
)
_STREAM_ROWS = 16
_REPLAY_STEPS = 2**20
_START_SECONDS = 60.0
# Seconds by component and figure.
Costs = dict[tuple[str, str], float]


def main(argv: Sequence[str] | None = None) -> int:
  """Measures what the options name; by default the wire and the replay."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--seconds", type=float, default=5.0)
  parser.add_argument("--streams", default="", help="numbers of clients, A,B")
  parser.add_argument("--products", default="", help="experiments, A,B")
  parser.add_argument("--output", default="components.jsonl")
  options = parser.parse_args(argv)
  results = figures.Figures(options.output)
  for number in map(int, filter(None, options.streams.split(","))):
    seconds, rate = work.in_process(streams, number, options.seconds)
    connected = Figure("to connect all", "s", seconds)
    replies = Figure("replies", "messages/s", rate)
    results.add(f"wire, {number} streams", [connected, replies])
  if options.products:
    for words in trials.experiments_of(options.products.split(",")):
      share = work.in_process(
        matrix_products.of_learning, words, options.seconds
      )
      name = "learning at the speed of a matrix product"
      results.add(words, [Figure(name, "", share)])
  if not options.streams and not options.products:
    for measure in (wire_alone, replay_alone):
      costs = work.in_process(_with_a_server, measure, options.seconds)
      for (of, figure), cost in costs.items():
        results.add(of, [Figure(figure, "us", 1e6 * cost)])
  print(results.table())
  return 0


def _with_a_server(measure: Callable[[float], Costs], seconds: float) -> Costs:
  """Measures with the settings of a program that has a server."""
  devices.compute_on_own_threads()
  return measure(seconds)


def wire_alone(seconds: float) -> Costs:
  """Measures messages of thin actors for some seconds in total.

  Returns:
    CPU seconds to encode and decode a message; and the median and the 99th
    percentile of the seconds until a reply.
  """
  costs: Costs = {}
  for env, num_rows in _MESSAGES:
    name = f"wire, {num_rows} rows of {env.env}"
    spec = envs.spec(env)
    inputs, outputs = protocol.act_layouts(spec, num_rows)
    rows = _rows(spec, num_rows)

    share = seconds / (2 * len(_MESSAGES))
    costs[name, "encode and decode"] = work.cpu_seconds_per_call(
      functools.partial(_coded, inputs, rows), share
    )
    with _echo(env, num_rows, 1) as address, wire.Client(address) as client:
      exchange = client.exchange(protocol.ACT, inputs, outputs)
      times = _times(functools.partial(exchange, rows), share)
      exchange.close()
    costs[name, "reply, median"] = statistics.median(times)
    costs[name, "reply, 99th percentile"] = float(np.quantile(times, 0.99))
  return costs


def replay_alone(seconds: float) -> Costs:
  """Measures a prioritized replay of 2^20 steps for some seconds.

  Returns:
    Seconds to add 512 steps of CartPole, to sample 512 windows, to write their
    new priorities, and for all three.
  """
  memory = replays.of_seedx(_REPLAY_STEPS, is_prioritized=True)
  fill = _REPLAY_STEPS // replays.BATCH
  costs = replays.measure(memory, fill, seconds, clock=time.monotonic)
  costs["add, sample and update"] = costs.pop("all")
  name = f"prioritized replay of {_REPLAY_STEPS} steps, {replays.BATCH} a time"
  return {(name, figure): cost for figure, cost in costs.items()}


def streams(number: int, seconds: float) -> tuple[float, float]:
  """Measures a server whose clients all send one message at the same time.

  Args:
    number: number of streams.
    seconds: seconds to measure.

  Returns:
    Seconds to open all streams, and messages per second.
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
  """Repeats a call for some seconds; returns the times of all but the first."""
  call()
  times: list[float] = []
  end_seconds = time.monotonic() + seconds
  while not times or time.monotonic() < end_seconds:
    start_seconds = time.monotonic()
    call()
    times.append(time.monotonic() - start_seconds)
  return times


def _rows(spec: types.EnvironmentSpec, num_rows: int) -> types.Rows:
  return types.Rows(
    index=np.arange(num_rows, dtype=np.int32),
    timestep=acting_step.zero_inputs(spec, num_rows).timestep,
    episode_return=np.full(num_rows, np.nan, np.float32),
  )


@contextlib.contextmanager
def _echo(env: envs.Config, num_rows: int, max_streams: int) -> Iterator[str]:
  """Serves actions in another process; yields the server's address."""
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
          f"the server did not start within {_START_SECONDS:g} seconds"
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
